"""The mlp on real digits: the main job's program, on 1 and on 4 ranks; options of the step."""

import json
import os
import signal
import time
from pathlib import Path

import jsonschema
import pytest

from hpcdl.results.records import RESULT
from tests.integration.train_runs import Runs

pytestmark = pytest.mark.stack
STEPS = ("--steps=60", "--global-batch=64")


@pytest.fixture(scope="module")
def four_and_one(train_python, digits, tmp_path_factory):
    runs = Runs(train_python, tmp_path_factory.mktemp("runs"), digits)
    words = ("--global-batch=128", "--epochs=20")
    four = runs.learn(*words, "--target-accuracy=0.95", ranks=4, job="four")
    last = four.out.strip().splitlines()[-1]
    assert last.startswith("hpcdl-train: images_per_second=")
    assert "world_size=4" in last
    return four, runs.learn(*words, job="one")


def test_four_ranks_reach_95_percent_and_equal_one_rank(four_and_one):
    four, one = four_and_one
    assert four.metrics["accuracy"] >= 0.95
    assert four.metrics["accuracy"] == pytest.approx(one.metrics["accuracy"], abs=0.003)
    assert four.result["summary"]["loss"] == pytest.approx(one.result["summary"]["loss"], rel=1e-3)
    assert four.metrics["test_images"] == one.metrics["test_images"] == 357
    assert four.losses[:20] == pytest.approx(one.losses[:20], rel=1e-4), "the same examples"


def test_results_keep_their_schema_and_the_phases_fill_the_step(four_and_one):
    for result in (done.result for done in four_and_one):
        jsonschema.validate(result, RESULT.schema)
        samples = result["samples"]
        assert len(samples["seconds"]) == result["steps"]["done"] == 220
        parts = ("input", "compute", "communication", "update", "checkpoint", "other")
        for step in range(0, 220, 10):
            total = sum(samples[part][step] for part in parts)
            assert total == pytest.approx(samples["seconds"][step], rel=0.05, abs=2e-5)


@pytest.mark.parametrize(
    ("number", "code", "status"), [(signal.SIGUSR2, 75, "requeue"), (signal.SIGTERM, 5, "stopped")]
)
def test_a_signal_to_one_rank_writes_a_checkpoint_and_all_leave(runs, number, code, status):
    words = ("--global-batch=64", "--steps=20000", "--checkpoint-every=0")
    process = runs.start("--data", str(runs.digits), *words, ranks=2)
    runs.wait_for("progress.json")
    time.sleep(0.2)
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    os.kill(int(children[-1]), number)
    done = runs.end(process, timeout=30).must(code)
    outcome = done.result["outcome"]
    assert (outcome["status"], outcome["exit_code"]) == (status, code)
    step = done.result["steps"]["done"]
    assert (done.folder / "checkpoints" / f"step-{step:09d}.ckpt").exists()
    assert json.loads((done.folder / "progress.json").read_text())["outcome"]["status"] == status


def test_what_cannot_be_trained_is_refused_and_recorded(runs):
    done = runs.learn("--global-batch=9", ranks=2, code=2, says="--global-batch 8 or 10 can")
    assert done.err.count("cannot be shared equally by 2 ranks") == 1
    done = runs.train("--data=/nowhere", code=2, says="is not a data set")
    assert done.result["outcome"] == {
        "status": "failed",
        "reason": "/nowhere is not a data set: it has no dataset.json",
        "exit_code": 2,
    }
    runs.learn("--image-size=32", code=2, says="the data set's images are 8 x 8, and raw")


def test_a_signal_before_tensorflow_is_there_leaves_a_result(runs):
    process = runs.start("--data", str(runs.digits), "--steps=20000")
    while b"hpcdl" not in Path(f"/proc/{process.pid}/cmdline").read_bytes():
        time.sleep(0.005)
    # Python has begun, and listens after some 50 ms; TensorFlow needs seconds.
    caught = "SigCgt:"
    while not int(
        next(
            line.split()[1]
            for line in Path(f"/proc/{process.pid}/status").read_text().splitlines()
            if line.startswith(caught)
        ),
        16,
    ) & (1 << (signal.SIGTERM - 1)):
        time.sleep(0.005)
    process.send_signal(signal.SIGTERM)
    done = runs.end(process, timeout=60).must(5)
    assert done.result["outcome"]["status"] == "stopped"
    assert "before training began" in done.result["outcome"]["reason"]


def test_a_run_that_ends_in_no_numbers_fails_and_exports_nothing(runs):
    words = ("--steps=1", "--lr=1e38", "--export=out", "--checkpoint-every=0")
    done = runs.learn(*words, code=1, says="not finite numbers")
    assert done.result["outcome"]["status"] == "failed"
    assert not (runs.folder / "out").exists()
    assert not list((done.folder / "checkpoints").glob("*.ckpt"))


@pytest.mark.parametrize(
    "words",
    [
        ("--precision=fp16", "--compress"),
        (
            "--loss=categoricalcrossentropy",
            "--set=loss.label_smoothing=0.1",
            "--lr-schedule=cosine",
            "--set=schedule.warmup_steps=5",
        ),
    ],
    ids=["fp16", "smoothed"],
)
def test_every_option_of_the_step_trains(runs, words):
    found = runs.learn(*STEPS, *words, ranks=2 if "--compress" in words else 1).losses
    assert found[0] == pytest.approx(2.4, abs=0.2)
    assert sum(found[-5:]) / 5 < 1.1
