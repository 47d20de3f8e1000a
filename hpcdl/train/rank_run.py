"""One run of one rank: prepares it, trains, scores, and writes a result.json however it ends.

Imported when TensorFlow is there. The result is pure data made in one place, `_write`.
"""

from __future__ import annotations

import json
import math
import os
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import tensorflow as tf

from hpcdl.results.records import RESULT, at, outcome
from hpcdl.system.errors import BadInput, CheckFailed, MissingPrerequisite
from hpcdl.system.files import LockBusy, explain_os_errors, locked
from hpcdl.system.trust import require_own
from hpcdl.train import checkpoint, models, result
from hpcdl.train.callbacks import Leave, Scores, Steps, areas_of, evaluate
from hpcdl.train.data.opening import open_source
from hpcdl.train.data.source import BatchShare
from hpcdl.train.diagnostics import explain
from hpcdl.train.fitting import Training, broadcast, condemn, make_training, resume
from hpcdl.train.options import TrainOptions, check_target, global_batch, make_numbers
from hpcdl.train.ranks import Ranks
from hpcdl.train.startup import RankPlace, StartupClock
from hpcdl.train.stop_signals import Interrupted, StopSignals

_ENDED = ("completed", "missed-target")


@dataclass
class RankRun:
    """One run of one rank: what is needed to write its result, however it ends.

    `model` is the row of facts/models.yaml. `in_keras` while Keras runs a user's model, data and
    callbacks; it stays so where they raise.
    """

    options: TrainOptions
    place: RankPlace
    clock: StartupClock
    ranks: Ranks
    model: dict[str, Any]
    signals: StopSignals
    training: Training | None = None
    in_keras: bool = False
    hosts: Sequence[str] = ()
    started: float = field(default_factory=time.time)
    open: ExitStack = field(default_factory=ExitStack)

    def go(self) -> int:
        """Train, score, write the result; returns the exit code."""
        try:
            return self._go()
        except Interrupted:
            raise
        except BaseException as fault:
            batch = global_batch(self.options, self.model, self.ranks.size) // self.ranks.size
            saved = checkpoint.describe_saved(self.options.folder / "checkpoints")
            clear = explain(fault, batch, saved, training=self.in_keras)
            message = clear.message if clear else repr(fault)
            with suppress(Exception):
                if not self._is_anothers(fault):
                    self._write("failed", message, int(clear.exit_code) if clear else 1, {})
            if clear is None or clear is fault:
                raise
            raise clear from fault
        finally:
            self.open.close()
            if self.training is not None:
                self.training.watchdog.close()

    def _go(self) -> int:
        self.training = training = self._prepare()
        training.watchdog.start()
        self.hosts = self.ranks.gather(self.place.host)
        if not (self.options.epochs == 0 and self.options.weights):
            resume(training)
        self.clock.mark("resume")
        if (code := self._finished(training)) is not None:
            return code
        if self.ranks.rank == 0:
            models.check_outputs(self.options, training.recipe)
        self._load_weights(training)
        self.signals.training_begins()
        status = self._fit(training)
        metrics: dict[str, float] = {}
        if status == "completed":
            metrics = self._score(training)
            self._require_finite(training, metrics)
            self._export(training)
        return self._end(training, status, metrics)

    def _fit(self, training: Training) -> str:
        """Train to the end, with the last checkpoint on disk; `completed`, or how it was left."""
        callbacks = [Scores(training), *training.callbacks, Steps(training, self.clock)]
        status = "completed"
        self.in_keras = True
        try:
            training.fit(training.step_number, callbacks)
        except Leave as left:
            status = left.outcome
        self.in_keras = False
        training.writer.wait()
        return status

    def _is_anothers(self, fault: BaseException) -> bool:
        """Whether result.json is of a run that works, or of one that ended and was not resumed."""
        ended = at(RESULT.find(self.options.folder), "outcome", "status") in _ENDED
        begun = self.training and len(self.training.samples)
        return isinstance(fault, LockBusy) or (ended and not begun)

    def _finished(self, training: Training) -> int | None:
        """The exit code of the same run that has ended already; None where there is work."""
        code = None
        path = self.options.folder / RESULT.name
        if training.step_number and self.ranks.rank == 0:
            before = RESULT.find(self.options.folder)
            asked = {k: v for k, v in vars(self.options).items() if v is not None}
            same = at(before, "options") == json.loads(json.dumps(asked))
            same = same and at(before, "steps", "done") == training.step_number
            if same and at(before, "outcome", "status") in _ENDED:
                code = at(before, "outcome", "exit_code")
                training.reporter.say(
                    f"this run has ended; {path} has its result, and --fresh starts over"
                )
        first: int | None = self.ranks.gather(code)[0]
        return first

    def _take_job_directory(self) -> None:
        """Keep other runs out of the job's directory while this one works there."""
        folder = self.options.folder
        with explain_os_errors(folder):
            folder.mkdir(parents=True, exist_ok=True)
        for place in (folder, folder / "checkpoints"):  # a planted one, in /tmp, leads elsewhere
            if os.path.lexists(place):
                require_own(place)
        try:
            # A node that was lost holds its locks on NFS until its lease (90 s) is over.
            wait = 150.0 if result.job_of(os.environ)["restarts"] else 2.0
            self.open.enter_context(locked(folder / ".train.lock", wait_seconds=wait))
        except LockBusy as busy:
            raise LockBusy(
                f"another run works in {folder}: {busy.message}",
                hint="wait for it, or give another --job-dir",
            ) from None
        except MissingPrerequisite as fault:  # a parallel file system may have no locks
            warning = f"{fault.message}: nothing keeps other runs out of {folder}"
            print(f"rank {self.ranks.rank}: {warning}", file=sys.stderr, flush=True)

    def _prepare(self) -> Training:
        options, ranks = self.options, self.ranks
        if ranks.rank == 0:
            self._take_job_directory()
        models.set_up_keras(options.seed)  # before any code of the user's draws a number
        batch = global_batch(options, self.model, ranks.size)
        share = BatchShare(batch, ranks.size, ranks.rank, options.seed)
        counts = models.takes_classes(options.model)
        source = open_source(options, self.model, share, self.place.cpus, counts=counts)
        if len(set(ranks.gather(source.order))) > 1:
            raise BadInput(
                f"--dataset {options.dataset}: the ranks were given different data, or another "
                "order of it",
                hint="draw random numbers from a seed, such as numpy.random.default_rng(1)",
            )
        self.clock.mark("data")
        check_target(options, source.task, tested=bool(source.tested))
        numbers = make_numbers(options, self.model, batch, source.steps_per_epoch)
        recipe = models.ModelRecipe(options.model, source.spec, source.classes, options.precision)
        training = make_training(options, numbers, recipe, source, ranks, self.signals)
        self.clock.mark("network")
        if options.fresh and ranks.rank == 0:
            checkpoint.start_over(training.checkpoints, os.environ, training.reporter.say)
        return training

    def _load_weights(self, training: Training) -> None:
        wanted = self.options.weights
        if training.step_number:
            return
        if wanted:
            if self.ranks.rank == 0:
                message = models.load_weights(training.model, training.recipe, Path(wanted))
                training.reporter.say(message)
            broadcast(training)
        elif self.options.epochs == 0:
            raise BadInput(
                "there is no checkpoint to evaluate",
                hint="give --weights, or the --job-dir of a run",
            )

    def _score(self, training: Training) -> dict[str, float]:
        """The metrics on the test set."""
        training.watchdog.be_patient()
        self.in_keras = True
        scores = evaluate(training)
        self.in_keras = False
        if not scores:
            return {}
        metrics = {"test_loss" if name == "loss" else name: v for name, v in scores.items()}
        metrics["test_images"] = float(training.source.tested)
        return metrics | areas_of(training.model)

    def _require_finite(self, training: Training, metrics: dict[str, float]) -> None:
        """Refuse weights or scores that are not numbers: the last update was not judged yet."""
        finite = all(
            bool(tf.reduce_all(tf.math.is_finite(tf.cast(variable, tf.float32))))
            for variable in training.model.weights
        )
        bad = [name for name, value in metrics.items() if not math.isfinite(value)]
        if not finite or "test_loss" in bad:
            condemn(training, training.step_number)
            what = "weights are" if not finite else "the loss on the test set is"
            raise CheckFailed(
                f"after the last step {what} not finite numbers",
                hint="a smaller --lr, or --set optimizer.global_clipnorm=1.0; "
                + checkpoint.describe_saved(training.checkpoints),
            )

    def _export(self, training: Training) -> None:
        if not self.options.export or self.ranks.rank:
            return
        path, source = Path(self.options.export), training.source
        description = {
            "input": list(source.shape),
            "classes": source.classes,
            "pixels": source.pixels,
            "task": source.task,
            "step": training.step_number,
        }
        models.export(training.model, path, training.recipe, description)
        training.reporter.say(f"model exported: {path}")

    def _end(self, training: Training, status: str, metrics: dict[str, float]) -> int:
        """Compare with the target, write the result, print the last line; returns the exit code."""
        epoch, _ = training.numbers.position(max(0, training.step_number - 1))
        target, accuracy = self.options.target_accuracy, metrics.get("accuracy", 0.0)
        message = ""
        if status == "completed" and target is not None and accuracy < target:
            status = "missed-target"
            message = f"test accuracy {accuracy:.4f} is below the target {target}"
        if status in ("requeue", "stopped"):
            saved = checkpoint.describe_saved(training.checkpoints)
            message = f"stopped by a signal; {saved}"
        training.reporter.end(training.step_number, epoch, training.loss, status, message)
        code = int(result.EXITS[status])
        values = self._write(status, message, code, metrics)
        if self.ranks.rank == 0:
            print(message, end="\n" if message else "")
            path = str(self.options.folder / RESULT.name)
            brief = {key: values[key] for key in ("outcome", "layout", "summary")}
            line = json.dumps({**brief, "result": path}) if self.options.json else None
            print(line or result.summary_line(values, path), flush=True)
        return code

    def _write(
        self, status: str, message: str, code: int, metrics: dict[str, float]
    ) -> dict[str, Any]:
        """Write result.json, with what was measured as far as a training came; its values."""
        how, training = outcome(status, message, code), self.training
        numbers = measured(training, metrics) if training else result.nothing_measured()
        run = (self.options, self.place, self.clock, self.started)
        return result.write_result(*run, how, numbers, hosts=self.hosts)


