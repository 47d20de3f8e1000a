"""Ends a run whose ranks wait for each other for ever, and shows where each of them waits.

A thread watches the clock from the ranks' first meeting until the result is written. When this
rank has got no further for the time allowed, it writes the stacks of all its threads into a file
in the job's directory, waits until the others have done so too, and rank 0 (or, where that one is
stuck, whoever comes first) prints them. Then the process exits with status 5.
"""

from __future__ import annotations

import faulthandler
import os
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

from hpcdl.system.errors import ExitCode
from hpcdl.train.checkpoint import describe_saved

_GRACE = 5.0
_AT_WORK = "at-work"
_START = 600.0  # a rank opens its data and makes its network while others wait for it


class Watchdog:
    """Watches the steps of one rank; `limit` is seconds without one until the run is ended."""

    def __init__(self, folder: Path, rank: int, size: int, limit: float) -> None:
        self._folder = folder / "stacks"
        self._rank = rank
        self._size = size
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
        """What comes next is compiled first: it may take six times as long, or `least` seconds."""
        self._alive_at = time.monotonic() + max(5 * self._limit, least - self._limit)

    def step(self, number: int) -> None:
        """A step is done, or a part of the scoring after it."""
        self._step = number
        self._alive_at = time.monotonic()

    def work(self) -> None:
        """This rank is at work between steps; those that wait for it learn so from a file."""
        self._alive_at = time.monotonic()
        with suppress(OSError):
            self._folder.mkdir(parents=True, exist_ok=True)
            (self._folder / _AT_WORK).touch()

    def close(self) -> None:
        """Watch no longer."""
        self._stop.set()

    def _watch(self) -> None:
        while not self._stop.wait(min(1.0, self._limit / 4)):
            if self._is_stuck():
                self._end()

    def _is_stuck(self) -> bool:
        """Whether the time is over and no rank has said since that it is at work."""
        if time.monotonic() - self._alive_at <= self._limit:
            return False
        try:
            said = (self._folder / _AT_WORK).stat().st_mtime
        except OSError:
            return True
        return time.time() - said > self._limit

    def _end(self) -> None:
        with suppress(OSError):  # a full disk keeps nobody waiting
            self._write()
        # Ranks notice within a second of each other, for they all wait for the same one.
        time.sleep(_GRACE if self._rank == 0 else 1.5 * _GRACE)
        with suppress(Exception):
            print(self._report(), file=sys.stderr, flush=True)
        os._exit(int(ExitCode.STOPPED))

    def _write(self) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        path = self._folder / f"rank-{self._rank}.txt"
        with path.open("w") as file:
            file.write(f"rank {self._rank}, process {os.getpid()}: after step {self._step}\n")
            file.flush()
            faulthandler.dump_traceback(file, all_threads=True)

    def _report(self) -> str:
        """All stacks written so far; ranks that wrote none are the stuck ones."""
        found = {rank: self._read(rank) for rank in range(self._size)}
        silent = [str(rank) for rank, text in found.items() if not text]
        lines = [
            f"error: no step for {self._limit:.0f} s; step {self._step} was the last",
            *(["  no report from rank " + ", ".join(silent)] if silent else []),
            *(text for text in found.values() if text),
            f"help: {describe_saved(self._folder.with_name('checkpoints'))}; --hang-limit S "
            "changes the limit",
        ]
        return "\n".join(lines)

    def _read(self, rank: int) -> str:
        path = self._folder / f"rank-{rank}.txt"
        try:
            fresh = time.time() - path.stat().st_mtime < 4 * _GRACE + self._limit
            return path.read_text(errors="replace") if fresh else ""
        except OSError:
            return ""
