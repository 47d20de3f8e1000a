"""`hpcdl train --find-batch ...`: the largest batch per rank that fits into memory, by trying.

Fresh processes try: a batch that is too large may end the one that tries it, and the next one
continues below it. From small batches up, which are quick and safe, then by bisection, to within
an eighth or until the time is up. A trial is three steps of the run itself with a checkpoint after
each (batch_size_probe.py); on CPUs its memory is limited to what the machine or the job has left.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from hpcdl.system.errors import BadInput, HpcdlError, MissingPrerequisite
from hpcdl.system.python import module_argv
from hpcdl.train.driver import nvidia_driver
from hpcdl.train.measurement import run_program, write_measurement
from hpcdl.train.options import parse
from hpcdl.train.program import prepare
from hpcdl.train.ranks import RankPlace, this_place
from hpcdl.train.startup import StartupClock

SECONDS = 300.0
"""No new trial begins after this time, in which the start of processes is not counted."""
_MOST = 1 << 16
_MOST_SECONDS = 900.0
"""The end of it all, on a machine so busy that processes hardly start."""
_SPARE = 0.9
_CHILD = "HPCDL_BATCH_BOUNDS"


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
        wanted = min((self.low + self.high) // 2, 4 * self.low or self.unit)
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


def main(argv: Sequence[str]) -> int:
    """Search for the run that `argv` describes, print the batch; returns the exit code."""
    return run_program(lambda place: _run(list(argv), place), this_place())


def _run(argv: list[str], place: RankPlace) -> None:
    options = parse(argv)
    if _CHILD in os.environ:
        _try_all(argv, place)
        return
    if place.size > 1:
        raise BadInput("--find-batch measures one rank", hint="start one task")
    unit = options.accumulate
    bounds = Bounds(0, _MOST * unit, unit, time.monotonic() + SECONDS)
    _search_in_children(bounds, argv)
    if not bounds.low:
        raise MissingPrerequisite(
            f"not even {bounds.high} images per rank fit into memory, or the run cannot start",
            hint="run it without --find-batch to see its error; a smaller --image-size, "
            "--precision fp16 or bf16, or a node with more memory",
        )
    # A little less: another process finds its memory fragmented in another way.
    safe = bounds.low - bounds.low // (16 * unit) * unit
    summary = {"largest_batch": bounds.low, "too_large": bounds.high, "advised_batch": safe}
    write_measurement("find-batch", [place.host], options={"argv": argv}, samples={},
                      summary=summary)  # fmt: skip
    print(f"the largest that fits: {bounds.low} per rank ({bounds.high} does not)")
    print(f"--batch-per-rank {safe} leaves headroom", flush=True)


def _search_in_children(bounds: Bounds, argv: Sequence[str]) -> None:
    """Narrow `bounds` down by fresh processes, each of which tries until one batch ends it."""
    end = time.monotonic() + _MOST_SECONDS
    while bounds.open and time.monotonic() < end:
        begun = time.monotonic()
        numbers = f"{bounds.low} {bounds.high} {bounds.unit} {bounds.left}"
        child = subprocess.Popen(
            [*module_argv(sys.executable, "hpcdl.train"), *argv],
            env=os.environ | {_CHILD: numbers},
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
                print(f"{number} per rank: {event}", flush=True)
            tried = int(number) if event == "tries" else bounds.low
    return tried


def _try_all(argv: Sequence[str], place: RankPlace) -> None:
    """Search between the parent's bounds; say each batch before it may end this process."""
    low, high, unit, seconds = os.environ[_CHILD].split()
    options = replace(parse(list(argv)), strategy="single", global_batch=None,
                      batch_per_rank=int(unit))  # fmt: skip
    run = prepare(options, place, StartupClock())
    tries = run.trial()
    if nvidia_driver() is None:
        _limit_memory()
    print("ready", flush=True)

    def reported(batch: int) -> bool:
        print(f"tries {batch}", flush=True)
        fits = tries(batch)
        print(f"{'fits' if fits else 'fails'} {batch}", flush=True)
        return fits

    search(Bounds(int(low), int(high), int(unit), time.monotonic() + float(seconds)), reported)


def _limit_memory() -> None:
    """Let allocations fail before the kernel ends processes: this one's job may have others."""
    with suppress(OSError, ValueError, HpcdlError):
        lines = Path("/proc/meminfo").read_text().splitlines()
        (free,) = (int(line.split()[1]) for line in lines if line.startswith("MemAvailable"))
        asked = os.environ.get("SLURM_MEM_PER_NODE", "")
        most = min(free << 10, int(asked) << 20) if asked.isdigit() else free << 10
        _, hard = resource.getrlimit(resource.RLIMIT_DATA)
        resource.setrlimit(resource.RLIMIT_DATA, (int(most * _SPARE), hard))
