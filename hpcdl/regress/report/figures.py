"""What a page draws, as plain values: series over time, and series beside each other. Pure.

A night is one date with the value that drift sees; `low` and `high` are its runs' extremes where
there are several. Levels are the stretches between change points, each with its robust spread,
so that the figure shows how sure a level is. Every text that a reader sees is made here.

Cases whose names differ only in their layout (`resnet50-4x8-...`: nodes x ranks of a node) are
one family; the ideal is the smallest layout's rate times the ranks. A node's cell in the table of
nodes is the median, over the series of its partition, of its value against that night's median of
all nodes: what all nodes share, such as a slower release, is therefore not in it.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from itertools import groupby, pairwise
from statistics import median
from typing import Any

from hpcdl.regress.answer import SLOW_NODE, WARNING, Finding, describe
from hpcdl.regress.changes import Kind
from hpcdl.regress.drift import Analysis, Change, analyse
from hpcdl.regress.estimate import nightly
from hpcdl.regress.history import FigurePoint, single_node
from hpcdl.regress.identity import LOWER, Night, Series, better_of
from hpcdl.results.faults import Status

_NAMED = 8
"""Nodes of a night that are named; of more, their number is told."""
_MAD_TO_SIGMA = 1.4826
NIGHTS, MOST = 28, 60
"""Nights, and nodes, that a table of nodes shows: more rows than that nobody reads."""
_SLOWER, _SLOW = -0.02, -0.05
_LAYOUT = re.compile(r"(?:^|-)(\d+)x(\d+)(?=-|$)")
_RATE = re.compile(r"/s$|per_second|throughput")
_RECENT, _SPARKS = 14, 30
_METRIC_WORDS = {
    "images_per_second": "images per second",
    "best_images_per_second": "images per second, best window",
}


@dataclass(frozen=True)
class Figure:
    """A figure of a page: `values` are what figures.js draws for its `kind`.

    Kinds are `time` (a series over time), `lines` (over a number) and `nodes`, a table. `words` are
    what the page's filter finds it by, beside its title.
    """

    kind: str
    title: str
    subtitle: str
    partition: str
    values: Mapping[str, Any]
    notes: tuple[str, ...] = ()
    tone: str = ""
    words: str = ""


@dataclass(frozen=True)
class SeriesView:
    """A series as the page shows it: its figure's values, and what the gate finds in it."""

    series: Series
    values: Mapping[str, Any]
    findings: tuple[Finding, ...] = ()

    @property
    def alarm(self) -> bool:
        """Return whether something of its history closes the gate."""
        return any(not one.of_last_night and one.kind != WARNING for one in self.findings)

    @property
    def slow_nodes(self) -> tuple[str, ...]:
        """The nodes that are slower than the others."""
        return tuple(one.node for one in self.findings if one.kind == SLOW_NODE)

    @property
    def figure(self) -> Figure:
        """The series over time, with what a reader must know of it in the gate's words."""
        series = self.series
        subtitle = f"{series.check} \N{MIDDLE DOT} {describe_metric(series.metric)}"
        notes = tuple(f"{f.kind}: {f.description}" for f in self.findings if not f.of_last_night)
        return Figure(
            "time",
            series.case or series.check,
            subtitle,
            series.place,
            self.values,
            notes,
            "bad" if self.alarm else "",
            " ".join(self._words()),
        )

    def _words(self) -> Iterator[str]:
        """Releases, drivers and nodes of a series, and what the gate finds in it."""
        for column in ("release", "driver"):
            yield from (str(value) for _, value in self.values[column])
        yield from {*self.values["node"]}
        yield from (f"{one.kind} {one.description}" for one in self.findings)

    @property
    def spark(self) -> str:
        """The last nights as the path of a line of 60 by 16."""
        values = [value for value in self.values["value"][-_SPARKS:] if value is not None]
        low, high = min(values, default=0.0), max(values, default=0.0)
        step = 60 / max(1, len(values) - 1)
        points = (
            f"{index * step:.1f} {15 - 14 * (value - low) / (high - low or 1):.1f}"
            for index, value in enumerate(values)
        )
        return "M" + "L".join(points) if len(values) > 1 else ""


def describe_metric(name: str) -> str:
    """A metric's name for people."""
    return _METRIC_WORDS.get(name, name.replace("_", " "))


