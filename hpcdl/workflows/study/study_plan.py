"""From a study's matrix to cells: the points of sweeps, each with the values that name it. Pure.

A run of a scale is a sweep with a directory and a manifest of its own below WORK/studies. A cell's
id follows from all that its job does, so that a changed study does not take old results for new.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from types import MappingProxyType

from hpcdl.jobs import sweep
from hpcdl.jobs.launch import check_container, check_trust
from hpcdl.jobs.spec import JobSpec
from hpcdl.jobs.sweep import JOB_KEYS
from hpcdl.site import Site
from hpcdl.system.errors import BadInput, MissingPrerequisite
from hpcdl.system.resources import folder as resource
from hpcdl.system.resources import home
from hpcdl.system.text import did_you_mean
from hpcdl.system.trust import require_no_stranger
from hpcdl.workflows.study import model
from hpcdl.workflows.study.model import SYNTHETIC, DataSet, Run, Scale, Study, Values

_MOST_CELLS = 1000
_MEGA = 1e6
READS_LIBRARY = "slow_reads.so"
FRAMEWORK, ENVIRONMENT = "framework", "environment"
_PYTHON = "{python}"
_USUAL = model.Framework("horovod", ("hpcdl", "train"))
_MODULE = model.Environment(MappingProxyType({}), container=False)
_SOME_IMAGE = "image"


@dataclass(frozen=True)
class Cell:
    """One job: `values` are those of the matrix, the point's may be paths made of them."""

    run: Run
    values: Values
    point: sweep.SweepPoint
    attempt: int = 0

    @property
    def gpus(self) -> int:
        """Ranks asked for."""
        return int(self.values["gpus"])

    @property
    def data(self) -> str:
        """The name of its data set."""
        return self.values.get("data", self.run.data)

    @property
    def named(self) -> Values:
        """The values of the matrix, and the run's name."""
        return {**self.values, "run": self.run.name}

    @property
    def label(self) -> str:
        """`gpus=2 model=resnet50`, for messages."""
        label = " ".join(f"{key}={value}" for key, value in self.values.items())
        return f"{label}, again ({self.attempt + 1})" if self.attempt else label


@dataclass(frozen=True)
class Round:
    """The jobs of a run that are queued together: one of each cell, in a sweep of their own."""

    run: Run
    folder: Path
    points: tuple[sweep.SweepPoint, ...]

    @property
    def in_image(self) -> bool:
        """Whether they run in a container, which brings its own software: no module is loaded."""
        return any(point.spec.container for point in self.points)


@dataclass(frozen=True)
class Plan:
    """A scale of a study on a site, and the directory of its files."""

    study: Study
    scale: Scale
    site: Site
    folder: Path
    cells: tuple[Cell, ...]

    @property
    def rounds(self) -> tuple[Round, ...]:
        """All jobs in the order in which they are queued: every run once, then once more."""
        return tuple(
            Round(run, self.round_folder(run, attempt), points)
            for attempt in sorted({cell.attempt for cell in self.cells})
            for run in self.scale.runs
            for in_image in (False, True)
            for points in [
                tuple(
                    cell.point
                    for cell in self.cells_of(run, attempt)
                    if bool(cell.point.spec.container) is in_image
                )
            ]
            if points
        )

    def round_folder(self, run: Run, attempt: int = 0) -> Path:
        """The directory of a sweep."""
        return self.folder / _round_name(run, attempt)

    def cells_of(self, run: Run, attempt: int = 0) -> tuple[Cell, ...]:
        """The cells of a run."""
        asked = (run.name, attempt)
        return tuple(cell for cell in self.cells if (cell.run.name, cell.attempt) == asked)

    @property
    def possible(self) -> tuple[Cell, ...]:
        """The cells that can run."""
        return tuple(cell for cell in self.cells if not cell.point.problem)

    @property
    def impossible(self) -> tuple[Cell, ...]:
        """The cells that cannot run here; their points say why."""
        return tuple(cell for cell in self.cells if cell.point.problem)


def _round_name(run: Run, attempt: int) -> str:
    return f"{run.name}-{attempt + 1}" if attempt else run.name


