"""Turns what goes wrong inside a step into one clear error with what to do.

A loss that is no number or explodes ends the run, and the loop sets aside the checkpoints that
hold what led to it. Out of memory names the way to measure what fits.
"""

from __future__ import annotations

import errno
import math
import os

import tensorflow as tf

from hpcdl.system.errors import CheckFailed, HpcdlError, MissingPrerequisite

_EXPLODED = 1e4


class LossGuard:
    """Watches the loss; `patience` bad ones in a row are borne (a loss scale needs some)."""

    def __init__(self, patience: int) -> None:
        self.patience = patience
        self._bad = 0
        self._first: float | None = None

    def check(self, loss: float, step: int, lr: float) -> None:
        """Look at a step's loss, the same on all ranks; CheckFailed: no number, or exploded."""
        finite = math.isfinite(loss)
        if finite and self._first is None:
            self._first = max(abs(loss), 1.0)
        if finite and abs(loss) < _EXPLODED * (self._first or 1.0):
            self._bad = 0
            return
        self._bad += 1
        if self._bad > self.patience:
            what = "is not a number" if not finite else f"has exploded to {loss:.3g}"
            raise CheckFailed(
                f"the loss {what} at step {step} (learning rate {lr:g})",
                hint="a smaller --lr or a longer --lr-warmup-steps",
            )


def is_out_of_memory(fault: BaseException) -> bool:
    """Whether memory ran out, of device or host; for a full disk TensorFlow has the same error."""
    kinds = (tf.errors.ResourceExhaustedError, MemoryError)
    return isinstance(fault, kinds) and not _no_space_left(str(fault))


def _no_space_left(text: str) -> bool:
    return any(os.strerror(number) in text for number in (errno.ENOSPC, errno.EDQUOT))


def out_of_memory(why: str, batch: int) -> HpcdlError:
    """The error for a batch per rank that does not fit."""
    lines = why.splitlines() or [""]
    said = next((line.strip() for line in lines if "OOM" in line), lines[0])
    return MissingPrerequisite(
        f"out of memory with {batch} images per rank",
        details=[said[:200]],
        hint="the same command with --find-batch measures how many fit; --accumulate N computes "
        "the batch in N parts",
    )


def explain(fault: BaseException, saved: str) -> HpcdlError | None:
    """The error for a fault of others; None for our own. `saved`: what the run resumes from."""
    text = str(fault)
    if _no_space_left(text):
        return MissingPrerequisite(
            "no space left on the file system",
            details=[text.splitlines()[0][:300]],
            hint=f"free some space, or choose another --job-dir; {saved}",
        )
    if "Horovod" in text or "HorovodAllreduce" in text:
        return MissingPrerequisite(
            "another rank has exited, so this one cannot continue",
            details=[text.splitlines()[0][:300]],
            hint=f"the first error in the log is the cause; {saved}",
        )
    return None
