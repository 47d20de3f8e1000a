"""Tries whether batches fit into memory: real steps, and a checkpoint's copy between them.

`python -m hpcdl.train.trial LOW HIGH UNIT SECONDS WORDS` searches between two batches for the run
that the command line WORDS means, alone on this process's CPUs, and says what it tries before
it tries it: whoever reads that knows which batch ended the process.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from hpcdl.train import step as steps
from hpcdl.train.memory import Bounds, search


def make_trial(tf: Any, parts: steps.StepParts, example: tuple[Any, Any]) -> Callable[[int], bool]:
    """A function that says whether a batch fits; the weights are no longer the run's.

    Args:
        tf: TensorFlow.
        parts: what the step is made of; ranks are left out.
        example: one image and its label, as the input gives them.
    """
    backward = steps.make_backward(tf, parts)
    weights = parts.network.trainable
    variables = (*weights, *parts.network.state, *parts.optimizer.velocities)

    def body(images: Any, labels: Any) -> Any:
        loss, gradients = backward(parts.prepare(images), labels)
        rate = tf.constant(0.0)
        with tf.control_dependencies(parts.optimizer.apply(tf, weights, gradients, rate)):
            return tf.identity(loss)

    step = tf.function(body, autograph=False, reduce_retracing=True)

    def tries(batch: int) -> bool:
        try:
            images, labels = tf.nest.map_structure(lambda x: tf.repeat(x, batch, 0), example)
            step(images, labels)
            # A checkpoint holds the buffers while the next step writes new ones.
            held = [variable.numpy() for variable in variables]
            step(images, labels)
            del held
        except (tf.errors.ResourceExhaustedError, MemoryError):
            return False
        return True

    return tries


def main(words: list[str]) -> int:
    """Search, and say every step of it on standard output."""
    from hpcdl.train.__main__ import prepare
    from hpcdl.train.options import parse
    from hpcdl.train.ranks import this_place
    from hpcdl.train.startup import StartupClock

    low, high, unit, seconds, *rest = words
    run = prepare(replace(parse(rest), strategy="single"), this_place(), StartupClock())
    tries = make_trial(run.tf, *run.sample())
    print("ready", flush=True)
    bounds = Bounds(int(low), int(high), int(unit), time.monotonic() + float(seconds))

    def told(batch: int) -> bool:
        print(f"tries {batch}", flush=True)
        fits = tries(batch)
        print(f"{'fits' if fits else 'fails'} {batch}", flush=True)
        return fits

    search(bounds, told)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
