"""Runs a sweep: writes its directory, queues what is missing, reports its status.

A sweep's directory is WORK/sweeps/NAME: sweep.json (the manifest), a script and a file of
arguments per array, logs/, and points/ID with each point's result. Submitting is resumable:
the manifest is written before every array, with its token, and after it, with its id, so that a
killed sweep resumes where it stopped.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hpcdl.jobs import environment, sweep
from hpcdl.jobs.script import JobScript
from hpcdl.jobs.spec import JobSpec, Module
from hpcdl.jobs.sweep import (
    Manifest,
    Request,
    SweepArray,
    SweepPoint,
    of_this_cluster,
    point_folder,
)
from hpcdl.jobs.watch import exit_code
from hpcdl.site import Site
from hpcdl.slurm import client, once
from hpcdl.slurm.client import SubmitLimits
from hpcdl.slurm.once import Unconfirmed, embedded_cluster, locate, revoke
from hpcdl.slurm.parse import JobRecord
from hpcdl.system import files
from hpcdl.system.declare import check
from hpcdl.system.errors import BadInput
from hpcdl.system.signals import undivided
from hpcdl.system.trust import require_own

DONE, RUNNING, QUEUED, FAILED = "done", "running", "queued", "failed"
ACTIVE = frozenset({RUNNING, QUEUED})
MISSING, IMPOSSIBLE = "missing", "impossible"
_NO_LIMITS = SubmitLimits(sweep.TASKS_PER_ARRAY, sweep.MAX_POINTS, "")
Modules = Mapping[str, Module]
"""What the jobs of each partition load."""


@dataclass(frozen=True)
class RunStatus:
    """A point of a sweep and its status; the job is None where none was submitted.

    A failed point has its program's exit code. `log` is that of its last run. `cluster` is the
    embedded cluster that the job is of, '' for another. `waits_for` is the limit of Slurm that kept
    a missing point from being queued.
    """

    point: SweepPoint
    state: str
    job_id: int | None = None
    task: int | None = None
    token: str | None = None
    exit_code: int | None = None
    log: Path | None = None
    cluster: str = ""
    waits_for: str = ""


def sweep_directory(site: Site, name: str) -> Path:
    """Return the directory of a sweep of this name; BadInput for an invalid name."""
    check(JobSpec(site.default_partition, name=name))
    return site.paths.work / "sweeps" / name


def run_statuses(
    folder: Path, points: Sequence[SweepPoint], *, ask: bool = True, request: Request | None = None
) -> tuple[RunStatus, ...]:
    """The status of each point: by its result, then by its job, as the manifest ties them.

    Without `ask` Slurm is left alone: a point without a result counts as missing.

    Raises:
        BadInput: the manifest is of another format, or of another `request`.
    """
    manifest = sweep.read_manifest(folder)
    sweep.check_same_jobs(folder, manifest, request)
    manifest = _located(manifest) if ask else manifest
    active = _active_arrays() if manifest.rows and ask else {}
    return _run_statuses(folder, points, manifest, active)


def kept_points(folder: Path, base: JobSpec) -> tuple[SweepPoint, ...]:
    """The points of a sweep's manifest, for their status alone."""
    rows = sweep.read_manifest(folder).rows
    return tuple(SweepPoint(r["id"], r["values"], base, r.get("problem") or "") for r in rows)


def submit(
    site: Site,
    folder: Path,
    points: Sequence[SweepPoint],
    modules: Modules,
    running: int | None,
    *,
    after: Sequence[int] = (),
    request: Request | None = None,
    retry: bool = True,
) -> tuple[RunStatus, ...]:
    """Queue every point that has neither a result nor a job; return the status of all.

    One `sbatch --test-only` per distinct shape comes before anything is queued. `points` are the
    matrix as it is now; those of an earlier one are kept in the manifest. `running` is the most
    tasks at a time, of all arrays together; `after` are jobs that must have ended before any of
    these begins; a sweep of another `request` is refused; with `retry` failed points run again.

    Raises:
        BadInput: Slurm refuses a shape, or the directory holds another sweep; nothing is queued,
            unless only nodes that are down kept Slurm from checking.
        MissingPrerequisite: the directory is another user's.
    """
    with files.locked(folder / ".lock"):
        require_own(folder)
        manifest = sweep.read_manifest(folder)
        sweep.check_same_jobs(folder, manifest, request)
        if request and points:
            environment.check_same(folder, points[0].spec.environment)
        manifest = _settled(folder, manifest)
        files.clear_leftovers(folder / "sweep.json")
        active = _active_arrays() if manifest.rows else {}
        status = {run.point.id: run for run in _run_statuses(folder, points, manifest, active)}
        limits, prepared = _NO_LIMITS, []
        if any(_is_wanted(run, retry) for run in status.values()):
            limits = client.submit_limits(points[0].spec.qos)
            prepared = _prepare(
                site, folder, tuple(status.values()), modules, running, retry, limits
            )
        _ask_first(prepared)
        known = {row.get("job_id") for row in of_this_cluster(manifest.rows)}
        before = {*after, *(known & set(active) if running else ())}
        manifest = replace(manifest, request=request or manifest.request)
        refused = _queue_all(folder, manifest, status, prepared, running, before)
        limits = limits._replace(setting=refused or limits.setting)
        _write_manifest(folder, manifest, status)
    return tuple(
        replace(run, waits_for=limits.setting) if run.state == MISSING else run
        for run in status.values()
    )


