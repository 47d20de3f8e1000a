"""A run in progress: what has been done, its checkpoints, and how it resumes from one."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from hpcdl.results.records import RESULT, at
from hpcdl.system.errors import BadInput
from hpcdl.train import checkpoint as checkpoints
from hpcdl.train.diagnostics import LossGuard, StepWatchdog
from hpcdl.train.fitting import Fitting, broadcast
from hpcdl.train.models import parameters_of
from hpcdl.train.options import SHORT_SCHEDULES, TrainOptions
from hpcdl.train.result import Reporter, Samples, curve_of, finite, nothing_measured, summarize
from hpcdl.train.stop_signals import StopSignals


@dataclass
class TrainingProgress:
    """A run in progress. `step_number` steps are done; `loss` is the last one's.

    `losses` are those of all steps of the run, earlier starts included.
    """

    fitting: Fitting
    folder: Path
    signals: StopSignals
    reporter: Reporter
    watchdog: StepWatchdog
    guard: LossGuard
    step_number: int = 0
    loss: float = float("nan")
    losses: list[float] = field(default_factory=list)
    samples: Samples = field(default_factory=Samples)
    saved_at: int = -1
    writer: checkpoints.Writer = field(init=False)
    validations: list[dict[str, Any]] = field(default_factory=list)
    callback_states: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.writer = checkpoints.Writer(self.checkpoint_directory, keep=3)

    @property
    def checkpoint_directory(self) -> Path:
        """The directory of this run's checkpoints."""
        return self.folder / "checkpoints"


def condemn(training: TrainingProgress, first: int) -> None:
    """Set aside the checkpoints after `first` steps and later, on rank 0."""
    if training.fitting.ranks.rank == 0:
        training.writer.wait()
        checkpoints.discard(training.checkpoint_directory, first)


def save(training: TrainingProgress) -> float:
    """Begin a checkpoint of the state now, on rank 0; returns the seconds that training waited."""
    if training.saved_at == training.step_number:
        return 0.0
    start, fitting = time.perf_counter(), training.fitting
    training.saved_at = training.step_number
    if fitting.ranks.rank == 0:
        meta = {
            **identity_of(fitting),
            "last_loss": training.loss,
            "ranks": fitting.ranks.size,
            "streams": fitting.source.streams,
            "weights": len(fitting.model.weights),
            "validations": training.validations,
            "callbacks": {type(c).__name__: _state_of(c) for c in fitting.callbacks},
        }
        arrays = [variable.numpy() for variable in fitting.variables]  # copies
        losses = np.array(training.losses)  # of ranks they have more bits than float32
        state = checkpoints.Checkpoint(training.step_number, meta, (*arrays, losses))
        training.writer.submit(state)
    return time.perf_counter() - start


def _state_of(callback: Any) -> dict[str, Any]:
    """Return a callback's numeric state, such as the best value and its age."""
    numbers = (bool, int, float, np.number)
    return {
        name: value.item() if isinstance(value, np.generic) else value
        for name, value in vars(callback).items()
        if isinstance(value, numbers) and not name.startswith("_")
    }


_IDENTITY = ("model", "seed", "loss", "optimizer", "lr_schedule", "precision")


def identity_of(fitting: Fitting) -> dict[str, Any]:
    """Return what must agree between a checkpoint and the run that resumes from it."""
    options, numbers, source = fitting.options, fitting.numbers, fitting.source
    return {
        **{name: getattr(options, name) for name in _IDENTITY},
        "settings": list(options.settings),
        "lr": numbers.lr,
        "data": source.digest,
        "shape": list(source.shape),
        "global_batch": numbers.global_batch,
        "steps_per_epoch": numbers.steps_per_epoch,
        **({"steps": numbers.steps} if options.lr_schedule in SHORT_SCHEDULES else {}),
    }


