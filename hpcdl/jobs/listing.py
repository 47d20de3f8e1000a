"""The runs that a user has submitted at a site, the newest first.

Slurm is asked once for all of them; for what it has forgotten, the jobs' files say how they ended.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from hpcdl.jobs.submission import Submission, asked, find, index
from hpcdl.jobs.watch import look
from hpcdl.site import Site
from hpcdl.slurm import client
from hpcdl.system.errors import BadInput
from hpcdl.system.text import duration, table


@dataclass(frozen=True)
class Listed:
    """A run: the job that has its status, what was asked, and its age in seconds."""

    job_id: int
    name: str
    partition: str
    state: str
    description: str
    age_seconds: float
    folder: Path


def own_jobs(site: Site, most: int) -> tuple[Listed, ...]:
    """The newest `most` runs of this user; a chain of jobs is one run."""
    found = tuple(islice(_submissions(site), most))
    records = {record.id: record for record in client.queue()} if found else {}
    rows = []
    for one, submitted in found:
        snapshot, said = look(one, records), asked(one)
        rows.append(
            Listed(
                job_id=snapshot.job_id,
                name=said.get("name") or "",
                partition=said.get("partition") or "",
                state=snapshot.state,
                description=snapshot.description,
                age_seconds=max(0.0, time.time() - submitted),
                folder=one.folder,
            )
        )
    return tuple(rows)


def as_text(rows: Sequence[Listed]) -> str:
    """The runs as a table."""
    lines = [
        [str(row.job_id), row.name, row.partition, row.state, duration(row.age_seconds),
         str(row.folder)]
        for row in rows
    ]  # fmt: skip
    return table(lines, ("job", "name", "partition", "state", "age", "directory"))


def _submissions(site: Site) -> Iterator[tuple[Submission, float]]:
    """This user's submissions and when they were made, the newest first."""
    seen = set()
    for submitted, name in _links(index(site)):
        try:
            one = find(site, name)
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
                if entry.name.isdigit()
            ]
    except OSError:
        return []
    return sorted(found, reverse=True)
