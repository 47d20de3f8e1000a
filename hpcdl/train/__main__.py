"""`python -m hpcdl.train`: one rank of a training run, from its arguments to its exit code.

The order is dictated by cost and by what must come first: place among the ranks, environment,
TensorFlow, Horovod, data, network, first step. Whatever happens after the ranks have joined
ends in a result.json that says so.
"""

from __future__ import annotations

import json
import os
import platform
import sys
import time
from contextlib import suppress
from typing import Any

from hpcdl import __version__
from hpcdl.system.errors import ExitCode, HpcdlError
from hpcdl.train.options import SYNTHETIC, TrainOptions, parse
from hpcdl.train.ranks import RankPlace, this_place
from hpcdl.train.startup import StartupClock, import_tensorflow, prepare_environment

_EXITS = {
    "completed": ExitCode.OK,
    "missed-target": ExitCode.NO,
    "requeue": ExitCode.REQUEUE,
    "stopped": ExitCode.STOPPED,
}


def main(words: list[str] | None = None) -> int:
    """Train as `words` say and return the exit code. Every rank prints its own errors."""
    clock = StartupClock()
    place = this_place()
    try:
        return _run(parse(sys.argv[1:] if words is None else words), place, clock)
    except HpcdlError as error:
        return _fail(error, place)


def _fail(error: HpcdlError, place: RankPlace) -> int:
    """Print the error and leave with its code.

    One of several ranks leaves at once, without the orderly end that would wait for ranks which
    are stuck; the launcher then ends those. Ranks other than 0 wait a moment before they speak:
    what all of them have to say is said once.
    """
    prefix = f"rank {place.rank} on {place.host}: " if place.rank else ""
    if place.rank:
        time.sleep(3.0)
    print(prefix + error.render(), file=sys.stderr, flush=True)
    if place.size > 1:
        sys.stdout.flush()
        os._exit(int(error.exit_code))
    return int(error.exit_code)


def _run(options: TrainOptions, place: RankPlace, clock: StartupClock) -> int:
    from hpcdl.train.models import facts_of
    from hpcdl.train.plan import global_batch

    model = facts_of(options.model)
    keras = model["builder"] == "keras"
    # Refused before the seconds that TensorFlow and MPI take.
    global_batch(options, model, place.size)
    prepare_environment(place, onednn=model.get("onednn", True))
    clock.mark("options")
    tf = import_tensorflow(place, keras=keras)
    if options.deterministic:
        tf.config.experimental.enable_op_determinism()
    clock.mark("tensorflow")
    from hpcdl.train.communicate import join_ranks

    ranks = join_ranks(tf, options.strategy, place, clock, keras=keras)
    run = Run(tf, options, place, clock, ranks, model)
    code = run.go()
    ranks.close()
    return code


