"""Run by bench_train where TensorFlow is: our loop on a synthetic batch, a line after each step."""

import dataclasses
import sys
import tempfile
from pathlib import Path

from tests.started import tensorflow_for

tensorflow_for(sys.argv[1])

from hpcdl.train import loop  # noqa: E402
from tests.bench.train_step import prepare  # noqa: E402


def main(model, batch, steps):
    with tempfile.TemporaryDirectory() as folder:
        training = prepare(model, batch, Path(folder))
        for step in range(1, steps + 1):
            training.saved_at = step
            training.plan = dataclasses.replace(training.plan, steps=step)
            loop.train(training)
            print(f"done {step}", flush=True)


main(sys.argv[1], *map(int, sys.argv[2:]))
