"""Turns what goes wrong inside a step into one clear error with what to do.

Ranks that wait for each other for ever are ended by a thread that watches the clock from their
first meeting until the result is written. When its rank has got no further for the time allowed, it
prints the stacks of all threads, waits until the others have done so, and ends the process with
status 5. A rank that prints nothing is the stuck one.
"""

from __future__ import annotations

import errno
import faulthandler
import os
import sys
import threading
import time
import traceback
from contextlib import suppress
from pathlib import Path

import tensorflow as tf

import hpcdl
from hpcdl.system.errors import BadInput, ExitCode, HpcdlError, MissingPrerequisite
from hpcdl.train.checkpoint import describe_saved
from hpcdl.train.data.source import unreadable
from hpcdl.train.models import origin

_GRACE = 5.0
_START = 600.0  # a rank opens its data and makes its network while others wait for it


def explain(
    fault: BaseException, batch: int, saved: str, *, training: bool = False
) -> HpcdlError | None:
    """The clear error for a fault of others; None for our own.

    `batch` is that of each rank, `saved` what the run resumes from; `training`: Keras runs a user's
    model, data and callbacks.
    """
    if isinstance(fault, HpcdlError):
        return fault
    # What fails in a step names the operation that takes the next batch.
    reading = isinstance(fault, tf.errors.OpError) and "IteratorGetNext" in str(fault)
    if training and (reading or isinstance(fault, UnicodeDecodeError)):
        return unreadable(fault)
    lines = str(fault).splitlines() or [""]
    full = any(os.strerror(number) in str(fault) for number in (errno.ENOSPC, errno.EDQUOT))
    if full:  # TensorFlow has one error for memory and disks
        message = "no space left on the file system"
        hint = "free some space, or choose another --job-dir"
    elif isinstance(fault, (tf.errors.ResourceExhaustedError, MemoryError)):
        # The frames that failed hold the batch that was too large.
        traceback.clear_frames(fault.__traceback__)
        return MissingPrerequisite(
            f"out of memory with {batch} examples per rank",
            details=[next((line.strip() for line in lines if "OOM" in line), lines[0])[:200]],
            hint="a smaller --batch-per-rank; --set optimizer.gradient_accumulation_steps=N "
            "updates the weights once in N steps",
        )
    elif "Horovod" in str(fault):
        message = "another rank has exited, so this one cannot continue"
        hint = "the first error in the log is the cause"
    else:
        return _of_users(fault) if training else None
    return MissingPrerequisite(message, details=[lines[0][:300]], hint=f"{hint}; {saved}")


def _of_users(fault: BaseException) -> BadInput | None:
    """The error for what a user's code raised, or Keras because of it; None for others."""
    if isinstance(fault, tf.errors.OpError) or not isinstance(fault, Exception):
        return None
    *_, last = traceback.extract_tb(fault.__traceback__)
    if not last.filename.startswith((sys.prefix, sys.base_prefix, *hpcdl.__path__)):
        message = "code of the model, the data or a callback raised an error"
        return BadInput(message, details=origin(fault))
    if not isinstance(fault, (ValueError, TypeError, KeyError)):
        return None
    return BadInput(
        "Keras cannot train this model on these data",
        details=[*origin(fault), *str(fault).strip().splitlines()[-1:]],
        hint="the model's outputs, the loss, the metrics and the labels must fit; "
        "`model.fit` in plain Keras fails, too",
    )


class StepWatchdog:
    """Watches the steps of one rank; `limit` is seconds without one until the run is ended."""

    def __init__(self, checkpoints: Path, rank: int, limit: float) -> None:
        self._checkpoints = checkpoints
        self._rank = rank
        self._limit = limit
        self._step = 0
        self._alive_at = time.monotonic()
        self._stop = threading.Event()

    def start(self) -> None:
        """Begin to watch."""
        if self._limit:
            self.be_patient(_START)
            threading.Thread(target=self._watch, daemon=True).start()

    def be_patient(self, least: float = 0.0) -> None:
        """Allow the next step six times the limit, or `least` seconds: it is compiled first."""
        self._alive_at = time.monotonic() + max(5 * self._limit, least - self._limit)

    def step(self, number: int) -> None:
        """A step is done, or a part of the scoring after it."""
        self._step = number
        self._alive_at = time.monotonic()

    def close(self) -> None:
        """Watch no longer."""
        self._stop.set()

    def _watch(self) -> None:
        every, before = min(1.0, self._limit / 4), time.monotonic()
        while not self._stop.wait(every):
            now = time.monotonic()
            if now - before > every + self._limit / 2:
                # Slurm had suspended the job: the clock went on, and nothing is stuck.
                self._alive_at += now - before
            elif self.is_stuck():
                self._end()
            before = now

    def is_stuck(self) -> bool:
        """Return whether the time that a step may take is over."""
        return time.monotonic() - self._alive_at > self._limit

    def _end(self) -> None:
        error = HpcdlError(
            f"no step for {self._limit:.0f} s on rank {self._rank} after step {self._step}",
            hint=f"{describe_saved(self._checkpoints)}; --hang-limit S changes the limit",
        )
        with suppress(Exception):
            print(error.render(), file=sys.stderr, flush=True)
            faulthandler.dump_traceback(2, all_threads=True)
        # The others notice within a second, for all wait for the same one; the launcher ends them.
        time.sleep(_GRACE)
        os._exit(int(ExitCode.STOPPED))