def make_plan(
    site: Site,
    study: Study,
    scale: Scale,
    partitions: Sequence[str] = (),
    pythons: Mapping[str, str] = MappingProxyType({}),
    image: str = "",
) -> Plan:
    """The cells of a scale on a site.

    `partitions` are used instead of the study's own, in its order; `pythons` are interpreters of
    frameworks that the jobs' modules do not have; `image` is that of the cells in a container.
    What cannot be planned is a `BadInput`, also a study of which no cell can run on this site.
    """
    _check_partitions(study, scale, partitions)
    folder = site.paths.work / "studies" / f"{study.name}-{scale.name}"
    if stranger := next((name for name in pythons if name not in study.frameworks), ""):
        raise BadInput(
            f"'{study.name}' has no framework '{stranger}'",
            hint=did_you_mean(stranger, study.frameworks),
        )
    cells = tuple(
        cell
        for run in scale.runs
        for cell in _cells(site, study, scale, _moved(run, partitions), pythons, image, folder)
    )
    if all(reasons := [cell.point.problem for cell in cells]):
        raise BadInput(
            f"no cell of '{study.name}' at scale '{scale.name}' can run on the site '{site.name}'",
            details=list(dict.fromkeys(reasons))[:10],
            hint="--partition NAME[,NAME] names the partitions to use instead of the study's",
        )
    return Plan(study, scale, site, folder, cells)


def data_folder(site: Site, data: DataSet) -> Path:
    """Return a data set's directory; generated ones are in WORK, shared by studies."""
    if data.kind == "given":
        return site.paths.datasets / data.path
    return site.paths.work / "studies" / "data" / f"{data.name}-{_digest(data.kind, data.options)}"


def _check_partitions(study: Study, scale: Scale, partitions: Sequence[str]) -> None:
    places = max(len(run.over.get("partition", ("",))) for run in scale.runs)
    if len(partitions) > places:
        own = "one partition" if places == 1 else f"{places} partitions"
        raise BadInput(
            f"'{study.name}' at scale '{scale.name}' is of {own}, not of {len(partitions)}",
            hint=f"leave out '{partitions[places]}', or run the study once more with it",
        )
    if len(set(partitions)) < len(partitions):
        raise BadInput("--partition names a partition twice", hint="name each once")


def _moved(run: Run, partitions: Sequence[str]) -> Run:
    """The run on other partitions: one takes all, several take the study's place for place."""
    if not partitions:
        return run
    own = run.over.get("partition", ())
    taken = tuple(partitions[: max(1, len(own))])
    names = dict(zip(own, taken, strict=False))
    exclude = []
    for pattern in run.exclude:
        place = pattern.get("partition")
        if place is None:
            exclude.append(pattern)
        elif place in names:
            exclude.append({**pattern, "partition": names[place]})
    return replace(run, over={**run.over, "partition": taken}, exclude=tuple(exclude))


def _cells(
    site: Site,
    study: Study,
    scale: Scale,
    run: Run,
    pythons: Mapping[str, str],
    image: str,
    folder: Path,
) -> Iterator[Cell]:
    ours = [key for key in (FRAMEWORK, ENVIRONMENT) if key in run.over]
    points = [
        combination
        for chosen in product(*(run.over[key] for key in ours))
        for combination in _points(site, study, scale, run, dict(zip(ours, chosen, strict=True)))
    ]
    for attempt in range(run.repeats):
        for base, values, point in points:
            if attempt and run.repeat_up_to and int(values["gpus"]) > run.repeat_up_to:
                continue
            around = study.environments.get(values.get(ENVIRONMENT, ""), _MODULE)
            environment = {
                **_environment(site, scale, run, int(values["gpus"])),
                **around.variables,
            }
            # Neither interpreter nor image is part of the id: a report finds results without them.
            job = {key: value for key, value in point.values.items() if key in JOB_KEYS}
            own = _digest(
                job,
                point.spec.program,
                environment,
                base.cpus_per_task,
                *(("container",) if around.container else ()),
                *((attempt,) if attempt else ()),
            )
            python = pythons.get(values.get(FRAMEWORK, ""), "python3")
            program = tuple(python if word == _PYTHON else word for word in point.spec.program)
            spec = replace(point.spec, program=program, environment=environment)
            cell = Cell(run, values, replace(point, spec=spec, id=own), attempt)
            yield from _contained(site, cell, folder, image) if around.container else (cell,)


