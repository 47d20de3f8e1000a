"""Reads the results of a study's jobs: what each cell measured, or why it has no measurement.

A result of another version, a failed job and a cell that never ran are missing results, and
never stop the rest. Rates are those of steps after the warm-up, without the time that writing
checkpoints took.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from statistics import fmean, median, quantiles
from typing import Any

from hpcdl.jobs.manifest import RunStatus
from hpcdl.jobs.sweep import ACTIVE, DONE, IMPOSSIBLE
from hpcdl.results.records import RESULT, at
from hpcdl.system.declare import COUNT, build, by_name, listed, number, option, read_file, written
from hpcdl.system.document import read_document
from hpcdl.system.errors import BadInput
from hpcdl.system.files import last_text, write_json
from hpcdl.workflows.study.cells import Cell, StudyPlan
from hpcdl.workflows.study.declared import Values

PARTS = ("compute", "input", "communication", "update", "other")
"""What a step's time is made of."""
NEEDED = (
    "schema",
    "layout.ranks",
    "layout.cpus_per_rank",
    "layout.ranks_per_node",
    "layout.nodes",
    "layout.gpu_per_rank",
    "batch_per_rank",
    "parameters",
    "model",
    "precision",
    "options.warmup_steps",
    "summary.metrics",
    "job.id",
)
"""What rules, predictions, figures and reports take from a result later."""
_NOTE = "machine.json"
_TIMES = ("seconds", "checkpoint", "images", *PARTS)


@dataclass(frozen=True)
class CellMeasured:
    """The measurements of a cell's job. Times in seconds; `rates` in images/s per step.

    `mean_rate` is of all steps together, slow ones with them.
    """

    cell: Cell
    result: Mapping[str, Any]
    rates: tuple[float, ...]
    mean_rate: float
    parts: Mapping[str, float]

    @property
    def values(self) -> Values:
        """The cell's values, and the name of its jobs."""
        return self.cell.named

    @property
    def ranks(self) -> int:
        """Ranks that trained together."""
        return int(self.result["layout"]["ranks"])

    @cached_property
    def rate(self) -> float:
        """Images per second of all ranks: the median step."""
        return median(self.rates)

    @cached_property
    def spread(self) -> tuple[float, float]:
        """Images per second of the slow and the fast steps: 5th and 95th percentile."""
        if len(self.rates) < 2:
            return self.rate, self.rate
        cuts = quantiles(self.rates, n=20, method="inclusive")
        return cuts[0], cuts[-1]

    @property
    def metrics(self) -> dict[str, float]:
        """Return scores by name; one that is no number, as of unseen classes, is left out."""
        scores: Mapping[str, Any] = self.result["summary"]["metrics"]
        return {name: value for name, value in scores.items() if value is not None}

    @property
    def shares(self) -> dict[str, float]:
        """Parts of a step's time, 0 to 1."""
        whole = sum(self.parts.values())
        return {name: seconds / whole for name, seconds in self.parts.items()}


@dataclass(frozen=True)
class MissingResult:
    """A cell without a measurement, and why."""

    cell: Cell
    state: str
    reason: str


@dataclass(frozen=True)
class Predicted:
    """A predicted cell: images per second and its likely bounds; `measured` where it also ran."""

    cell: Cell
    gpus: int
    rate: float
    low: float
    high: float
    measured: float | None = None

    @property
    def values(self) -> Values:
        """The values of the matrix, with its number of GPUs."""
        return {**self.cell.named, "gpus": str(self.gpus)}

    @property
    def error(self) -> float | None:
        """Predicted over measured, less one."""
        return self.measured and self.rate / self.measured - 1


def alone(measured: Sequence[CellMeasured], one: CellMeasured) -> CellMeasured | None:
    """The one-rank run of a measurement's series."""
    alike = but(one.values, "gpus", "nodes")
    several = (other for other in measured if but(other.values, "gpus", "nodes") == alike)
    return next((other for other in several if other.ranks == 1), None)


def but(values: Values, *keys: str) -> dict[str, str]:
    """The values without those of some keys."""
    return {name: value for name, value in values.items() if name not in keys}


