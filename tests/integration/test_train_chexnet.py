"""A whole CheXNet run: images with a table of findings, records, two ranks, areas as sklearn's."""

import pytest

pytestmark = pytest.mark.stack
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
from hpcdl.train.training import resume
from hpcdl.train.stop_signals import StopSignals
from hpcdl.train.options import parse
from hpcdl.train.startup import this_place
from hpcdl.train.startup import StartupClock
from hpcdl.train.data.dataset import FINDINGS
options = parse(sys.argv[1:])
run = prepare(options, this_place(), StartupClock(), StopSignals())
training = run._prepare()
resume(training)
assert training.step_number == training.fitting.numbers.steps
model, source = training.fitting.model, training.fitting.source
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
    runs.data(
        "make",
        "folder",
        "set",
        "--images=chest",
        "--labels=chest.csv",
        "--shards=4",
        "--test=0.3",
        says="224 to train, 96 to test",
    )
    whole = ("--data=set", f"--model={model}", "--image-size=32", "--global-batch=32", *words)
    done = runs.train(*whole, ranks=2, timeout=3000)
    ours = done.metrics
    theirs = runs.script("-c", JUDGE, *whole, f"--job-dir={done.folder}")
    assert ours["test_images"] == theirs.pop("images") == 96
    assert ours["auroc"] == pytest.approx(theirs.pop("mean"), abs=1e-3)
    for name, value in theirs.items():
        assert ours[f"auroc/{name}"] == pytest.approx(value, abs=2e-3)
    assert ours["auroc"] > area, "the colours can be learnt"
