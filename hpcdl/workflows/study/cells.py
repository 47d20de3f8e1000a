"""From a study's matrices to cells: the points of sweeps, each with the values that name it. Pure.

Every `Jobs` of a scale is a sweep with a directory and a manifest of its own below WORK/studies. A
cell's id follows from all that its job does, so that a changed study does not take old results for
new ones.
"""

from __future__ import annotations

import hashlib
import json
import shlex
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
from hpcdl.system.resources import home
from hpcdl.system.trust import require_no_stranger
from hpcdl.workflows.study.declared import (
    PYTHON,
    SYNTHETIC,
    Jobs,
    Program,
    Scale,
    Study,
    Surroundings,
    Values,
    known,
)

_MOST_CELLS = 1000
_MEGA = 1e6
_LIBRARY = "slow_reads.so"
_OURS = ("framework", "environment")


@dataclass(frozen=True)
class Cell:
    """One job: `values` are those of the matrix; `folder` is the directory of its sweep."""

    jobs: Jobs
    values: Values
    point: sweep.SweepPoint
    folder: Path
    attempt: int = 0

    @property
    def gpus(self) -> int:
        """GPUs asked for."""
        return int(self.values["gpus"])

    @property
    def data(self) -> str:
        """The name of its data set."""
        return self.values.get("data", self.jobs.data)

    @property
    def named(self) -> Values:
        """The values of the matrix, and the name of its jobs as `run`."""
        return {**self.values, "run": self.jobs.name}

    @property
    def name(self) -> str:
        """`training: gpus=2 model=resnet50`, for messages."""
        values = " ".join(f"{key}={value}" for key, value in self.values.items())
        again = f", again ({self.attempt + 1})" if self.attempt else ""
        return f"{self.jobs.name}: {values}{again}"

    @property
    def results(self) -> Path:
        """The directory of its job's results."""
        return sweep.point_folder(self.folder, self.point)


@dataclass(frozen=True)
class Plan:
    """A scale of a study on a site, and the directory of its files."""

    study: Study
    name: str
    scale: Scale
    site: Site
    folder: Path
    cells: tuple[Cell, ...]

    @property
    def rounds(self) -> dict[Path, tuple[sweep.SweepPoint, ...]]:
        """The sweeps in the order in which they are queued: each once, then those that repeat."""
        ordered = sorted(self.cells, key=lambda cell: cell.attempt)
        folders = dict.fromkeys(cell.folder for cell in ordered)
        return {
            folder: tuple(cell.point for cell in ordered if cell.folder == folder)
            for folder in folders
        }

    @property
    def possible(self) -> tuple[Cell, ...]:
        """The cells that can run; the points of the others say why not."""
        return tuple(cell for cell in self.cells if not cell.point.problem)

    @property
    def impossible(self) -> tuple[Cell, ...]:
        """The cells that cannot run here."""
        return tuple(cell for cell in self.cells if cell.point.problem)


def make_plan(
    site: Site,
    study: Study,
    scale_name: str,
    partitions: Sequence[str] = (),
    pythons: Mapping[str, str] = MappingProxyType({}),
    image: str = "",
) -> Plan:
    """The cells of a scale on a site.

    `partitions` are used instead of the study's own, in its order; `pythons` are interpreters of
    frameworks that the jobs' modules do not have; `image` is that of the cells in a container:
    without it, only those are there that have a result.
    What cannot be planned is a `BadInput`, also a study of which no cell can run on this site.
    """
    scale = study.scale(scale_name)
    _check_partitions(study, scale, partitions)
    for name in pythons:
        known(name, study.frameworks, "framework")
    folder = site.paths.work / "studies" / f"{study.name}-{scale_name}"
    every = (
        cell
        for jobs in scale.jobs
        for cell in _cells(site, study, scale, jobs, partitions, pythons, image, folder)
    )
    cells = tuple(
        cell
        for cell in every
        if image or not cell.point.spec.container or (cell.results / "result.json").is_file()
    )
    if len(cells) > _MOST_CELLS:
        raise BadInput(f"the study has {len(cells):,} jobs, more than {_MOST_CELLS:,}")
    if all(reasons := [cell.point.problem for cell in cells]):
        raise BadInput(
            f"no cell of '{study.name}' at scale '{scale_name}' can run on the site '{site.name}'",
            details=list(dict.fromkeys(reasons))[:10],
            hint="--partition NAME[,NAME] names the partitions to use instead of the study's",
        )
    return Plan(study, scale_name, scale, site, folder, cells)


def data_folder(site: Site, scale: Scale, name: str) -> str:
    """Return a data set's directory; generated ones are in WORK, shared by studies."""
    if name == SYNTHETIC:
        return SYNTHETIC
    data = scale.data[known(name, scale.data, "data set")]
    if data.kind == "given":
        return str(site.paths.datasets / data.path)
    return str(_made_data(site) / f"{name}-{_digest(data.kind, data.options)}")


def _made_data(site: Site) -> Path:
    return site.paths.work / "studies" / "data"