class Run:
    """One run of one rank: what is needed to write its result, however it ends."""

    def __init__(
        self, tf: Any, options: TrainOptions, place: RankPlace, clock: StartupClock, ranks: Any,
        model: dict[str, Any],
    ) -> None:  # fmt: skip
        self.tf = tf
        self.options = options
        self.place = place
        self.clock = clock
        self.ranks = ranks
        self.model = model
        self.training: Any = None
        self.hosts: list[str] = [place.host]
        self.started = time.time()

    def go(self) -> int:
        """Train, score, write the result; returns the exit code."""
        try:
            outcome = self._train()
            metrics = self._score() if outcome == "completed" else {}
        except BaseException as fault:
            message = fault.message if isinstance(fault, HpcdlError) else repr(fault)
            with suppress(Exception):
                self._write("failed", {}, message, getattr(fault, "exit_code", 1))
            raise
        return self._end(outcome, metrics)

    def _train(self) -> str:
        from hpcdl.train.loop import resume, train

        self.training = self._prepare()
        self.hosts = self.ranks.gather_text(self.place.host)
        resume(self.training)
        self.clock.mark("resume")
        self._warn_of_start()
        return train(self.training)

    def _prepare(self) -> Any:
        """Data, network and step, ready to go."""
        from hpcdl.train import checkpoint, models, plan
        from hpcdl.train.loop import Training
        from hpcdl.train.report import Reporter
        from hpcdl.train.step import make_optimizer, make_step
        from hpcdl.train.stop import StopRequest

        options, tf = self.options, self.tf
        stop = StopRequest()
        stop.listen()
        batch = plan.global_batch(options, self.model, self.ranks.size)
        source = self._source(batch)
        self.clock.mark("data")
        network = models.build(tf, options.model, source.shape, source.classes, options.seed)
        optimizer = make_optimizer(tf, network, options.momentum)
        numbers = plan.make_plan(options, self.model, batch, source.steps_per_epoch)
        silent = self.ranks.rank != 0
        reporter = Reporter(options.folder, numbers.steps, options.report_every, silent=silent)
        if options.fresh and not silent:
            checkpoint.set_aside(options.folder / "checkpoints")
        step = make_step(tf, network, optimizer, self.ranks, clocked=not options.deterministic)
        self.clock.mark("network")
        return Training(
            options, numbers, self.ranks, network, optimizer, source, step, reporter, stop
        )

    def _source(self, batch: int) -> Any:
        from pathlib import Path

        from hpcdl.train.data.dataset import read_dataset
        from hpcdl.train.data.source import InMemory, Share, Synthetic

        share = Share(batch, self.ranks.size, self.ranks.rank, self.options.seed)
        if self.options.data == SYNTHETIC:
            shape = tuple(self.model["input"])
            return Synthetic(self.tf, shape, self.model["classes"], share)
        return InMemory(self.tf, read_dataset(Path(self.options.data)), share)

    def _warn_of_start(self) -> None:
        """Time the first step apart: it compiles. Then print where the start-up went."""
        step, training = self.training.step, self.training

        def first(*arguments: Any) -> Any:
            result = step(*arguments)
            self.clock.mark("first step")
            training.step = step
            training.reporter.say(self.clock.line())
            return result

        training.step = first

    def _score(self) -> dict[str, float]:
        """Test accuracy and loss over all ranks; empty where there is no test set."""
        import numpy as np

        from hpcdl.train.step import make_score

        score = make_score(self.tf, self.training.network)
        sums = np.zeros(3)
        for images, labels in self.training.source.test_batches():
            sums += score(images, labels)
        right, loss, images = self.ranks.sum_on_host(sums)
        if not images:
            return {}
        return {"accuracy": right / images, "test_loss": loss / images, "test_images": images}

    def _end(self, outcome: str, metrics: dict[str, float]) -> int:
        from hpcdl.train.result import summary_line

        training = self.training
        epoch, _ = training.plan.position(max(0, training.step_number - 1))
        target, accuracy = self.options.target_accuracy, metrics.get("accuracy")
        message = ""
        if outcome == "completed" and target is not None and (accuracy or 0.0) < target:
            outcome = "missed-target"
            message = f"test accuracy {accuracy or 0.0:.4f} is below the target {target}"
        training.reporter.end(training.step_number, epoch, training.loss, outcome)
        result = self._write(outcome, metrics, message)
        if self.ranks.rank == 0:
            print(message, end="\n" if message else "")
            path = str(self.options.folder / "result.json")
            brief = {key: result[key] for key in ("outcome", "layout", "summary")}
            line = json.dumps({**brief, "result": path}) if self.options.json else None
            print(line or summary_line(result, path), flush=True)
        return int(_EXITS[outcome])

    def _write(
        self, outcome: str, metrics: dict[str, float], message: str, code: int | None = None
    ) -> dict[str, Any]:
        """Write result.json (rank 0) and return its content."""
        from hpcdl.system.files import write_json
        from hpcdl.train.result import VERSION, Samples, job_of, summarize

        training = self.training
        samples = training.samples if training else Samples()
        loss = training.loss if training and training.loss == training.loss else None
        summary = summarize(samples, self.options.warmup_steps)
        result = {
            "schema": VERSION,
            "outcome": {
                "status": outcome,
                "message": message,
                "exit_code": int(_EXITS[outcome] if code is None else code),
            },
            "started": self.started,
            "ended": time.time(),
            "job": job_of(os.environ),
            "layout": self._layout(),
            "release": os.environ.get("HPCDL_RELEASE"),
            "versions": self._versions(),
            "model": self.options.model,
            "parameters": training.network.parameters if training else None,
            "batch_per_rank": training.plan.global_batch // self.ranks.size if training else None,
            "global_batch": training.plan.global_batch if training else None,
            "precision": self.options.precision,
            "data": self.options.data,
            "strategy": self.ranks.name,
            "options": {k: v for k, v in vars(self.options).items() if v is not None},
            "startup": {name: round(value, 3) for name, value in self.clock.parts.items()},
            "steps": {"done": training.step_number, "planned": training.plan.steps}
            if training
            else None,
            "samples": samples.as_json(),
            "summary": {**summary, "loss": loss, "metrics": metrics},
        }
        if self.ranks.rank == 0:
            write_json(self.options.folder / "result.json", result)
        return result

    def _layout(self) -> dict[str, Any]:
        gpus = self.tf.config.get_visible_devices("GPU")
        names = [self.tf.config.experimental.get_device_details(g).get("device_name") for g in gpus]
        nodes = list(dict.fromkeys(self.hosts))
        return {
            "ranks": self.ranks.size,
            "nodes": nodes,
            "ranks_per_node": [self.hosts.count(node) for node in nodes],
            "cpus_per_rank": self.place.cpus,
            "gpu_per_rank": len(gpus),
            "gpu": names[0] if names else None,
            "hosts": self.hosts,
        }

    def _versions(self) -> dict[str, str | None]:
        import numpy as np

        horovod = sys.modules.get("horovod")
        return {
            "hpcdl": __version__,
            "python": platform.python_version(),
            "tensorflow": self.tf.__version__,
            "horovod": getattr(horovod, "__version__", None),
            "numpy": np.__version__,
            "kernel": platform.release(),
        }


if __name__ == "__main__":
    sys.exit(main())
