"""Sweeps: a matrix of jobs, as job arrays, with a manifest that ties points to results.

Points that ask Slurm for the same thing form one array: one script, one line of arguments per
task. The manifest (sweep.json) says which job and task runs which point and where its result
lies; running the sweep again submits only what has no result and no job. What all points share is
kept in it, so that results of another program or partition are never taken for this one's.
"""

from __future__ import annotations

import json
import re
from argparse import Namespace
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from hashlib import sha256
from itertools import product
from pathlib import Path
from typing import Any

from hpcdl.jobs import quote
from hpcdl.jobs.launch import step_command
from hpcdl.jobs.script import ArrayOf, JobScript, check_request, render_script
from hpcdl.jobs.spec import JobSpec, Module
from hpcdl.results.records import at
from hpcdl.site import Site
from hpcdl.slurm.once import embedded_cluster
from hpcdl.system.declare import changed, entries, shape, typed
from hpcdl.system.errors import BadInput
from hpcdl.system.files import write_json
from hpcdl.system.safe_read import read_regular
from hpcdl.system.text import did_you_mean, nearest

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
JOB_KEYS = tuple(key for key, entry in _DECLARED.items() if entry.sweep)
"""The keys of a job that a sweep may vary; keys of no job become options of the program."""

_MOST_BYTES = 200_000_000
_SCHEMA = 2
Request = Mapping[str, Any]
Values = Mapping[str, str]
Shape = tuple[object, ...]


@dataclass(frozen=True)
class SweepPoint:
    """One job of a sweep. `id` follows from the values alone; `problem` is why it cannot run."""

    id: str
    values: Values
    spec: JobSpec
    problem: str = ""


@dataclass(frozen=True)
class SweepArray:
    """Points that ask Slurm for the same thing, and so share a script."""

    spec: JobSpec
    points: tuple[SweepPoint, ...]


def plan(
    site: Site,
    base: JobSpec,
    matrix: Mapping[str, Sequence[str]],
    exclude: Sequence[Values] = (),
) -> tuple[SweepPoint, ...]:
    """All points of a matrix that are not excluded; BadInput for what makes no sweep."""
    check_matrix(matrix, exclude)
    changes = {(key, text): _change(key, text) for key in matrix for text in matrix[key]}
    shapes: dict[Shape, str] = {}
    points = []
    for choice in product(*matrix.values()):
        values = dict(zip(matrix, choice, strict=True))
        if not any(pattern.items() <= values.items() for pattern in exclude):
            spec, problem = _spec_of(site, base, values, changes, shapes)
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
    shared: dict[Shape, list[SweepPoint]] = {}
    for point in points:
        if not point.problem:
            shared.setdefault(shape(point.spec), []).append(point)
    return tuple(
        SweepArray(members[0].spec, tuple(members[start : start + tasks]))
        for members in shared.values()
        for start in range(0, len(members), tasks)
    )


def render(
    site: Site, group: SweepArray, module: Module, arguments: Path, running: int | None
) -> tuple[JobScript, str]:
    """The script of a group, and what its file of arguments holds: quoted ones, a line per task.

    The first argument of a line is the point's directory, the rest its program.
    """
    folder = arguments.parent
    lines = [
        quote.quote_argv((str(point_folder(folder, point)), *step_command(point.spec.program)))
        for point in group.points
    ]
    array = ArrayOf(len(group.points), arguments, folder / "logs", running)
    return render_script(site, group.spec, module, array), "\n".join(lines) + "\n"


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
        if len(set(values)) < len(values):
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
        as_option = f"for an option of the program write -- PROGRAM --{key} {{{key}}}"
        message = hint = ""
        if (near := nearest(key, marks - shell, cutoff=0.8)) and near not in matrix:
            message = f"the program has {{{near}}}, and no --over has that"
            hint = f"did you mean '{{{key}}}'?"
        elif any(word.partition("=")[0] == f"--{key}" for word in base.program):
            message = f"--{key} is an argument of the program, and a key of --over"
            hint = f"leave it there out, or write --{key} {{{key}}}"
        elif key in options:
            continue
        elif key in _DECLARED:
            message = f"--over {key}: all points of a sweep have the same"
            hint = f"submit a sweep for each value; {as_option}"
        elif close := nearest(key, JOB_KEYS, cutoff=0.8):
            message = f"--over {key} is no key of a job"
            hint = f"did you mean '{close}'? {as_option.capitalize()}"
        if message:
            raise BadInput(message, hint=hint)


def _change(key: str, text: str) -> Mapping[str, Any] | BadInput:
    """Return the fields of the job that a matrix's value changes, or the error if it is invalid."""
    try:
        given = Namespace(**{_DECLARED[key].name: text}) if key in JOB_KEYS else Namespace()
        return typed(JobSpec, given)
    except BadInput as fault:
        return fault


