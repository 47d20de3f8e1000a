"""Nodes against each other, night by night: a heat map that shows the slow one. Pure.

From results of jobs on one node: a node's cell is the median, over the series of its partition,
of its value against that night's median of all nodes. What all nodes share, such as a release
that is slower everywhere, is therefore not in it.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from hpcdl.regress.history import Point, single_node
from hpcdl.regress.report.series_view import signed

NIGHTS, MOST = 42, 60
"""Nights, and nodes, that a figure shows: more rows than that nobody reads."""
_DIGITS = 4


@dataclass(frozen=True)
class NodesView:
    """The nodes of one partition: the figure's values and the nodes that are slow."""

    partition: str
    slow: tuple[str, ...]
    values: Mapping[str, Any]
    others: int = 0
    """Nodes that are not shown, because they lie nearer to the median than these."""


def nodes_of(
    partition: str, series: Iterable[Sequence[Point]], slow: Iterable[str] = ()
) -> NodesView | None:
    """The heat map of a partition, None where fewer than two nodes were ever compared.

    `slow` are nodes that drift detection calls so; they come first.
    """
    cells: dict[tuple[str, str], list[float]] = defaultdict(list)
    for points in series:
        for night, each in _by_night(points).items():
            middle = median(value for values in each.values() for value in values)
            for node, values in each.items() if len(each) > 1 and middle > 0 else ():
                cells[node, night].append(median(values) / middle - 1)
    nights = sorted({night for _, night in cells})[-NIGHTS:]
    named = tuple(sorted(set(slow), key=natural))
    names = sorted({node for node, night in cells if night in nights}, key=natural)
    names = [*(n for n in names if n in named), *(n for n in names if n not in named)]
    if len(names) < 2:
        return None
    others = len(names) - MOST
    grids = {name: [_cell(cells.get((name, night))) for night in nights] for name in names}
    if others > 0:
        far = {name: (name in named, abs(_last(row) or 0.0)) for name, row in grids.items()}
        shown = sorted(names, key=lambda name: far[name], reverse=True)[:MOST]
        names = [name for name in names if name in shown]
    grid = [grids[name] for name in names]
    drawn = {"rows": names, "columns": nights, "cells": grid, "marked": list(named),
              "latest": [_latest(row) for row in grid]}  # fmt: skip
    return NodesView(partition, named, drawn, max(0, others))


def natural(text: str) -> list[tuple[int, str]]:
    """A key that sorts node2 before node10."""
    return [
        (int(part) if part.isdigit() else 0, "" if part.isdigit() else part)
        for part in re.split(r"(\d+)", text)
    ]


def _by_night(points: Sequence[Point]) -> dict[str, dict[str, list[float]]]:
    nights: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for point in points:
        node = single_node(point.nodes)
        if node and point.value is not None and math.isfinite(point.value):
            nights[point.time[:10]][node].append(point.value)
    return nights


def _cell(values: Sequence[float] | None) -> float | None:
    return round(median(values), _DIGITS) if values else None


def _latest(row: Sequence[float | None]) -> str:
    last = _last(row)
    return "" if last is None else signed(last)


def _last(row: Sequence[float | None]) -> float | None:
    return next((value for value in reversed(row) if value is not None), None)
