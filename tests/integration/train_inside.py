"""Run by tests of training where TensorFlow is: looks inside the program; prints JSON."""

import contextlib
import io
import itertools
import json
import sys
from pathlib import Path

import numpy as np

from hpcdl import facts
from tests.started import tensorflow

tf = tensorflow()

from hpcdl.train.__main__ import main as train  # noqa: E402
from hpcdl.train.data.dataset import read_dataset  # noqa: E402
from hpcdl.train.data.pipeline import RecordSource, random_crop  # noqa: E402
from hpcdl.train.data.source import BatchShare  # noqa: E402
from hpcdl.train.models import ModelRecipe, parameters_of  # noqa: E402


def crops():
    """3,000 random crops of an image of 375 x 500."""
    seeds = tf.stack([tf.zeros(3000, tf.int64), tf.range(3000, dtype=tf.int64)], 1)
    draw = tf.function(lambda seed: random_crop(tf.constant([375, 500, 3]), seed))
    return [draw(seed).numpy().tolist() for seed in seeds]


def parameters():
    found = {}
    for name, row in facts.load("models")["models"].items():
        model = ModelRecipe(name, tf.TensorSpec(row["input"]), row["classes"]).build()
        found[name] = [parameters_of(model), model.count_params()]
        tf.keras.backend.clear_session()
    return found


def refusals(lines):
    found = []
    for line in json.loads(lines):
        with contextlib.redirect_stderr(io.StringIO()) as said:
            found.append([train(line), said.getvalue()])
    return found


def orders(folder):
    """The labels of four epochs on 1, 2 and 4 ranks, and of their last halves, resumed."""
    found = {}
    for ranks in (1, 2, 4):
        for half in (False, True):
            epochs = [epoch_of(folder, ranks, epoch, half=half) for epoch in range(4)]
            found[f"{ranks}-{half}"] = epochs
    return found


def epoch_of(folder, ranks, epoch, *, half):
    """The labels of every batch of an epoch or of its second half, rank after rank."""
    batches = []
    for rank in range(ranks):
        dataset = read_dataset(Path(folder))
        source = RecordSource(dataset, BatchShare(8, ranks, rank, 1), (8, 8), 1)
        length = source.steps_per_epoch
        first = epoch * length + (length // 2 if half else 0)
        steps = source.steps(first, (epoch + 1) * length)
        batches.append([np.ravel(labels).tolist() for _, labels in steps])
    return [list(itertools.chain(*parts)) for parts in zip(*batches, strict=True)]


def main():
    print(json.dumps(globals()[sys.argv[1]](*sys.argv[2:])))


main()
