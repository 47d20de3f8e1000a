"""The arrays of this user's sweeps and studies, as their manifests tell; and how each stands."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from hpcdl.jobs.intent import locate
from hpcdl.jobs.manifest import Manifest, read_manifest
from hpcdl.jobs.watch import exit_code
from hpcdl.site import Site
from hpcdl.slurm.parse import JobRecord
from hpcdl.system.errors import BadInput

_PLACES = ("sweeps/*/sweep.json", "studies/*/*/sweep.json")


@dataclass(frozen=True)
class Array:
    """One array: its points' rows of the manifest, and when it was submitted (epoch).

    `job_id` is None where a stopped command left a token that no job is known of.
    """

    job_id: int | None
    folder: Path
    partition: str
    submitted: float
    rows: tuple[Mapping[str, Any], ...]

    @property
    def name(self) -> str:
        """The sweep's; a study's has the run's as well."""
        study = self.folder.parent
        named = study.parent.name == "studies"
        return f"{study.name}/{self.folder.name}" if named else self.folder.name


def arrays(site: Site, most: int | None = None) -> Iterator[Array]:
    """The arrays of the `most` sweeps that changed last (None: of all), the newest sweep first.

    Raises:
        SlurmAway: a command was stopped on its way, and nobody tells whether its job is queued.
    """
    places = chain.from_iterable(site.paths.work.glob(place) for place in _PLACES)
    manifests = sorted(filter(None, map(_ours, places)), reverse=True)
    for changed, folder in manifests[:most]:
        with suppress(BadInput):  # one that cannot be read is its sweep's to report
            yield from _of(folder, read_manifest(folder), changed)


def _ours(manifest: Path) -> tuple[float, Path] | None:
    """When it changed, and its directory; None where either is another user's."""
    with suppress(OSError):
        status = manifest.stat()
        if {status.st_uid, manifest.parent.stat().st_uid} == {os.geteuid()}:
            return status.st_mtime, manifest.parent
    return None


def _of(folder: Path, manifest: Manifest, changed: float) -> Iterator[Array]:
    shared: dict[str, list[Mapping[str, Any]]] = {}
    for row in manifest.rows:
        if row.get("job_id") or row.get("token"):
            shared.setdefault(row.get("token") or str(row["job_id"]), []).append(row)
    lost = {key: [Path(row["directory"]) for row in rows]
            for key, rows in shared.items() if rows[0].get("job_id") is None}  # fmt: skip
    known = locate(lost) if lost else {}
    for key, rows in shared.items():
        with suppress(OSError):  # its script's link is as old as its submission
            changed = (folder / f"{key}.sh").lstat().st_mtime
        said = (manifest.request or {}).get("partition") or ""
        partition = rows[0].get("values", {}).get("partition") or said
        job_id = rows[0].get("job_id") or known.get(key)
        yield Array(job_id, folder, str(partition), changed, tuple(rows))


def standing(array: Array, records: Sequence[JobRecord]) -> tuple[str, str]:
    """The state of an array as a whole, and how many of its tasks have which.

    `records` are Slurm's of this array; of a task that it forgot, its exit code tells.
    """
    single = {record.array_tasks: record for record in records}
    several = [record for record in records if not record.array_tasks.isdigit()]
    counts: Counter[str] = Counter()
    active = set()
    for row in array.rows:
        task = row.get("task") or 0
        told = single.get(str(task)) or next((r for r in several if r.has_task(task)), None)
        state = told.state if told else _ended(Path(row.get("directory") or array.folder))
        active |= {state} if told and told.active else set()
        counts[state] += 1
    order = [*sorted(active, key=lambda state: state == "PENDING"),
             *(state for state in counts if state != "COMPLETED"), *counts]  # fmt: skip
    parts = ", ".join(f"{count} {state.lower()}" for state, count in counts.items())
    return order[0], f"{len(array.rows)} tasks: {parts}"


def _ended(folder: Path) -> str:
    """How a task ended that Slurm does not know any more: its script wrote the exit code."""
    code = exit_code(folder / "exit_code")
    return "UNKNOWN" if code is None else "FAILED" if code else "COMPLETED"