def _check_partitions(study: Study, scale: Scale, partitions: Sequence[str]) -> None:
    places = max(len(jobs.matrix.get("partition", ("",))) for jobs in scale.jobs)
    if len(partitions) > places:
        own = "one partition" if places == 1 else f"{places} partitions"
        raise BadInput(
            f"'{study.name}' is of {own} at this scale, not of {len(partitions)}",
            hint=f"leave out '{partitions[places]}', or run the study once more with it",
        )
    if len(set(partitions)) < len(partitions):
        raise BadInput("--partition names a partition twice", hint="name each once")


def _cells(
    site: Site,
    study: Study,
    scale: Scale,
    jobs: Jobs,
    partitions: Sequence[str],
    pythons: Mapping[str, str],
    image: str,
    folder: Path,
) -> Iterator[Cell]:
    for attempt in range(jobs.repeats):
        own = folder / (f"{jobs.name}-{attempt + 1}" if attempt else jobs.name)
        for values in _combinations(jobs, partitions):
            if attempt and jobs.repeat_up_to and int(values["gpus"]) > jobs.repeat_up_to:
                continue
            around = _around(study, values)
            point = _point(site, study, scale, jobs, values, around)
            # Neither interpreter nor image is part of the id: a report finds results without them.
            digest = _digest(
                {key: value for key, value in point.values.items() if key in JOB_KEYS},
                point.spec.program,
                point.spec.environment,
                point.spec.cpus_per_task,
                *(("container",) if around.container else ()),
                *((attempt,) if attempt else ()),
            )
            python = pythons.get(values.get("framework", ""), "python3")
            program = tuple(python if word == PYTHON else word for word in point.spec.program)
            container = (image or "image") if around.container else None
            spec = replace(point.spec, program=program, container=container)
            problem = point.problem or _refusal(site, spec)
            yield Cell(
                jobs, values, replace(point, spec=spec, id=digest, problem=problem), own, attempt
            )


def _combinations(jobs: Jobs, partitions: Sequence[str]) -> Iterator[Values]:
    """The combinations of a matrix that are not excluded, on other partitions if there are any.

    One takes all, several take the study's place for place; the study's others are left out.
    """
    places = dict(zip(jobs.matrix.get("partition", ("",)), partitions, strict=False))
    for choice in product(*jobs.matrix.values()):
        values = dict(zip(jobs.matrix, choice, strict=True))
        own = values.get("partition", "")
        if any(pattern.items() <= values.items() for pattern in jobs.excluded):
            continue
        if not partitions:
            yield values
        elif own in places:
            yield {**values, "partition": places[own]}


def _around(study: Study, values: Values) -> Surroundings:
    name = values.get("environment")
    if name is None:
        return Surroundings()
    return study.environments[known(name, study.environments, "environment")]


def _refusal(site: Site, spec: JobSpec) -> str:
    """Why a site runs no such job; '' if it does."""
    try:
        check_trust(site, spec)
        check_container(site, spec)
    except BadInput as fault:
        return fault.message
    return ""


def _point(
    site: Site, study: Study, scale: Scale, jobs: Jobs, values: Values, around: Surroundings
) -> sweep.SweepPoint:
    """A combination as the point of a sweep: job options, and the rest for the program."""
    framework = values.get("framework")
    program = Program()
    if framework is not None:
        program = study.frameworks[known(framework, study.frameworks, "framework")]
    argv = [*program.argv, *shlex.split(jobs.options)]
    if "data" not in values and not jobs.option("dataset"):
        argv.append(f"--data={data_folder(site, scale, jobs.data)}")
    base = JobSpec(
        partition=site.default_partition,
        cpus_per_task=scale.cpus_per_rank,
        minutes=jobs.minutes or scale.minutes,
        name=f"{study.name}-{jobs.name}"[:60],
        launcher=program.launcher,
        program=tuple(argv),
        environment={**_reads(site, scale, jobs, int(values["gpus"])), **around.variables},
    )
    matrix = {
        key: [data_folder(site, scale, value) if key == "data" else value]
        for key, value in values.items()
        if key not in _OURS
    }
    return sweep.plan(site, base, matrix)[0]


def library(site: Site) -> Path:
    """The library that slows reads down, once it is compiled.

    Every job of the study runs it. Where others can change the work directory, such as the owner
    of a group's, it is in this user's home(), which the nodes must share as well.
    """
    shared = site.paths.work / "studies" / _LIBRARY
    with suppress(MissingPrerequisite):
        return require_no_stranger(shared)
    return home("studies", _LIBRARY)


def _reads(site: Site, scale: Scale, jobs: Jobs, ranks: int) -> dict[str, str]:
    """Variables for slow_reads.c: of a job's rate, each rank's part."""
    if jobs.reads is None:
        return {}
    names = {*jobs.matrix.get("data", (jobs.data,))} & {*scale.data}
    is_given = any(scale.data[name].kind == "given" for name in names)
    return {
        "LD_PRELOAD": str(library(site)),
        "HPCDL_READS_BELOW": str(site.paths.datasets if is_given else _made_data(site)),
        "HPCDL_READS_RATE": f"{jobs.reads.megabytes_per_second * _MEGA / ranks:.0f}",
    }


def _digest(*parts: object) -> str:
    text = json.dumps(parts, sort_keys=True, default=dict)
    return hashlib.sha256(text.encode(errors="surrogateescape")).hexdigest()[:12]