def measured(training: Training, metrics: dict[str, float]) -> dict[str, Any]:
    """Return the numbers of a run for result.json."""
    samples, batch = training.samples, training.numbers.global_batch
    before = RESULT.find(training.options.folder)
    if not len(samples) and at(before, "steps", "done") == training.step_number:
        samples.take(at(before, "samples"))  # scored again: what was measured stays
    # The first call compiles.
    summary = result.summarize(samples, max(training.options.warmup_steps, training.group))
    if not training.board.clocked and "phases" in summary:
        del summary["phases"]["update"]
        if training.ranks.size > 1:  # one rank has none
            del summary["phases"]["communication"]
    spec = tf.nest.flatten(training.source.spec)[0]
    if spec.shape.rank == 1 and spec.dtype.is_integer:  # an example is a sequence of tokens
        tokens = summary["images_per_second"] * int(spec.shape[0])
        summary["tokens_per_second"] = round(tokens, 1)
    return {
        "samples": samples.as_json(),
        "summary": {**summary, "loss": result.finite(training.loss), "metrics": metrics},
        "parameters": models.parameters_of(training.model),
        "fused_layers": training.fused,
        "batch_per_rank": batch // training.ranks.size,
        "global_batch": batch,
        "steps": {"done": training.step_number, "planned": training.numbers.steps},
        "validations": training.validations,
        "curve": result.curve_of(training.losses),
    }