def _contained(site: Site, cell: Cell, folder: Path, image: str) -> Iterator[Cell]:
    """The cell in its image; without one only where its result is there already."""
    spec, problem = replace(cell.point.spec, container=image or _SOME_IMAGE), cell.point.problem
    own = sweep.point_folder(folder / _round_name(cell.run, cell.attempt), cell.point)
    if not image and not (own / "result.json").is_file():
        return
    try:
        check_container(site, spec)
    except BadInput as fault:
        problem = fault.message
    yield replace(cell, point=replace(cell.point, spec=spec, problem=problem))


def _points(
    site: Site, study: Study, scale: Scale, run: Run, how: Values
) -> Iterator[tuple[JobSpec, Values, sweep.SweepPoint]]:
    """The points of one framework in one environment, with the values that name them."""
    paths = {key: str(data_folder(site, data)) for key, data in scale.data.items()}
    paths[SYNTHETIC] = SYNTHETIC
    names = {path: key for key, path in paths.items()}
    matrix = {
        key: [paths[value] for value in asked] if key == "data" else list(asked)
        for key, asked in run.over.items()
        if key not in how
    }
    exclude = [
        {
            key: paths[value] if key == "data" else value
            for key, value in pattern.items()
            if key not in how
        }
        for pattern in run.exclude
        if all(pattern.get(key, value) == value for key, value in how.items())
    ]
    if {} in exclude:
        return
    base = _base(site, study, scale, run, how.get(FRAMEWORK, ""))
    for point in sweep.plan(site, base, matrix, exclude, limit=_MOST_CELLS // run.repeats):
        values = {key: names[v] if key == "data" else v for key, v in point.values.items()}
        try:
            check_trust(site, point.spec)
        except BadInput as fault:
            point = replace(point, problem=fault.message)
        yield base, {**how, **values}, point


def _base(site: Site, study: Study, scale: Scale, run: Run, name: str) -> JobSpec:
    framework = study.frameworks.get(name, _USUAL)
    examples = {"{programs}": "frameworks", "{strategies}": "strategies"}
    argv = list(framework.program)
    for mark, folder in examples.items():
        argv = [word.replace(mark, str(resource("examples") / folder)) for word in argv]
    for key, value in run.options.items():
        argv.append(f"--{key}" if value == "true" else f"--{key}={value}")
    if "data" not in run.over and "dataset" not in run.options:
        made = run.data != SYNTHETIC
        argv.append(f"--data={data_folder(site, scale.data[run.data]) if made else SYNTHETIC}")
    return JobSpec(
        partition=site.default_partition,
        cpus_per_task=run.cpus_per_rank,
        minutes=run.minutes,
        name=f"{study.name}-{run.name}"[:60],
        launcher=framework.launcher,
        program=tuple(argv),
    )


def library(site: Site) -> Path:
    """The library that slows reads down, once run.py has compiled it.

    Every job of the study runs it. Where others can change the work directory, such as the owner
    of a group's, it is in this user's home(), which the nodes must share as well.
    """
    shared = site.paths.work / "studies" / READS_LIBRARY
    with suppress(MissingPrerequisite):
        return require_no_stranger(shared)
    return home("studies", READS_LIBRARY)


def _environment(site: Site, scale: Scale, run: Run, ranks: int) -> dict[str, str]:
    """Variables for slow_reads.c: of a job's rate, each rank's part."""
    reads = run.reads
    if reads is None:
        return {}
    names = run.over.get("data", (run.data,))
    given = any(scale.data[name].kind == "given" for name in names if name in scale.data)
    below = site.paths.datasets if given else site.paths.work / "studies" / "data"
    return {
        "LD_PRELOAD": str(library(site)),
        "HPCDL_READS_BELOW": str(below),
        "HPCDL_READS_RATE": f"{reads.megabytes_per_second * _MEGA / ranks:.0f}",
        "HPCDL_READS_CACHED": "1" if reads.cached else "0",
    }


def _digest(*parts: object) -> str:
    text = json.dumps(parts, sort_keys=True, default=dict)
    return hashlib.sha256(text.encode(errors="surrogateescape")).hexdigest()[:12]
