"""One run of one rank: prepares it, trains, scores, and writes a result.json however it ends.

Imported when TensorFlow is there. The result is pure data made in one place, `_record`.
"""

from __future__ import annotations

import json
import os
import platform
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from hpcdl import __version__
from hpcdl.results.records import RESULT, outcome
from hpcdl.system.errors import BadInput, ExitCode, HpcdlError
from hpcdl.train import checkpoint, memory, models, optimizers, run_plan
from hpcdl.train.batch_size_probe import make_trial
from hpcdl.train.communicate import Communicator
from hpcdl.train.data.dataset import read_dataset
from hpcdl.train.data.inspecting import tf_counter
from hpcdl.train.data.pipeline import Records
from hpcdl.train.data.repair import Repairs
from hpcdl.train.data.source import InMemory, Share, Source, Synthetic
from hpcdl.train.diagnostics import LossGuard, explain, is_out_of_memory, out_of_memory
from hpcdl.train.driver import nvidia_driver
from hpcdl.train.loop import Training, resume, train
from hpcdl.train.options import SYNTHETIC, TrainOptions, to_argv
from hpcdl.train.ranks import RankPlace
from hpcdl.train.result import Samples, finite, job_of, summarize, summary_line
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
            self.repairs.close()
            if self.training is not None:
                self.training.watchdog.close()
                self.training.reporter.close()

    def _clear(self, fault: BaseException) -> HpcdlError | None:
        """The clear error for a fault."""
        if isinstance(fault, HpcdlError):
            return fault
        if not is_out_of_memory(self.tf, fault):
            return explain(fault)
        # The frames that failed hold the batch that was too large.
        traceback.clear_frames(fault.__traceback__)
        return self._out_of_memory(str(fault))

    def end_without_memory(self) -> None:
        """Exit with a clear error where C++ found no memory and would abort."""
        clear = self._out_of_memory("std::bad_alloc")
        with suppress(Exception):
            self._write("failed", clear.message, int(clear.exit_code), {})
        print(clear.render(), file=sys.stderr, flush=True)
        os._exit(int(clear.exit_code))

    def _out_of_memory(self, why: str) -> HpcdlError:
        """The error, with the largest batch that fits."""
        if self.training is not None:
            self.training.watchdog.close()
        batch = run_plan.global_batch(self.options, self.model, self.ranks.size) // self.ranks.size
        self._complain(f"out of memory with {batch} images; looks for how many fit")
        begun = time.monotonic()
        unit = self.options.accumulate
        bounds = memory.Bounds(0, batch, unit, begun + memory.SECONDS)
        if self.tf.config.get_visible_devices("GPU"):
            with suppress(self.tf.errors.ResourceExhaustedError):
                memory.search(bounds, self.trial(self.ranks.size))
        else:
            memory.search_in_children(bounds, self.ranks.size, to_argv(self.options))
        seconds = time.monotonic() - begun
        if self.ranks.rank:
            # Rank 0 reports for all; it may need longer.
            time.sleep(seconds / 2)
        return out_of_memory(why, batch, bounds, seconds)

    def trial(self, ranks: int) -> Callable[[int], bool]:
        """A function that says whether a batch per rank fits, in a run of so many ranks."""
        small = self._source(self.ranks.size * self.options.accumulate)
        if self.training is None:
            parts = self._parts(small)
        else:
            # The run's own source, which its step holds too, has what did not fit.
            parts = replace(self.training.parts, prepare=small.prepare)
            self.training.source, self.training.parts = small, parts
            self.training.step = make_step(self.tf, parts)
        return make_trial(
            self.tf, self.options, parts, lambda batch: self._source(self.ranks.size * batch),
            many=ranks > 1,
        )  # fmt: skip

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
        return Training(
            options, numbers, self.ranks, parts, source, step, reporter, stop, watchdog, guard,
            scalars,
        )  # fmt: skip

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
        tf, options, task = self.tf, self.options, self._task()
        share = Share(batch, self.ranks.size, self.ranks.rank, options.seed, options.accumulate)
        shape = tuple(self.model["input"])
        if options.image_size:
            shape = (options.image_size, options.image_size, shape[2])
        if options.data == SYNTHETIC:
            run_plan.check_target(options, task, 0)
            return Synthetic(tf, shape, self.model["classes"], share, task)
        dataset = read_dataset(Path(options.data))
        if dataset.task != task:
            raise BadInput(
                f"the model {options.model} is for {task}, the data set's labels are "
                f"{dataset.task}",
                hint="`hpcdl data make photos --task` makes either",
            )
        run_plan.check_target(options, task, dataset.examples("test"))
        if dataset.encoding == "raw":
            if options.image_size and dataset.shape[:2] != shape[:2]:
                raise BadInput(
                    f"the data set's images are {dataset.shape[0]} x {dataset.shape[1]}, and raw",
                    hint="leave out --image-size: only JPEGs are cropped to a size",
                )
            return InMemory(tf, dataset, share, self.repairs)
        return Records(
            tf, dataset, share, shape[:2], self.place.cpus, self.repairs, options.pipeline
        )

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
        result = {
            "outcome": outcome(status, message, code),
            "started": self.started,
            "ended": time.time(),
            "job": job_of(os.environ),
            "layout": self._layout(),
            "release": os.environ.get("HPCDL_RELEASE"),
            "versions": self._versions(),
            "model": self.options.model,
            "precision": self.options.precision,
            "data": self.options.data,
            "strategy": self.ranks.name,
            "options": {k: v for k, v in vars(self.options).items() if v is not None},
            "startup": {name: round(value, 3) for name, value in self.clock.parts.items()},
            **self._numbers(metrics),
        }
        if self.ranks.rank == 0:
            RESULT.write(self.options.folder / RESULT.name, result)
        return result

    def _numbers(self, metrics: dict[str, float]) -> dict[str, Any]:
        """What training has measured, as far as it came."""
        training = self.training
        samples = training.samples if training else Samples()
        summary = {**summarize(samples, self.options.warmup_steps), "loss": None}
        numbers: dict[str, Any] = {"samples": samples.as_json(), "summary": summary}
        if training is not None:
            batch = training.plan.global_batch
            summary |= {"loss": finite(training.loss), "metrics": metrics}
            numbers |= {
                "parameters": training.parts.network.parameters,
                "batch_per_rank": batch // self.ranks.size,
                "global_batch": batch,
                "damaged_records": len(self.damaged or self.repairs.places),
                "steps": {"done": training.step_number, "planned": training.plan.steps},
            }
        summary.setdefault("metrics", {})
        return numbers

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
        horovod = sys.modules.get("horovod")
        return {
            "hpcdl": __version__,
            "python": platform.python_version(),
            "tensorflow": self.tf.__version__,
            "horovod": getattr(horovod, "__version__", None),
            "numpy": np.__version__,
            "kernel": platform.release(),
            "driver": nvidia_driver(),
        }
