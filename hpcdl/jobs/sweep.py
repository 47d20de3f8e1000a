"""Sweeps: a matrix of jobs, as job arrays, with a manifest that ties points to results.

Points that ask Slurm for the same thing form one array: one script, one line of arguments per
task. A sweep's directory is WORK/sweeps/NAME: sweep.json (the manifest), a script and a file of
arguments per array, logs/, and points/ID with each point's result. The manifest says which job and
task runs which point; running the sweep again submits only what has no result and no job. It is
written before every array, with its token, and after it, with its id, so that a killed sweep
resumes where it stopped. What all points share is kept in it, so that results of another program or
partition are never taken for this one's.
"""

from __future__ import annotations

import json
import re
from argparse import Namespace
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cache, partial
from hashlib import sha256
from itertools import product
from pathlib import Path
from typing import Any

from hpcdl.jobs.launch import step_command
from hpcdl.jobs.manifest import Common, Manifest, RunStatus, located, of_this_cluster, read_manifest
from hpcdl.jobs.script import VALUES, ArrayOf, JobScript, as_shell, check_request, render_script
from hpcdl.jobs.spec import JobSpec, Module, looks_secret
from hpcdl.jobs.watch import exit_code
from hpcdl.site import Site
from hpcdl.slurm import client, once
from hpcdl.slurm.once import Unconfirmed, embedded_cluster, revoke
from hpcdl.slurm.parse import JobRecord
from hpcdl.system import files
from hpcdl.system.declare import changed, entries, meaning, shape, typed
from hpcdl.system.errors import BadInput
from hpcdl.system.signals import undivided
from hpcdl.system.text import bash_words, did_you_mean, nearest
from hpcdl.system.trust import require_own

MAX_POINTS = 10_000
TASKS_PER_ARRAY = 1000
"""Slurm's MaxArraySize is 1001 where a site does not raise it (slurm.conf(5))."""

_MARK = re.compile(r"\{\{([^{}]+)\}\}|\{([^{}]+)\}")
"""`{{key}}` is no mark: it arrives as `{key}`."""
_KEY = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}\Z")
_DECLARED = {
    (entry.flag or str(entry.key)).lstrip("-").replace("_", "-"): entry
    for entry in entries(JobSpec)
    if entry.key
}
_NAMES = {
    word.lstrip("-").replace("_", "-")
    for entry in _DECLARED.values()
    for word in filter(None, (entry.key, entry.flag, *entry.constants))
}
_FIELDS = {key: entry.name for key, entry in _DECLARED.items() if entry.sweep}
JOB_KEYS = tuple(_FIELDS)
"""The keys of a job that a sweep may vary; keys of no job become options of the program."""

Values = Mapping[str, str]

DONE, RUNNING, QUEUED, FAILED = "done", "running", "queued", "failed"
ACTIVE = frozenset({RUNNING, QUEUED})
MISSING, IMPOSSIBLE = "missing", "impossible"
Modules = Mapping[str, Module]
"""What the jobs of each partition load."""
SweepArray = tuple["SweepPoint", ...]
"""Points that ask Slurm for the same thing, and so share a script: that of the first."""


@dataclass(frozen=True)
class SweepPoint:
    """One job of a sweep. `id` follows from the values alone; `problem` is why it cannot run."""

    id: str
    values: Values
    spec: JobSpec
    problem: str = ""


def plan(
    site: Site, base: JobSpec, matrix: Mapping[str, Sequence[str]], exclude: Sequence[Values] = ()
) -> tuple[SweepPoint, ...]:
    """All points of a matrix that are not excluded; BadInput for what makes no sweep."""
    check_matrix(matrix, exclude)
    asked = cache(partial(_asked, site, base))  # few of the points differ in their jobs
    points = []
    for choice in product(*matrix.values()):
        values = dict(zip(matrix, choice, strict=True))
        if not any(pattern.items() <= values.items() for pattern in exclude):
            own = tuple((key, text) for key, text in values.items() if key in JOB_KEYS)
            spec, problem = asked(own)
            spec = replace(spec, program=_program_of(base, values))
            points.append(SweepPoint(point_id(values), values, spec, problem))
    if not points:
        raise BadInput("every point of the sweep is excluded", hint="loosen --exclude")
    return tuple(points)


