"""One run of one rank: prepares it, trains, scores, and writes a result.json however it ends.

Imported when TensorFlow is there. The result is pure data made in one place, `_record`.
"""

from __future__ import annotations

import json
import os
import sys
import time
import traceback
from contextlib import ExitStack, nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from hpcdl.results.records import RESULT, at, outcome
from hpcdl.system.errors import BadInput, ExitCode, HpcdlError, MissingPrerequisite
from hpcdl.system.files import LockBusy, explain_os_errors, locked
from hpcdl.train import checkpoint, diagnostics
from hpcdl.train.communicate import Communicator
from hpcdl.train.data.opening import open_source
from hpcdl.train.data.source import Share, count_records
from hpcdl.train.data.tfrecord import Repairs
from hpcdl.train.diagnostics import LossGuard, Watchdog
from hpcdl.train.exporting import check_outputs, export, export_onnx, load_weights
from hpcdl.train.keras_parts import make_callbacks, make_schedule, settings_of
from hpcdl.train.loop import Training, assign, resume, train
from hpcdl.train.options import SCHEDULES, TrainOptions, check_target, global_batch, make_plan
from hpcdl.train.result import History, job_of, summary_line
from hpcdl.train.run_record import layout_of, measured, require_one_decoder, versions_of
from hpcdl.train.scalars import Scalars
from hpcdl.train.startup import RankPlace, StartupClock
from hpcdl.train.step import StopRequest, channels_first, make_parts, make_step
from hpcdl.train.strategies import Chief
from hpcdl.train.tasks import Evaluator, Validation, chosen_metric, scores_line, write_predictions
from hpcdl.train.timeline import Tracer, rows_file, write_timeline
from hpcdl.train.train_report import Reporter

_DRAWN_STEPS = 2000
_EXITS = {
    "completed": ExitCode.OK,
    "missed-target": ExitCode.NO,
    "requeue": ExitCode.REQUEUE,
    "stopped": ExitCode.STOPPED,
}
_ENDED = ("completed", "missed-target")


