"""The runs that a user has submitted at a site, arrays of sweeps among them, the newest first.

Slurm is asked once for all of them, and accounting once of those that slurmctld has forgotten or
that were cancelled; else the jobs' files say how they ended.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Any

from hpcdl.jobs.manifest import RunStatus, located, of_this_cluster, read_manifest
from hpcdl.jobs.submission import Submission, Unsettled, asked, find, index, settle
from hpcdl.jobs.watch import exit_code, look
from hpcdl.site import Site
from hpcdl.slurm import client
from hpcdl.slurm.once import SETTLED_SECONDS
from hpcdl.slurm.parse import JobRecord
from hpcdl.system.errors import BadInput
from hpcdl.system.text import duration, table

_SWEEPS = ("sweeps/*/sweep.json", "studies/*/*/sweep.json")


@dataclass(frozen=True)
class Array:
    """An array of a sweep or study: its points' rows of the manifest; submitted when (epoch).

    `job_id` is None where a stopped command left a token that no job is known of.
    """

    job_id: int | None
    folder: Path
    partition: str
    submitted: float
    rows: tuple[RunStatus, ...]


@dataclass(frozen=True)
class Listed:
    """A run: the job that has its status, what was asked, and its age in seconds.

    `job_id` is None if it is unknown whether Slurm accepted the job (UNCONFIRMED), or if it did not
    (NOT QUEUED); such a run is listed once. `cancelled_by` is the user who cancelled it, '' if
    that is unknown.
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
    newest_runs = tuple(islice(_submissions(site), most))
    queued = tuple(arrays(site, most))
    chained = sorted({job for run, _ in newest_runs for job in run.chain})
    own = [*chained, *(array.job_id for array in queued if array.job_id)]
    slurm_jobs = client.queue(mine=True, jobs=own)  # also for none: it raises where Slurm is away
    records = client.with_accounting({record.id: record for record in slurm_jobs}, chained)
    rows = []
    for run, submitted in newest_runs:
        now, folder = look(run, records), run.folder
        how = (submitted, now.state, now.description, now.job_id, now.cancelled_by)
        rows.append(_listed(folder, asked(folder), *how))
    tasks: dict[int | None, list[JobRecord]] = {}
    for record in slurm_jobs:
        tasks.setdefault(record.array_job, []).append(record)
    rows += [_array(array, tasks.get(array.job_id, [])) for array in queued]
    newest = sorted(rows, key=lambda row: row.age_seconds)[:most]
    return (*(_unsettled(begun) for begun in unsettled), *newest)


def arrays(site: Site, most: int | None = None) -> Iterator[Array]:
    """The arrays that the `most` sweeps that changed last (None: all) have on this cluster.

    Raises SlurmAway: a command was stopped while it submitted; it is unknown if its job is queued.
    """
    manifests = []
    for path in chain.from_iterable(site.paths.work.glob(place) for place in _SWEEPS):
        with suppress(OSError):
            if {path.stat().st_uid, path.parent.stat().st_uid} == {os.geteuid()}:
                manifests.append((path.stat().st_mtime, path.parent))
    for changed, folder in sorted(manifests, reverse=True)[:most]:
        with suppress(BadInput):  # one that cannot be read is its sweep's to report
            yield from _arrays_of(folder, changed)


def _arrays_of(folder: Path, changed: float) -> Iterator[Array]:
    manifest = read_manifest(folder)
    shared: dict[str, list[RunStatus]] = {}
    for row in located(of_this_cluster(manifest.rows.values())):
        if row.token:
            shared.setdefault(row.token, []).append(row)
    asked_for = (manifest.request or {}).get("partition") or ""
    for token, rows in shared.items():
        submitted = changed
        with suppress(OSError):  # its script's link is as old as its submission
            submitted = (folder / f"{token}.sh").lstat().st_mtime
        partition = str(rows[0].values.get("partition") or asked_for)
        yield Array(rows[0].job_id, folder, partition, submitted, tuple(rows))


