"""Reads the results of a study's jobs: measurements and their series, and what is missing, and why.

A result of another version, a failed job and a cell that never ran are missing results, and
never stop the rest. Rates are those of steps after the warm-up, without the time that writing
checkpoints took.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from statistics import fmean, linear_regression, median, quantiles
from typing import Any

from hpcdl.jobs.sweep import point_folder
from hpcdl.jobs.sweep_run import ACTIVE, DONE, IMPOSSIBLE, RunStatus
from hpcdl.results.records import RESULT, at
from hpcdl.system.errors import BadInput
from hpcdl.system.files import write_json
from hpcdl.system.safe_read import last_text, read_regular
from hpcdl.workflows.study.model import PARTS, SYNTHETIC, Run, Values
from hpcdl.workflows.study.study_plan import Cell, Plan, data_folder

MACHINE = "machine.json"
NEEDED = (
    "schema",
    "layout.ranks",
    "layout.cpus_per_rank",
    "layout.ranks_per_node",
    "layout.nodes",
    "layout.gpu_per_rank",
    "batch_per_rank",
    "global_batch",
    "parameters",
    "model",
    "precision",
    "options.warmup_steps",
    "summary.metrics",
    "job.id",
)
"""What rules, predictions, figures and reports take from a result later."""
_TIMES = ("seconds", "checkpoint", "images", *PARTS)
_GIGA = 1e9
_LARGEST = 100_000_000
"""Bytes of a description of a data set, with a line for each shard."""


@dataclass(frozen=True)
class CellMeasured:
    """The measurements of a cell's jobs. Times in seconds; `rates` in images/s per step.

    `size` is of its data set in bytes, `images` its images; None where data are synthetic.
    `epochs` are seconds of passes over the data set; none where steps were left out as
    warm-up. Of `jobs` that did the same, `result` and `folder` are the first one's, and `rounds`
    has each one's images/s by its round.
    """

    cell: Cell
    result: Mapping[str, Any]
    folder: Path
    rates: tuple[float, ...]
    parts: Mapping[str, float]
    size: float | None
    images: float | None
    epochs: tuple[float, ...]
    rounds: Mapping[int, float] = field(default_factory=dict)

    @property
    def values(self) -> Values:
        """The values of the matrix, and the run's name."""
        return self.cell.named

    @property
    def jobs(self) -> int:
        """Jobs that did the same."""
        return max(1, len(self.rounds))

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
    def learning(self) -> list[tuple[float, float]]:
        """Seconds of training and the accuracy then, at every validation."""
        ends = list(accumulate(self.result["samples"]["seconds"]))
        return [
            (ends[one["step"] - 1], one["accuracy"])
            for one in self.result.get("validations", ())
            if 0 < one["step"] <= len(ends) and one.get("accuracy") is not None
        ]

    @property
    def quiet(self) -> float:
        """Images per second of the fastest round: other work on the machine only slows jobs."""
        return max(self.rounds.values(), default=self.rate)

    @property
    def unevenness(self) -> float:
        """By how much the fastest round is faster than the next; 0 of one round."""
        fastest = sorted(self.rounds.values())[-2:]
        return fastest[-1] / fastest[0] - 1 if fastest else 0.0

    @property
    def metrics(self) -> dict[str, float]:
        """Return scores by name; one that is no number, as of unseen classes, is left out."""
        found: Mapping[str, Any] = self.result["summary"]["metrics"]
        return {name: value for name, value in found.items() if value is not None}

    @property
    def step_seconds(self) -> float:
        """Mean seconds of a step."""
        return sum(self.parts.values())

    @property
    def epoch_seconds(self) -> float | None:
        """Seconds of a pass over the data set: the median one."""
        return median(self.epochs) if self.epochs else None

    @property
    def speed(self) -> float:
        """Images per second: of whole epochs where there are any, else of the median step."""
        return (self.images or 0) / self.epoch_seconds if self.epoch_seconds else self.rate

    @property
    def shares(self) -> dict[str, float]:
        """Parts of a step's time, 0 to 1."""
        return {name: seconds / self.step_seconds for name, seconds in self.parts.items()}


@dataclass(frozen=True)
class MissingResult:
    """A cell without a measurement, and why."""

    cell: Cell
    state: str
    reason: str


@dataclass(frozen=True)
class Findings:
    """The results of a study so far; `cores` and load of the machine that queued its jobs."""

    plan: Plan
    measured: tuple[CellMeasured, ...]
    missing: tuple[MissingResult, ...]
    cores: int
    load: float

    @property
    def shared(self) -> bool:
        """Return whether all ranks share the cores of one machine."""
        return self.plan.scale.execution.shared_cores

    @cached_property
    def short_models(self) -> dict[str, str]:
        """`net` by `package.module:net`, for models of which no other one ends so."""
        models = {cell.values.get("model", "") for cell in self.plan.cells}
        ends = Counter(model.rpartition(":")[2] for model in models)
        short = {model: model.rpartition(":")[2] for model in models}
        return {model: end for model, end in short.items() if ends[end] == 1}


