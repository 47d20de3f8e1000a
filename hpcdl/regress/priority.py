"""Lets a check's processes go first on a machine that emulates all nodes.

There, whatever else runs takes CPU time from the job that is measured and would look like
slowness of the software. Only root may do this; for others nothing happens. Where the kernel
groups processes by sessions (sched_autogroup_enabled, sched(7)), a nice value weighs within a
session only. The groups themselves are left alone: with those of a job's nodes at -15, Linux 6.18
made ranks of two nodes that share a CPU wait for whole time slices, so that one run in three
took ten times as long.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

NICENESS = -15


def go_first(job: int, cluster: str, proc: Path = Path("/proc")) -> int:
    """Give all threads of a job's processes precedence; how many processes it found.

    `cluster` is the path of slurm.conf: another cluster on this machine may have the same id.
    """
    if os.geteuid() != 0:
        return 0
    count = 0
    for process in processes_of(job, cluster, proc):
        count += 1
        with suppress(OSError):
            for thread in (process / "task").iterdir():
                with suppress(OSError):
                    os.setpriority(os.PRIO_PROCESS, int(thread.name), NICENESS)
    return count


def processes_of(job: int, cluster: str, proc: Path = Path("/proc")) -> Iterator[Path]:
    """The directories below /proc of a job's processes."""
    marks = {f"SLURM_JOB_ID={job}".encode(), f"SLURM_CONF={cluster}".encode()}
    for process in proc.glob("[0-9]*"):
        with suppress(OSError):
            if marks <= set((process / "environ").read_bytes().split(b"\0")):
                yield process
