"""The panels and tables of a study's report, from its results.

A study's `report` yields them, each of the results that it chooses.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from hpcdl.system.chart import Curve, Panel
from hpcdl.workflows.study.declared import Published, Values
from hpcdl.workflows.study.findings import Results
from hpcdl.workflows.study.measurements import CellMeasured, alone


@dataclass(frozen=True)
class ResultTable:
    """Measurements side by side."""

    title: str
    rows: Sequence[Mapping[str, str]]


Parts = Iterator[Panel | ResultTable]
"""What a report has besides its tables of all cells."""


def rate(results: Results, title: str = "Throughput") -> Panel:
    """Images per second over ranks."""
    return Panel(
        title, _ranks(results), "images/s, all ranks", [*_curves(results)], log_x=2, log_y=10
    )


def speedup(
    results: Results, title: str = "Speed-up", published: Sequence[Published] = ()
) -> Panel:
    """Throughput over one rank's, beside what was published and what is ideal."""
    beside = [Curve(group.label, [*group.gains.items()], "published") for group in published]
    tops = [one.ranks for one in results.measured] + [one.gpus for one in results.predicted]
    top = max([1, *tops, *(gpus for group in published for gpus in group.gains)])
    counts = [2**power for power in range(10) if 2**power <= top]
    beside.append(Curve("a GPU each: ideal", [(n, n) for n in counts], "ideal"))
    if results.shared:
        best = [(float(n), results.ideal(n)) for n in counts]
        beside.append(Curve("shared cores: at best", best, "bound"))
    curves = [*_curves(results, over_one=True), *beside]
    return Panel(title, _ranks(results), "speed-up over one rank", curves, log_x=2, log_y=2)


def _ranks(results: Results) -> str:
    return "ranks, on shared CPU cores" if results.shared else "GPUs, one rank each"


def _curves(results: Results, *, over_one: bool = False) -> Iterator[Curve]:
    """Every series' measured line, and the predicted one with markers where nothing ran."""
    for number, (name, series) in enumerate(results.series().items()):
        base = alone(results.every, series[0])
        if over_one and base is None:
            continue
        unit = base.rate if over_one and base else 1.0
        rows = [(one.ranks, one.rate, *one.spread) for one in series]
        yield _curve(name, rows, "measured", number, unit)
        own = [one for one in results.predicted if results.series_of(one.values) == name]
        if base and own:
            rows = sorted((one.gpus, one.rate, one.low, one.high) for one in own)
            rows = [(1, base.rate, base.rate, base.rate), *rows]
            yield _curve(f"{name}, predicted", rows, "predicted", number, unit)


def _curve(
    name: str, rows: Sequence[tuple[int, float, float, float]], style: str, number: int, unit: float
) -> Curve:
    rates, low, high = ([row[at] / unit for row in rows] for at in (1, 2, 3))
    points = [(float(row[0]), rate) for row, rate in zip(rows, rates, strict=True)]
    return Curve(name, points, style, number, low, high)


def phases(results: Results, title: str = "Where a step's time goes") -> ResultTable:
    """The parts of a step: milliseconds in the mean, and percent of the step."""
    rows = [
        {
            "cell": " ".join(f"{key} {value}" for key, value in measured.cell.values.items()),
            **{
                f"{part} (ms)": f"{1e3 * seconds:.3g} ({measured.shares[part]:.0%})"
                for part, seconds in measured.parts.items()
            },
        }
        for measured in results.measured
    ]
    return ResultTable(title, rows)


def milliseconds(part: str) -> Callable[[CellMeasured], float]:
    """Return a table's value: what computing, input or another part of a step takes."""
    return lambda one: 1e3 * one.parts[part]


def hidden(one: CellMeasured) -> float | None:
    """Return a table's value: percent of the exchange that a step's computing hides."""
    alone = one.result.get("exchange")
    return 100 * max(0.0, 1 - one.parts["communication"] / alone) if alone else None


def table(
    results: Results,
    title: str,
    columns: str,
    value: Callable[[CellMeasured], float | None] = lambda measured: measured.rate,
) -> ResultTable:
    """A column for each value of a key, also for one that has no result: its cells say `-`."""
    every = [cell.values for cell in results.cells]
    keys = dict.fromkeys(key for values in every for key in values if key != columns)
    varied = [key for key in keys if len({values.get(key) for values in every}) > 1]
    rows: dict[str, dict[str, str]] = {}

    def row(values: Values) -> str:
        named = (f"{key} {values[key]}" for key in varied or keys if key in values)
        return ", ".join(named)

    for cell in results.cells:
        name = row(cell.values)
        rows.setdefault(name, {"cell": name})[cell.values[columns]] = "-"
    for measured in results.measured:
        number = value(measured)
        if number is not None:
            rows[row(measured.cell.values)][measured.values[columns]] = f"{number:.4g}"
    return ResultTable(title, [*rows.values()])
