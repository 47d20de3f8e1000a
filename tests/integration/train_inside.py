"""Run by tests of training where TensorFlow is: looks inside the program; prints JSON.

The second half is of test_train_exact: the step beside Keras' own.
"""

import contextlib
import importlib
import io
import itertools
import json
import os
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np

from hpcdl import facts
from tests.started import tensorflow

tf = tensorflow(keras=sys.argv[1] not in {"groups", "pipeline", "orders"})

from hpcdl.system.errors import BadInput  # noqa: E402
from hpcdl.train import models, optimizers, program  # noqa: E402
from hpcdl.train.communicate import Communicator  # noqa: E402
from hpcdl.train.data.dataset import read_dataset  # noqa: E402
from hpcdl.train.data.images import Images  # noqa: E402
from hpcdl.train.data.pipeline import Records  # noqa: E402
from hpcdl.train.data.source import Group, InMemory, Share  # noqa: E402
from hpcdl.train.data.tfrecord import Repairs  # noqa: E402
from hpcdl.train.fused import fuse  # noqa: E402
from hpcdl.train.keras_parts import make_augment  # noqa: E402
from hpcdl.train.networks import _dropout  # noqa: E402
from hpcdl.train.options import TrainOptions  # noqa: E402
from hpcdl.train.step import RankSignal, StepParts, make_backward, make_step  # noqa: E402
from hpcdl.train.tasks import Task, make_task  # noqa: E402


def groups():
    """Eight steps in one call and in eight calls: the weights' bytes, the calls, the phases."""
    draw = np.random.default_rng(1)
    images = draw.random((8, 16, 28, 28, 1), np.float32)
    labels = draw.integers(0, 10, (8, 16))
    rates = [0.1 / (1 + step) for step in range(8)]
    found = {}
    for size in (8, 1):
        network = models.build("mlp", (28, 28, 1), 10, 1)
        optimizer = optimizers.make_optimizer(network, "sgd", 0.9, 0.0)
        ranks = Communicator()
        parts = StepParts(network, make_task("classes", 0.0), optimizer, ranks, lambda x: x)
        step = make_step(parts)
        results = []
        for at in range(0, 8, size):
            part = slice(at, at + size)
            results += step(Group(images[part], labels[part], size), rates[part], RankSignal(), at)
        found[size] = {
            "weights": [variable.numpy().tobytes().hex()[:4000] for variable in network.trainable],
            "losses": [result.loss for result in results],
            "least": min(result.compute for result in results),
        }
    return found


def records(folder):
    """A source of batches of 64 x 64 pixels."""
    repairs, share = Repairs(0, lambda _: False, print), Share(4, 1, 0, 1)
    return Records(read_dataset(Path(folder)), share, (64, 64), 2, repairs)


def pipeline(folder):
    return {"decoders": decoders(folder), "crops": crops()}


def decoders(folder):
    """The same batches by the library and by TensorFlow: how far apart pixels are."""
    sources = [records(folder)]
    os.environ["HPCDL_JPEG"] = "tensorflow"
    sources.append(records(folder))
    away, worst = [], 0
    for ours, theirs in zip(*(source.batches(0, 0) for source in sources), strict=True):
        assert np.array_equal(ours.labels, theirs.labels)
        assert np.array_equal(ours.images[1], theirs.images[1])
        apart = np.asarray(ours.images[0], int) - np.asarray(theirs.images[0], int)
        away.append(float(np.abs(apart).mean()))
        worst = max(worst, int(np.abs(apart).max()))
    return {
        "away": float(np.mean(away)),
        "worst": worst,
        "decoders": [source.images.decoder for source in sources],
    }


def crops():
    """3,000 random crops of an image of 375 x 500."""
    images = Images((224, 224), None)
    seeds = tf.stack([tf.zeros(3000, tf.int64), tf.range(3000, dtype=tf.int64)], 1)
    draw = tf.function(lambda seed: images.random_crop(tf.constant([375, 500, 3]), seed))
    return [draw(seed).numpy().tolist() for seed in seeds]


def parameters():
    found = {}
    for name, row in facts.load("models")["models"].items():
        network = models.build(name, tuple(row["input"]), row["classes"], 1)
        moving = sum(int(np.prod(variable.shape)) for variable in network.state)
        found[name] = [network.parameters, network.parameters + moving]
        tf.keras.backend.clear_session()
    return found


