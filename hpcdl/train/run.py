"""One run of one rank: prepares it, trains, scores, and writes a result.json however it ends.

Imported when TensorFlow is there. The result is pure data made in one place, `_record`.
"""

from __future__ import annotations

import json
import os
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import numpy as np

from hpcdl.results.records import RESULT, at, outcome
from hpcdl.system.errors import ExitCode, HpcdlError, MissingPrerequisite
from hpcdl.system.files import LockBusy, explain_os_errors, locked
from hpcdl.train import checkpoint, models, optimizers, run_plan
from hpcdl.train.batch_size_probe import make_trial
from hpcdl.train.communicate import Communicator
from hpcdl.train.data.inspecting import tf_counter
from hpcdl.train.data.opening import open_source
from hpcdl.train.data.repair import Repairs
from hpcdl.train.data.source import Share, Source
from hpcdl.train.diagnostics import LossGuard, explain, is_out_of_memory, out_of_memory
from hpcdl.train.history import History
from hpcdl.train.loop import Training, resume, train
from hpcdl.train.options import TrainOptions
from hpcdl.train.ranks import RankPlace
from hpcdl.train.result import job_of, summary_line
from hpcdl.train.run_record import layout_of, measured, versions_of
from hpcdl.train.scalars import Scalars
from hpcdl.train.startup import StartupClock
from hpcdl.train.step import StepParts, make_step
from hpcdl.train.stop import StopRequest
from hpcdl.train.tasks import evaluate, make_task
from hpcdl.train.timeline import write_timeline
from hpcdl.train.tracing import Tracer, rows_file
from hpcdl.train.train_report import Reporter
from hpcdl.train.watchdog import Watchdog

_DRAWN_STEPS = 2000
_EXITS = {
    "completed": ExitCode.OK,
    "missed-target": ExitCode.NO,
    "requeue": ExitCode.REQUEUE,
    "stopped": ExitCode.STOPPED,
}


