"""`hpcdl train --find-batch ...`: the largest batch per rank that fits into memory, by trying.

A trial is the run itself, in a process of its own: three steps with a checkpoint after each. What
is too large may end the process; that is an answer. From small batches up, which are quick and
safe, then by bisection, to within an eighth or until the time is up. On CPUs a trial's memory is
limited to what the machine or the job has left, so that the kernel does not choose whom to end.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from hpcdl.measure import run_program, write_measurement
from hpcdl.system.errors import BadInput, MissingPrerequisite
from hpcdl.system.packages import nvidia_driver
from hpcdl.system.run import module_argv
from hpcdl.train.options import TrainOptions, parse, to_argv
from hpcdl.train.startup import RankPlace

SECONDS = 600.0
"""No new trial begins after this time."""
_MOST = 1 << 16
_SPARE = 0.9


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
        left = self.deadline - time.monotonic()
        return self.high - self.low > max(self.unit, self.low // 8) and left > 0

    @property
    def next(self) -> int:
        """Four times what fits, at most the middle; a multiple of 8 units where there is one."""
        wanted = min((self.low + self.high) // 2, 4 * self.low or self.unit)
        for step in (8 * self.unit, self.unit):
            if wanted // step * step > self.low:
                return wanted // step * step
        return self.low + self.unit


def search(bounds: Bounds, tries: Callable[[int], bool]) -> None:
    """Narrow `bounds` down by trials."""
    while bounds.open:
        batch = bounds.next
        if tries(batch):
            bounds.low = batch
        else:
            bounds.high = batch


def main(argv: Sequence[str]) -> int:
    """Search for the run that `argv` describes, print the batch; returns the exit code."""
    return run_program(lambda place: _run(parse(list(argv)), place))


def _run(options: TrainOptions, place: RankPlace) -> None:
    if place.size > 1:
        raise BadInput("--find-batch measures one rank", hint="start one task")
    unit = options.accumulate
    bounds = Bounds(0, _MOST * unit, unit, time.monotonic() + SECONDS)
    said: list[str] = []

    def tries(batch: int) -> bool:
        fault = _trial(options, batch)
        print(f"{batch} per rank: {'does not fit' if fault else 'fits'}", flush=True)
        said[:] = fault or said
        return not fault

    search(bounds, tries)
    if not bounds.low:
        raise MissingPrerequisite(
            f"not even {bounds.high} images per rank can be trained",
            details=said,
            hint="if memory is short: a smaller --image-size, --precision fp16 or bf16, or a node "
            "with more memory",
        )
    # A little less: another process finds its memory fragmented in another way.
    safe = bounds.low - bounds.low // (16 * unit) * unit
    summary = {"largest_batch": bounds.low, "too_large": bounds.high, "advised_batch": safe}
    os.environ["HPCDL_JOB_DIR"] = str(options.folder)
    write_measurement(
        "find-batch", [place.host], options=vars(options), samples={}, summary=summary
    )
    print(f"the largest that fits: {bounds.low} per rank ({bounds.high} does not)")
    print(f"--batch-per-rank {safe} leaves headroom", flush=True)


def _trial(options: TrainOptions, batch: int) -> list[str]:
    """Train three steps; what a process that failed said last, nothing where it fits."""
    with tempfile.TemporaryDirectory(prefix="hpcdl-trial-") as folder:
        tried = replace(
            options,
            find_batch=False,
            global_batch=None,
            batch_per_rank=batch,
            epochs=None,
            steps=3,
            checkpoint_every=1,
            job_dir=folder,
            strategy="single",
            fresh=False,
            hang_limit=0.0,
            target_accuracy=None,
            export=None,
            predict=None,
            best=None,
            patience=0,
            validate_every=0,
            validate_steps=0,
            lr=0.0,
            lr_schedule="constant",
            lr_warmup_steps=0,
            tensorboard=False,
            profile=False,
            json=False,
            callback="",
        )
        done = subprocess.run(
            [*module_argv(sys.executable, "hpcdl.train"), *to_argv(tried)],
            text=True,
            check=False,
            capture_output=True,
            errors="replace",
            preexec_fn=_limit_memory,
        )
    lines = done.stderr.strip().splitlines()[-5:]
    return (lines or [f"it exited with status {done.returncode}"]) if done.returncode else []


def _limit_memory() -> None:
    """In a trial on CPUs: let allocations fail before the kernel ends processes."""
    with suppress(OSError, ValueError):
        lines = Path("/proc/meminfo").read_text().splitlines()
        (free,) = (int(line.split()[1]) for line in lines if line.startswith("MemAvailable"))
        asked = os.environ.get("SLURM_MEM_PER_NODE", "")
        most = min(free << 10, int(asked) << 20) if asked.isdigit() else free << 10
        _, hard = resource.getrlimit(resource.RLIMIT_DATA)
        if nvidia_driver() is None:
            resource.setrlimit(resource.RLIMIT_DATA, (int(most * _SPARE), hard))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