def view(
    series: Series,
    points: Sequence[FigurePoint],
    lost: Iterable[str] = (),
    least: float = 0.0,
    watched: int = 1,
    findings: tuple[Finding, ...] = (),
    since: str = "",
) -> SeriesView:
    """A series of a history as the page shows it.

    `lost` are times of runs of the same case that gave no number; `least` is how far below the
    others a node must lie to be slow, as a fraction. `watched` series share the budget of nights
    that are closed by chance; `since` is the first night that changes are looked for in, as by the
    gate.
    """
    measured = [point for point in points if _finite(point.value)]
    better = better_of_points(series.unit, measured)
    looked_at = [
        Night(
            date.fromisoformat(point.time[:10]),
            point.value or 0.0,
            point.release,
            point.driver,
            single_node(point.nodes),
        )
        for point in measured
        if point.time >= since
    ]
    analysis = analyse(looked_at, least, watched, lower=better == LOWER)
    nights = [(day, list(rows)) for day, rows in groupby(measured, lambda point: point.time[:10])]
    days = [day for day, _ in nights]
    without = {point.time[:10] for point in points if not _finite(point.value)}
    without |= {time[:10] for time in lost}
    values = {
        "unit": series.unit,
        **_columns(nights),
        "lost": _offsets(sorted(without - set(days)), days),
        "bound": _steps(
            nights, lambda point: [*map(rounded, (point.reference, point.low, point.high))]
        ),
        "release": _steps(nights, lambda point: point.release),
        "driver": _steps(nights, lambda point: point.driver),
        "levels": _levels(nights, analysis, sum(day < since for day in days)),
        "changes": [_change(change, days, bool(better)) for change in analysis.changes],
    }
    return SeriesView(series, values, findings)


def better_of_points(unit: str, points: Sequence[FigurePoint]) -> str:
    """Which values of a series are better, by its newest result; see `better_of`."""
    last = points[-1] if points else None
    return better_of(unit, last.low, last.high, last.better) if last else ""


def signed(fraction: float) -> str:
    """A fraction as a signed percentage with a true minus sign."""
    sign = "±" if abs(fraction) < 0.0005 else "+" if fraction > 0 else "\N{MINUS SIGN}"
    return f"{sign}{abs(fraction):.1%}".replace("%", "\N{NO-BREAK SPACE}%")


def percent(fraction: float) -> str:
    """A share as a percentage."""
    return f"{fraction:.0%}".replace("%", "\N{NO-BREAK SPACE}%")


def rounded(value: float | None) -> float | None:
    """A value with the digits that a figure can show; keeps the page small."""
    return float(f"{value:.6g}") if value is not None and _finite(value) else None


def _finite(value: float | None) -> bool:
    return value is not None and math.isfinite(value)


def _columns(nights: Sequence[tuple[str, list[FigurePoint]]]) -> dict[str, Any]:
    """The nights column by column; `low` and `high` only where a night has several runs."""
    each = [[point.value or 0.0 for point in rows] for _, rows in nights]  # as they were measured
    several = each if any(len(values) > 1 for values in each) else []
    start = nights[0][0] if nights else ""
    nodes = [sorted({point.nodes for point in rows} - {""}) for _, rows in nights]
    return {
        "start": start,
        "day": _offsets([day for day, _ in nights], [start]),
        "value": [rounded(value) for value in nightly(each).values],
        "low": [rounded(min(values)) for values in several],
        "high": [rounded(max(values)) for values in several],
        "runs": [len(values) for values in several],
        "bad": [
            index
            for index, (_, rows) in enumerate(nights)
            if any(point.status in {Status.FAIL, Status.ERROR} for point in rows)
        ],
        "node": [
            "+".join(one)[:80] if len(one) <= _NAMED else f"{len(one):,} nodes" for one in nodes
        ],
    }


def _offsets(days: Sequence[str], base: Sequence[str]) -> list[int]:
    if not base or not base[0]:
        return []
    first = date.fromisoformat(base[0]).toordinal()
    return [date.fromisoformat(day).toordinal() - first for day in days]


def _steps(
    nights: Sequence[tuple[str, list[FigurePoint]]], what: Callable[[FigurePoint], Any]
) -> list[list[Any]]:
    """Where a value changes: pairs of the night's index and the value from then on."""
    found: list[list[Any]] = []
    for index, (_, rows) in enumerate(nights):
        value = what(rows[-1])
        if value and (not found or found[-1][1] != value):
            found.append([index, value])
    return found


def _levels(
    nights: Sequence[tuple[str, list[FigurePoint]]], analysis: Analysis, skipped: int = 0
) -> list[list[float | int | None]]:
    """Stretches between lasting changes: first and last night, level, robust deviation.

    Changes count their nights from the first that was looked at, behind `skipped` older ones.
    """
    values = nightly([[point.value or 0.0 for point in rows] for _, rows in nights]).values
    cuts = sorted({skipped + edge for change in analysis.changes for edge in change.edges})
    edges = [0, *(cut for cut in cuts if 0 < cut < len(values)), len(values)]
    levels: list[list[float | int | None]] = []
    for first, end in pairwise(edges):
        if part := values[first:end]:
            level = median(part)
            spread = median(abs(value - level) for value in part) * _MAD_TO_SIGMA
            levels.append([first, end - 1, rounded(level), rounded(spread)])
    return levels


