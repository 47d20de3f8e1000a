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
_SHOWN = 8


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
    yield from _elsewhere(measured, run)
    yield from _at_another_time(measured, run)
    gpu = measured.text("layout", "gpu")
    if gpu and run.gpu and run.gpu.lower() not in gpu.lower():
        yield _fault(f"is of a GPU '{gpu[:60]}', and the partition has {run.gpu}", run.gpu, gpu)


def _elsewhere(measured: Measured, run: Run) -> Iterator[Fault]:
    """Nodes that the job did not have."""
    names = at(measured.values, "layout", "nodes")
    if not isinstance(names, list) or not run.nodes:
        return
    strange = sorted({str(name) for name in names} - set(run.nodes))
    if strange:
        named = ", ".join(strange[:_SHOWN])
        yield _fault(f"is of nodes that the job did not have: {named}", ",".join(run.nodes), named)


def _at_another_time(measured: Measured, run: Run) -> Iterator[Fault]:
    """An end before the job began, or after it ended."""
    ended = measured.number("ended")
    if ended is None:
        yield _fault("does not say when it was written (ended)", run.ended, None)
    elif run.started is not None and ended < run.started - CLOCKS_SECONDS:
        early = run.started - ended
        yield _fault(f"was written {_long(early)} before the job began", run.started, ended)
    elif ended > (run.ended or time.time()) + CLOCKS_SECONDS:
        late = ended - (run.ended or time.time())
        yield _fault(f"was written {_long(late)} after the job ended", run.ended, ended)


def _long(seconds: float) -> str:
    if seconds < 2 * 86400:
        return f"{seconds / 3600:.1f} h" if seconds >= 7200 else f"{seconds:.0f} s"
    return f"{seconds / 86400:.0f} days"


def _fault(text: str, wanted: float | str | None, got: float | str | None) -> Fault:
    return Fault(FaultKind.FOREIGN, f"foreign result: it {text}", wanted=wanted, got=got)
