"""SIGUSR1, SIGUSR2 and SIGTERM, from the first line of the program on.

USR1 and USR2 (walltime or preemption is near) ask for a checkpoint and exit code 75, TERM for exit
code 5; TERM outranks both. Until training begins there is nothing to save, and `Interrupted` ends
the run at once; from then on `value` is what this rank tells all ranks in the next step.
"""

from __future__ import annotations

import signal
from types import FrameType

REQUEUE, STOP = 1.0, 100_000.0
HEARD = (signal.SIGUSR1, signal.SIGUSR2, signal.SIGTERM)


class Interrupted(BaseException):
    """A signal before training began; `status` is `requeue` or `stopped`."""

    def __init__(self, number: int) -> None:
        self.status = "stopped" if number == signal.SIGTERM else "requeue"
        super().__init__(f"stopped by {signal.Signals(number).name} before training began")


class StopSignals:
    """The signals received; `value` is 0 until one comes."""

    def __init__(self) -> None:
        self.value = 0.0
        self._raises = False
        self._noted = 0

    def listen(self) -> None:
        """Take over the signals; one that comes now is noted."""
        for number in HEARD:
            signal.signal(number, self._hear)

    def preparation_begins(self) -> None:
        """From now on a signal raises Interrupted, also one that has been noted."""
        self._raises = True
        if self._noted:
            self._hear(self._noted, None)

    def training_begins(self) -> None:
        """From now on a signal waits for the end of a step."""
        self._raises = False

    def ended(self) -> None:
        """The run has ended: a signal ends the process, as it does any other."""
        for number in HEARD:
            signal.signal(number, signal.SIG_DFL)

    def _hear(self, number: int, frame: FrameType | None) -> None:
        if self._raises:
            for each in HEARD:  # one ends the run; others must not interrupt writing that down
                signal.signal(each, signal.SIG_IGN)
            raise Interrupted(number)
        self._noted = number
        self.value = max(self.value, STOP if number == signal.SIGTERM else REQUEUE)
