"""How a night's numbers grow with the number of ranks, beside the ideal. Pure.

Cases whose names differ only in their layout (`resnet50-4x8-...`: nodes x ranks of a node) are
one family. The ideal is the smallest layout's rate times the ranks; how much the last nights
scatter is shown beside tonight's value.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from statistics import median
from typing import Any

from hpcdl.regress.report.series_view import SeriesView, describe_metric, percent, rounded

_LAYOUT = re.compile(r"(?:^|-)(\d+)x(\d+)(?=-|$)")
_NIGHTS = 14
_SCALING, _ALONE = "scaling", "alone"
_RATE = re.compile(r"/s$|per_second|throughput")


@dataclass(frozen=True)
class ScalingView:
    """One family on one partition: its names and its figure's values."""

    check: str
    family: str
    partition: str
    metric: str
    values: Mapping[str, Any]
    efficiency: float
    """Rate at the largest layout against the ideal, a fraction."""


def layout_of(case: str) -> tuple[str, int] | None:
    """A case's family and number of ranks, None where its name holds no layout."""
    found = _LAYOUT.search(case)
    if found is None:
        return None
    family = (case[: found.start()] + case[found.end() :]).strip("-")
    return family, int(found[1]) * int(found[2])


def scaling(views: Iterable[SeriesView]) -> list[ScalingView]:
    """The families that were measured with at least two numbers of ranks."""
    families: dict[tuple[str, str, str, str], dict[int, SeriesView]] = defaultdict(dict)
    for view in views:
        placed = layout_of(view.series.case)
        if placed and view.values["value"] and _RATE.search(view.series.metric + view.series.unit):
            one = view.series
            families[one.check, placed[0], one.place, one.metric][placed[1]] = view
    for key, members in families.items():
        if key[0].startswith(_SCALING):
            # Their first point, one rank of the same night, is a check of its own.
            members |= {**families.get((_ALONE, *key[1:]), {}), **members}
    ordered = sorted(families, key=lambda key: (key[2], key))
    return [_family(key, families[key]) for key in ordered if len(families[key]) > 1]


def _family(key: tuple[str, str, str, str], members: Mapping[int, SeriesView]) -> ScalingView:
    ranks = sorted(members)
    recent = {n: members[n].values["value"][-_NIGHTS:] for n in ranks}
    tonight = {n: values[-1] for n, values in recent.items()}
    one = tonight[ranks[0]] / ranks[0]
    points = [
        {
            "x": n,
            "y": tonight[n],
            "low": min(recent[n]),
            "high": max(recent[n]),
            "usual": rounded(median(recent[n])),
            "label": "" if n == ranks[0] else percent(_share(tonight[n], one * n)),
        }
        for n in ranks
    ]
    values = {
        "x": "ranks",
        "unit": next(iter(members.values())).series.unit,
        "lines": [
            {"name": "ideal", "ideal": True, "points": [{"x": n, "y": one * n} for n in ranks]},
            {"name": "tonight", "points": points},
        ],
        "note": f"whiskers: lowest and highest of the last {_NIGHTS} nights",
    }
    check, family, partition, metric = key
    share = _share(tonight[ranks[-1]], one * ranks[-1])
    return ScalingView(check, family, partition, describe_metric(metric), values, share)


def _share(value: float, ideal: float) -> float:
    return value / ideal if ideal else 0.0
