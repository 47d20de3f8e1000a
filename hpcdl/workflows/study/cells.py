"""From a study's matrices to cells: the points of one sweep, each with its values and its result.

The sweep is in WORK/studies/NAME-SCALE. A cell's id follows from all that its job does, so that a
changed study does not take old results for new ones. A failed job and a result of another version
are missing results, and never stop the rest.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from statistics import median, quantiles
from types import MappingProxyType
from typing import Any

from hpcdl.jobs import sweep
from hpcdl.jobs.manifest import RunStatus
from hpcdl.jobs.spec import JobSpec
from hpcdl.results.records import RESULT, Record, at
from hpcdl.site import Site
from hpcdl.system.errors import BadInput, HpcdlError
from hpcdl.system.files import last_text, read_regular, write_atomic
from hpcdl.workflows.study.declared import PYTHON, SYNTHETIC, Jobs, Scale, Study, Values, known

PARTS = ("compute", "input", "communication", "update", "other")
"""What a step's time is made of."""
_RATES = tuple(f"images_per_second{end}" for end in ("", "_p05", "_p95", "_mean"))
_TIMES = ("images", "seconds", "checkpoint")
NEEDED = (
    *("schema", "model", "precision", "parameters", "global_batch", "job.id"),
    *(f"layout.{name}" for name in ("ranks", "ranks_per_node", "nodes", "gpu_per_rank")),
    *(f"summary.{name}" for name in ("phases", "metrics", *_RATES)),
)
"""What rules, predictions, figures and reports take from a result later."""
_OTHERS, _PARTITIONS, _CORES = "others", "partitions", "cores"
"""Names of notes: what others had of the cores, partitions instead of the study's, the cores."""


@dataclass(frozen=True)
class Cell:
    """One job and its result; its `values` are those of the matrix, its names, and `run`.

    The `folder` is the sweep's. Without a `result`, `state` and `reason` say why. `rate` is images
    per second of all ranks in the median step after the warm-up, `spread` the 5th and the 95th
    percentile, `mean_rate` that of all steps together; `shares` and `seconds` are parts of the mean
    step. `others` is the part of the machine's `cores` that other programs had while it ran, None
    where nobody watched.
    """

    jobs: Jobs
    values: Values
    point: sweep.SweepPoint
    folder: Path
    state: str = ""
    reason: str = ""
    result: Mapping[str, Any] = field(default_factory=dict)
    ranks: int = 0
    rate: float = 0.0
    spread: tuple[float, float] = (0.0, 0.0)
    mean_rate: float = 0.0
    shares: Mapping[str, float] = field(default_factory=dict)
    seconds: Mapping[str, float] = field(default_factory=dict)
    metrics: Mapping[str, float] = field(default_factory=dict)
    others: float | None = None
    cores: int = 0

    @property
    def gpus(self) -> int:
        """GPUs asked for."""
        return int(self.values["gpus"])

    @property
    def data(self) -> str:
        """The name of its data set."""
        return self.values.get("data", self.jobs.data)

    @property
    def name(self) -> str:
        """`training: gpus=2 model=resnet50`."""
        values = " ".join(f"{key}={text}" for key, text in but(self.values, "run").items())
        return f"{self.jobs.name}: {values}"

    @property
    def results(self) -> Path:
        """The directory of its job's results."""
        return sweep.point_folder(self.folder, self.point)


def but(values: Values, *keys: str) -> dict[str, str]:
    """The values without those of some keys."""
    return {name: value for name, value in values.items() if name not in keys}


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
    plan = StudyPlan(
        study, scale_name, scale, site, study_folder(site, study, scale_name), (), tuple(partitions)
    )
    plan = replace(plan, cells=tuple(c for jobs in scale.jobs for c in _cells(plan, jobs, pythons)))
    if all(reasons := [cell.point.problem for cell in plan.cells]):
        raise BadInput(
            f"no cell of '{study.name}' at scale '{scale_name}' can run on the site '{site.name}'",
            details=list(dict.fromkeys(reasons))[:10],
            hint="`hpcdl study run NAME --partition A,B` uses others instead of the study's",
        )
    return plan


def study_folder(site: Site, study: Study, scale_name: str) -> Path:
    """Return the directory of a scale's sweep and report."""
    return site.paths.work / "studies" / f"{study.name}-{scale_name}"


def data_folder(site: Site, scale: Scale, name: str) -> str:
    """A data set's directory; those that are made are in WORK, shared by studies."""
    if name == SYNTHETIC:
        return SYNTHETIC
    data = scale.data[known(name, scale.data, "data set")]
    if data.path:
        return str(site.paths.datasets / data.path)
    made = shlex.join(Path(word).name for word in data.make)  # wherever hpcdl is
    return str(site.paths.work / "studies/data" / f"{name}-{sweep.point_id({'make': made})}")


def _cells(plan: StudyPlan, jobs: Jobs, pythons: Mapping[str, str]) -> Iterator[Cell]:
    site, scale, matrix = plan.site, plan.scale, dict(jobs.matrix)
    base = JobSpec(
        partition=plan.partitions[0] if plan.partitions else site.default_partition,
        cpus_per_task=scale.cpus_per_rank,
        minutes=jobs.minutes or scale.minutes,
        name=f"{plan.study.name}-{jobs.name}"[:60],
        launcher=jobs.launcher,
        program=(*jobs.program, *shlex.split(jobs.options)),
        environment=jobs.environment,
    )
    if "data" not in matrix and "--dataset" not in jobs.options:
        base = replace(base, program=(*base.program, "--data", jobs.data))
    if plan.partitions and "partition" in matrix:
        matrix["partition"] = plan.partitions
    python = pythons.get(jobs.named.get("framework", ""), "python3")
    asked = base.program if "data" in matrix else ()
    marked = {number for number, word in enumerate(asked) if word == "{data}"}
    for point in sweep.plan(site, base, matrix, jobs.excluded):
        words = [
            data_folder(site, scale, word) if before == "--data" or number in marked else word
            for number, (before, word) in enumerate(pairwise(("", *point.spec.program)))
        ]
        values = {"run": jobs.name, **jobs.named, **point.values}
        # The interpreter is no part of the id: a report finds results without it.
        does = {**values, **point.spec.environment, "program": shlex.join(words)}
        does |= {"launcher": jobs.launcher, "cpus": str(point.spec.cpus_per_task)}
        program = tuple(python if word == PYTHON else word for word in words)
        spec = replace(point.spec, program=program)
        yield Cell(jobs, values, replace(point, id=sweep.point_id(does), spec=spec), plan.folder)


