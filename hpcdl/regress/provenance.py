"""Whether a result is of the run that is judged. Pure.

A job writes down which job it is, its submission's token, its nodes, its GPU and when it ended;
Slurm's record says the same. What is of another job, another place or another time counts for
nothing, however well it looks: it may be left from a night before, or copied.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass

from hpcdl.regress.result import Measured
from hpcdl.results.faults import Fault, FaultKind
from hpcdl.results.records import at
from hpcdl.slurm.hostlist import expand_hostlist
from hpcdl.slurm.parse import JobRecord

CLOCKS_SECONDS = 60.0
"""How far the clocks of nodes, controller and this machine may lie apart."""


@dataclass(frozen=True)
class Run:
    """The run that a result must be of: as Slurm tells it, and as the site says.

    `started` and `ended` are seconds since 1970, None where Slurm tells none; `gpu` is part of
    what the driver must call its GPU, '' where ranks need none; `token` is its submission's.
    """

    job: int
    token: str
    nodes: tuple[str, ...]
    started: float | None
    ended: float | None
    gpu: str = ""


def run_of(record: JobRecord, token: str, gpu: str = "") -> Run:
    """The run that Slurm's record of an ended job tells of."""
    names = tuple(expand_hostlist(record.nodes)) if record.nodes else ()
    return Run(record.id, token, names, epoch(record.started), epoch(record.ended), gpu)


def epoch(text: str) -> float | None:
    """A time of Slurm's, which is local, in seconds since 1970; None where it is unknown."""
    try:
        return time.mktime(time.strptime(text, "%Y-%m-%dT%H:%M:%S"))
    except (ValueError, OverflowError):
        return None


def seconds_between(start: str, end: str) -> float | None:
    """Seconds between two of Slurm's times, None where one is unknown."""
    first, second = epoch(start), epoch(end)
    return None if first is None or second is None else second - first


def of_this_run(measured: Measured, run: Run) -> Measured:
    """The result, or nothing of it but why it is not of this run."""
    if measured.faults:
        return measured
    found = tuple(_foreign(measured, run))
    return Measured({}, found) if found else measured


def _foreign(measured: Measured, run: Run) -> Iterator[Fault]:
    said = at(measured.values, "job", "id")
    if said is None:
        yield _fault("does not say which job wrote it (job.id)", run.job, None)
    elif str(said) != str(run.job):
        yield _fault(f"was written by job {str(said)[:40]}, not by {run.job}", run.job, str(said))
    token = measured.text("job", "token")
    if token and run.token and token != run.token:
        yield _fault("is of another submission (job.token)", run.token, token)
    names = at(measured.values, "layout", "nodes")
    strange = {*map(str, names)} - {*run.nodes} if isinstance(names, list) and run.nodes else set()
    if strange:
        named = ", ".join(sorted(strange)[:8])
        yield _fault(f"is of nodes that the job did not have: {named}", ",".join(run.nodes), named)
    yield from _at_another_time(measured, run)
    gpu = measured.text("layout", "gpu")
    if gpu and run.gpu and run.gpu.lower() not in gpu.lower():
        yield _fault(f"is of a GPU '{gpu[:60]}', and the partition has {run.gpu}", run.gpu, gpu)


def _at_another_time(measured: Measured, run: Run) -> Iterator[Fault]:
    ended = measured.number("ended")
    if ended is None:
        yield _fault("does not say when it was written (ended)", run.ended, None)
    elif run.started is not None and ended < run.started - CLOCKS_SECONDS:
        early = _long(run.started - ended)
        yield _fault(f"was written {early} before the job began", run.started, ended)
    elif (late := ended - (run.ended or time.time())) > CLOCKS_SECONDS:
        yield _fault(f"was written {_long(late)} after the job ended", run.ended, ended)


def _long(seconds: float) -> str:
    if seconds < 2 * 86400:
        return f"{seconds / 3600:.1f} h" if seconds >= 7200 else f"{seconds:.0f} s"
    return f"{seconds / 86400:.0f} days"


def _fault(text: str, wanted: float | str | None, got: float | str | None) -> Fault:
    return Fault(FaultKind.FOREIGN, f"foreign result: it {text}", wanted=wanted, got=got)
