"""The mlp on real digits: the main job's program, on 1 and on 4 ranks; options of the step."""

import json
import os
import signal
import time
from pathlib import Path

import jsonschema
import pytest

from hpcdl.results.records import RESULT
from tests.integration.train_runs import ROOT, Runs

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


# A whole CheXNet run: images with a table of findings, records, two ranks, areas as sklearn's.

# Findings are blobs of a colour: they survive random crops, and a small network learns them.
IMAGES = """
import colorsys, csv, sys
from pathlib import Path
import numpy as np, tensorflow as tf
from hpcdl.train.data.dataset import FINDINGS
folder, count = Path(sys.argv[1]), int(sys.argv[2])
random = np.random.RandomState(5)
colours = [np.array(colorsys.hsv_to_rgb(k % 7 / 7, 1.0, 1.0 if k < 7 else 0.45)) * 255
           for k in range(14)]
folder.mkdir()
with open(folder.with_suffix(".csv"), "w", newline="") as file:
    table = csv.writer(file)
    table.writerow(["Image Index", "Finding Labels", "Patient Age"])
    for number in range(count):
        image = np.full((64, 64, 3), 128.0) + random.normal(0, 8, (64, 64, 1))
        found = [k for k in range(14) if random.rand() < 0.25]
        for k in found:
            for _ in range(14):
                y, x = random.randint(0, 60, 2)
                image[y : y + 5, x : x + 5] = colours[k]
        data = tf.io.encode_jpeg(np.clip(image, 0, 255).astype("uint8"), quality=92)
        (folder / f"{number}.jpg").write_bytes(data.numpy())
        names = "|".join(FINDINGS[k] for k in found) or "No Finding"
        table.writerow([f"{number}.jpg", names, 50])
print(count)
"""
# Scores of the last checkpoint, by one process, judged by scikit-learn.
JUDGE = """
import json, sys
import numpy as np
from sklearn.metrics import roc_auc_score
from hpcdl.train.program import prepare
from hpcdl.train.fitting import resume
from hpcdl.train.stop_signals import StopSignals
from hpcdl.train.options import parse
from hpcdl.train.startup import this_place
from hpcdl.train.startup import StartupClock
from hpcdl.train.data.dataset import FINDINGS
options = parse(sys.argv[1:])
run = prepare(options, this_place(), StartupClock(), StopSignals())
training = run._prepare()
resume(training)
assert training.step_number == training.numbers.steps
model, source = training.model, training.source
logits, labels = [], []
for images, wanted in source.test():
    logits.append(np.asarray(model(source.prepare(images), training=False), np.float64))
    labels.append(np.asarray(wanted))
scores, truth = 1 / (1 + np.exp(-np.concatenate(logits))), np.concatenate(labels)
areas = {name: roc_auc_score(truth[:, k], scores[:, k]) for k, name in enumerate(FINDINGS)}
print(json.dumps({"images": len(truth), "mean": roc_auc_score(truth, scores), **areas}))
"""
SMALL = """
import tensorflow as tf
def network(shape, classes):
    layers = tf.keras.layers
    return tf.keras.Sequential([tf.keras.Input(shape), layers.Conv2D(32, 3, 2, activation="relu"),
        layers.Conv2D(64, 1, activation="relu"), layers.GlobalAveragePooling2D(),
        layers.Dense(classes)])
"""


@pytest.mark.parametrize(
    ("model", "words", "area"),
    [
        ("small:network", ("--lr=0.3", "--steps=120"), 0.8),
        pytest.param(
            "chexnet",
            ("--lr=0.05", "--steps=300"),
            0.6,
            marks=[pytest.mark.long, pytest.mark.timeout(3600)],
        ),
    ],
    ids=["small", "densenet121"],
)
def test_areas_over_two_ranks_are_sklearns_on_all_predictions(runs, model, words, area):
    runs.write("small.py", SMALL)
    runs.script("-c", IMAGES, "chest", "320")
    program = (ROOT / "examples/records_of_images.py").read_text()
    runs.script("-c", program + "\nprint(0)", "set", "chest", "chest.csv", "0.3")
    runs.data("inspect", "--index", "--classes=findings", "set", says="320 records")
    whole = ("--data=set", f"--model={model}", "--image-size=32", "--global-batch=32", *words)
    done = runs.train(*whole, ranks=2, timeout=3000)
    ours = done.metrics
    theirs = runs.script("-c", JUDGE, *whole, f"--job-dir={done.folder}")
    assert ours["test_images"] == theirs.pop("images") == 96
    assert ours["auroc"] == pytest.approx(theirs.pop("mean"), abs=1e-3)
    for name, value in theirs.items():
        assert ours[f"auroc/{name}"] == pytest.approx(value, abs=2e-3)
    assert ours["auroc"] > area, "the colours can be learnt"
    said = "the data set's labels are findings"
    runs.train("--data=set", "--model=alexnet", code=2, says=said, job="refused")
