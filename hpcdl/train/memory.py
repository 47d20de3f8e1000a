"""The largest batch that fits, found by trying: reported by a run that is out of memory.

On a GPU the same process tries smaller batches, for TensorFlow gives memory back to itself only. On
CPUs fresh processes do (batch_size_search.py), for a failed allocation may end the process there: a
batch that kills its trial does not fit, and the next process continues below it. From small batches
up, which are quick and safe, then by bisection, to within an eighth or until the time is up. No
other rank is asked: all that ran out try at the same time. `at_bad_alloc` gives us a
message where C++ would just abort.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from hpcdl.system.python import module_argv

SECONDS = 90.0
"""No new trial begins after this time, in which the start of processes is not counted."""
_MOST_SECONDS = 360.0
"""The end of it all, on a machine so busy that processes hardly start."""
# Variables that make a process one of several ranks.
_RANKS = ("OMPI_COMM_WORLD", "PMIX_", "PMI_", "MPI_LOCAL", "SLURM_PROCID", "TF_CONFIG")
_handlers: list[Any] = []
_speaks = threading.Lock()


@dataclass
class Bounds:
    """A search between a batch that fits and one that does not, both multiples of `unit`."""

    low: int
    high: int
    unit: int
    deadline: float

    @property
    def open(self) -> bool:
        """Whether another trial is worth it: not yet within an eighth, and time is left."""
        return self.high - self.low > max(self.unit, self.low // 8) and self.left > 0

    @property
    def left(self) -> float:
        """Seconds until no new trial begins."""
        return self.deadline - time.monotonic()

    @property
    def next(self) -> int:
        """Four times what fits, at most the middle; a multiple of 8 units where there is one."""
        wanted = min((self.low + self.high) // 2, 4 * self.low or self.high // 64)
        for step in (8 * self.unit, self.unit):
            if wanted // step * step > self.low:
                return wanted // step * step
        return self.low + self.unit

    def learn(self, batch: int, *, fits: bool) -> None:
        """A trial is over."""
        if fits:
            self.low = batch
        else:
            self.high = batch


def search(bounds: Bounds, tries: Callable[[int], bool]) -> None:
    """Narrow `bounds` down by trials."""
    while bounds.open:
        batch = bounds.next
        bounds.learn(batch, fits=tries(batch))


def search_in_children(bounds: Bounds, ranks: int, argv: Sequence[str]) -> None:
    """Narrow `bounds` down by fresh processes.

    Each trains what the arguments `argv` say, as one of `ranks` would.
    """
    kept = {key: value for key, value in os.environ.items() if not key.startswith(_RANKS)}
    end = time.monotonic() + _MOST_SECONDS
    while bounds.open and time.monotonic() < end:
        numbers = [bounds.low, bounds.high, bounds.unit, bounds.left, ranks]
        begun = time.monotonic()
        child = subprocess.Popen(
            [*module_argv(sys.executable, "hpcdl.train.batch_size_search"),
             *map(str, numbers), *argv],
            env=kept,
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        )  # fmt: skip
        patience = threading.Timer(end - begun, child.kill)
        patience.start()
        tried = _follow(child, bounds, begun)
        patience.cancel()
        if tried == bounds.low or time.monotonic() >= end:
            # It is done, died before its first trial, or was killed for want of time.
            break
        bounds.learn(tried, fits=False)


def _follow(child: subprocess.Popen[str], bounds: Bounds, begun: float) -> int:
    """Read what a child reports; the batch it died with, the lower bound where it did not."""
    tried = bounds.low
    assert child.stdout is not None
    with child:
        for line in child.stdout:
            event, _, number = line.strip().partition(" ")
            if event == "ready":
                bounds.deadline += time.monotonic() - begun
            if event in {"fits", "fails"}:
                bounds.learn(int(number), fits=event == "fits")
            tried = int(number) if event == "tries" else bounds.low
    return tried


def at_bad_alloc(report: Callable[[], None]) -> None:
    """Let `report` end this process where C++ would abort it for want of memory.

    Kernels on CPUs allocate their own buffers with `new`, and no one catches what that throws.
    """
    try:
        runtime = ctypes.CDLL("libstdc++.so.6")
        current, replace = runtime.__cxa_current_exception_type, runtime._ZSt13set_terminatePFvvE
    except (OSError, AttributeError):
        return
    kind = ctypes.CFUNCTYPE(None)
    current.restype, replace.restype = ctypes.c_void_p, kind

    def terminate() -> None:
        # Behind the virtual table a std::type_info has its name.
        thrown = current()
        name = ctypes.c_char_p.from_address(thrown + 8).value if thrown else None
        if name == b"St9bad_alloc":
            # Never released: a second thread that found no memory waits for the end.
            _speaks.acquire()
            report()
        before()

    handler = kind(terminate)
    before = replace(handler)
    _handlers.append(handler)