def _queue_all(
    folder: Path,
    manifest: Manifest,
    status: dict[str, RunStatus],
    prepared: Sequence[tuple[SweepArray, Path]],
    running: int | None,
    before: set[int],
) -> str:
    """Queue the arrays in turn until Slurm is full; return what it said then, '' if it was not."""
    queued: list[int] = []
    for number, (group, script) in enumerate(prepared):
        # Those whose share of `running` it has, as `shares` deals; however they ended.
        slot = queued[number % running :: running] if running else ()
        waits = ":".join(map(str, sorted({*before, *slot})))
        options = (f"--dependency=afterany:{waits}",) if waits else ()
        try:
            queued.append(_queue(folder, manifest, status, group, script, options))
        except BadInput as fault:
            if not client.is_full(fault):
                raise
            return " ".join(fault.details)  # what is queued stays; the same command queues the rest
    return ""


def _queue(
    folder: Path,
    manifest: Manifest,
    status: dict[str, RunStatus],
    group: SweepArray,
    script: Path,
    options: Sequence[str],
) -> int:
    """Queue the array of a group, in the manifest by its token before and by its id after."""
    token, earlier = once.new_token(), dict(status)
    _note(status, group, None, token)
    _write_manifest(folder, manifest, status)  # what is queued now is found by its token
    files.sync_directory(folder)
    with undivided():
        try:
            job = once.submit(script, options, token=token)
        except Unconfirmed:
            raise
        except BaseException:
            _write_manifest(folder, manifest, earlier)
            raise
        _note(status, group, job, token)
        _write_manifest(folder, manifest, status)
    return job


def _note(status: dict[str, RunStatus], group: SweepArray, job: int | None, token: str) -> None:
    cluster = embedded_cluster()
    for task, point in enumerate(group.points):
        point = status[point.id].point
        status[point.id] = RunStatus(point, QUEUED, job, task, token, cluster=cluster)


def _located(manifest: Manifest, since: float | None = None) -> Manifest:
    """Return the manifest with the jobs that are found by their tokens; `since` as in `locate`."""
    folders: dict[str, list[Path]] = {}
    for row in filter(_unconfirmed, manifest.rows):
        folders.setdefault(row["token"], []).append(Path(row["directory"]))
    known = locate(folders, since)
    rows = (
        {**row, "job_id": known.get(row["token"])} if _unconfirmed(row) else row
        for row in manifest.rows
    )
    return replace(manifest, rows=tuple(rows))


def _unconfirmed(row: Mapping[str, Any]) -> bool:
    """Whether a command was stopped between writing down the token of a point and its job."""
    return bool(row.get("token")) and row.get("job_id") is None


def _settled(folder: Path, manifest: Manifest) -> Manifest:
    """The manifest with the jobs of a stopped command; points that it queued no job for are free.

    Their token is revoked, so that no job of it runs beside the next one, however late it comes.
    """
    if not any(map(_unconfirmed, manifest.rows)):
        return manifest
    since = (folder / "sweep.json").stat().st_mtime
    rows = [dict(row) for row in _located(manifest, since).rows]
    for row in filter(_unconfirmed, rows):
        row["job_id"] = revoke(Path(row["directory"]), row["token"])
        row["token"] = row["token"] if row["job_id"] else None
    settled = replace(manifest, rows=tuple(rows))
    sweep.write_manifest(folder, settled)
    return settled


def _is_wanted(run: RunStatus, retry: bool) -> bool:
    """Whether a point is to be queued; `retry`: also one that failed."""
    return run.state == MISSING or (retry and run.state == FAILED)