def normalization():
    """Layers of Keras before and after they were fused: greatest difference of all they give."""
    layer = tf.keras.layers.BatchNormalization(momentum=0.5)
    plain = tf.keras.layers.BatchNormalization()
    convolution = tf.keras.layers.Conv2D(5, 1)
    entry = tf.keras.Input((9, 7, 5))
    gelu = tf.keras.layers.Activation("gelu")
    model = tf.keras.Model(entry, gelu(layer(convolution(plain(entry)))))
    convolution.kernel.assign(np.random.default_rng(2).normal(0, 0.5, (1, 1, 5, 5)))
    convolution.bias.assign(np.linspace(-3.0, 9.0, 5))
    layer.gamma.assign(np.linspace(0.5, 2.0, 5))
    layer.beta.assign(np.linspace(-1.0, 1.0, 5))
    state = [*layer.non_trainable_variables, *plain.non_trainable_variables]
    start = [np.array(variable.numpy()) for variable in state]
    images = tf.constant(np.random.default_rng(1).normal(3, 2, (6, 9, 7, 5)).astype(np.float32))

    def values():
        with tf.GradientTape() as tape:
            tape.watch(images)
            output = model(images, training=True)
            loss = tf.reduce_mean(output * tf.sin(output))
        gradient = tape.gradient(loss, images) * 1000.0
        moved = [np.array(variable.numpy()) for variable in state]
        return [output, gradient, *moved, model(images, training=False)]

    before = values()
    for variable, value in zip(state, start, strict=True):
        variable.assign(value)
    fused = fuse(model)
    pairs = zip(before, values(), strict=True)
    away = max(float(np.abs(np.asarray(a) - np.asarray(b)).max()) for a, b in pairs)
    graph = tf.function(lambda x: model(x, training=True)).get_concrete_function(images).graph
    return {
        "fused": fused,
        "away": away,
        "operations": sorted({op.type for op in graph.get_operations()}),
    }


def dropout():
    """Gradients of ones that two ranks drop in two parts of a batch; twice the same step."""
    draws = models.Draws(tf.Variable([1, 7], dtype=tf.int32))
    entry, weights = tf.keras.Input((256,)), tf.Variable(tf.ones(256))
    model = tf.keras.Model(entry, _dropout(draws, 0)(entry))
    network = models.Network(
        "drops",
        lambda images, training: model(images * weights, training=training),
        (weights,),
        (),
        draws,
    )
    # The parts' values show in one sum: half of 2 and half of 20 for what is kept.
    images, task = tf.ones((2, 256)), Task("sum", lambda x, labels: tf.reduce_sum(x * labels))
    labels = tf.constant([[1.0], [10.0]])
    found = []
    for rank in (0, 1, 0):
        ranks = Communicator()
        ranks.rank = rank
        parts = StepParts(network, task, None, ranks, lambda x: x, accumulate=2)
        _, (gradient,) = tf.function(make_backward(parts), autograph=False)(images, labels)
        found.append([round(value) for value in gradient.numpy().tolist()])
    return found


DRAW = np.random.default_rng(1)
IMAGES = DRAW.random((3, 12, 4, 4, 1), np.float32)
LABELS = DRAW.integers(0, 3, (3, 12))


def parts_of(model, **more):
    network = models.build(f"users:{model}", (4, 4, 1), 3, 1)
    optimizer = optimizers.make_optimizer(network, "sgd", 0.9, 0.0)
    task = make_task("classes", 0.0)
    return StepParts(network, task, optimizer, Communicator(), lambda x: x, **more)


def penalties():
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


def users_dropout():
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


def augmented():
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
    for words, more in (
        (("mixup", "augment.cutmix.factor=1"), {}),
        (("centercrop", *(f"augment.centercrop.{side}=2" for side in ("height", "width"))), {}),
        (("mixup",), {"loss": "SparseCategoricalCrossentropy"}),
    ):
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


def refusals(lines):
    found = []
    for line in json.loads(lines):
        with contextlib.redirect_stderr(io.StringIO()) as said:
            found.append([program.main(line), said.getvalue()])
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
        source = Records(
            read_dataset(Path(folder)),
            Share(8, ranks, rank, 1),
            (8, 8),
            1,
            Repairs(0, lambda _: True, print),
        )
        first = source.steps_per_epoch // 2 if half else 0
        batches.append([np.ravel(group.labels).tolist() for group in source.batches(epoch, first)])
    return [list(itertools.chain(*parts)) for parts in zip(*batches, strict=True)]


def main():
    print(json.dumps(globals()[sys.argv[1]](*sys.argv[2:])))


main()