def _array(array: Array, records: Sequence[JobRecord]) -> Listed:
    """The state of an array as a whole, and how many of its tasks have which.

    `records` are Slurm's of this array; a task that it forgot has its exit code.
    """
    single = {record.array_tasks: record for record in records}
    several = [record for record in records if not record.array_tasks.isdigit()]
    counts: Counter[str] = Counter()
    active = set()
    for row in array.rows:
        task = row.task or 0
        task_record = single.get(str(task)) or next((r for r in several if r.has_task(task)), None)
        if task_record:
            state = task_record.state
            active |= {state} if task_record.active else set()
        else:
            code = exit_code(Path(row.directory) / "exit_code")
            state = "UNKNOWN" if code is None else "FAILED" if code else "COMPLETED"
        counts[state] += 1
    order = [
        *sorted(active, key=lambda state: state == "PENDING"),
        *(state for state in counts if state != "COMPLETED"),
        *counts,
    ]
    parts = ", ".join(f"{count} {state.lower()}" for state, count in counts.items())
    state, description = order[0], f"{len(array.rows)} tasks: {parts}"
    if array.job_id is None:
        state, description = "UNCONFIRMED", "the same sweep again looks for it"
    folder = array.folder
    study = f"{folder.parent.name}/" if folder.parent.parent.name == "studies" else ""
    request = {"name": study + folder.name, "partition": array.partition}
    return _listed(folder, request, array.submitted, state, description, array.job_id)


def _unsettled(begun: Unsettled) -> Listed:
    state, description = "NOT QUEUED", "Slurm never accepted it: submit it again"
    if not begun.dead:
        left = duration(max(0.0, begun.since + SETTLED_SECONDS - time.time()))
        state = "UNCONFIRMED"
        description = f"Slurm did not confirm the submission: look again within {left}, or submit "
        description += "it again, which looks"
    return _listed(begun.folder, begun.asked, begun.since, state, description)


def _listed(
    folder: Path,
    request: Mapping[str, Any],
    since: float,
    state: str,
    description: str,
    job_id: int | None = None,
    cancelled_by: str = "",
) -> Listed:
    name, partition = (request.get(key) or "" for key in ("name", "partition"))
    age = max(0.0, time.time() - since)
    return Listed(job_id, name, partition, state, description, age, folder, cancelled_by)


def as_text(rows: Sequence[Listed]) -> str:
    """The runs as a table; of a cancelled one by whom, `?` where that is not known."""
    lines = []
    for row in rows:
        by = f" by {row.cancelled_by or '?'}" if row.state == "CANCELLED" else ""
        age, job = duration(row.age_seconds), row.job_id or "-"
        lines.append([*map(str, (job, row.name, row.partition, row.state + by, age, row.folder))])
    unclear = [f"{row.folder}: {row.description}" for row in rows if row.job_id is None]
    head = ("job", "name", "partition", "state", "age", "directory")
    return "\n".join([table(lines, head), *unclear])


def _submissions(site: Site) -> Iterator[tuple[Submission, float]]:
    """This user's submissions and when they were made, the newest first."""
    links = []
    with suppress(OSError), os.scandir(index(site)) as entries:
        stats = (
            (entry.stat(follow_symlinks=False), entry.path)
            for entry in entries
            if entry.name.partition(".")[0].isdigit()
        )
        # Others may have any number of links there.
        links = [(stat.st_mtime, path) for stat, path in stats if stat.st_uid == os.geteuid()]
    seen = set()
    for submitted, path in sorted(links, reverse=True):
        with suppress(BadInput, OSError):  # its directory was removed, or cannot be read
            submission = find(site, path)
            folder = submission.folder
            if folder.stat().st_uid == os.geteuid() and folder not in seen:
                seen.add(folder)
                yield submission, submitted
