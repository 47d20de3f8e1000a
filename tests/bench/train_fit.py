"""Run by bench_train where TensorFlow is: our step beside `model.fit` and a bare Keras step.

The same network, batch, optimizer and weights' shapes, neither by XLA, in turns of a few steps;
the figures are medians of the turns' ratios, by CPU time.
"""

import json
import statistics
import sys
import time

import numpy as np

from tests.started import tensorflow

tf = tensorflow(keras=True, onednn=sys.argv[1] != "mlp")

from hpcdl.train import models  # noqa: E402
from hpcdl.train.communicate import Communicator  # noqa: E402
from hpcdl.train.data.source import Group  # noqa: E402
from hpcdl.train.keras_parts import KerasOptimizer  # noqa: E402
from hpcdl.train.optimizers import make_optimizer  # noqa: E402
from hpcdl.train.step import RankSignal, StepParts, make_step  # noqa: E402
from hpcdl.train.tasks import make_task  # noqa: E402

RATE = 1e-6
NETWORKS = {
    "resnet50": ("resnet50", (224, 224, 3), 1000),
    "vit_s16": ("hpcdl.train.transformers:vit_s16", (224, 224, 3), 1000),
    "gpt": ("hpcdl.train.transformers:gpt", (256,), 256),
    "mlp": ("mlp", (28, 28, 1), 10),
}


def batch_of(shape, classes, size):
    draw = np.random.default_rng(1)
    if len(shape) == 1:
        tokens = draw.integers(0, classes, (size, *shape))
        return tokens, np.roll(tokens, -1, 1)
    return draw.random((size, *shape), np.float32), draw.integers(0, classes, size)


def contenders(name, size, steps):
    model, shape, classes = NETWORKS[name]
    images, labels = batch_of(shape, classes, size)
    network = models.build(model, shape, classes, 1, keras=True)
    transformer = "transformers" in model
    optimizer = (
        KerasOptimizer(network, "adamw", {})
        if transformer
        else make_optimizer(network, "sgd", 0.9, 0.0)
    )
    task = make_task("classes", 0.0)
    step = make_step(StepParts(network, task, optimizer, Communicator(), lambda x: x))
    group = Group(images[None], labels[None], 1)

    def ours():
        for number in range(steps):
            step(group, [RATE], RankSignal(), number)

    def theirs():
        made = network.plain()
        keras = tf.keras.optimizers
        made.compile(
            keras.AdamW(RATE) if transformer else keras.SGD(RATE, momentum=0.9),
            tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            jit_compile=False,
        )
        return made

    fitted, plain = theirs(), theirs()
    data = tf.data.Dataset.from_tensors((images, labels)).cache().repeat()

    def fit():
        fitted.fit(data, steps_per_epoch=steps, verbose=0)

    @tf.function(autograph=False)
    def one(images, labels):
        with tf.GradientTape() as tape:
            loss = plain.loss(labels, plain(images, training=True))
        variables = plain.trainable_variables
        plain.optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
        return loss

    pair = tf.constant(images), tf.constant(labels)

    def bare():
        for _ in range(steps):
            one(*pair).numpy()

    return {"ours": ours, "fit": fit, "bare": bare}


def main(name, size, steps, turns):
    things = contenders(name, size, steps)
    times = {thing: [] for thing in things}
    for turn in range(turns + 1):
        for thing in sorted(things, reverse=bool(turn % 2)):
            begun = time.process_time()
            things[thing]()
            times[thing].append((time.process_time() - begun) / steps)
    found = {"ours": statistics.median(times["ours"][1:])}
    for other in ("fit", "bare"):
        pairs = list(zip(times[other], times["ours"], strict=True))[1:]
        found[other] = statistics.median(them / us for them, us in pairs)
    print(json.dumps(found))


main(sys.argv[1], *map(int, sys.argv[2:]))