def look(cell: Cell, status: RunStatus) -> CellMeasured | MissingResult:
    """Return what a cell's job measured, or why there is nothing."""
    if status.state == IMPOSSIBLE:
        return MissingResult(cell, status.state, cell.point.problem)
    if status.state in ACTIVE:
        return MissingResult(cell, status.state, f"job {status.job_id} has not ended")
    if status.state != DONE and status.job_id is None:
        return MissingResult(cell, status.state, "it has not been submitted")
    if status.state != DONE:
        log = cell.folder / "logs" / f"{status.job_id}_{status.task or 0}.log"
        why = f"job {status.job_id} failed: {_why(cell.results, log)} (log: {log})"
        return MissingResult(cell, "failed", why)
    try:
        return _measured(cell)
    except (BadInput, OSError, ValueError, LookupError, TypeError) as fault:
        why = f"{cell.results / RESULT.name} cannot be used: {fault}"
        problem = fault.message if isinstance(fault, BadInput) else why
        again = f"{problem}; without that directory, `study run` runs it again"
        return MissingResult(cell, "unusable", again)


def _why(folder: Path, log: Path) -> str:
    """Return the program's reason for its failure, else the last line of the job's log."""
    if reason := at(RESULT.find(folder), "outcome", "reason"):
        return str(reason)
    if not log.exists():
        return "it left no log"
    lines = [line.strip() for line in last_text(log, 1_000_000).splitlines()]
    # Slurm's own last words only repeat that a rank has failed.
    own = [line for line in lines if line and not line.startswith(("srun:", "slurmstepd:"))]
    telling = [line for line in own if "error" in line.lower()] or own or lines
    return telling[-1][:300] if telling else "its log is empty"


def _measured(cell: Cell) -> CellMeasured:
    record = RESULT.read(cell.results / RESULT.name)
    record.need(*NEEDED, *(f"samples.{name}" for name in _TIMES))
    result, samples = record.values, record.values["samples"]
    skip = int(result["options"]["warmup_steps"])
    skip = skip if len(samples["seconds"]) > skip else 0
    steps = list(zip(*(samples[name] for name in _TIMES), strict=True))[skip:]
    pure, images = [step[0] - step[1] for step in steps], [step[2] for step in steps]
    if not pure or min(pure) <= 0 or not all(samples["images"]):
        raise BadInput(f"{record.path} holds no measured step")
    parts = {name: fmean(samples[name][skip:]) for name in PARTS}
    if not sum(parts.values()) > 0:
        raise BadInput(f"{record.path} does not split the time of any step")
    rates = tuple(n / s for n, s in zip(images, pure, strict=True))
    mean = sum(images) / sum(pure)
    # Asynchronous steps are handed out ahead: only their mean says anything.
    return CellMeasured(cell, result, (mean,) if "asynchronous" in result else rates, mean, parts)


# What results cannot say themselves: the cores that ranks shared, with what other work, and where.


@dataclass(frozen=True)
class NotedRun:
    """The machine that a study ran on, and the partitions used instead of the study's own.

    `others` is the part of its cores that other programs had while a cell ran, by the cell's id.
    """

    cores: int = option("cores of the machine", **COUNT)
    partitions: tuple[str, ...] = option("partitions", (), **listed({"type": "string"}))
    others: Mapping[str, float] = option("by cell", {}, **by_name(number(0, 1), "^[0-9a-f]+$"))


def note_run(plan: StudyPlan, others: Mapping[str, float]) -> None:
    """Write the machine, the partitions, and what was seen of other work beside the results."""
    seen = {**noted_run(plan.folder).others, **others}
    run = NotedRun(len(os.sched_getaffinity(0)), plan.partitions, seen)
    write_json(plan.folder / _NOTE, {"schema": 2, **written(run)})


def noted_run(folder: Path) -> NotedRun:
    """What was noted of a study's run; else this machine.

    A damaged note is a `BadInput`: efficiencies would be wrong.
    """
    if not (folder / _NOTE).exists():
        return NotedRun(len(os.sched_getaffinity(0)))
    try:
        return build(NotedRun, read_file(NotedRun, read_document(folder / _NOTE), 2))
    except BadInput as fault:
        hint = "remove the study's directory and run it again"
        raise BadInput(fault.message, details=fault.details, hint=hint) from fault
