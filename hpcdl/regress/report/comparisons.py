"""Figures that compare series of a night: rates by number of ranks, and nodes night by night. Pure.

Cases whose names differ only in their layout (`resnet50-4x8-...`: nodes x ranks of a node) are
one family; the ideal is the smallest layout's rate times the ranks. A node's cell in the heat map
is the median, over the series of its partition, of its value against that night's median of all
nodes: what all nodes share, such as a slower release, is therefore not in it.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from statistics import median

from hpcdl.regress.history import Point, single_node
from hpcdl.regress.report.series_view import (
    Figure,
    SeriesView,
    describe_metric,
    percent,
    rounded,
    signed,
)

NIGHTS, MOST = 42, 60
"""Nights, and nodes, that a heat map shows: more rows than that nobody reads."""
_LAYOUT = re.compile(r"(?:^|-)(\d+)x(\d+)(?=-|$)")
_RATE = re.compile(r"/s$|per_second|throughput")
_RECENT = 14


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
    one = recent[ranks[0]][-1] / ranks[0]
    shares = {n: percent(recent[n][-1] / (one * n) if one else 0.0) for n in ranks}
    points = [
        {"x": n, "y": values[-1], "low": min(values), "high": max(values),
         "usual": rounded(median(values)), "label": "" if n == ranks[0] else shares[n]}
        for n, values in recent.items()
    ]  # fmt: skip
    ideal = [{"x": n, "y": one * n} for n in ranks]
    values = {
        "x": "ranks",
        "unit": members[ranks[0]].series.unit,
        "lines": [{"name": "ideal", "ideal": True, "points": ideal},
                  {"name": "tonight", "points": points}],
        "note": f"whiskers: lowest and highest of the last {_RECENT} nights",
    }  # fmt: skip
    place, check, family, metric = key
    note = f"{shares[ranks[-1]]} of the ideal at the largest layout"
    return Figure("lines", family or check, f"{check} \N{MIDDLE DOT} {describe_metric(metric)}",
                  place, values, (note,))  # fmt: skip


def nodes_of(
    partition: str, series: Iterable[Sequence[Point]], slow: Iterable[str] = ()
) -> Figure | None:
    """The heat map of a partition, None where fewer than two nodes were ever compared.

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
        name: [round(median(found), 4) if (found := cells.get((name, night))) else None
               for night in nights]
        for name in sorted(names, key=lambda name: name not in marked)
    }  # fmt: skip
    latest = {name: next(value for value in reversed(row) if value is not None)
              for name, row in grid.items()}  # fmt: skip
    far = sorted(grid, key=lambda name: (name in marked, abs(latest[name])), reverse=True)
    shown = [name for name in grid if name in far[:MOST]]
    drawn = {"rows": shown, "columns": nights, "cells": [grid[name] for name in shown],
              "marked": marked, "latest": [signed(latest[name]) for name in shown]}  # fmt: skip
    of_more = f" of {len(grid):,}, farthest from the median" if len(grid) > MOST else ""
    return Figure("heat", partition, f"{len(shown)} nodes{of_more}, last {len(nights)} nights",
                  partition, drawn, tuple(f"{name} is slower than the others" for name in marked),
                  "bad" if marked else "")  # fmt: skip


def _natural(text: str) -> list[tuple[int, str]]:
    """A key that sorts node2 before node10."""
    return [(int(part), "") if part.isdigit() else (0, part) for part in re.split(r"(\d+)", text)]


def _by_night(points: Sequence[Point]) -> dict[str, dict[str, list[float]]]:
    nights: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for point in points:
        node = single_node(point.nodes)
        if node and point.value is not None and math.isfinite(point.value):
            nights[point.time[:10]][node].append(point.value)
    return nights
