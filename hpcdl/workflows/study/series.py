"""Series of measurements: their names, what they are compared with, the lines they make."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import linear_regression

from hpcdl.workflows.study.collect import Findings, Measured
from hpcdl.workflows.study.model import Run, Values

_GIGA = 1e9


def alone(measured: Sequence[Measured], one: Measured) -> Measured | None:
    """The one-rank run of a measurement's series."""
    alike = but(one.values, "gpus", "nodes")
    ones = (other for other in measured if other.ranks == 1)
    return next((other for other in ones if but(other.values, "gpus", "nodes") == alike), None)


def by_size(findings: Findings, measured: Sequence[Measured]) -> dict[str, list[Measured]]:
    """Series over the size of their data, each in rising size.

    Whether data came from memory does not part a series: it is what is compared. Slowed reads do.
    """
    found: dict[str, list[Measured]] = {}
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


def line_of(findings: Findings, series: Sequence[Measured]) -> Line | None:
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
    """Whether its data come more slowly than the storage could give them."""
    return run.reads is not None and run.reads.megabytes_per_second > 0


def series_name(findings: Findings, values: Values) -> str:
    """What the figure calls the series of these values."""
    study = findings.plan.study
    named = (shown(findings, key, values[key]) for key in study.series if key in values)
    return ", ".join(named) or study.name


def shown(findings: Findings, key: str, value: str) -> str:
    """A value of the matrix as figures and tables have it: models by their short names."""
    return findings.short_models.get(value, value) if key == "model" else value


def ideal_ranks(findings: Findings, ranks: int, cpus_per_rank: int) -> float:
    """The speed-up that nothing could exceed: ranks, or the cores that they share."""
    if not findings.plan.scale.execution.shared_cores:
        return float(ranks)
    cores = findings.cores
    return max(1.0, min(float(ranks), cores / min(cpus_per_rank, cores)))


def efficiency(findings: Findings, one: Measured) -> float | None:
    """What a measurement keeps of its one-rank run's rate times GPUs, or times shared cores."""
    base = alone(findings.measured, one)
    if base is None:
        return None
    cpus = int(one.result["layout"]["cpus_per_rank"])
    return one.rate / base.rate / ideal_ranks(findings, one.cell.gpus, cpus)


def but(values: Values, *keys: str) -> dict[str, str]:
    """The values without those of some keys."""
    return {name: value for name, value in values.items() if name not in keys}
