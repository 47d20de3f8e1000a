"""Runs a sweep: writes its folder, queues what is missing, says how it stands.

A sweep's folder is WORK/sweeps/NAME: sweep.json (the manifest), a script and a file of
arguments per array, logs/, and points/ID with each point's result. Submitting is resumable:
the manifest is written after every array, so that a killed sweep goes on where it stopped.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hpcdl.jobs.program import check_script
from hpcdl.jobs.script import Script
from hpcdl.jobs.spec import Module, check_name
from hpcdl.jobs.submission import check_data
from hpcdl.jobs.sweep import Group, Point, groups, point_folder, render
from hpcdl.site import Site
from hpcdl.slurm import client
from hpcdl.slurm.parse import JobRecord
from hpcdl.system.errors import BadInput
from hpcdl.system.files import locked, write_atomic, write_json

SCHEMA = 1
DONE, QUEUED, MISSING, IMPOSSIBLE = "done", "queued", "missing", "impossible"


@dataclass(frozen=True)
class Standing:
    """A point of a sweep and how it stands; the job is None where none was submitted."""

    point: Point
    state: str
    job_id: int | None = None
    task: int | None = None


def sweep_folder(site: Site, name: str) -> Path:
    """Where a sweep of this name keeps everything.

    Raises:
        BadInput: the name cannot be a folder's.
    """
    check_name(name)
    return site.paths.work / "sweeps" / name


def standings(folder: Path, points: Sequence[Point], *, ask: bool = True) -> tuple[Standing, ...]:
    """How each point stands: by its result, then by its job, as the manifest ties them.

    Without `ask` Slurm is left alone: a point without a result counts as missing.

    Raises:
        BadInput: the manifest is of another format.
    """
    tied = _read_manifest(folder)
    active = _active_arrays() if tied and ask else {}
    found = []
    for point in points:
        job_id, task = tied.get(point.id, (None, None))
        if point.problem:
            state = IMPOSSIBLE
        elif _completed(point_folder(folder, point)):
            state = DONE
        else:
            records = active.get(job_id, []) if job_id is not None else []
            queued = any(record.has_task(task or 0) for record in records)
            state = QUEUED if queued else MISSING
        found.append(Standing(point, state, job_id, task))
    return tuple(found)


def submit(
    site: Site, folder: Path, points: Sequence[Point], module: Module, running: int | None,
    *, after: Sequence[int] | None = None,
) -> tuple[Standing, ...]:  # fmt: skip
    """Queue every point that has neither a result nor a job; give how all stand then.

    One `sbatch --test-only` per distinct shape comes before anything is queued. With `after`,
    each array waits until these jobs and all earlier arrays of the sweep have ended.

    Raises:
        BadInput: Slurm refuses a shape; nothing is queued then, unless only nodes that are down
            kept it from telling.
    """
    for point in points[:1]:
        check_data(point.spec)
        check_script(point.spec)
    with locked(folder / ".lock"):
        stand = {one.point.id: one for one in standings(folder, points)}
        missing = [one.point for one in stand.values() if one.state == MISSING]
        number = len(list(folder.glob("array-*.sh")))
        prepared = [
            (group, _write(site, folder, group, module, number + index, running))
            for index, group in enumerate(groups(missing))
        ]
        _ask_first(prepared)
        before = sorted({*(after or ()), *_active_jobs(stand.values())})
        for group, script in prepared:
            job_id = client.submit(script, _wait_for(before if after is not None else ()))
            before.append(job_id)
            for task, point in enumerate(group.points):
                stand[point.id] = replace(stand[point.id], state=QUEUED, job_id=job_id, task=task)
            _write_manifest(folder, tuple(stand.values()))
        _write_manifest(folder, tuple(stand.values()))
    return tuple(stand.values())


def _active_jobs(found: Iterable[Standing]) -> set[int]:
    return {one.job_id for one in found if one.state == QUEUED and one.job_id is not None}


def _wait_for(jobs: Sequence[int]) -> tuple[str, ...]:
    """The option that lets a job begin when others have ended, however they did."""
    return (f"--dependency=afterany:{':'.join(map(str, jobs))}",) if jobs else ()


def preview(
    site: Site, folder: Path, points: Sequence[Point], module: Module, running: int | None
) -> list[tuple[Group, Script]]:
    """The scripts that `submit` would write, without writing them."""
    return [
        (group, render(site, group, module, folder, index, running)[0])
        for index, group in enumerate(groups(points))
    ]


def summary(found: Sequence[Standing]) -> str:
    """`12 points: 8 done, 4 queued`."""
    counts = Counter(one.state for one in found)
    parts = [f"{counts[state]} {state}" for state in (DONE, QUEUED, MISSING, IMPOSSIBLE)
             if counts[state]]  # fmt: skip
    return f"{len(found)} points: {', '.join(parts)}"


def _write(
    site: Site, folder: Path, group: Group, module: Module, number: int, running: int | None
) -> Path:
    script, arguments = render(site, group, module, folder, number, running)
    (folder / "logs").mkdir(parents=True, exist_ok=True)
    write_atomic(folder / f"array-{number:03d}.args", arguments)
    path = folder / f"array-{number:03d}.sh"
    write_atomic(path, script.text, mode=0o755)
    return path


def _ask_first(prepared: Sequence[tuple[Group, Path]]) -> None:
    """Ask Slurm about each distinct shape; withdraw what was written when it refuses one."""
    try:
        for script in {id(group.spec): path for group, path in prepared}.values():
            client.would_run(script)
    except BaseException:
        for _, script in prepared:
            script.unlink(missing_ok=True)
            script.with_suffix(".args").unlink(missing_ok=True)
        raise


def _active_arrays() -> dict[int, list[JobRecord]]:
    """What may still run, by array job."""
    found: dict[int, list[JobRecord]] = {}
    for record in client.queue():
        if record.active and record.array_job is not None:
            found.setdefault(record.array_job, []).append(record)
    return found


def _completed(folder: Path) -> bool:
    """Whether a point's program ended well: its script writes the exit code beside the result."""
    try:
        return (folder / "exit_code").read_text().strip() == "0"
    except OSError:
        return False


def _read_manifest(folder: Path) -> dict[str, tuple[int | None, int | None]]:
    path = folder / "sweep.json"
    try:
        manifest: dict[str, Any] = json.loads(path.read_text())
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as fault:
        raise BadInput(f"{path} cannot be read", hint="take it away to start anew") from fault
    if not isinstance(manifest, dict) or manifest.get("schema") != SCHEMA:
        raise BadInput(f"{path} is not of version {SCHEMA}", hint="take it away to start anew")
    return {row["id"]: (row["job_id"], row["task"]) for row in manifest["points"]}


def _write_manifest(folder: Path, found: Sequence[Standing]) -> None:
    rows = [
        {
            "id": one.point.id,
            "values": dict(one.point.values),
            "state": one.state,
            "problem": one.point.problem,
            "job_id": one.job_id,
            "task": one.task,
            "folder": str(point_folder(folder, one.point)),
        }
        for one in found
    ]
    write_json(folder / "sweep.json", {"schema": SCHEMA, "points": rows})