def _spec_of(
    site: Site,
    base: JobSpec,
    values: Values,
    changes: Mapping[tuple[str, str], Mapping[str, Any] | BadInput],
    verdicts: dict[Shape, str],
) -> tuple[JobSpec, str]:
    """The job of a point, and why it is impossible ('' where it is not).

    `verdicts` remembers what was found of each distinct shape: a sweep has few of them.
    """
    spec = base
    for change in map(changes.__getitem__, values.items()):
        if isinstance(change, BadInput):
            return base, change.message
        spec = changed(spec, change) if change else spec
    asked = shape(spec)
    if asked not in verdicts:
        verdicts[asked] = ""
        try:
            check_request(site, spec)
        except BadInput as fault:
            verdicts[asked] = fault.message
    return replace(spec, program=_program_of(base, values)), verdicts[asked]


def _program_of(base: JobSpec, values: Values) -> tuple[str, ...]:
    """A point's program: `{key}` is replaced in place, else `--key value` is added."""
    program = base.program or ("hpcdl", "train")
    rest = {key: value for key, value in values.items() if key not in JOB_KEYS}
    placed = _marks(program)

    def put(mark: re.Match[str]) -> str:
        if mark[1] is not None:
            return f"{{{mark[1]}}}" if mark[1] in rest else mark[0]
        return rest.get(mark[2], mark[0])

    # In one pass: a value that looks like a mark itself arrives as it is.
    argv = [_MARK.sub(put, one) for one in program]
    options = [one for key in rest if key not in placed for one in (f"--{key}", rest[key])]
    return (*argv, *options)


def _marks(program: Sequence[str]) -> set[str]:
    """The keys that a program's arguments have a place for."""
    return {mark[2] for one in program for mark in _MARK.finditer(one) if mark[2]}


# ---- the manifest ----


@dataclass(frozen=True)
class Manifest:
    """The content of sweep.json; `request` is None if it was not kept."""

    rows: tuple[Mapping[str, Any], ...] = ()
    request: Request | None = None


def request_of(base: JobSpec) -> Request:
    """Return what all points of a sweep share and their results depend on, as JSON values.

    A release that is published meanwhile is no reason to run everything again.
    """
    free = {entry.name for entry in entries(JobSpec) if entry.free}
    shared = {
        field.name: getattr(base, field.name) for field in fields(base) if field.name not in free
    }
    shared |= {"environment": sorted(base.environment)}
    # As a manifest gives it back, which is what it is compared with: paths and tuples are none.
    request: Request = json.loads(json.dumps({k: v for k, v in shared.items() if v}, default=str))
    return request


def check_same_jobs(folder: Path, manifest: Manifest, request: Request | None) -> None:
    """Raise BadInput if the directory holds results of other jobs."""
    was, now = manifest.request, request
    if was is None or now is None or was == now:
        return
    keys = [key for key in dict.fromkeys((*was, *now)) if was.get(key) != now.get(key)]
    raise BadInput(
        f"the sweep '{folder.name}' was begun with other jobs",
        details=[f"{key}: {_shown(was.get(key))}, now {_shown(now.get(key))}" for key in keys],
        hint=f"give this one another --name, or take {folder} away to start over",
    )


def _shown(value: object) -> str:
    text = " ".join(map(str, value)) if isinstance(value, list) else str(value or "none")
    return text if len(text) <= 100 else f"{text[:97]}..."


def read_manifest(folder: Path) -> Manifest:
    """The manifest of a sweep, empty where there is none; BadInput for an unreadable one."""
    path = folder / "sweep.json"
    hint = f"take {folder} away to start over"
    try:
        if not path.exists():
            return Manifest()
        document = json.loads(read_regular(path, _MOST_BYTES, "sweep.json"))
    except (BadInput, OSError, ValueError, RecursionError) as fault:
        raise BadInput(f"{path} cannot be read", hint=hint) from fault
    if at(document, "schema") != _SCHEMA:
        raise BadInput(f"{path} is not of version {_SCHEMA}", hint=hint)
    rows, request = document.get("points"), document.get("request")
    if not isinstance(rows, list) or not all(map(_is_row, rows)):
        raise BadInput(f"{path} does not say which point is whose", hint=hint)
    return Manifest(tuple(rows), request if isinstance(request, dict) else None)


def _is_row(row: object) -> bool:
    kinds = {"id": str, "job_id": int | None, "task": int | None, "token": str | None}
    known = all(isinstance(at(row, name), kind) for name, kind in kinds.items())
    return known and (at(row, "token") is None or isinstance(at(row, "directory"), str))


def of_this_cluster(rows: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the points of a sweep whose jobs belong to this Slurm."""
    here = embedded_cluster()
    return [row for row in rows if (row.get("cluster") or "") == here]


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Write the manifest as a whole."""
    request = {} if manifest.request is None else {"request": dict(manifest.request)}
    document = {"schema": _SCHEMA, **request, "points": [dict(row) for row in manifest.rows]}
    write_json(folder / "sweep.json", document)
