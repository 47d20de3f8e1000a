"""A run in progress: what has been done, and its checkpoints."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hpcdl.train import checkpoint as checkpoints
from hpcdl.train.diagnostics import LossGuard, StepWatchdog
from hpcdl.train.result import LossHistory, Samples
from hpcdl.train.stop_signals import StopSignals
from hpcdl.train.timeline import Tracer
from hpcdl.train.train_report import Reporter

if TYPE_CHECKING:
    from hpcdl.train.fitting import Fitting


@dataclass
class TrainingProgress:
    """A run in progress. `step_number` steps are done; `loss` is the last one's.

    `tested` examples of the test set were scored the last time.
    """

    fitting: Fitting
    folder: Path
    signals: StopSignals
    reporter: Reporter
    watchdog: StepWatchdog
    guard: LossGuard
    tracer: Tracer | None
    step_number: int = 0
    loss: float = float("nan")
    samples: Samples = field(default_factory=Samples)
    saved_at: int = -1
    tested: int = 0
    writer: checkpoints.Writer = field(init=False)
    history: LossHistory | None = None
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
    """Begin a checkpoint of the state now, on rank 0; returns the seconds that training waited.

    The arrays are the variables' own buffers: TensorFlow copies a buffer that someone else
    holds before it writes to the variable, so they stay as they are now.
    """
    if training.saved_at == training.step_number:
        return 0.0
    start = time.perf_counter()
    training.saved_at = training.step_number
    if training.fitting.ranks.rank == 0:
        training.writer.submit(snapshot(training))
    return time.perf_counter() - start


def snapshot(training: TrainingProgress) -> checkpoints.Checkpoint:
    """Return the state now: arrays, and what must agree when a run resumes from it."""
    fitting = training.fitting
    meta = {
        **identity_of(fitting),
        "last_loss": training.loss,
        "ranks": fitting.ranks.size,
        "streams": fitting.source.streams,
        "weights": len(fitting.model.weights),
        "validations": training.validations,
        "callbacks": {type(c).__name__: _state_of(c) for c in fitting.callbacks},
    }
    arrays = tuple(variable.numpy() for variable in fitting.variables)
    return checkpoints.Checkpoint(training.step_number, meta, arrays)


def _state_of(callback: Any) -> dict[str, Any]:
    """Return a callback's numeric state, such as the best value and its age."""
    numbers = (bool, int, float, np.number)
    return {
        name: value.item() if isinstance(value, np.generic) else value
        for name, value in vars(callback).items()
        if isinstance(value, numbers) and not name.startswith("_")
    }


_IDENTITY = ("model", "seed", "loss", "optimizer", "lr_schedule", "precision", "accumulate")


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
        **({"steps": numbers.steps} if options.lr_schedule in {"cosine", "linear"} else {}),
    }