def matrix_of(over: Sequence[tuple[str, str]]) -> dict[str, list[str]]:
    """The matrix of `--over KEY=A,B` options; BadInput for a key that is given twice."""
    matrix: dict[str, list[str]] = {}
    for key, values in over:
        if key in matrix:
            raise BadInput(f"--over {key} is given twice", hint=f"write --over {key}=A,B,C")
        matrix[key] = [value.strip() for value in values.split(",")]
    return matrix


def samples(points: Sequence[SweepPoint]) -> list[SweepPoint]:
    """Return points that can run and together have every value of the matrix."""
    seen: set[tuple[str, str]] = set()
    found = []
    for point in points:
        if not point.problem and not seen.issuperset(point.values.items()):
            seen.update(point.values.items())
            found.append(point)
    return found


def point_id(values: Values) -> str:
    """A short name of a point that stays the same when the matrix grows."""
    text = json.dumps(dict(sorted(values.items())))
    return sha256(text.encode(errors="surrogateescape")).hexdigest()[:12]


def groups(points: Sequence[SweepPoint], tasks: int = TASKS_PER_ARRAY) -> tuple[SweepArray, ...]:
    """Points that can run, by what they ask Slurm for, in chunks of an array's size."""
    shared: dict[tuple[object, ...], list[SweepPoint]] = {}
    for point in points:
        if not point.problem:
            shared.setdefault(shape(point.spec), []).append(point)
    return tuple(
        tuple(members[start : start + tasks])
        for members in shared.values()
        for start in range(0, len(members), tasks)
    )


