"""Turns what goes wrong inside a step into one clear error with what to do.

A loss that is no number or explodes ends the run, and the loop sets aside the checkpoints that
hold what led to it. Out of memory names the largest batch that would have fit, by the
share that activations had of the memory asked for.
"""

from __future__ import annotations

import math
from typing import Any

from hpcdl.system.errors import AnswerNo, HpcdlError, MachineLacks

_EXPLODED = 1e4


class LossGuard:
    """Watches the loss; `patience` bad ones in a row are borne (a loss scale needs some)."""

    def __init__(self, patience: int) -> None:
        self.patience = patience
        self._bad = 0
        self._first: float | None = None

    def check(self, loss: float, step: int, lr: float) -> None:
        """Look at the loss of a step; the same on all ranks, so all of them leave.

        Raises:
            AnswerNo: it is no number, or 10,000 times the first one.
        """
        finite = math.isfinite(loss)
        if finite and self._first is None:
            self._first = max(abs(loss), 1.0)
        if finite and abs(loss) < _EXPLODED * (self._first or 1.0):
            self._bad = 0
            return
        self._bad += 1
        if self._bad > self.patience:
            what = "is not a number" if not finite else f"has exploded to {loss:.3g}"
            raise AnswerNo(
                f"the loss {what} at step {step} (learning rate {lr:g})",
                hint="a smaller --lr or a longer --lr-warmup-steps; the last checkpoint is good",
            )


def explain(tf: Any, fault: BaseException, batch_per_rank: int) -> HpcdlError | None:
    """The error for a fault of TensorFlow or Horovod, None for one that is our own."""
    if isinstance(fault, tf.errors.ResourceExhaustedError | MemoryError):
        return MachineLacks(
            f"out of memory with {batch_per_rank} images per rank",
            details=[str(fault).splitlines()[0][:200]],
            hint=f"--batch-per-rank {max(1, batch_per_rank // 2)} is the next to try, or "
            "--accumulate 2 for the same batch in two parts",
        )
    text = str(fault)
    if "Horovod" in text or "HorovodAllreduce" in text:
        return MachineLacks(
            "another rank has left, so this one cannot go on",
            details=[text.splitlines()[0][:300]],
            hint="the first error in the log is the cause; the run goes on from its checkpoint",
        )
    return None
