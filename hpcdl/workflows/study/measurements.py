"""Reads the results of a study's jobs: what each cell measured, or why it has no measurement.

A result of another version, a failed job and a cell that never ran are missing results, and
never stop the rest. Rates are those of steps after the warm-up, without the time that writing
checkpoints took.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from statistics import fmean, median, quantiles
from typing import Any

from hpcdl.jobs.sweep import ACTIVE, DONE, IMPOSSIBLE, RunStatus
from hpcdl.results.records import RESULT, at
from hpcdl.system.errors import BadInput
from hpcdl.system.files import write_json
from hpcdl.system.safe_read import last_text, read_regular
from hpcdl.workflows.study.cells import Cell, Plan, data_folder
from hpcdl.workflows.study.declared import SYNTHETIC, Values

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
    warm-up. Of several jobs `result` and `cell` are the first one's, and `rounds` has each one's
    images/s by its round.
    """

    cell: Cell
    result: Mapping[str, Any]
    rates: tuple[float, ...]
    parts: Mapping[str, float]
    size: float | None
    images: float | None
    epochs: tuple[float, ...]
    rounds: Mapping[int, float] = field(default_factory=dict)

    @property
    def values(self) -> Values:
        """The values of the matrix, and the name of its jobs."""
        return self.cell.named

    @property
    def ranks(self) -> int:
        """Ranks that trained together."""
        return int(self.result["layout"]["ranks"])

    @property
    def cpus(self) -> int:
        """CPUs of each rank."""
        return int(self.result["layout"]["cpus_per_rank"])

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
        scores: Mapping[str, Any] = self.result["summary"]["metrics"]
        return {name: value for name, value in scores.items() if value is not None}

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
class Predicted:
    """A predicted cell: images per second; `measured` where it also ran.

    `low` and `high` are its likely bounds; None where the model's error is unknown.
    `from_itself`: the prediction starts from the measurement.
    """

    cell: Cell
    gpus: int
    rate: float
    low: float | None
    high: float | None
    measured: float | None = None
    from_itself: bool = False

    @property
    def values(self) -> Values:
        """The values of the matrix, with its number of GPUs."""
        return {**self.cell.named, "gpus": str(self.gpus)}

    @property
    def error(self) -> float | None:
        """Predicted over measured, less one; None where the prediction starts from the latter."""
        return None if self.measured is None or self.from_itself else self.rate / self.measured - 1


def alone(measured: Sequence[CellMeasured], one: CellMeasured) -> CellMeasured | None:
    """The one-rank run of a measurement's series."""
    alike = but(one.values, "gpus", "nodes")
    several = (other for other in measured if but(other.values, "gpus", "nodes") == alike)
    return next((other for other in several if other.ranks == 1), None)


def but(values: Values, *keys: str) -> dict[str, str]:
    """The values without those of some keys."""
    return {name: value for name, value in values.items() if name not in keys}


def look(plan: Plan, cell: Cell, status: RunStatus) -> CellMeasured | MissingResult:
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
        return _measured(plan, cell)
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


def _measured(plan: Plan, cell: Cell) -> CellMeasured:
    record = RESULT.read(cell.results / RESULT.name)
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
    return CellMeasured(cell, result, rates, parts, size, count, tuple(epochs[1:] or epochs))


def _data_size(plan: Plan, cell: Cell) -> tuple[float | None, float | None]:
    """Bytes and images of a cell's training data."""
    if cell.data == SYNTHETIC:
        return None, None
    data = plan.scale.data[cell.data]
    path = Path(data_folder(plan.site, plan.scale, cell.data)) / "dataset.json"
    if not path.is_file():
        return data.gigabytes and data.gigabytes * _GIGA, data.images
    try:
        train = json.loads(read_regular(path, _LARGEST))["splits"]["train"]
        return float(sum(shard["bytes"] for shard in train["shards"])), float(train["examples"])
    except (ValueError, LookupError, TypeError, RecursionError) as fault:
        raise BadInput(f"{path} is no description of a data set") from fault


def merged(measured: Sequence[CellMeasured]) -> tuple[CellMeasured, ...]:
    """Cells that ran more than once as one each: all their steps together."""
    alike: dict[tuple[tuple[str, str], ...], list[CellMeasured]] = {}
    for result in measured:
        alike.setdefault(tuple(sorted(result.values.items())), []).append(result)
    return tuple(
        replace(
            same[0],
            rates=tuple(rate for result in same for rate in result.rates),
            parts={name: fmean(result.parts[name] for result in same) for name in PARTS},
            epochs=tuple(seconds for result in same for seconds in result.epochs),
            rounds={result.cell.attempt: result.rate for result in same},
        )
        for same in alike.values()
    )


# What results cannot say themselves: the cores that ranks shared, and with what other work.


def note_machine(plan: Plan) -> None:
    """Write the machine's cores and load beside the results."""
    machine = {"schema": 1, "cores": len(os.sched_getaffinity(0)), "load": os.getloadavg()[0]}
    write_json(plan.folder / "machine.json", machine)


def noted_machine(plan: Plan) -> tuple[int, float]:
    """Cores, and the load average, when the study was queued; else those of this machine.

    A damaged note is a `BadInput`: efficiencies would be wrong.
    """
    path = plan.folder / "machine.json"
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
