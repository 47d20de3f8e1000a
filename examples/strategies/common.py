"""What the programs beside this share: options, data, and result.json (docs/results.md)."""

import sys
import time
from pathlib import Path

import numpy as np
import tensorflow as tf

from hpcdl.results.records import outcome
from hpcdl.train.data.opening import open_source
from hpcdl.train.data.source import BatchShare, DataSource
from hpcdl.train.keras_parts import make_losses
from hpcdl.train.models import ModelRecipe, set_up_keras
from hpcdl.train.options import TrainOptions, facts_of, global_batch, make_numbers, parse
from hpcdl.train.result import Reporter, Samples, summarize, write_result
from hpcdl.train.startup import StartupClock, this_place


class Job:
    """One run: its options and numbers, its data, and how its model and loss are made."""

    def __init__(self, workers: int = 1, worker: int = 0) -> None:
        self.clock, self.place, self.started = StartupClock(), this_place(), time.time()
        self.options: TrainOptions = parse(sys.argv[1:])
        set_up_keras(self.options.seed)
        row = facts_of(self.options.model)
        batch = global_batch(self.options, row, workers)
        share = BatchShare(batch, workers, worker, self.options.seed)
        self.source: DataSource = open_source(self.options, row, share, self.place.cpus)
        self.numbers = make_numbers(self.options, row, batch, self.source.steps_per_epoch)
        self.recipe = ModelRecipe(self.options.model, self.source.spec, self.source.classes)
        self.workers, self.samples = workers, Samples()
        self.folder: Path = self.options.folder
        self.reporter = Reporter(self.folder, self.numbers.steps, silent=worker != 0)

    def loss_of(self, model: tf.keras.Model) -> tf.keras.losses.Loss:
        """Return the loss that fits the model's last activation and the labels."""
        outputs = tf.nest.flatten(model(self.recipe.example()))
        return make_losses(self.options, model, outputs, self.source)

    def batches(self, first: int = 0) -> tf.data.Dataset:
        """Return this worker's batches from step `first` to the end, as the model takes them."""

        def ready(inputs: tf.Tensor, labels: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            return self.source.prepare(inputs), labels

        return self.source.steps(first, self.numbers.steps).map(ready).prefetch(2)

    def scores(self, model: tf.keras.Model) -> dict[str, float]:
        """Return accuracy on this worker's part of the test set; nothing without one."""
        data = self.source.test()
        if data is None:
            return {}
        right = [
            np.argmax(model(self.source.prepare(x), training=False), -1) == np.asarray(y)
            for x, y in data
        ]
        return {"accuracy": float(np.mean(np.concatenate(right)))}

    def add(self, loss: float, seconds: float, **parts: float) -> None:
        """Note a step: its loss and its seconds, all of them computing unless said otherwise."""
        compute = max(0.0, seconds - sum(parts.values()))
        batch = self.numbers.global_batch
        self.samples.add(batch, [loss], seconds=seconds, compute=compute, **parts)
        done = len(self.samples.loss)
        self.reporter.step(done, self.numbers.position(done - 1)[0], loss, batch)

    def write(
        self,
        strategy: str,
        parameters: int,
        metrics: dict[str, float],
        hosts: list[str] | None = None,
        **more: object,
    ) -> None:
        """Write result.json, and print the rate."""
        summary = summarize(self.samples, self.options.warmup_steps)
        hosts = hosts or [self.place.host] * self.workers
        loss = self.samples.loss[-1] if self.samples.loss else None
        numbers = {
            "strategy": strategy,
            "parameters": parameters,
            "batch_per_rank": self.numbers.global_batch // self.workers,
            "global_batch": self.numbers.global_batch,
            "steps": {"done": self.numbers.steps, "planned": self.numbers.steps},
            "samples": self.samples.as_json(),
            "summary": {**summary, "loss": loss, "metrics": metrics},
            **more,
        }
        run = (self.options, self.place, self.clock, self.started)
        write_result(*run, outcome("completed"), numbers, hosts=hosts)
        print(
            f"{strategy}: {summary['images_per_second']:.2f} images/s, loss {loss:.4f}, {metrics}"
        )


def sgd(job: Job) -> tf.keras.optimizers.Optimizer:
    """Return SGD with the momentum that `hpcdl train` uses."""
    return tf.keras.optimizers.SGD(job.numbers.lr, momentum=0.9)


def host_of(address: str) -> str:
    """Return the host of `host:port`."""
    return address.rpartition(":")[0]
