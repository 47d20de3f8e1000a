"""`make bench`: every figure the project promises, each beside its yardstick in one run.

A module `bench_NAME.py` measures and calls `report(...)` once per figure; `python -m tests.bench
[NAME...]` runs them one by one, prints one table and writes docs/benchmarks.md. Ratios and
medians only: machines are shared and noisy. What cannot be measured here is a counted skip.
"""

import json
import time
from collections.abc import Callable, Sequence
from statistics import median

MARK = "FIGURE "


def report(
    name: str, value: float | None, unit: str, *, goal: str = "", met: bool | None = None,
    yardstick: str = "", note: str = "",
) -> None:  # fmt: skip
    """Print one figure. `value` None is a skip, and `note` its reason."""
    figure = {"name": name, "value": value, "unit": unit, "goal": goal, "met": met,
              "yardstick": yardstick, "note": note}  # fmt: skip
    print(MARK + json.dumps(figure), flush=True)


def alternate(runs: int, *things: Callable[[], object]) -> list[float]:
    """Median seconds of each thing, run in turn A B A B, after one warm-up each."""
    times: list[list[float]] = [[] for _ in things]
    for thing in things:
        thing()
    for _ in range(runs):
        for index, thing in enumerate(things):
            start = time.perf_counter()
            thing()
            times[index].append(time.perf_counter() - start)
    return [median(column) for column in times]


def spread(values: Sequence[float]) -> float:
    """(max - min) / median of repeated measurements."""
    return (max(values) - min(values)) / median(values)