def measured(
    training: TrainingProgress | None, options: TrainOptions, metrics: dict[str, float]
) -> dict[str, Any]:
    """Return the numbers, as far as a training came; None where it never began."""
    if training is None:
        return nothing_measured()
    samples, fitting = training.samples, training.fitting
    before = RESULT.find(training.folder)
    if not len(samples) and at(before, "steps", "done") == training.step_number:
        samples.take(at(before, "samples"))  # scored again: what was measured stays
    warmup = max(options.warmup_steps, fitting.group)  # the first call compiles
    summary = summarize(samples, warmup)
    if not fitting.board.clocked and "phases" in summary:
        del summary["phases"]["update"]
        if fitting.ranks.size > 1:  # one rank has none
            del summary["phases"]["communication"]
    spec = tf.nest.flatten(fitting.source.spec)[0]
    if spec.shape.rank == 1 and spec.dtype.is_integer:  # an example is a sequence of tokens
        tokens = summary["images_per_second"] * int(spec.shape[0])
        summary["tokens_per_second"] = round(tokens, 1)
    batch = fitting.numbers.global_batch
    numbers = {
        "samples": samples.as_json(),
        "summary": {**summary, "loss": finite(training.loss), "metrics": metrics},
        "parameters": parameters_of(fitting.model),
        "fused_layers": fitting.fused,
        "batch_per_rank": batch // fitting.ranks.size,
        "global_batch": batch,
        "steps": {"done": training.step_number, "planned": fitting.numbers.steps},
        "validations": training.validations,
    }
    return {**numbers, "curve": curve_of(training.losses)}


# ---- resuming ----


def resume(training: TrainingProgress) -> None:
    """Resume from the newest intact checkpoint, if any: rank 0 reads, or refuses, for all."""
    state, fault = (0, math.nan, 0), None
    ranks, source = training.fitting.ranks, training.fitting.source
    if ranks.rank == 0:
        try:
            state = _restore(training)
        except BadInput as refused:
            fault = refused
    (step, loss, streams), refuses = ranks.gather((state, fault is not None))[0]
    if refuses:
        raise fault or BadInput("rank 0 cannot resume from the checkpoints")
    broadcast(training.fitting)
    training.step_number = training.saved_at = step
    source.streams = streams or source.streams
    if step:
        training.loss = loss
        training.reporter.say(f"resumed after step {training.step_number}")
    training.samples.first_step = training.step_number


def _restore(training: TrainingProgress) -> tuple[int, float, int]:
    """Load the newest intact checkpoint into the variables; (step, loss, streams); 0 for none."""
    newest = checkpoints.newest(training.checkpoint_directory, training.reporter.say)
    if newest is None:
        return 0, math.nan, 0
    _check_identity(training, newest)
    streams = _streams_of(training, newest)
    *arrays, losses = newest.arrays
    for variable, array in zip(training.fitting.variables, arrays, strict=True):
        variable.assign(tf.cast(array, variable.dtype))
    training.losses = losses.tolist()
    training.validations = list(newest.meta.get("validations", ()))
    training.callback_states = dict(newest.meta.get("callbacks", {}))
    return newest.step, float(newest.meta["last_loss"]), streams


def _streams_of(training: TrainingProgress, newest: checkpoints.Checkpoint) -> int:
    """The streams of a checkpoint's epoch, whose rest is what was not seen; 0 for any number."""
    streams, ranks = int(newest.meta.get("streams", 0)), training.fitting.ranks.size
    if streams % ranks == 0:
        return streams
    if training.fitting.numbers.position(newest.step)[1] == 0:
        return 0
    fitting = ", ".join(str(n) for n in range(1, streams + 1) if streams % n == 0)
    raise BadInput(
        f"{ranks} ranks cannot resume inside an epoch of {streams} interleaved shard streams",
        hint=f"start one of {fitting} ranks, or resume from a checkpoint at an epoch's end",
    )


def _check_identity(training: TrainingProgress, newest: checkpoints.Checkpoint) -> None:
    other = [
        f"{key}: {newest.meta[key]} in the checkpoint, {value} now"
        for key, value in identity_of(training.fitting).items()
        if newest.meta.get(key, value) != value
    ]
    variables = training.fitting.variables
    shapes = [[tuple(each.shape) for each in some] for some in (newest.arrays[:-1], variables)]
    if shapes[0] != shapes[1]:
        there, now = (f"{len(some)} arrays of {sum(map(math.prod, some)):,}" for some in shapes)
        other.append(f"{there} values in the checkpoint, {now} now")
    if other:
        raise BadInput(
            f"the checkpoints in {training.checkpoint_directory} are of another run",
            details=other,
            hint="use another --job-dir, or --fresh to start over; --weights CHECKPOINT starts "
            "a new run from its weights",
        )