def shares(count: int, running: int | None) -> tuple[int | None, ...]:
    """Return how many tasks of each of `count` arrays may run at a time, `running` of all together.

    Of more arrays than that, every `running`-th waits for the one before and reuses its share.
    """
    if running is None:
        return (None,) * count
    slots = min(count, running)
    return tuple(running // slots + (number % slots < running % slots) for number in range(count))


def point_folder(folder: Path, point: SweepPoint) -> Path:
    """Return the directory of a point's log, progress and result."""
    return folder / "points" / point.id


def check_matrix(matrix: Mapping[str, Sequence[str]], exclude: Sequence[Values]) -> None:
    """Raise BadInput for a matrix that makes no sweep."""
    if not matrix:
        raise BadInput("the sweep has no matrix", hint="give --over gpus=1,2,4")
    count = 1
    for key, values in matrix.items():
        if not _KEY.match(key):
            raise BadInput(f"--over {key!r} is no option's name", hint="write --over KEY=A,B")
        if not values or "" in values:
            raise BadInput(f"--over {key} has an empty value", hint=f"write --over {key}=A,B")
        if len({meaning(JobSpec, _FIELDS.get(key, ""), one) for one in values}) < len(values):
            raise BadInput(f"--over {key} names a value twice", hint="name it once")
        count *= len(values)
    if count > MAX_POINTS:
        message = f"the sweep has {count:,} points, more than {MAX_POINTS:,}"
        raise BadInput(message, hint="take values out, or make several sweeps")
    for key, value in (pair for pattern in exclude for pair in pattern.items()):
        if key not in matrix:
            hint = did_you_mean(key, matrix)
            raise BadInput(f"--exclude names '{key}', which is not in the matrix", hint=hint)
        if value not in matrix[key]:
            message = f"--exclude {key}={value} excludes nothing: --over {key} has no such value"
            raise BadInput(message, hint=did_you_mean(value, matrix[key]))


def check_keys(
    base: JobSpec, matrix: Mapping[str, Sequence[str]], options: Collection[str] = ()
) -> None:
    """Raise BadInput for a key that would not vary what it names, or is a slip of the pen.

    A key that is none of a job's becomes an option of the program; `options` are its options, where
    they are known.
    """
    marks = _marks(base.program)
    shell = {name for word in base.program for name in re.findall(r"\$\{(\w+)\}", word)}
    for key in set(matrix) - {*JOB_KEYS} - marks:
        close = nearest(key, {*JOB_KEYS, *marks} - shell - matrix.keys(), cutoff=0.8)
        write = f"for an option of the program write -- PROGRAM --{key} {{{key}}}"
        if any(word.partition("=")[0] == f"--{key}" for word in base.program):
            message = f"--{key} is an argument of the program, and a key of --over"
            raise BadInput(message, hint=f"leave it there out, or write --{key} {{{key}}}")
        if key.replace("_", "-") in {*_NAMES, "licenses", "reservation"} - {*JOB_KEYS, *options}:
            message = f"--over {key}: all points of a sweep have the same"
            raise BadInput(message, hint=f"submit a sweep for each value; {write}")
        if close and key not in options:
            message = f"--over {key} is no key of a job, and no mark of the program"
            raise BadInput(message, hint=f"did you mean '{close}'? F{write[1:]}")


def _asked(site: Site, base: JobSpec, own: Iterable[tuple[str, str]]) -> tuple[JobSpec, str]:
    """The job with these keys, and why it is impossible ('' where it is not)."""
    spec = base
    try:
        given = Namespace(**{_FIELDS[key]: text for key, text in own})
        spec = changed(base, typed(JobSpec, given))
        check_request(site, spec)
    except BadInput as fault:
        return spec, fault.message
    return spec, ""


def _program_of(base: JobSpec, values: Values) -> tuple[str, ...]:
    """A point's program: `{key}` is replaced in place, else `--key value` is added."""
    rest = {key: value for key, value in values.items() if key not in JOB_KEYS}
    placed = _marks(base.program)

    def put(mark: re.Match[str]) -> str:
        if mark[1] is not None:
            return f"{{{mark[1]}}}" if mark[1] in rest else mark[0]
        return rest.get(mark[2], mark[0])

    # In one pass: a value that looks like a mark itself arrives as it is.
    argv = [_MARK.sub(put, one) for one in base.program]
    options = [one for key in rest if key not in placed for one in (f"--{key}", rest[key])]
    return (*argv, *options)


def _marks(program: Sequence[str]) -> set[str]:
    """The keys that a program's arguments have a place for."""
    return {mark[2] for one in program for mark in _MARK.finditer(one) if mark[2]}


def request_of(base: JobSpec) -> Common:
    """Return what all points of a sweep share and their results depend on, as JSON values.

    A release that is published meanwhile, or a new secret, is no reason to run everything again.
    """
    free = {entry.name for entry in entries(JobSpec) if entry.free}
    shared = {
        field.name: getattr(base, field.name) for field in fields(base) if field.name not in free
    }
    values = base.environment.items()
    shared["environment"] = {key: "" if looks_secret(key) else text for key, text in values}
    # As a manifest gives it back, which is what it is compared with: paths and tuples are none.
    request: Common = json.loads(json.dumps({k: v for k, v in shared.items() if v}, default=str))
    return request


# ---- running ----


def sweep_directory(site: Site, name: str) -> Path:
    """Return the directory of a sweep of this name."""
    return site.paths.work / "sweeps" / name


def run_statuses(
    folder: Path,
    points: Sequence[SweepPoint] | None,
    *,
    ask: bool = True,
    request: Common | None = None,
) -> tuple[RunStatus, ...]:
    """The status of each point: by its result, then by its job, as the manifest ties them.

    None as `points` are those of the manifest. Without `ask` Slurm is left alone: a point without a
    result counts as missing.

    Raises BadInput: the manifest is of another format, or of another `request`.
    """
    manifest = read_manifest(folder, request)
    if not ask:
        return _run_statuses(points, manifest, {})
    if folder.is_dir():
        require_own(folder)  # what it says of jobs may cancel one
    manifest.rows = {row.id: row for row in located(manifest.rows.values())}
    return _run_statuses(points, manifest, _active_arrays(manifest))


def submit(
    site: Site,
    folder: Path,
    points: Sequence[SweepPoint],
    modules: Modules,
    running: int | None,
    *,
    request: Common | None = None,
    retry: bool = True,
) -> tuple[RunStatus, ...]:
    """Queue every point that has neither a result nor a job; return the status of all.

    One `sbatch --test-only` per distinct shape comes before anything is queued. `points` are the
    matrix as it is now; those of an earlier one are kept in the manifest. `running` is the most
    tasks at a time, of all arrays together; a sweep of another `request` is refused; with `retry`
    failed points run again.

    Raises:
        BadInput: Slurm refuses a shape, or the directory holds another sweep; nothing is queued,
            unless only nodes that are down kept Slurm from checking.
        MissingPrerequisite: the directory is another user's.
    """
    with files.locked(folder / ".lock"):
        require_own(folder)
        manifest = read_manifest(folder, request)
        _settle(manifest)
        files.clear_leftovers(folder / "sweep.json")
        active = _active_arrays(manifest)
        statuses, full = _run_statuses(points, manifest, active), ""
        manifest.rows |= {run.id: run for run in statuses}
        if wanted := wanted_points(points, statuses, retry):
            limits = client.submit_limits()
            full, tasks = limits.setting, min(TASKS_PER_ARRAY, limits.array_tasks)
            prepared = _prepare(site, folder, wanted[: limits.jobs], modules, running, tasks)
            full = _queue_all(manifest, prepared, running, active if running else ()) or full
        manifest.write()
    now = [manifest.rows[point.id] for point in points]
    return tuple(run._replace(waits_for=full) if run.state == MISSING else run for run in now)


def _queue_all(
    manifest: Manifest,
    prepared: Sequence[tuple[SweepArray, Path]],
    running: int | None,
    before: Iterable[int],
) -> str:
    """Queue the arrays in turn until Slurm is full; return what it said then, '' if it was not."""
    queued: list[int] = []
    dealt = zip(prepared, shares(len(prepared), running), strict=True)
    for number, ((group, script), share) in enumerate(dealt):
        # Those whose share of `running` it has, as `shares` deals; however they ended.
        slot = queued[number % running :: running] if running else ()
        waits = ":".join(map(str, sorted({*before, *slot})))
        options = (f"--dependency=afterany:{waits}",) if waits else ()
        full, tasks = "", len(group)
        while tasks:  # what is queued stays; the same command queues the rest
            array = f"--array=0-{tasks - 1}" + (f"%{share}" if share else "")
            try:
                queued.append(_queue(manifest, group[:tasks], script, (*options, array)))
                break
            except BadInput as fault:
                if not client.is_full(fault):
                    raise
                full, tasks = " ".join(fault.details), client.array_room(script, tasks)
        if full:
            return full
    return ""


def _queue(manifest: Manifest, group: SweepArray, script: Path, options: Sequence[str]) -> int:
    """Queue the array of a group, in the manifest by its token before and by its id after."""
    token, earlier = once.new_token(), dict(manifest.rows)
    _note(manifest, group, None, token)  # what is queued now is found by its token
    files.sync_directory(manifest.folder)
    with undivided():
        try:
            job = once.submit(script, options, token=token)
        except Unconfirmed:
            raise
        except BaseException:
            manifest.rows = earlier
            manifest.write()
            raise
        _note(manifest, group, job, token)
    return job


def _note(manifest: Manifest, group: SweepArray, job: int | None, token: str) -> None:
    own: dict[str, Any] = {
        "state": QUEUED,
        "token": token,
        "cluster": embedded_cluster(),
        "exit_code": None,
    }
    for task, point in enumerate(group):
        manifest.rows[point.id] = manifest.rows[point.id]._replace(job_id=job, task=task, **own)
    manifest.write()


def _settle(manifest: Manifest) -> None:
    """Find the jobs of a stopped command; points that it queued no job for are free.

    Their token is revoked, so that no job of it runs beside the next one, however late it comes.
    """
    lost = [row for row in manifest.rows.values() if row.unconfirmed]
    if not lost:
        return
    for row in located(lost, (manifest.folder / "sweep.json").stat().st_mtime):
        job = row.job_id or revoke(Path(row.directory), str(row.token))
        found = row._replace(job_id=job, token=row.token if job else None)
        manifest.rows[row.id] = found
    manifest.write()


def wanted_points(
    points: Sequence[SweepPoint], statuses: Sequence[RunStatus], retry: bool
) -> list[SweepPoint]:
    """The points that are to be queued; with `retry` also those that failed."""
    states = {MISSING, FAILED} if retry else {MISSING}
    return [one for one, now in zip(points, statuses, strict=True) if now.state in states]


def preview(
    site: Site,
    folder: Path,
    points: Sequence[SweepPoint],
    modules: Modules,
    running: int | None,
    tasks: int = TASKS_PER_ARRAY,
) -> list[tuple[SweepArray, JobScript, Path, str]]:
    """The scripts of arrays of at most `tasks` tasks, and their files of arguments.

    A file has quoted arguments, a line per task: the point's directory, then its program.
    """
    missing = groups(points, tasks)
    dealt = zip(missing, shares(len(missing), running), strict=True)
    arrays = []
    for number, (group, share) in enumerate(dealt, start=len(list(folder.glob("array-*.sh")))):
        file, spec = folder / f"array-{number:03d}.args", group[0].spec
        array = ArrayOf(len(group), file, share)
        script = render_script(site, spec, modules[spec.partition], array)
        lines = [
            bash_words((str(point_folder(folder, point)), *step_command(point.spec.program)))
            for point in group
        ]
        arrays.append((group, script, file, "\n".join(lines) + "\n"))
    return arrays


def summary(statuses: Sequence[RunStatus]) -> str:
    """`12 points: 7 done, 1 running, 4 queued`."""
    counts = Counter(one.state for one in statuses)
    order = (DONE, RUNNING, QUEUED, FAILED, MISSING, IMPOSSIBLE)
    parts = [f"{counts[state]} {state}" for state in order if counts[state]]
    return f"{len(statuses)} points: {', '.join(parts)}"


def _run_statuses(
    points: Sequence[SweepPoint] | None,
    manifest: Manifest,
    active: Mapping[int, Sequence[JobRecord]],
) -> tuple[RunStatus, ...]:
    rows, here, statuses = manifest.rows, embedded_cluster(), []
    for point in rows.values() if points is None else points:
        place = manifest.folder / "points" / point.id
        row = rows.get(point.id, RunStatus(point.id, point.values, ""))
        code = None if point.problem else exit_code(place / "exit_code")
        records = active.get(row.job_id or 0, ()) if row.cluster == here else ()
        if point.problem:
            state = IMPOSSIBLE
        elif code == 0:
            state = DONE
        elif mine := [one for one in records if one.has_task(row.task or 0)]:
            state = RUNNING if any(one.state == "RUNNING" for one in mine) else QUEUED
        else:
            state = MISSING if code is None else FAILED
        row = row._replace(directory=str(place), problem=point.problem)
        statuses.append(row._replace(state=state, exit_code=code))
    return tuple(statuses)


def _prepare(
    site: Site,
    folder: Path,
    points: Sequence[SweepPoint],
    modules: Modules,
    running: int | None,
    tasks: int,
) -> list[tuple[SweepArray, Path]]:
    """Write the scripts of what is missing, and the arguments of their tasks.

    Slurm is asked about each distinct shape; when it refuses one, all is withdrawn.
    """
    files.make_directory(folder / "logs")  # for its user alone: Slurm follows links to logs
    prepared = []
    for group, script, file, text in preview(site, folder, points, modules, running, tasks):
        path = file.with_suffix(".sh")
        files.clear_leftovers(path, file)
        for point in group:
            files.make_directory(point_folder(folder, point))
        files.write_atomic(file, text)
        if values := group[0].spec.environment:
            kept = path.with_suffix(f".{VALUES}")
            files.write_atomic(kept, as_shell(values), mode=0o600)
        files.write_atomic(path, script.text, mode=0o755)
        prepared.append((group, path))
    try:
        for path in {shape(group[0].spec): path for group, path in prepared}.values():
            client.would_run(path)
    except BaseException:
        for _, path in prepared:
            for end in (".sh", ".args", f".{VALUES}"):
                path.with_suffix(end).unlink(missing_ok=True)
        raise
    return prepared


def _active_arrays(manifest: Manifest) -> dict[int, list[JobRecord]]:
    """Return the records of tasks that may still run, by array job; Slurm is asked if any may."""
    own = {row.job_id for row in of_this_cluster(manifest.rows.values())}
    found: dict[int, list[JobRecord]] = {}
    for record in client.queue(mine=True) if manifest.rows else ():
        if record.active and record.array_job is not None and record.array_job in own:
            found.setdefault(record.array_job, []).append(record)
    return found
