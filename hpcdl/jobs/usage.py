"""Usage of jobs: GPU hours, CPU hours and energy, by month, user, module."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpcdl.slurm.consumed import Consumed
from hpcdl.system.figures import write_figure
from hpcdl.system.text import one_line, table

KEYS = ("month", "user", "account", "partition", "name", "module")
"""What usage can be summed by; `module` is known of jobs that hpcdl submitted."""

_BAR = 40
_SIZE_INCHES = (8.0, 4.5)
_COLOURS = 9


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


def by_month(
    groups: Sequence[UsageRow], keys: Sequence[str]
) -> tuple[str, dict[str, dict[str, float]]]:
    """Return a figure's unit, and its hours by group and month, the largest group first.

    `keys` have the month. The smallest of many groups are one, `others`; hours are of GPUs, or of
    CPUs where no job had a GPU.
    """
    place = list(keys).index("month")
    rows, totals = [], dict[str, float]()
    for row, size in zip(groups, _sizes(groups), strict=True):
        rest = [part for number, part in enumerate(row.group) if number != place]
        name = one_line(", ".join(filter(None, rest))) or "no name"
        rows.append((name, row.group[place], size))
        totals[name] = totals.get(name, 0.0) + size
    most = sorted(totals, key=lambda name: -totals[name])[:_COLOURS]
    hours: dict[str, dict[str, float]] = {name: {} for name in most}
    for name, month, size in rows:
        months = hours.setdefault(name if name in most else "others", {})
        months[month] = months.get(month, 0.0) + size
    return "GPU hours" if any(row.gpu_hours for row in groups) else "CPU hours", hours


def write_usage(found: Sequence[UsageRow], keys: Sequence[str], path: Path) -> None:
    """Write the figure: a bar per month, its parts the groups.

    Raises BadInput for a name that no figure can have, MissingPrerequisite without matplotlib.
    """
    unit, groups = by_month(found, keys)
    months = sorted({month for hours in groups.values() for month in hours})

    def draw(figure: Any) -> None:
        axes = figure.subplots()
        base = [0.0] * len(months)
        for name, hours in groups.items():
            size = [hours.get(month, 0.0) for month in months]
            # Matplotlib's legend leaves `_name` out; a job's name is no formula.
            label = re.sub("^_", " _", name).replace("$", "\\$") if len(keys) > 1 else None
            axes.bar(months, size, bottom=base, label=label)
            base = [below + own for below, own in zip(base, size, strict=True)]
        axes.set(ylabel=unit)
        axes.tick_params(axis="x", rotation=45)
        axes.grid(axis="y", alpha=0.3)
        if len(keys) > 1 and groups:
            axes.legend(title=", ".join(key for key in keys if key != "month"), fontsize="small")

    write_figure(path, _SIZE_INCHES, draw)