def collect(plan: Plan, run_statuses: Sequence[RunStatus]) -> Findings:
    """Read every cell's result; `run_statuses` has each cell's status."""
    stand = {one.point.id: one for one in run_statuses}
    found = [_look(plan, cell, stand[cell.point.id]) for cell in plan.cells]
    missing = tuple(one for one in found if isinstance(one, MissingResult))
    measured = _merged([one for one in found if isinstance(one, CellMeasured)])
    return Findings(plan, measured, missing, *_machine(plan))


def _merged(measured: Sequence[CellMeasured]) -> tuple[CellMeasured, ...]:
    """Cells that ran more than once as one each: all their steps together."""
    alike: dict[tuple[tuple[str, str], ...], list[CellMeasured]] = {}
    for result in measured:
        alike.setdefault(tuple(sorted(result.values.items())), []).append(result)
    return tuple(
        replace(
            ones[0],
            rates=tuple(rate for result in ones for rate in result.rates),
            parts={name: fmean(result.parts[name] for result in ones) for name in PARTS},
            epochs=tuple(seconds for result in ones for seconds in result.epochs),
            rounds={result.cell.attempt: result.rate for result in ones},
        )
        for ones in alike.values()
    )


def note_machine(plan: Plan) -> None:
    """Keep beside the results what they cannot say themselves: cores shared, and with whom."""
    machine = {"schema": 1, "cores": len(os.sched_getaffinity(0)), "load": os.getloadavg()[0]}
    write_json(plan.folder / MACHINE, machine)


def _machine(plan: Plan) -> tuple[int, float]:
    """Cores, and the load average, when the study was queued; else those of this machine.

    A damaged note is a `BadInput`: efficiencies would be wrong.
    """
    path = plan.folder / MACHINE
    if not path.exists():
        return len(os.sched_getaffinity(0)), 0.0
    try:
        noted = json.loads(read_regular(path))
        return int(noted["cores"]), float(noted["load"])
    except (ValueError, LookupError, TypeError, ArithmeticError, RecursionError) as fault:
        raise BadInput(
            f"{path} is damaged: it records the cores of the machine that ran the study",
            hint='write {"cores": N, "load": 0} to it, or remove it if that is this machine',
        ) from fault


def _look(plan: Plan, cell: Cell, standing: RunStatus) -> CellMeasured | MissingResult:
    if standing.state == IMPOSSIBLE:
        return MissingResult(cell, standing.state, cell.point.problem)
    if standing.state in ACTIVE:
        return MissingResult(cell, standing.state, f"job {standing.job_id} has not ended")
    runs = plan.round_folder(cell.run, cell.attempt)
    folder = point_folder(runs, cell.point)
    if standing.state != DONE:
        if standing.job_id is None:
            return MissingResult(cell, standing.state, "it has not been submitted")
        log = runs / "logs" / f"{standing.job_id}_{standing.task or 0}.log"
        why = f"job {standing.job_id} failed: {_why(folder, log)} (log: {log})"
        return MissingResult(cell, "failed", why)
    try:
        return _measured(plan, cell, folder)
    except (BadInput, OSError, ValueError, LookupError, TypeError) as fault:
        why = f"{folder / RESULT.name} cannot be used: {fault}"
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


