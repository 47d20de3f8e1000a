"""The runs that a user has submitted at a site, arrays of sweeps among them, the newest first.

Slurm is asked once for all of them, and accounting once of those that slurmctld has forgotten or
that were cancelled; else the jobs' files say how they ended.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from hpcdl.jobs.arrays import Array, arrays, standing
from hpcdl.jobs.submission import Submission, Unsettled, asked, find, index, settle
from hpcdl.jobs.watch import Snapshot, look
from hpcdl.site import Site
from hpcdl.slurm import client
from hpcdl.slurm.once import SETTLED_SECONDS
from hpcdl.slurm.parse import JobRecord
from hpcdl.system.errors import BadInput
from hpcdl.system.text import duration, table


@dataclass(frozen=True)
class Listed:
    """A run: the job that has its status, what was asked, and its age in seconds.

    `job_id` is None where nobody knows whether Slurm took the job (UNCONFIRMED), or where it surely
    did not (NOT QUEUED); such a run is listed once. `cancelled_by` is the user who cancelled it,
    '' where that is not known.
    """

    job_id: int | None
    name: str
    partition: str
    state: str
    description: str
    age_seconds: float
    folder: Path
    cancelled_by: str = ""


def own_jobs(site: Site, most: int) -> tuple[Listed, ...]:
    """The newest `most` runs of this user; a chain of jobs is one run, and so is an array."""
    unsettled = settle(site)
    found = tuple(islice(_submissions(site), most))
    queued = tuple(arrays(site, most))
    known = client.queue() if found or queued else ()
    chained = sorted({job for one, _ in found for job in one.chain})
    records = client.with_accounting({record.id: record for record in known}, chained)
    rows = [_run(*one, look(one[0], records)) for one in found]
    tasks: dict[int | None, list[JobRecord]] = {}
    for record in known:
        tasks.setdefault(record.array_job, []).append(record)
    rows += [_array(one, tasks.get(one.job_id, [])) for one in queued]
    newest = sorted(rows, key=lambda row: row.age_seconds)[:most]
    return (*(_unsettled(one) for one in unsettled), *newest)


def _run(one: Submission, submitted: float, snapshot: Snapshot) -> Listed:
    """A job or a chain."""
    said = asked(one)
    return Listed(
        job_id=snapshot.job_id,
        name=said.get("name") or "",
        partition=said.get("partition") or "",
        state=snapshot.state,
        description=snapshot.description,
        age_seconds=max(0.0, time.time() - submitted),
        folder=one.folder,
        cancelled_by=snapshot.cancelled_by,
    )


def _array(one: Array, records: Sequence[JobRecord]) -> Listed:
    """An array of a sweep."""
    state, description = standing(one, records)
    if one.job_id is None:
        state, description = "UNCONFIRMED", "the same sweep again looks for it"
    age = max(0.0, time.time() - one.submitted)
    return Listed(one.job_id, one.name, one.partition, state, description, age, one.folder)


def _unsettled(one: Unsettled) -> Listed:
    """A submission that has no job."""
    left = max(0.0, one.since + SETTLED_SECONDS - time.time())
    return Listed(
        job_id=None,
        name=one.asked.get("name") or "",
        partition=one.asked.get("partition") or "",
        state="NOT QUEUED" if one.dead else "UNCONFIRMED",
        description="Slurm never took it: submit it again"
        if one.dead
        else "Slurm did not tell "
        f"whether it took it: look again within {duration(left)}, or submit it again, which looks",
        age_seconds=max(0.0, time.time() - one.since),
        folder=one.folder,
    )


def as_text(rows: Sequence[Listed]) -> str:
    """The runs as a table."""
    lines = [
        [str(row.job_id or "-"), row.name, row.partition, _state(row), duration(row.age_seconds),
         str(row.folder)]
        for row in rows
    ]  # fmt: skip
    unclear = [f"{row.folder}: {row.description}" for row in rows if row.job_id is None]
    return "\n".join(
        [table(lines, ("job", "name", "partition", "state", "age", "directory")), *unclear]
    )


def _state(row: Listed) -> str:
    """The state, and of a cancelled job by whom: `?` where that is not known."""
    return f"{row.state} by {row.cancelled_by or '?'}" if row.state == "CANCELLED" else row.state


def _submissions(site: Site) -> Iterator[tuple[Submission, float]]:
    """This user's submissions and when they were made, the newest first."""
    seen = set()
    for submitted, name in _links(index(site)):
        try:
            one = find(site, str(index(site) / name))
            ours = one.folder.stat().st_uid == os.geteuid()
        except (BadInput, OSError):  # its directory was removed, or cannot be read
            continue
        if ours and one.folder not in seen:
            seen.add(one.folder)
            yield one, submitted


def _links(folder: Path) -> list[tuple[float, str]]:
    try:
        with os.scandir(folder) as entries:
            found = [
                (entry.stat(follow_symlinks=False).st_mtime, entry.name)
                for entry in entries
                if entry.name.partition(".")[0].isdigit()
            ]
    except OSError:
        return []
    return sorted(found, reverse=True)
