"""Tries whether batches fit into memory: the run itself, for three steps.

The run's own input, step, loop and checkpoints, in a directory that is thrown away; other ranks
are left out.
"""

from __future__ import annotations

import gc
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from hpcdl.train import checkpoint, loop
from hpcdl.train.communicate import Alone
from hpcdl.train.data.source import Source
from hpcdl.train.diagnostics import LossGuard
from hpcdl.train.options import TrainOptions
from hpcdl.train.run_plan import RunPlan
from hpcdl.train.scalars import Scalars
from hpcdl.train.step import StepParts, make_step
from hpcdl.train.stop import StopRequest
from hpcdl.train.train_report import Reporter
from hpcdl.train.watchdog import Watchdog

_STEPS = 3
_ANY_LOSS = 1 << 30


class _OneOfMany(Alone):
    """Sums as Horovod gives them: in buffers of their own."""

    def total(self, tensors: Sequence[Any], *, compress: bool = False) -> list[Any]:
        """Copies of the tensors."""
        return [self._tf.raw_ops.DeepCopy(x=tensor) for tensor in tensors]


class _Holding(checkpoint.Writer):
    """Holds a checkpoint's arrays while the next step writes new ones, as a disk makes it."""

    held: checkpoint.Checkpoint | None = None

    def submit(self, checkpoint: checkpoint.Checkpoint) -> None:
        """Hold this one."""
        self.held = checkpoint

    def wait(self) -> None:
        """Let it go."""
        self.held = None


def make_trial(
    tf: Any, options: TrainOptions, parts: StepParts, source_of: Callable[[int], Source]
) -> Callable[[int], bool]:  # fmt: skip
    """A function that says whether a batch per rank fits; the weights are no longer the run's.

    Args:
        tf: TensorFlow.
        options: the run's.
        parts: what the step is made of.
        source_of: the input for a batch per rank.
    """
    parts = replace(parts, ranks=_OneOfMany(tf))
    step = make_step(tf, parts, any_batch=True)

    def tries(batch: int) -> bool:
        gc.collect()  # what the trial before has not freed
        try:
            with tempfile.TemporaryDirectory() as folder:
                small = replace(options, job_dir=folder, delay_ms=0.0)
                training = _training(tf, small, batch, parts, source_of(batch), step)
                loop.train(training)
        except (tf.errors.ResourceExhaustedError, MemoryError):
            return False
        return True

    return tries


def _training(
    tf: Any, options: TrainOptions, batch: int, parts: StepParts, source: Source, step: Any
) -> loop.Training:
    """Some steps with a checkpoint after each, without a watchdog."""
    plan = RunPlan(batch, _STEPS, source.steps_per_epoch, lr=0.0, checkpoint_every=1)
    folder = Path(options.folder)
    training = loop.Training(
        options, plan, parts.ranks, parts, source, step,
        Reporter(folder, _STEPS, 0.0, silent=True), StopRequest(), Watchdog(folder, 0, 1, 0.0),
        LossGuard(_ANY_LOSS), Scalars(tf, None),
    )  # fmt: skip
    training.writer = _Holding(folder, 1)
    return training