class Run:
    """One run of one rank: what is needed to write its result, however it ends."""

    def __init__(
        self,
        options: TrainOptions,
        place: RankPlace,
        clock: StartupClock,
        ranks: Communicator,
        model: dict[str, Any],
        *,
        keras: bool,
    ) -> None:
        self.options = options
        self.place = place
        self.clock = clock
        self.ranks = ranks
        self.chief = ranks if isinstance(ranks, Chief) else None
        self.model = model
        self.keras = keras
        self.training: Training | None = None
        self.hosts: list[str] = [place.host]
        self.tracer = Tracer(self._trace_folder(ranks.rank))
        self.started = time.time()
        self.open = ExitStack()
        self.evaluator: Evaluator | None = None
        self.damaged: set[str] = set()  # of all ranks, once they have told each other
        self.repairs = Repairs(
            options.max_damaged,
            lambda path: count_records(path) is not None,
            self._complain,
            lambda: self.training.watchdog.work() if self.training else None,
        )

    def go(self) -> int:
        """Train, score, write the result; returns the exit code."""
        try:
            self.training = training = self._prepare()
            training.watchdog.start()
            self.hosts = self.chief.hosts if self.chief else self.ranks.gather_text(self.place.host)
            require_one_decoder(self.ranks.gather_text(training.source.decoder), self.hosts)
            if not (self.options.evaluate and self.options.weights):
                resume(training)
            self.clock.mark("resume")
            if (code := self._finished(training)) is not None:
                return code
            if self.ranks.rank == 0:
                check_outputs(self.options)
            self._load_weights(training)
            self._time_first_step(training)
            status = "completed" if self.options.evaluate else train(training)
            metrics = self._score(training) if status == "completed" else {}
            if status == "completed":
                self._export(training)
            return self._end(training, status, metrics)
        except BaseException as fault:
            clear = self._clear(fault)
            message = clear.message if clear else repr(fault)
            with suppress(Exception):
                if not self._is_anothers(fault):
                    self._write("failed", message, int(clear.exit_code) if clear else 1, {})
            if clear is None or clear is fault:
                raise
            raise clear from fault
        finally:
            self.open.close()
            self.repairs.close()
            if self.training is not None:
                self.training.watchdog.close()
                self.training.reporter.close()

    def _is_anothers(self, fault: BaseException) -> bool:
        """Whether result.json is of a run that works, or of one that ended and was not resumed."""
        ended = at(RESULT.find(self.options.folder), "outcome", "status") in _ENDED
        begun = self.training and len(self.training.samples)
        return isinstance(fault, LockBusy) or (ended and not begun)

    def _finished(self, training: Training) -> int | None:
        """The exit code of the same run that has ended already; None where there is work."""
        code = -1.0
        path = self.options.folder / RESULT.name
        if training.step_number and self.ranks.rank == 0:
            before = RESULT.find(self.options.folder)
            same = at(before, "options") == json.loads(json.dumps(self._asked()))
            same = same and at(before, "steps", "done") == training.step_number
            if same and at(before, "outcome", "status") in _ENDED:
                code = float(at(before, "outcome", "exit_code"))
                training.reporter.say(
                    f"this run has ended; {path} has its result, and --fresh starts over"
                )
        code = float(self.ranks.sum_on_host(np.array([code if self.ranks.rank == 0 else 0.0]))[0])
        return None if code < 0 else int(code)

    def _asked(self) -> dict[str, Any]:
        return {k: v for k, v in vars(self.options).items() if v is not None}

    def _take_job_directory(self) -> None:
        """Keep other runs out of the job's directory while this one works there."""
        folder = self.options.folder
        with explain_os_errors(folder):
            folder.mkdir(parents=True, exist_ok=True)
        try:
            # A node that was lost holds its locks on NFS until its lease (90 s) is over.
            wait = 150.0 if job_of(os.environ)["restarts"] else 2.0
            self.open.enter_context(locked(folder / ".train.lock", wait_seconds=wait))
        except LockBusy as busy:
            raise LockBusy(
                f"another run works in {folder}: {busy.message}",
                hint="wait for it, or give another --job-dir",
            ) from None
        except MissingPrerequisite as fault:  # a parallel file system may have no locks
            self._complain(f"{fault.message}: nothing keeps other runs out of {folder}")

    def _clear(self, fault: BaseException) -> HpcdlError | None:
        if isinstance(fault, HpcdlError):
            return fault
        if self.chief:
            begun = self.training.samples.first_step if self.training else 0
            if lost := self.chief.recover(fault, begun):
                return lost
        if not diagnostics.is_out_of_memory(fault):
            saved = checkpoint.describe_saved(self.options.folder / "checkpoints")
            return diagnostics.explain(fault, saved)
        # The frames that failed hold the batch that was too large.
        traceback.clear_frames(fault.__traceback__)
        batch = global_batch(self.options, self.model, self.ranks.size) // self.ranks.size
        return diagnostics.out_of_memory(str(fault), batch)

    def _complain(self, what: str) -> None:
        print(f"rank {self.ranks.rank}: {what}", file=sys.stderr, flush=True)

    def _prepare(self) -> Training:
        options = self.options
        if self.ranks.rank == 0:
            self._take_job_directory()
        stop = StopRequest()
        stop.listen()
        batch = global_batch(options, self.model, self.ranks.size)
        ranks = self.ranks
        share = Share(batch, ranks.size, ranks.rank, options.seed, options.accumulate)
        source = open_source(options, self.model, share, self.place.cpus, self.repairs)
        self.clock.mark("data")
        with self.chief.scope() if self.chief else nullcontext():
            parts = make_parts(options, self.model, source, ranks, keras=self.keras)
        check_target(options, parts.task.name, int(source.tested))
        metric = chosen_metric(options, parts.task, tested=source.tested)
        numbers = make_plan(options, self.model, batch, source.steps_per_epoch)
        if options.lr_schedule not in SCHEDULES:
            given = settings_of(options.settings, "schedule")
            schedule = make_schedule(options.lr_schedule, numbers.lr, given)
            numbers = replace(numbers, schedule=schedule)
        silent = self.ranks.rank != 0
        reporter = Reporter(options.folder, numbers.steps, options.report_every, silent=silent)
        if options.fresh and not silent:
            checkpoint.start_over(options.folder / "checkpoints", os.environ, reporter.say)
        step = self.chief.make_step(parts, numbers) if self.chief else make_step(parts)
        self.clock.mark("network")
        watchdog = Watchdog(options.folder, self.ranks.rank, self.ranks.size, options.hang_limit)
        # fp16 skips bad steps and halves its scale: fifteen in a row reach a scale of 1.
        guard = LossGuard(patience=15 if parts.scale else 0)
        wanted = options.tensorboard and not silent
        scalars = Scalars(options.folder / "tensorboard" if wanted else None)
        training = Training(
            options,
            numbers,
            self.ranks,
            parts,
            source,
            step,
            reporter,
            stop,
            watchdog,
            guard,
            scalars,
        )
        self.evaluator = Evaluator(
            parts.task,
            parts.network,
            source,
            self.ranks,
            lambda: watchdog.step(training.step_number),
        )
        if numbers.validate_every:
            needed = bool(options.best or options.patience)
            training.validation = Validation(
                numbers.validate_every, metric, options.patience, self.evaluator.evaluate, needed
            )
        if options.callback and not silent:
            training.callbacks = make_callbacks(options.callback, options.settings, parts.network)
        if not silent:
            start = {"started": self.started, "ranks": self.ranks.size}
            training.history = History(training.checkpoint_directory, start)
        return training

    def _time_first_step(self, training: Training) -> None:
        """Time the first step apart, for it compiles; then print where the start-up went."""
        step = training.step

        def first(*arguments: Any) -> Any:
            result = step(*arguments)
            self.clock.mark("first step")
            training.step = self.tracer.wrap(step) if self.options.profile else step
            training.reporter.say(self.clock.line())
            return result

        training.step = first

    def _load_weights(self, training: Training) -> None:
        wanted, network = self.options.weights, training.parts.network
        if wanted and not training.step_number:
            if self.ranks.rank == 0:
                training.reporter.say(load_weights(network, Path(wanted)))
            self.ranks.broadcast((*network.trainable, *network.state))
        elif self.options.evaluate and not training.step_number:
            raise BadInput(
                "there is no checkpoint to evaluate",
                hint="give --weights, or the --job-dir of a run",
            )

    def _score(self, training: Training) -> dict[str, float]:
        """The metrics of the best weights, or else the last ones, on the test set."""
        kept = self._best_weights(training) if self.ranks.rank == 0 else None
        best = int(self.ranks.sum_on_host(np.array([kept.step if kept else 0.0]))[0])
        if best:
            if kept:
                assign(training, kept)
            self.ranks.broadcast(training.variables)
        else:
            training.parts.optimizer.finalize()
        training.watchdog.be_patient()
        assert self.evaluator
        if not self.options.predict:
            metrics = self.evaluator.evaluate()
        else:
            metrics, logits, labels = self.evaluator.predictions()
            if self.ranks.rank == 0:
                path = Path(str(self.options.predict))
                write_predictions(path, training.parts.task, logits, labels)
        if training.validation and training.validation.every and metrics:
            last = best or training.step_number
            training.reporter.say(f"test set, weights of step {last}: {scores_line(metrics)}")
        return metrics

    def _best_weights(self, training: Training) -> checkpoint.Checkpoint | None:
        """The best weights of --best; None where there are none, or they were lost."""
        best = training.validation.best_step() if training.validation and self.options.best else 0
        if not best:
            return None
        try:
            return checkpoint.load(checkpoint.path_of(training.checkpoint_directory / "best", best))
        except (checkpoint.DamagedCheckpoint, OSError) as fault:
            training.reporter.say(
                f"the weights of step {best}, the best ones, cannot be read "
                f"({fault}); the last ones count"
            )
            return None

    def _export(self, training: Training) -> None:
        if not self.options.export or self.ranks.rank:
            return
        folder, source = Path(self.options.export), training.source
        said = {
            "input": list(source.shape),
            "classes": source.classes,
            "pixels": source.pixels,
            "task": training.parts.task.name,
            "step": training.step_number,
            "channels_first": channels_first(self.options),
        }
        if folder.suffix == ".onnx":
            export_onnx(training.parts.network, folder)
        else:
            export(training.parts.network, folder, said)
        training.reporter.say(f"model exported: {folder}")

    def _end(self, training: Training, status: str, metrics: dict[str, float]) -> int:
        """Compare with the target, write the result, print the last line; returns the exit code."""
        epoch, _ = training.plan.position(max(0, training.step_number - 1))
        # A set: all ranks read the same test records.
        places = self.ranks.gather_text("\n".join(self.repairs.places))
        self.damaged = {place for text in places for place in text.splitlines()}
        target, accuracy = self.options.target_accuracy, metrics.get("accuracy", 0.0)
        message = ""
        if status == "completed" and target is not None and accuracy < target:
            status = "missed-target"
            message = f"test accuracy {accuracy:.4f} is below the target {target}"
        if status in ("requeue", "stopped"):
            saved = checkpoint.describe_saved(training.checkpoint_directory)
            message = f"stopped by a signal; {saved}"
        training.reporter.end(training.step_number, epoch, training.loss, status, message)
        if self.options.profile:
            self._write_timeline(training)
        code = int(_EXITS[status])
        result = self._write(status, message, code, metrics)
        if self.ranks.rank == 0:
            print(message, end="\n" if message else "")
            path = str(self.options.folder / RESULT.name)
            brief = {key: result[key] for key in ("outcome", "layout", "summary")}
            line = json.dumps({**brief, "result": path}) if self.options.json else None
            print(line or summary_line(result, path), flush=True)
        return code

    def _write_timeline(self, training: Training) -> None:
        self.tracer.stop()
        columns = {name: kept[:_DRAWN_STEPS] for name, kept in training.samples.columns.items()}
        first = self.tracer.first
        traced = None if first is None else first - training.samples.first_step
        mine = {"host": self.place.host, "columns": columns, "traced": traced}
        ranks = [json.loads(text) for text in self.ranks.gather_text(json.dumps(mine))]
        if self.ranks.rank:
            return
        for rank, kept in enumerate(ranks):
            if kept["traced"] is not None:
                kept["rows"] = json.loads(rows_file(self._trace_folder(rank)).read_text())
        path = self.options.folder / "timeline.json"
        write_timeline(path, ranks)
        training.reporter.say(f"timeline of {len(ranks)} ranks: {path}")

    def _trace_folder(self, rank: int) -> Path:
        return self.options.folder / "profile" / f"rank-{rank}"

    def _write(
        self, status: str, message: str, code: int, metrics: dict[str, float]
    ) -> dict[str, Any]:
        damaged = len(self.damaged or self.repairs.places)
        result = {
            "outcome": outcome(status, message, code),
            "started": self.started,
            "ended": time.time(),
            "job": job_of(os.environ),
            "layout": layout_of(
                self.place, self.hosts, len(self.hosts) if self.chief else self.ranks.size
            ),
            "release": os.environ.get("HPCDL_RELEASE"),
            "versions": versions_of(),
            "decoder": (self.training.source.decoder if self.training else "") or None,
            "model": self.options.model,
            "precision": self.options.precision,
            "data": self.options.data,
            "strategy": self.ranks.name,
            "options": self._asked(),
            "startup": {name: round(value, 3) for name, value in self.clock.parts.items()},
            **measured(self.training, self.options, metrics, damaged),
            **({"asynchronous": self.chief.summary()} if self.chief else {}),
        }
        if self.ranks.rank == 0:
            RESULT.write(self.options.folder / RESULT.name, result)
        return result