def preview(
    site: Site,
    folder: Path,
    statuses: Sequence[RunStatus],
    modules: Modules,
    running: int | None,
    retry: bool = True,
    limits: SubmitLimits = _NO_LIMITS,
) -> list[tuple[SweepArray, JobScript, Path, str]]:
    """The scripts that `submit` would write for points of this status, and files of arguments.

    Arrays are no larger than Slurm allows by `limits`, and all together fit what it takes now.
    """
    points = [one.point for one in statuses if _is_wanted(one, retry)]
    missing = sweep.groups(points[: limits.jobs], min(sweep.TASKS_PER_ARRAY, limits.array_tasks))
    dealt = zip(missing, sweep.shares(len(missing), running), strict=True)
    arrays = []
    for number, (group, share) in enumerate(dealt, start=len(list(folder.glob("array-*.sh")))):
        file = folder / f"array-{number:03d}.args"
        # A container brings its own software.
        module = Module(()) if group.spec.container else modules[group.spec.partition]
        script, text = sweep.render(site, group, module, file, share)
        arrays.append((group, script, file, text))
    return arrays


def summary(statuses: Sequence[RunStatus]) -> str:
    """`12 points: 7 done, 1 running, 4 queued`."""
    counts = Counter(one.state for one in statuses)
    parts = [
        f"{counts[state]} {state}"
        for state in (DONE, RUNNING, QUEUED, FAILED, MISSING, IMPOSSIBLE)
        if counts[state]
    ]
    return f"{len(statuses)} points: {', '.join(parts)}"


def _run_statuses(
    folder: Path,
    points: Sequence[SweepPoint],
    manifest: Manifest,
    active: Mapping[int, Sequence[JobRecord]],
) -> tuple[RunStatus, ...]:
    rows = {row["id"]: row for row in manifest.rows}
    here = {row["id"] for row in of_this_cluster(manifest.rows)}
    statuses = []
    for point in points:
        row = rows.get(point.id, {})
        job_id, task, token = map(row.get, ("job_id", "task", "token"))
        code = None if point.problem else exit_code(point_folder(folder, point) / "exit_code")
        records = active.get(job_id, ()) if job_id is not None and point.id in here else ()
        if point.problem:
            state = IMPOSSIBLE
        elif code == 0:
            state = DONE
        elif mine := [one for one in records if one.has_task(task or 0)]:
            state = RUNNING if any(one.state == "RUNNING" for one in mine) else QUEUED
        else:
            state = MISSING if code is None else FAILED
        log = folder / "logs" / f"{job_id}_{task}.log" if job_id is not None else None
        statuses.append(
            RunStatus(point, state, job_id, task, token, code, log, row.get("cluster") or "")
        )
    return tuple(statuses)


def _prepare(
    site: Site,
    folder: Path,
    statuses: Sequence[RunStatus],
    modules: Modules,
    running: int | None,
    retry: bool,
    limits: SubmitLimits,
) -> list[tuple[SweepArray, Path]]:
    """Write the scripts of what is missing, and the arguments of their tasks."""
    files.make_directory(folder / "logs")  # for its user alone: Slurm follows links to logs
    prepared = []
    for group, script, file, text in preview(
        site, folder, statuses, modules, running, retry, limits
    ):
        path = file.with_suffix(".sh")
        files.clear_leftovers(path, file)
        for point in group.points:
            files.make_directory(point_folder(folder, point))
        files.write_atomic(file, text)
        environment.keep(path.with_suffix(f".{environment.NAME}"), group.spec.environment)
        files.write_atomic(path, script.text, mode=0o755)
        prepared.append((group, path))
    return prepared


def _ask_first(prepared: Sequence[tuple[SweepArray, Path]]) -> None:
    """Ask Slurm about each distinct shape; withdraw what was written when it refuses one."""
    try:
        for script in {id(group.spec): path for group, path in prepared}.values():
            client.would_run(script)
    except BaseException:
        for _, script in prepared:
            for end in (".sh", ".args", f".{environment.NAME}"):
                script.with_suffix(end).unlink(missing_ok=True)
        raise


def _active_arrays() -> dict[int, list[JobRecord]]:
    """Return the records of tasks that may still run, by array job."""
    found: dict[int, list[JobRecord]] = {}
    for record in client.queue(mine=True):
        if record.active and record.array_job is not None:
            found.setdefault(record.array_job, []).append(record)
    return found


def _write_manifest(folder: Path, manifest: Manifest, status: Mapping[str, RunStatus]) -> None:
    """The manifest with the status of the points of this matrix; those of an earlier one stay."""
    rows: list[dict[str, Any]] = [
        {
            "id": one.point.id,
            "values": dict(one.point.values),
            "state": one.state,
            "problem": one.point.problem,
            "job_id": one.job_id,
            "task": one.task,
            "token": one.token,
            "cluster": one.cluster,
            "directory": str(point_folder(folder, one.point)),
        }
        for one in status.values()
    ]
    earlier = [row for row in manifest.rows if row["id"] not in status]
    sweep.write_manifest(folder, replace(manifest, rows=(*earlier, *rows)))