class Run:
    """One run of one rank: what is needed to write its result, however it ends."""

    def __init__(
        self, tf: Any, options: TrainOptions, place: RankPlace, clock: StartupClock,
        ranks: Communicator, model: dict[str, Any],
    ) -> None:  # fmt: skip
        self.tf = tf
        self.options = options
        self.place = place
        self.clock = clock
        self.ranks = ranks
        self.model = model
        self.training: Training | None = None
        self.hosts: list[str] = [place.host]
        self.tracer = Tracer(tf, self._trace_folder(ranks.rank))
        self.started = time.time()
        self.open = ExitStack()
        self.damaged: set[str] = set()  # of all ranks, once they have told each other
        count = tf_counter(tf)
        self.repairs = Repairs(
            options.max_damaged, lambda path: count(path) is not None, self._complain,
            self._at_work,
        )  # fmt: skip

    def go(self) -> int:
        """Train, score, write the result; returns the exit code."""
        try:
            self.training = training = self._prepare()
            training.watchdog.start()
            self.hosts = self.ranks.gather_text(self.place.host)
            resume(training)
            self.clock.mark("resume")
            if (code := self._finished(training)) is not None:
                return code
            self._time_first_step(training)
            status = train(training)
            metrics = self._score(training) if status == "completed" else {}
            return self._end(training, status, metrics)
        except BaseException as fault:
            clear = self._clear(fault)
            message = clear.message if clear else repr(fault)
            with suppress(Exception):
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

    def _finished(self, training: Training) -> int | None:
        """The exit code of the same run that has ended already; None where there is work."""
        code = -1.0
        path = self.options.folder / RESULT.name
        if training.step_number >= training.plan.steps and self.ranks.rank == 0:
            record = RESULT.find(path)
            before = record.values if record else {}
            same = at(before, "options") == self._asked()
            if same and at(before, "outcome", "status") in ("completed", "missed-target"):
                code = float(before["outcome"]["exit_code"])
                training.reporter.say(f"this run has ended; {path} has its result, and --fresh "
                                      "starts over")  # fmt: skip
        code = float(self.ranks.sum_on_host(np.array([code if self.ranks.rank == 0 else 0.0]))[0])
        return None if code < 0 else int(code)

    def _asked(self) -> dict[str, Any]:
        """The options as result.json has them."""
        return {k: v for k, v in vars(self.options).items() if v is not None}

    def _take_job_directory(self) -> None:
        """Keep other runs out of the job's directory while this one works there.

        Raises:
            LockBusy: another one does.
        """
        folder = self.options.folder
        with explain_os_errors(folder):
            folder.mkdir(parents=True, exist_ok=True)
        try:
            self.open.enter_context(locked(folder / ".train.lock", wait_seconds=2.0))
        except LockBusy as busy:
            raise LockBusy(f"another run works in {folder}: {busy.message}",
                           hint="wait for it, or give another --job-dir") from None  # fmt: skip
        except MissingPrerequisite as fault:  # a parallel file system may have no locks
            self._complain(f"{fault.message}: nothing keeps other runs out of {folder}")

    def _clear(self, fault: BaseException) -> HpcdlError | None:
        """The clear error for a fault."""
        if isinstance(fault, HpcdlError):
            return fault
        if not is_out_of_memory(self.tf, fault):
            return explain(fault, checkpoint.describe_saved(self.options.folder / "checkpoints"))
        # The frames that failed hold the batch that was too large.
        traceback.clear_frames(fault.__traceback__)
        return self._out_of_memory(str(fault))

    def _out_of_memory(self, why: str) -> HpcdlError:
        """The error, with how to measure what fits."""
        batch = run_plan.global_batch(self.options, self.model, self.ranks.size) // self.ranks.size
        return out_of_memory(why, batch)

    def trial(self) -> Callable[[int], bool]:
        """A function that says whether a batch per rank fits."""
        parts = self._parts(self._source(self.options.accumulate))
        return make_trial(self.tf, self.options, parts, self._source)

    def _complain(self, what: str) -> None:
        """A line on standard error that says which rank it is from."""
        print(f"rank {self.ranks.rank}: {what}", file=sys.stderr, flush=True)

    def _at_work(self) -> None:
        """Keep the watchdogs from ending the run meanwhile."""
        if self.training is not None:
            self.training.watchdog.work()

    def _prepare(self) -> Training:
        """Data, network and step, ready to go."""
        options = self.options
        if self.ranks.rank == 0:
            self._take_job_directory()
        stop = StopRequest()
        stop.listen()
        batch = run_plan.global_batch(options, self.model, self.ranks.size)
        source = self._source(batch)
        self.clock.mark("data")
        parts = self._parts(source)
        numbers = run_plan.make_plan(options, self.model, batch, source.steps_per_epoch)
        silent = self.ranks.rank != 0
        reporter = Reporter(options.folder, numbers.steps, options.report_every, silent=silent)
        if options.fresh and not silent:
            checkpoint.start_over(options.folder / "checkpoints", os.environ, reporter.say)
        step = make_step(self.tf, parts)
        self.clock.mark("network")
        watchdog = Watchdog(options.folder, self.ranks.rank, self.ranks.size, options.hang_limit)
        # fp16 skips bad steps and halves its scale: fifteen in a row reach a scale of 1.
        guard = LossGuard(patience=15 if parts.scale else 0)
        wanted = options.tensorboard and not silent
        scalars = Scalars(self.tf, options.folder / "tensorboard" if wanted else None)
        training = Training(
            options, numbers, self.ranks, parts, source, step, reporter, stop, watchdog, guard,
            scalars,
        )  # fmt: skip
        if not silent:
            start = {"started": self.started, "ranks": self.ranks.size}
            training.history = History(training.checkpoint_directory, start)
        return training

    def _parts(self, source: Source) -> StepParts:
        """Network, task and optimizer as the options want them."""
        tf, options = self.tf, self.options
        network = models.build(
            tf, options.model, source.shape, source.classes, options.seed,
            precision=options.precision, channels_first=self._channels_first(),
        )  # fmt: skip
        return StepParts(
            network=network,
            task=make_task(tf, self._task(), options.label_smoothing),
            optimizer=optimizers.make_optimizer(
                tf, network, options.optimizer, options.momentum, options.weight_decay
            ),
            ranks=self.ranks,
            prepare=source.prepare,
            scale=optimizers.make_loss_scale(tf) if options.precision == "fp16" else None,
            clocked=not options.deterministic,
            accumulate=options.accumulate,
            precision=options.precision,
            xla=options.xla,
            compress=options.compress,
        )

    def _channels_first(self) -> bool:
        """Whether images lie channel by channel: pays for fp32 on GPUs without tensor cores."""
        gpus = self.tf.config.get_visible_devices("GPU")
        if self.options.layout == "nchw" and not gpus:
            if self.ranks.rank == 0:
                self._complain("no GPU here: --layout nchw is for GPUs, nhwc is used")
            return False
        if self.options.layout != "auto" or not gpus:
            return self.options.layout == "nchw"
        details = self.tf.config.experimental.get_device_details(gpus[0])
        capability = details.get("compute_capability", (7, 0))
        return bool(capability < (7, 0)) and self.options.precision == "fp32"

    def _task(self) -> str:
        return str(self.options.task or self.model["task"])

    def _source(self, batch: int) -> Source:
        options = self.options
        share = Share(batch, self.ranks.size, self.ranks.rank, options.seed, options.accumulate)
        return open_source(self.tf, options, self.model, share, self.place.cpus, self.repairs)

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

    def _score(self, training: Training) -> dict[str, float]:
        """The task's metrics on the test set, over all ranks."""
        parts, done = training.parts, training.step_number
        training.watchdog.be_patient()
        return evaluate(
            self.tf, parts.task, parts.network, training.source, self.ranks,
            lambda: training.watchdog.step(done),
        )  # fmt: skip

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
            message = (
                f"stopped by a signal; {checkpoint.describe_saved(training.checkpoint_directory)}"
            )
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
        """Gather all ranks' samples and threads; rank 0 draws them as one timeline."""
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
        """Write result.json (rank 0) and return its content."""
        damaged = len(self.damaged or self.repairs.places)
        result = {
            "outcome": outcome(status, message, code),
            "started": self.started,
            "ended": time.time(),
            "job": job_of(os.environ),
            "layout": layout_of(self.tf, self.place, self.hosts, self.ranks.size),
            "release": os.environ.get("HPCDL_RELEASE"),
            "versions": versions_of(self.tf),
            "model": self.options.model,
            "precision": self.options.precision,
            "data": self.options.data,
            "strategy": self.ranks.name,
            "options": self._asked(),
            "startup": {name: round(value, 3) for name, value in self.clock.parts.items()},
            **measured(self.training, self.options, metrics, damaged),
        }
        if self.ranks.rank == 0:
            RESULT.write(self.options.folder / RESULT.name, result)
        return result