def _measured(plan: Plan, cell: Cell, folder: Path) -> CellMeasured:
    record = RESULT.read(folder / RESULT.name)
    record.need(*NEEDED, *(f"samples.{name}" for name in _TIMES))
    result, samples = record.values, record.values["samples"]
    warm = skip = int(result["options"]["warmup_steps"])
    skip = skip if len(samples["seconds"]) > skip else 0
    steps = list(zip(*(samples[name] for name in _TIMES), strict=True))[skip:]
    pure, images = [step[0] - step[1] for step in steps], [step[2] for step in steps]
    if not pure or min(pure) <= 0 or not all(samples["images"]):
        raise BadInput(f"{record.path} holds no measured step")
    parts = {name: fmean(samples[name][skip:]) for name in PARTS}
    if not sum(parts.values()) > 0:
        raise BadInput(f"{record.path} does not split the time of any step")
    rates = tuple(n / s for n, s in zip(images, pure, strict=True))
    if "asynchronous" in result:  # steps are handed out ahead: only their mean says anything
        rates = (sum(images) / sum(pure),)
    size, count = _data_size(plan, cell)
    each = 0 if warm else int((count or 0) // int(result["global_batch"]))
    starts = range(0, len(pure) - each + 1, each) if each else ()
    epochs = [sum(pure[at : at + each]) for at in starts]
    # The first one pays for compiling, and finds in memory what was just written.
    epochs = epochs[1:] or epochs
    return CellMeasured(cell, result, folder, rates, parts, size, count, tuple(epochs))


def _data_size(plan: Plan, cell: Cell) -> tuple[float | None, float | None]:
    """Bytes and images of a cell's training data."""
    if cell.data == SYNTHETIC:
        return None, None
    data = plan.scale.data[cell.data]
    path = data_folder(plan.site, data) / "dataset.json"
    if not path.is_file():
        return data.gigabytes and data.gigabytes * _GIGA, data.images
    try:
        train = json.loads(read_regular(path, _LARGEST))["splits"]["train"]
        return float(sum(shard["bytes"] for shard in train["shards"])), float(train["examples"])
    except (ValueError, LookupError, TypeError, RecursionError) as fault:
        raise BadInput(f"{path} is no description of a data set") from fault


# ---- series ----


def alone(measured: Sequence[CellMeasured], one: CellMeasured) -> CellMeasured | None:
    """The one-rank run of a measurement's series."""
    alike = but(one.values, "gpus", "nodes")
    ones = (other for other in measured if but(other.values, "gpus", "nodes") == alike)
    return next((other for other in ones if other.ranks == 1), None)


def by_size(findings: Findings, measured: Sequence[CellMeasured]) -> dict[str, list[CellMeasured]]:
    """Series over the size of their data, each in rising size.

    Whether data came from memory does not part a series: it is what is compared. Slowed reads do.
    """
    found: dict[str, list[CellMeasured]] = {}
    for one in measured:
        if one.size and one.epoch_seconds and not throttled(one.cell.run):
            found.setdefault(series_name(findings, one.values), []).append(one)
    return {name: sorted(ones, key=lambda one: one.size or 0) for name, ones in found.items()}


@dataclass(frozen=True)
class Line:
    """Seconds of an epoch over the bytes of its data, and the largest epoch that made it."""

    slope: float
    start: float
    last_size: float
    last_seconds: float

    def at(self, size: float) -> float:
        """Seconds of an epoch on so many bytes."""
        return self.start + self.slope * size

    def predicted(self, size: float) -> float:
        """Seconds of a larger epoch: by the line, or in proportion where that is more."""
        # A line through two short epochs is easily too flat.
        return max(self.at(size), self.last_seconds * size / self.last_size)


def line_of(findings: Findings, series: Sequence[CellMeasured]) -> Line | None:
    """The line through the sizes below memory, which a knee at its end cannot bend.

    None below two sizes, and where epochs do not grow with their data.
    """
    below = [one for one in series if (one.size or 0) <= memory_bytes(findings)]
    if len({one.size for one in below}) < 2:
        return None
    sizes = [one.size or 0.0 for one in below]
    slope, start = linear_regression(sizes, [one.epoch_seconds or 0.0 for one in below])
    last = below[-1]
    return Line(slope, start, sizes[-1], last.epoch_seconds or 0.0) if slope > 0 else None


def memory_bytes(findings: Findings) -> float:
    """Memory that could hold data: the scale's own, else a node's."""
    plan = findings.plan
    if plan.scale.memory_gigabytes is not None:
        return plan.scale.memory_gigabytes * _GIGA
    partitions = {cell.point.spec.partition for cell in plan.possible}
    return max(plan.site.partition(name).memory_gb for name in partitions) * _GIGA


def throttled(run: Run) -> bool:
    """Return whether its data come more slowly than the storage could give them."""
    return run.reads is not None and run.reads.megabytes_per_second > 0


def series_name(findings: Findings, values: Values) -> str:
    """Return the name of these values' series in the figure."""
    study = findings.plan.study
    named = (shown(findings, key, values[key]) for key in study.series if key in values)
    return ", ".join(named) or study.name


def shown(findings: Findings, key: str, value: str) -> str:
    """A value of the matrix as figures and tables have it: models by their short names."""
    return findings.short_models.get(value, value) if key == "model" else value


def ideal_ranks(findings: Findings, ranks: int, cpus_per_rank: int) -> float:
    """The speed-up that nothing could exceed: ranks, or the cores that they share."""
    if not findings.shared:
        return float(ranks)
    cores = findings.cores
    return max(1.0, min(float(ranks), cores / min(cpus_per_rank, cores)))


def efficiency(findings: Findings, one: CellMeasured) -> float | None:
    """Return a measurement's efficiency: its rate over one rank's times GPUs, or shared cores."""
    base = alone(findings.measured, one)
    if base is None:
        return None
    cpus = int(one.result["layout"]["cpus_per_rank"])
    return one.rate / base.rate / ideal_ranks(findings, one.cell.gpus, cpus)


def but(values: Values, *keys: str) -> dict[str, str]:
    """The values without those of some keys."""
    return {name: value for name, value in values.items() if name not in keys}
