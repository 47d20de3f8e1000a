"""What a page shows of a history, as plain values: series over time, and tables. Pure.

A night is one date with the value that drift sees; `low` and `high` are its runs' extremes where
there are several. Levels are the stretches between the changes that the gate found, each with its
robust spread. Every text that a reader sees is made here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from itertools import groupby, pairwise
from statistics import median
from typing import Any

from hpcdl.regress.answer import WARNING, Finding
from hpcdl.regress.estimate import nightly, spread_of
from hpcdl.regress.history import Result
from hpcdl.regress.identity import Series
from hpcdl.results.faults import Status

_NAMED = 8
"""Nodes of a night that are named; of more, their number is told."""
_SPARKS = 30


@dataclass(frozen=True)
class Figure:
    """A figure of a page: `values` that figures.js draws.

    `words` are what the page's filter finds it by, beside its title; `series` is whose it is.
    """

    id: str
    title: str
    subtitle: str
    partition: str
    values: Mapping[str, Any]
    notes: tuple[str, ...]
    tone: str
    words: str
    series: Series


def view(
    series: Series,
    points: Sequence[Result],
    lost: Iterable[str] = (),
    findings: Sequence[Finding] = (),
    name: str = "",
) -> Figure:
    """A series of a history over time, with what the gate says of it.

    `lost` are times of runs of the same case that gave no number.
    """
    measured = [point for point in points if _finite(point.value)]
    nights = [(day, list(rows)) for day, rows in groupby(measured, lambda point: point.time[:10])]
    days = [day for day, _ in nights]
    without = {point.time[:10] for point in points if not _finite(point.value)}
    without |= {time[:10] for time in lost}
    columns = _columns(nights)
    changes = [change for finding in findings for change in _change(finding, days)]
    values = {
        "unit": series.unit,
        **columns,
        "lost": _offsets(sorted(without - {*days}), days[:1]),
        "levels": _levels(columns["value"], {change["night"] for change in changes}),
        "changes": changes,
    }
    lasting = [finding for finding in findings if not finding.of_last_night]
    words = {f"{finding.kind} {finding.description}" for finding in findings}
    words |= {text for at in measured for text in (at.release, at.driver)} | {*values["node"]}
    return Figure(
        name,
        series.case or series.check,
        f"{series.check} \N{MIDDLE DOT} {describe_metric(series.metric)}",
        series.place,
        values,
        tuple(f"{finding.kind}: {finding.description}" for finding in lasting),
        "bad" if any(finding.kind != WARNING for finding in lasting) else "",
        " ".join(sorted(words)),
        series,
    )


def _columns(nights: Sequence[tuple[str, list[Result]]]) -> dict[str, Any]:
    """The nights column by column; `low` and `high` only where a night has several runs."""
    days = [day for day, _ in nights]
    each = [[point.value or 0.0 for point in rows] for _, rows in nights]  # as they were measured
    several = each if any(len(runs) > 1 for runs in each) else []
    failed = {Status.FAIL, Status.ERROR}
    return {
        "start": "".join(days[:1]),
        "day": _offsets(days, days[:1]),
        "value": [*map(rounded, nightly(each).values)],
        "low": [rounded(min(runs)) for runs in several],
        "high": [rounded(max(runs)) for runs in several],
        "runs": [len(runs) for runs in several],
        "bad": [n for n, (_, rows) in enumerate(nights) if failed & {at.status for at in rows}],
        "node": [_nodes(rows) for _, rows in nights],
        "bound": _steps(nights, lambda at: [*map(rounded, (at.reference, at.low, at.high))]),
        "release": _steps(nights, lambda at: at.release),
        "driver": _steps(nights, lambda at: at.driver),
    }


def spark(figure: Figure) -> str:
    """The last nights of a series as the path of a line of 60 by 16."""
    values = [value for value in figure.values["value"][-_SPARKS:] if value is not None]
    low, high = min(values, default=0.0), max(values, default=0.0)
    step = 60 / max(1, len(values) - 1)
    points = (
        f"{index * step:.1f} {15 - 14 * (value - low) / (high - low or 1):.1f}"
        for index, value in enumerate(values)
    )
    return "M" + "L".join(points) if len(values) > 1 else ""


def describe_metric(name: str) -> str:
    """A metric's name for people."""
    return name.replace("_", " ")


def signed(fraction: float) -> str:
    """A fraction as a signed percentage with a true minus sign."""
    sign = "±" if abs(fraction) < 0.0005 else "+" if fraction > 0 else "\N{MINUS SIGN}"
    return f"{sign}{abs(fraction):.1%}".replace("%", "\N{NO-BREAK SPACE}%")


def rounded(value: float | None) -> float | None:
    """A value with the digits that a figure can show; keeps the page small."""
    return float(f"{value:.6g}") if value is not None and _finite(value) else None


def _finite(value: float | None) -> bool:
    return value is not None and math.isfinite(value)


def _nodes(rows: Sequence[Result]) -> str:
    names = sorted({point.nodes for point in rows} - {""})
    return "+".join(names)[:80] if len(names) <= _NAMED else f"{len(names):,} nodes"


def _offsets(days: Sequence[str], start: Sequence[str]) -> list[int]:
    """Days after the first night; none where there is no night."""
    return [
        (date.fromisoformat(day) - date.fromisoformat(first)).days
        for first in start
        for day in days
    ]


def _steps(
    nights: Sequence[tuple[str, list[Result]]], what: Callable[[Result], Any]
) -> list[list[Any]]:
    """Where a value changes: pairs of the night's index and the value from then on."""
    found: list[list[Any]] = []
    for index, (_, rows) in enumerate(nights):
        value = what(rows[-1])
        if value and (not found or found[-1][1] != value):
            found.append([index, value])
    return found


def _levels(values: Sequence[float], changes: Iterable[int]) -> list[list[float | int | None]]:
    """Stretches between changes: first and last night, level, robust deviation."""
    levels: list[list[float | int | None]] = []
    for first, end in pairwise(sorted({0, *changes, len(values)})):
        level = median(values[first:end])
        spread = spread_of([value - level for value in values[first:end]])
        levels.append([first, end - 1, rounded(level), rounded(spread)])
    return levels


def _change(finding: Finding, days: Sequence[str]) -> list[dict[str, Any]]:
    """A change that the gate found, at its night; none where a finding is no such."""
    began = str(finding.began)
    if finding.change is None or began not in days:
        return []
    label = {"label": signed(finding.change), "text": finding.description}
    return [{"tone": "bad", "kind": finding.kind, "night": days.index(began), **label}]
