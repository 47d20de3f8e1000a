"""The mlp on real digits: the main job's program, on 1 and on 4 ranks."""

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from hpcdl.results.records import RESULT
from tests.integration.train_runs import Runs

pytestmark = pytest.mark.stack
Pair = tuple[dict[str, Any], dict[str, Any]]


@pytest.fixture(scope="module")
def four_and_one(train_python, digits, tmp_path_factory) -> Pair:
    runs = Runs(train_python, tmp_path_factory.mktemp("runs"))
    words = ("--data", str(digits), "--global-batch=128", "--epochs=20")
    four = runs.train(*words, "--target-accuracy=0.95", ranks=4, job="four")
    one = runs.train(*words, job="one")
    assert (four.code, one.code) == (0, 0), four.err + one.err
    last = four.out.strip().splitlines()[-1]
    assert last.startswith("hpcdl-train: images_per_second=")
    assert "world_size=4" in last
    return four.result, one.result


def test_four_ranks_reach_95_percent_and_equal_one_rank(four_and_one):
    four, one = (result["summary"] for result in four_and_one)
    assert four["metrics"]["accuracy"] >= 0.95
    assert four["metrics"]["accuracy"] == pytest.approx(one["metrics"]["accuracy"], abs=0.003)
    assert four["loss"] == pytest.approx(one["loss"], rel=1e-3)
    assert four["metrics"]["test_images"] == one["metrics"]["test_images"] == 357


def test_every_step_sees_the_same_examples_on_any_number_of_ranks(four_and_one):
    four, one = (result["samples"]["loss"] for result in four_and_one)
    assert four[:20] == pytest.approx(one[:20], rel=1e-4)


def test_results_keep_their_schema_and_the_phases_fill_the_step(four_and_one):
    for result in four_and_one:
        jsonschema.validate(result, RESULT.schema)
        samples = result["samples"]
        assert len(samples["seconds"]) == result["steps"]["done"] == 220
        parts = ("input", "compute", "communication", "update", "checkpoint", "other")
        for step in range(0, 220, 10):
            total = sum(samples[part][step] for part in parts)
            assert total == pytest.approx(samples["seconds"][step], rel=0.05, abs=2e-5)


def test_a_delay_shows_in_the_throughput(runs, digits):
    words = ("--data", str(digits), "--steps=20", "--global-batch=64")
    slow = runs.train(*words, "--delay-ms=200", job="slow")
    assert 64 / 0.25 < slow.result["summary"]["images_per_second"] < 64 / 0.2


def test_a_missed_target_is_exit_code_1(runs, digits):
    done = runs.train("--data", str(digits), "--steps=1", "--target-accuracy=0.99")
    assert done.code == 1
    assert "is below the target 0.99" in done.out
    assert done.result["outcome"]["status"] == "missed-target"


@pytest.mark.parametrize(
    ("number", "code", "status"), [(signal.SIGUSR2, 75, "requeue"), (signal.SIGTERM, 5, "stopped")]
)
def test_a_signal_to_one_rank_writes_a_checkpoint_and_all_leave(runs, digits, number, code, status):
    words = ("--data", str(digits), "--global-batch=64", "--steps=20000", "--checkpoint-every=0")
    process = runs.start(*words, ranks=2)
    runs.wait_for("progress.json")
    time.sleep(0.2)
    send_to_last_rank(process.pid, number)
    done = runs.end(process, timeout=30)
    result = done.result
    assert result["outcome"]["status"] == status
    assert result["outcome"]["exit_code"] == code
    assert done.code == code
    step = result["steps"]["done"]
    assert (done.folder / "checkpoints" / f"step-{step:09d}.ckpt").exists()
    assert json.loads((done.folder / "progress.json").read_text())["outcome"]["status"] == status


def send_to_last_rank(mpirun: int, number: int) -> None:
    children = Path(f"/proc/{mpirun}/task/{mpirun}/children").read_text().split()
    os.kill(int(children[-1]), number)


def test_bad_numbers_are_refused_once_with_a_hint(runs, digits):
    done = runs.train("--data", str(digits), "--global-batch=9", ranks=2)
    assert done.code == 2
    assert done.err.count("cannot be shared equally by 2 ranks") == 1
    assert "--global-batch 8 or 10 can" in done.err
    assert "Traceback" not in done.err


def test_a_folder_that_is_no_data_set_is_refused(runs):
    done = runs.train("--data", "/nowhere")
    assert (done.code, "is not a data set" in done.err) == (2, True)
    assert done.result["outcome"] == {
        "status": "failed", "reason": "/nowhere is not a data set: it has no dataset.json",
        "exit_code": 2,
    }  # fmt: skip


def test_raw_images_are_not_cropped_to_another_size(runs, digits):
    done = runs.train("--data", str(digits), "--image-size=32")
    assert (done.code, "the data set's images are 8 x 8, and raw" in done.err) == (2, True)


def test_making_digits_again_keeps_them(runs, digits):
    before = {path.name: path.stat().st_mtime_ns for path in digits.iterdir()}
    done = runs.data("make", "digits", str(digits))
    assert (done.code, "there already" in done.out) == (0, True)
    assert {path.name: path.stat().st_mtime_ns for path in digits.iterdir()} == before
