"""A job's measurements (result.json), and what must hold before its numbers count.

World size, release, device and nodes as its layout says; a training beside that ends by itself
with finite, falling losses. A number of a job that ran as something else is no number.

A job writes down which job it is, its submission's token, its nodes, its GPU and when it ended;
Slurm's record says the same. What is of another job, another place or another time counts for
nothing, however well it looks: it may be left from a night before, or copied.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpcdl.results.faults import FaultKind, JobFault, as_fault
from hpcdl.results.records import RESULT, at
from hpcdl.slurm.hostlist import expand_hostlist
from hpcdl.slurm.parse import JobRecord
from hpcdl.system.errors import BadInput

CLOCKS_SECONDS = 60.0
"""How far the clocks of nodes, controller and this machine may lie apart."""


@dataclass(frozen=True)
class Measured:
    """A run as its result.json describes it; `faults` says why there is none, text is a check's."""

    values: Mapping[str, Any]
    faults: tuple[JobFault | str, ...] = ()

    def number(self, *path: str) -> float | None:
        """A finite number at a place, None where there is none."""
        value = at(self.values, *path)
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            return None
        return float(value) if math.isfinite(value) else None

    def text(self, *path: str) -> str:
        """A text at a place, '' where there is none."""
        value = at(self.values, *path)
        return value if isinstance(value, str) else ""

    @property
    def driver(self) -> str:
        """The NVIDIA driver that the node reported, '' if it reported none."""
        return self.text("versions", "driver")


def reads(*path: str) -> Callable[[Measured], float | None]:
    """Return a function that reads the number at a place of a result."""
    return lambda measured: measured.number(*path)


def read_result(path: Path) -> Measured:
    """The result of a run; a missing or broken file is a fault, not an exception."""
    try:
        values = RESULT.read(path).values
        wrong = tuple(_other_units(values))
        return Measured({} if wrong else values, wrong)
    except BadInput as fault:
        why = f"result.json cannot be read ({fault.message})"
    if not path.exists():
        why = "the program wrote no result.json"
    return Measured({}, (JobFault(FaultKind.NO_RESULT, f"missing result: {why}"),))


def _other_units(values: Mapping[str, Any]) -> Iterator[JobFault]:
    """Numbers that the file gives in another unit than its format has."""
    units = RESULT.data(values).get("units", {})
    for place, unit in (values.get("units") or {}).items():
        if place in units and unit != units[place]:
            text = f"the result gives {place} in {unit!r}, not in {units[place]}"
            yield JobFault(FaultKind.UNIT, text, place, wanted=units[place], got=str(unit))


def faults_of(
    measured: Measured, layout: Mapping[str, Any], release: str | None, *, real_gpus: bool = False
) -> list[JobFault]:
    """Return the faults of any measuring job's result.

    `layout` is the job's as plain values, `release` the id of the one that it must have used;
    `real_gpus` says whether its ranks must have had a GPU each.
    """
    if measured.faults:
        return [as_fault(entry) for entry in measured.faults]
    return [*_of_any_job(measured, layout, release, real_gpus)]


def _of_any_job(
    measured: Measured, layout: Mapping[str, Any], release: str | None, real_gpus: bool
) -> Iterator[JobFault]:
    nodes, names = int(layout["nodes"]), at(measured.values, "layout", "nodes")
    ranks, world = nodes * int(layout["tasks_per_node"]), measured.number("layout", "ranks")
    if world != ranks:
        text = f"the program ran on {world or 0:.0f} ranks, not on the {ranks} of its layout"
        yield JobFault(FaultKind.RANKS, text, wanted=ranks, got=world)
    if isinstance(names, list) and len(names) != nodes:
        named = ", ".join(map(str, names[:8]))
        text = f"its ranks were on {len(names)} nodes, not on {nodes}: {named}"
        yield JobFault(FaultKind.NODES, text, wanted=nodes, got=len(names))
    ran = measured.text("release")
    if release is not None and ran != release:
        text = f"the job used release '{ran or 'unknown'}', not the site's '{release}'"
        yield JobFault(FaultKind.RELEASE, text, wanted=release, got=ran)
    gpus = measured.number("layout", "gpu_per_rank")
    if real_gpus and gpus != 1:
        text = "the ranks saw no GPU of their own: it ran on CPUs"
        yield JobFault(FaultKind.GPU, text, wanted=1, got=gpus)
    status = measured.text("outcome", "status") or "unknown"
    if status != "completed":
        text = f"the program ended as '{status}'"
        yield JobFault(FaultKind.OUTCOME, text, wanted="completed", got=status)


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


def of_this_run(measured: Measured, record: JobRecord, token: str, gpu: str = "") -> Measured:
    """Return the result, or only the faults if it is not of the run in Slurm's record.

    `token` is its submission's; `gpu` is part of what the driver must call its GPU, '' where ranks
    need none.
    """
    if measured.faults:
        return measured
    found = tuple(_foreign(measured, record, token, gpu))
    return Measured({}, found) if found else measured


def _foreign(measured: Measured, record: JobRecord, token: str, gpu: str) -> Iterator[JobFault]:
    job_id = at(measured.values, "job", "id")
    if job_id is None:
        yield _fault("does not say which job wrote it (job.id)", record.id, None)
    elif str(job_id) != str(record.id):
        yield _fault(
            f"was written by job {job_id!s:.40}, not by {record.id}", record.id, str(job_id)
        )
    other = measured.text("job", "token")
    if other and token and other != token:
        yield _fault("is of another submission (job.token)", token, other)
    names = at(measured.values, "layout", "nodes")
    own = expand_hostlist(record.nodes)
    strange = {*map(str, names)} - {*own} if isinstance(names, list) and own else set()
    if strange:
        named = ", ".join(sorted(strange)[:8])
        yield _fault(f"is of nodes that the job did not have: {named}", ",".join(own), named)
    began, over, written = epoch(record.started), epoch(record.ended), measured.number("ended")
    if written is None:
        yield _fault("does not say when it was written (ended)", over, None)
    elif began is not None and written < began - CLOCKS_SECONDS:
        early = _long(began - written)
        yield _fault(f"was written {early} before the job began", began, written)
    elif (late := written - (over or time.time())) > CLOCKS_SECONDS:
        yield _fault(f"was written {_long(late)} after the job ended", over, written)
    device = measured.text("layout", "gpu")
    if device and gpu and gpu.lower() not in device.lower():
        yield _fault(f"is of a GPU '{device[:60]}', and the partition has {gpu}", gpu, device)


def _long(seconds: float) -> str:
    if seconds < 2 * 86400:
        return f"{seconds / 3600:.1f} h" if seconds >= 7200 else f"{seconds:.0f} s"
    return f"{seconds / 86400:.0f} days"


def _fault(text: str, wanted: float | str | None, got: float | str | None) -> JobFault:
    return JobFault(FaultKind.FOREIGN, f"foreign result: it {text}", wanted=wanted, got=got)
