"""Run by test_train_speed where TensorFlow is: looks inside the program; prints JSON."""

import json
import os
import sys
import time
from pathlib import Path

import numpy as np

from hpcdl import facts
from tests.started import tensorflow

tf = tensorflow(keras=sys.argv[1] in ("dropout", "normalization", "parameters"))

from hpcdl.train import models, optimizers  # noqa: E402
from hpcdl.train.communicate import Communicator  # noqa: E402
from hpcdl.train.data.dataset import read_dataset  # noqa: E402
from hpcdl.train.data.images import Images  # noqa: E402
from hpcdl.train.data.pipeline import Records  # noqa: E402
from hpcdl.train.data.repair import Repairs  # noqa: E402
from hpcdl.train.data.source import Group, Share  # noqa: E402
from hpcdl.train.fused import fuse  # noqa: E402
from hpcdl.train.networks import _dropout  # noqa: E402
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
            group = Group(images[part], labels[part], size)
            results += step(group, rates[part], RankSignal(), at)
        found[size] = {
            "weights": [variable.numpy().tobytes().hex()[:4000] for variable in network.trainable],
            "losses": [result.loss for result in results],
            "least": min(result.compute for result in results),
        }
    return found


def records(folder, batch=4, form="new"):
    """A source of batches of 64 x 64 pixels."""
    repairs, share = Repairs(0, lambda _: False, print), Share(batch, 1, 0, 1)
    return Records(read_dataset(Path(folder)), share, (64, 64), 2, repairs, form)


def ahead(folder):
    """CPU-seconds that each form of the pipeline takes once it has given its first batch."""
    found = {}
    for form in ("old", "new"):
        batches = records(folder, 32, form).batches(0, 0)
        begun = time.process_time()
        next(batches)
        first = time.process_time()
        found[form] = {"asked": first - begun, "unasked": at_rest() - first}
    return found


def at_rest():
    """The CPU-seconds of this process once nothing in it works any more."""
    last, now = 0.0, time.process_time()
    while now - last > 0.002:
        time.sleep(0.3)
        last, now = now, time.process_time()
    return now


def pipeline(folder):
    """What the input pipeline reads, crops and draws."""
    return {name: globals()[name](folder) for name in ("reads", "ahead", "decoders", "crops",
                                                           "operations")}  # fmt: skip


def operations(folder):
    """The operations of the input pipeline's functions where TensorFlow crops."""
    os.environ["HPCDL_JPEG"] = "tensorflow"
    graph = records(folder).dataset(0, 0)._as_serialized_graph().numpy()
    definition = tf.compat.v1.GraphDef.FromString(graph)
    nodes = [*definition.node, *(n for f in definition.library.function for n in f.node_def)]
    return sorted({node.op for node in nodes})


def reads(folder):
    """Bytes read in three passes, and the bytes of the data set."""
    source = records(folder, batch=16)
    size = sum(shard.bytes for shard in source._dataset.splits["train"])
    list(source.batches(0, 0))
    found = []
    for epoch in (1, 2, 3):
        before = _bytes_read()
        assert len(list(source.batches(epoch, 0))) == source.steps_per_epoch
        found.append(_bytes_read() - before)
    return {"size": size, "read": found}


def _bytes_read():
    lines = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
    return int(lines["rchar"])


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
    return {"away": float(np.mean(away)), "worst": worst,
            "decoders": [source.images.decoder for source in sources]}  # fmt: skip


def crops(_):
    """3,000 random crops of an image of 375 x 500."""
    images = Images((224, 224), None)
    seeds = tf.stack([tf.zeros(3000, tf.int64), tf.range(3000, dtype=tf.int64)], 1)
    draw = tf.function(lambda seed: images.random_crop(tf.constant([375, 500, 3]), seed))
    return [draw(seed).numpy().tolist() for seed in seeds]


def parameters():
    """Trainable values, and all, of every network there is."""
    found = {}
    for name, row in facts.load("models")["models"].items():
        network = models.build(name, tuple(row["input"]), row["classes"], 1)
        found[name] = [network.parameters, network.values]
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
    return {"fused": fused, "away": away,
            "operations": sorted({op.type for op in graph.get_operations()})}  # fmt: skip


def dropout():
    """Gradients of ones that two ranks drop in two parts of a batch; twice the same step."""
    draws = models.Draws(tf.Variable([1, 7], dtype=tf.int32))
    entry, weights = tf.keras.Input((256,)), tf.Variable(tf.ones(256))
    model = tf.keras.Model(entry, _dropout(draws, 0)(entry))
    network = models.Network(
        "drops", lambda images, training: model(images * weights, training=training), (weights,),
        (), draws,
    )  # fmt: skip
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


def main() -> None:
    print(json.dumps(globals()[sys.argv[1]](*sys.argv[2:])))


main()
