"""Run by test_train_exact where TensorFlow is: the step beside Keras' own; prints JSON."""

import importlib
import itertools
import json
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np

from tests.started import tensorflow

tf = tensorflow(keras=sys.argv[1] != "orders")

from hpcdl.system.errors import BadInput  # noqa: E402
from hpcdl.train import models, optimizers  # noqa: E402
from hpcdl.train.augment import make_augment  # noqa: E402
from hpcdl.train.communicate import Communicator  # noqa: E402
from hpcdl.train.data.dataset import read_dataset  # noqa: E402
from hpcdl.train.data.pipeline import Records  # noqa: E402
from hpcdl.train.data.repair import Repairs  # noqa: E402
from hpcdl.train.data.source import Group, InMemory, Share  # noqa: E402
from hpcdl.train.options import TrainOptions  # noqa: E402
from hpcdl.train.step import RankSignal, StepParts, make_backward, make_step  # noqa: E402
from hpcdl.train.tasks import make_task  # noqa: E402

DRAW = np.random.default_rng(1)
IMAGES = DRAW.random((3, 12, 4, 4, 1), np.float32)
LABELS = DRAW.integers(0, 3, (3, 12))


def parts_of(model, **more):
    network = models.build(f"users:{model}", (4, 4, 1), 3, 1)
    optimizer = optimizers.make_optimizer(network, "sgd", 0.9, 0.0)
    task = make_task("classes", 0.0)
    return StepParts(network, task, optimizer, Communicator(), lambda x: x, **more)


def penalties(_):
    """Losses and weights of three steps, by this program and by Keras."""
    found = {}
    for accumulate in (1, 4):
        parts = parts_of("penalized", accumulate=accumulate)
        model = importlib.import_module("users").penalized((4, 4, 1), 3)
        loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(tf.keras.optimizers.SGD(0.1, momentum=0.9), loss)
        for ours, theirs in zip(parts.network.trainable, model.trainable_variables, strict=True):
            theirs.assign(ours)
        step, ours, theirs = make_step(parts), [], []
        for number in range(3):
            group = Group(IMAGES[number : number + 1], LABELS[number : number + 1], 1)
            ours.append(step(group, [0.1], RankSignal(), number)[0].loss)
            theirs.append(float(model.train_on_batch(IMAGES[number], LABELS[number])))
        ends = [
            np.concatenate([np.ravel(v.numpy()) for v in variables]).tolist()
            for variables in (parts.network.trainable, model.trainable_variables)
        ]
        found[accumulate] = [[*ours, *ends[0]], [*theirs, *ends[1]]]
    return found


def dropout(_):
    """Which inputs a user's Dropout keeps, by rank, step and part of the batch; one step twice."""
    parts = parts_of("drops", accumulate=2)
    found = []
    for rank, step in ((0, 0), (1, 0), (0, 1), (0, 0)):
        ranks = Communicator()
        ranks.rank = rank
        parts.network.random.seeds.assign([1, step])
        backward = tf.function(make_backward(replace(parts, ranks=ranks)), autograph=False)
        _, gradients = backward(tf.ones((2, 4, 4, 1)), tf.zeros(2, tf.int64))
        found.append(gradients[0].numpy().round(5).tolist())
    return found


def augmented(_):
    """What mixup makes of images that are as bright as their class, by rank and step; refusals."""
    labels = np.arange(12) % 3
    images = np.broadcast_to(labels[:, None, None, None] / 2, (12, 4, 4, 1)).astype(np.float32)
    source = InMemory({"train": (images, labels)}, Share(12, 1, 0, 1), 3, "")
    random = models.Draws(tf.Variable([1, 0]))

    def change(names, *settings, rank=0, **more):
        options = TrainOptions(augment=names, settings=settings, **more)
        return tf.function(make_augment(options, source, random, rank), autograph=False)

    found = []
    for rank, step in ((0, 0), (1, 0), (0, 1), (0, 0)):
        random.seeds.assign([1, step])
        mix = change("MixUp,RandomFlip", "augment.mixup.alpha=0.8", rank=rank)
        bright, shares = mix(images, labels)
        found.append({"bright": np.ravel(bright).tolist(), "shares": shares.numpy().tolist()})
    refused = []
    for words, more in ((("mixup", "augment.cutmix.factor=1"), {}), (("centercrop", *(
            f"augment.centercrop.{side}=2" for side in ("height", "width"))), {}),
            (("mixup",), {"loss": "SparseCategoricalCrossentropy"})):  # fmt: skip
        try:
            change(*words, **more)
        except BadInput as fault:
            refused.append(fault.message)
    source.shape = (12,)
    try:
        change("mixup")
    except BadInput as fault:
        refused.append(fault.message)
    return {"mixed": found, "refused": refused}


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
        source = Records(read_dataset(Path(folder)), Share(8, ranks, rank, 1), (8, 8), 1,
                         Repairs(0, lambda _: True, print))  # fmt: skip
        first = source.steps_per_epoch // 2 if half else 0
        batches.append([np.ravel(group.labels).tolist() for group in source.batches(epoch, first)])
    return [list(itertools.chain(*parts)) for parts in zip(*batches, strict=True)]


def main() -> None:
    print(json.dumps(globals()[sys.argv[1]](sys.argv[2])))


main()
