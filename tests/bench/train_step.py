"""Run by bench_train where TensorFlow is: our whole loop beside a bare one, one network.

Ours is the loop of a run with all it does around a step: clocks, samples, guard, watchdog,
progress, stop signal. The bare one calls a compiled step and nothing else. They take turns of a
few steps; the figures are medians of the turns' ratios, by the clock and by CPU time.
"""

import dataclasses
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path

from tests.started import tensorflow_for

tf = tensorflow_for(sys.argv[1])

from hpcdl.train import loop, models, optimizers  # noqa: E402
from hpcdl.train.communicate import Communicator  # noqa: E402
from hpcdl.train.data.source import Share, Synthetic  # noqa: E402
from hpcdl.train.diagnostics import LossGuard, Watchdog  # noqa: E402
from hpcdl.train.options import RunPlan, TrainOptions, facts_of  # noqa: E402
from hpcdl.train.scalars import Scalars  # noqa: E402
from hpcdl.train.step import (  # noqa: E402
    StepParts,
    StopRequest,
    make_step,
)
from hpcdl.train.tasks import make_task  # noqa: E402
from hpcdl.train.train_report import Reporter  # noqa: E402


def prepare(model, batch, folder, size=0):
    """A training as run.py makes it, on synthetic data; `size` in pixels, 0 for the usual one."""
    row = facts_of(model)
    shape = (size, size, 3) if size else tuple(row["input"])
    network = models.build(model, shape, row["classes"], 1)
    optimizer = optimizers.make_optimizer(network, "sgd", 0.9, 0.0)
    source = Synthetic(shape, row["classes"], Share(batch, 1, 0, 1))
    parts = StepParts(network, make_task("classes", 0.0), optimizer, Communicator(), source.prepare)
    return loop.Training(
        TrainOptions(model=model, job_dir=str(folder)),
        RunPlan(batch, 0, 0, 1e-6, 0),
        parts.ranks,
        parts,
        source,
        make_step(parts),
        Reporter(folder, 0, 1e9, silent=False),
        StopRequest(),
        Watchdog(folder, 0, 1, 600.0),
        LossGuard(0),
        Scalars(None),
    )


def bare_step(training):
    """Forward, backward, update; the same network, batch and optimizer."""
    network, optimizer = training.parts.network, training.parts.optimizer

    def body(images, labels):
        with tf.GradientTape() as tape:
            logits = tf.cast(network.forward(images, True), tf.float32)
            loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits))
        none = tf.UnconnectedGradients.ZERO
        gradients = tape.gradient(loss, network.trainable, unconnected_gradients=none)
        optimizer.apply(network.trainable, gradients, tf.constant(1e-6))
        return loss

    return tf.function(body, autograph=False)


def main(model, batch, steps, turns):
    with tempfile.TemporaryDirectory() as folder:
        training = prepare(model, batch, Path(folder))
        bare = bare_step(training)
        group = next(training.source.batches(0, 0))

        def ours():
            goal = training.step_number + steps
            training.saved_at = goal
            training.plan = dataclasses.replace(training.plan, steps=goal)
            loop.train(training)

        def plain():
            for _ in range(steps):
                bare(group.images[0], group.labels[0])

        print(json.dumps(compare(ours, plain, steps, turns)))


def compare(ours, plain, steps, turns):
    """Seconds per step of each, and how much of the bare one's speed ours has."""
    clocks = {"wall": time.perf_counter, "cpu": time.process_time}
    times = {(clock, thing): [] for clock in clocks for thing in (ours, plain)}
    for turn in range(turns + 2):
        for thing in (ours, plain) if turn % 2 else (plain, ours):
            begun = {clock: read() for clock, read in clocks.items()}
            thing()
            for clock, read in clocks.items():
                times[clock, thing].append((read() - begun[clock]) / steps)
    found = {}
    for clock in clocks:
        pairs = list(zip(times[clock, plain], times[clock, ours], strict=True))[2:]
        found[clock] = {
            "ratio": statistics.median(bare / own for bare, own in pairs),
            "bare": statistics.median(bare for bare, _ in pairs),
        }
    return found


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
