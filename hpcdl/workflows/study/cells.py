"""From a study's matrices to cells: the points of one sweep, each with the values that name it.

The sweep is in WORK/studies/NAME-SCALE. A cell's id follows from all that its job does, so that a
changed study does not take old results for new ones.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType

from hpcdl.jobs import sweep
from hpcdl.jobs.spec import JobSpec
from hpcdl.site import Site
from hpcdl.system.errors import BadInput
from hpcdl.workflows.study.declared import PYTHON, SYNTHETIC, Jobs, Scale, Study, Values, known


@dataclass(frozen=True)
class Cell:
    """One job: `values` are those of the matrix and its names; `folder` is the sweep's."""

    jobs: Jobs
    values: Values
    point: sweep.SweepPoint
    folder: Path

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
        """Its values, and the name of its jobs as `run`."""
        return {**self.values, "run": self.jobs.name}

    @property
    def name(self) -> str:
        """`training: gpus=2 model=resnet50`, for messages."""
        values = " ".join(f"{key}={value}" for key, value in self.values.items())
        return f"{self.jobs.name}: {values}"

    @property
    def results(self) -> Path:
        """The directory of its job's results."""
        return sweep.point_folder(self.folder, self.point)


@dataclass(frozen=True)
class StudyPlan:
    """A scale of a study on a site, and the directory of its files."""

    study: Study
    name: str
    scale: Scale
    site: Site
    folder: Path
    cells: tuple[Cell, ...]
    partitions: tuple[str, ...] = ()

    @property
    def points(self) -> tuple[sweep.SweepPoint, ...]:
        """The points of the sweep."""
        return tuple(cell.point for cell in self.cells)

    @property
    def possible(self) -> tuple[Cell, ...]:
        """The cells that can run; the points of the others say why not."""
        return tuple(cell for cell in self.cells if not cell.point.problem)


def make_plan(
    site: Site,
    study: Study,
    scale_name: str,
    partitions: Sequence[str] = (),
    pythons: Values = MappingProxyType({}),
) -> StudyPlan:
    """The cells of a scale on a site.

    Where `partitions` are given, each takes part instead of the study's own; `pythons` are
    interpreters of frameworks that the jobs' modules do not have. What cannot be planned is a
    `BadInput`, also a study of which no cell can run on this site.
    """
    scale = study.scale(scale_name)
    for name in pythons:
        known(name, (jobs.named.get("framework", "") for jobs in scale.jobs), "framework")
    folder = study_folder(site, study, scale_name)
    cells = tuple(
        cell
        for jobs in scale.jobs
        for cell in _cells(site, study, scale, jobs, partitions, pythons, folder)
    )
    if all(reasons := [cell.point.problem for cell in cells]):
        raise BadInput(
            f"no cell of '{study.name}' at scale '{scale_name}' can run on the site '{site.name}'",
            details=list(dict.fromkeys(reasons))[:10],
            hint="`hpcdl study run NAME --partition A,B` uses others instead of the study's",
        )
    return StudyPlan(study, scale_name, scale, site, folder, cells, tuple(partitions))


def study_folder(site: Site, study: Study, scale_name: str) -> Path:
    """Return the directory of a scale's sweep and report."""
    return site.paths.work / "studies" / f"{study.name}-{scale_name}"


def data_folder(site: Site, scale: Scale, name: str) -> str:
    """Return a data set's directory; generated ones are in WORK, shared by studies."""
    if name == SYNTHETIC:
        return SYNTHETIC
    data = scale.data[known(name, scale.data, "data set")]
    if data.path:
        return str(site.paths.datasets / data.path)
    digest = sweep.point_id({"kind": data.kind, **data.options})
    return str(site.paths.work / "studies" / "data" / f"{name}-{digest}")


def _cells(
    site: Site,
    study: Study,
    scale: Scale,
    jobs: Jobs,
    partitions: Sequence[str],
    pythons: Mapping[str, str],
    folder: Path,
) -> Iterator[Cell]:
    base = JobSpec(
        partition=partitions[0] if partitions else site.default_partition,
        cpus_per_task=scale.cpus_per_rank,
        minutes=jobs.minutes or scale.minutes,
        name=f"{study.name}-{jobs.name}"[:60],
        launcher=jobs.launcher,
        program=(*jobs.program, *shlex.split(jobs.options)),
        environment=jobs.environment,
    )
    if "data" not in jobs.matrix and "--dataset" not in jobs.options:
        data = f"--data={data_folder(site, scale, jobs.data)}"
        base = replace(base, program=(*base.program, data))
    folders = {name: data_folder(site, scale, name) for name in jobs.matrix.get("data", ())}
    names = {path: name for name, path in folders.items()}
    given = {"partition": partitions or jobs.matrix.get("partition"), "data": [*names]}
    matrix = {key: given.get(key) or values for key, values in jobs.matrix.items()}
    excluded = [
        {key: folders.get(value, value) if key == "data" else value for key, value in each.items()}
        for each in jobs.excluded
    ]
    python = pythons.get(jobs.named.get("framework", ""), "python3")
    for point in sweep.plan(site, base, matrix, excluded):
        spec = point.spec
        # The interpreter is no part of the id: a report finds results without it.
        everything = {**jobs.named, **point.values, **spec.environment}
        everything |= {"program": shlex.join(spec.program), "launcher": spec.launcher}
        program = tuple(python if word == PYTHON else word for word in spec.program)
        point = replace(
            point,
            id=sweep.point_id({**everything, "cpus": str(spec.cpus_per_task), "run": jobs.name}),
            spec=replace(spec, program=program),
        )
        values = {key: names.get(value, value) for key, value in point.values.items()}
        yield Cell(jobs, {**jobs.named, **values}, point, folder)