def _change(change: Change, days: Sequence[str], judged: bool) -> dict[str, Any]:
    return {
        "tone": ("good" if change.kind is Kind.RISE else "bad") if judged else "",
        "kind": change.word,
        "night": days.index(change.began.isoformat()),
        "label": signed(change.change),
        "text": describe(change),
        "suspects": list(change.suspects),
    }


def layout_of(case: str) -> tuple[str, int] | None:
    """A case's family and number of ranks, None where its name holds no layout."""
    found = _LAYOUT.search(case)
    if found is None:
        return None
    family = (case[: found.start()] + case[found.end() :]).strip("-")
    return family, int(found[1]) * int(found[2])


def scaling(views: Iterable[SeriesView]) -> list[Figure]:
    """The families that were measured with at least two numbers of ranks."""
    families: dict[tuple[str, str, str, str], dict[int, SeriesView]] = defaultdict(dict)
    for view in views:
        one, placed = view.series, layout_of(view.series.case)
        if placed and _RATE.search(one.metric + one.unit):
            families[one.place, one.check, placed[0], one.metric][placed[1]] = view
    for key, members in families.items():
        if key[1].startswith("scaling"):
            # Their first point, one rank of the same night, is a check of its own.
            members |= {**families.get((key[0], "alone", *key[2:]), {}), **members}
    return [_family(key, families[key]) for key in sorted(families) if len(families[key]) > 1]


def _family(key: tuple[str, str, str, str], members: Mapping[int, SeriesView]) -> Figure:
    ranks = sorted(members)
    recent = {n: members[n].values["value"][-_RECENT:] for n in ranks}
    rate_of_one = recent[ranks[0]][-1] / ranks[0]
    shares = {n: percent(recent[n][-1] / (rate_of_one * n) if rate_of_one else 0.0) for n in ranks}
    points = [
        {
            "x": n,
            "y": values[-1],
            "ideal": rate_of_one * n,
            "low": min(values),
            "high": max(values),
            "usual": rounded(median(values)),
            "label": "" if n == ranks[0] else shares[n],
        }
        for n, values in recent.items()
    ]
    values = {"x": "ranks", "unit": members[ranks[0]].series.unit, "points": points}
    place, check, family, metric = key
    note = f"{shares[ranks[-1]]} of the ideal at the largest layout"
    return Figure(
        "lines",
        family or check,
        f"{check} \N{MIDDLE DOT} {describe_metric(metric)}",
        place,
        values,
        (note,),
    )


def nodes_of(
    partition: str, series: Iterable[Sequence[FigurePoint]], slow: Iterable[str] = ()
) -> Figure | None:
    """The table of a partition's nodes, None where fewer than two were ever compared.

    Higher values of the series are better. `slow` are nodes that drift detection calls so; they
    come first. Of more than MOST nodes, those farthest from the median are shown.
    """
    cells: dict[tuple[str, str], list[float]] = defaultdict(list)
    for points in series:
        for night, each in _by_night(points).items():
            middle = median(value for values in each.values() for value in values)
            for node, values in each.items() if len(each) > 1 and middle > 0 else ():
                cells[node, night].append(median(values) / middle - 1)
    nights = sorted({night for _, night in cells})[-NIGHTS:]
    names = sorted({node for node, night in cells if night in nights}, key=_natural)
    if len(names) < 2:
        return None
    marked = sorted(set(slow), key=_natural)
    grid = {
        name: [
            round(median(found), 4) if (found := cells.get((name, night))) else None
            for night in nights
        ]
        for name in sorted(names, key=lambda name: name not in marked)
    }
    latest = {
        name: next(value for value in reversed(row) if value is not None)
        for name, row in grid.items()
    }
    far = sorted(grid, key=lambda name: (name in marked, abs(latest[name])), reverse=True)
    shown = [name for name in grid if name in far[:MOST]]
    drawn = {"columns": nights, "rows": {name: [*map(_cell, grid[name])] for name in shown}}
    of_more = f" of {len(grid):,}, farthest from the median" if len(grid) > MOST else ""
    return Figure(
        "nodes",
        partition,
        f"{len(shown)} nodes{of_more}, last {len(nights)} nights",
        partition,
        drawn,
        tuple(f"{name} is slower than the others" for name in marked),
        "bad" if marked else "",
        " ".join(shown),
    )


def _cell(value: float | None) -> tuple[str, str]:
    """A cell's tone and its text."""
    if value is None:
        return "", ""
    tone = "bad" if value <= _SLOW else "uncertain" if value <= _SLOWER else ""
    return tone, signed(value)


def _natural(text: str) -> list[tuple[int, str]]:
    """A key that sorts node2 before node10."""
    return [(int(part), "") if part.isdigit() else (0, part) for part in re.split(r"(\d+)", text)]


def _by_night(points: Sequence[FigurePoint]) -> dict[str, dict[str, list[float]]]:
    nights: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for point in points:
        node = single_node(point.nodes)
        if node and point.value is not None and math.isfinite(point.value):
            nights[point.time[:10]][node].append(point.value)
    return nights