# ---- results ----


def look(cell: Cell, status: RunStatus) -> Cell:
    """The cell with what its job measured, or with why there is nothing."""
    if status.state == sweep.DONE:
        try:
            return _measured(cell)
        except HpcdlError as fault:
            again = f"{fault.message}; without that directory, `study run` runs it again"
            return replace(cell, state="unusable", reason=again)
    if status.state == sweep.IMPOSSIBLE:
        return replace(cell, state=status.state, reason=cell.point.problem)
    if status.state in sweep.ACTIVE:
        return replace(cell, state=status.state, reason=f"job {status.job_id} has not ended")
    if status.log is None:
        return replace(cell, state=status.state, reason="it has not been submitted")
    why = at(RESULT.find(cell.results), "outcome", "reason") or _telling(status.log)
    reason = f"job {status.job_id} failed: {why} (log: {status.log})"
    return replace(cell, state=sweep.FAILED, reason=reason)


def _telling(log: Path) -> str:
    """The last line of a log, of an error if there is one; Slurm's only say that a rank failed."""
    if not log.exists():
        return "it left no log"
    lines = list(filter(None, map(str.strip, last_text(log, 1_000_000).splitlines())))
    own = [one for one in lines if not one.startswith(("srun:", "slurmstepd:"))]
    errors = [one for one in own if "error" in one.lower()]
    return (errors or own or lines or ["its log is empty"])[-1][:300]


def note_run(plan: StudyPlan) -> None:
    """Note what results cannot say: the partitions, and the cores of this machine."""
    write_atomic(plan.folder / _PARTITIONS, ",".join(plan.partitions))
    write_atomic(plan.folder / _CORES, f"{len(os.sched_getaffinity(0))}\n")


def note_others(plan: StudyPlan, cell_id: str, part: float) -> None:
    """Note beside a cell's result what part of this machine's cores other programs had."""
    path = plan.folder / "points" / cell_id / _OTHERS
    write_atomic(path, f"{part:.4f} {len(os.sched_getaffinity(0))}\n")


def _watched(cell: Cell) -> tuple[float | None, int]:
    """What was noted while a cell ran; where nobody watched, the cores noted at its start."""
    with suppress(BadInput, ValueError):
        part, cores = read_regular(cell.results / _OTHERS, 100).split()
        return float(part), int(cores)
    with suppress(BadInput, ValueError):
        return None, int(read_regular(cell.folder / _CORES, 100))
    return None, len(os.sched_getaffinity(0))


def noted_partitions(folder: Path) -> tuple[str, ...]:
    """The partitions that a study was run on instead of its own."""
    with suppress(BadInput):
        return tuple(filter(None, read_regular(folder / _PARTITIONS, 10_000).decode().split(",")))
    return ()


def _rates(record: Record) -> tuple[float, float, float, float]:
    """Images per second: of the median step, the 5th and 95th percentile, and of all together.

    They are without the time that writing checkpoints took, which a summary's are with.
    """
    summary, samples = record.values["summary"], record.values.get("samples", {})
    rate, low, high, mean = (summary[name] for name in _RATES)
    if summary["phases"].get("checkpoint"):
        record.need("summary.steps_measured", *(f"samples.{name}" for name in _TIMES))
        steps = [*zip(*(samples[name] for name in _TIMES), strict=False)]
        steps = steps[-summary["steps_measured"] :]
        pure = [seconds - checkpoint for _, seconds, checkpoint in steps]
        if not (pure and min(pure) > 0):
            raise BadInput(f"{record.path} holds no measured step")
        rates = [step[0] / own for step, own in zip(steps, pure, strict=True)]
        low, *_, high = quantiles(rates if rates[1:] else rates * 2, n=20, method="inclusive")
        rate, mean = median(rates), sum(step[0] for step in steps) / sum(pure)
    # Asynchronous steps are handed out ahead: only their mean says anything.
    return (mean,) * 4 if "asynchronous" in record.values else (rate, low, high, mean)


def _measured(cell: Cell) -> Cell:
    """The cell with what its result.json says."""
    record = RESULT.read(cell.results / RESULT.name)
    record.need(*NEEDED)
    result, summary = record.values, record.values["summary"]
    rate, low, high, mean = _rates(record)
    phases = {part: summary["phases"].get(part, 0.0) for part in PARTS}
    if not (low > 0 and sum(phases.values()) > 0):
        raise BadInput(f"{record.path} holds no measured step")
    shares = {part: value / sum(phases.values()) for part, value in phases.items()}
    others, cores = _watched(cell)
    return replace(
        cell,
        result=result,
        ranks=result["layout"]["ranks"],
        rate=rate,
        spread=(low, high),
        mean_rate=mean,
        shares=shares,
        seconds={part: share * result["global_batch"] / mean for part, share in shares.items()},
        # One that is no number, as of unseen classes, is left out.
        metrics={name: score for name, score in summary["metrics"].items() if score is not None},
        others=others,
        cores=cores,
    )
