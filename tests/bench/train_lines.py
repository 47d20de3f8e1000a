"""Run by bench_train where TensorFlow is: our loop on a synthetic batch, a line after each step."""

import dataclasses
import sys
import tempfile
from pathlib import Path

from hpcdl.train import loop, models
from hpcdl.train.ranks import this_place
from hpcdl.train.startup import import_tensorflow, prepare_environment
from tests.bench.train_step import prepare


def main(model: str, batch: int, steps: int) -> None:
    place = this_place()
    row = models.facts_of(model)
    prepare_environment(place, onednn=row.get("onednn", True))
    tf = import_tensorflow(place, keras=row["builder"] != "mlp")
    with tempfile.TemporaryDirectory() as folder:
        training = prepare(tf, model, batch, Path(folder))
        for step in range(1, steps + 1):
            training.saved_at = step
            training.plan = dataclasses.replace(training.plan, steps=step)
            loop.train(training)
            print(f"done {step}", flush=True)


main(sys.argv[1], *map(int, sys.argv[2:]))
