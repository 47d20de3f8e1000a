"""Signals become a number that the ranks agree on in the next step's all-reduce.

USR1 and USR2 (walltime or preemption is near) ask for a checkpoint and exit code 75, TERM for a
checkpoint and exit code 5; TERM outranks both. Not every rank need get the signal, nor in the
same step: the sum over the ranks reaches all of them in one step.
"""

from __future__ import annotations

import signal
from types import FrameType

USR2 = 1.0
TERM = 100_000.0


class StopRequest:
    """The signals received; 0 until one comes."""

    def __init__(self) -> None:
        self.value = 0.0

    def listen(self) -> None:
        """Take over SIGUSR1, SIGUSR2 and SIGTERM."""
        for number in (signal.SIGUSR1, signal.SIGUSR2, signal.SIGTERM):
            signal.signal(number, self._told)

    def _told(self, number: int, frame: FrameType | None) -> None:
        self.value = max(self.value, TERM if number == signal.SIGTERM else USR2)


def meaning(agreed: float) -> str | None:
    """`requeue`, `stopped` or None, from the sum over the ranks."""
    if agreed >= TERM / 2:
        return "stopped"
    return "requeue" if agreed >= USR2 / 2 else None
