"""Usage of jobs: GPU hours, CPU hours and energy, by month, user, module."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from hpcdl.slurm.consumed import Consumed
from hpcdl.system.text import one_line, table

KEYS = ("month", "user", "account", "partition", "name", "module")
"""What usage can be summed by; `module` is known of jobs that hpcdl submitted."""

_BAR = 40


@dataclass(frozen=True)
class UsageRow:
    """The usage of the jobs of one group; `energy_kwh` is None if energy was not measured."""

    group: tuple[str, ...]
    jobs: int
    gpu_hours: float
    cpu_hours: float
    energy_kwh: float | None


def shares(
    records: Iterable[Consumed], keys: Sequence[str], module: Callable[[int], str]
) -> tuple[UsageRow, ...]:
    """The sums by these keys, in the order of time or, without months, the largest first.

    `keys` are of KEYS; `module` gives the module of a job by its id.
    """
    groups: dict[tuple[str, ...], list[Consumed]] = {}
    for record in records:
        known: Mapping[str, object] = record._asdict()
        of = tuple(str(module(record.job_id) if key == "module" else known[key]) for key in keys)
        groups.setdefault(of, []).append(record)
    rows = []
    for group, members in groups.items():
        gpu_hours = sum(row.gpu_hours for row in members)
        cpu_hours = sum(row.cpu_hours for row in members)
        energy = [row.energy_kwh for row in members if row.energy_kwh is not None]
        jobs = len({row.job_id for row in members})
        rows.append(UsageRow(group, jobs, gpu_hours, cpu_hours, sum(energy) if energy else None))
    rows.sort(key=lambda row: (row.gpu_hours, row.cpu_hours), reverse=True)
    if "month" in keys:
        rows.sort(key=lambda row: row.group[keys.index("month")])
    return tuple(rows)


def as_text(groups: Sequence[UsageRow], keys: Sequence[str]) -> str:
    """A row per group, with a bar for its part of the GPU hours, or of CPU hours without any."""
    if not groups:
        return "no job ran in that time"
    size = _sizes(groups)
    most = max(size) or 1.0
    measured = any(row.energy_kwh is not None for row in groups)
    rows = []
    for row, part in zip(groups, size, strict=True):
        energy = f"{row.energy_kwh:,.1f}" if row.energy_kwh is not None else "-"
        figures = (
            f"{row.jobs:,}",
            f"{row.gpu_hours:,.1f}",
            f"{row.cpu_hours:,.1f}",
            *([energy] if measured else []),
        )
        bar = "#" * round(_BAR * part / most)
        rows.append([*(one_line(key) or "-" for key in row.group), *figures, bar])
    heads = (*keys, "jobs", "GPU h", "CPU h", *(["kWh"] if measured else []), "")
    return table(rows, heads)


def _sizes(groups: Sequence[UsageRow]) -> list[float]:
    """Return the GPU hours of each group, or the CPU hours if no job used a GPU."""
    gpus = [one.gpu_hours for one in groups]
    return gpus if any(gpus) else [one.cpu_hours for one in groups]
