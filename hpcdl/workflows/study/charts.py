"""The panels and tables of a study's report, from its results.

A study's `report` yields them, each of the results that it chooses.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from hpcdl.system.chart import Curve, Panel, Segment
from hpcdl.workflows.study.declared import Published, Values
from hpcdl.workflows.study.findings import Results
from hpcdl.workflows.study.measurements import PARTS, CellMeasured, alone

_NAMES = dict(
    zip(
        PARTS,
        ("computing", "waiting for input", "communicating, not hidden", "updating", "other"),
        strict=True,
    )
)
_TIMELINE_STEPS = 6
_MEGA, _GIGA = 1e6, 1e9

Unit = Callable[[int], float]
"""Images/s that a mark at so many ranks counts as 1."""


@dataclass(frozen=True)
class ResultTable:
    """Measurements side by side."""

    title: str
    rows: Sequence[Mapping[str, str]]


Part = Panel | ResultTable
Parts = Iterator[Part]
"""What a report has besides its tables of all cells."""


def rate(results: Results, title: str = "Throughput") -> Panel:
    """Images per second over ranks."""
    return _over_ranks(results, title, "images/s, all ranks", lambda _: lambda _: 1.0, log=10)


def speedup(
    results: Results, title: str = "Speed-up", published: Sequence[Published] = ()
) -> Panel:
    """Throughput over one rank's, beside what was published and what is ideal."""
    beside = [
        Curve(group.label, [*group.gains.items()], "published")
        for group in published
        if group.gains
    ]
    tops = [one.ranks for one in results.measured] + [one.gpus for one in results.predicted]
    top = max([1, *tops, *(gpus for group in published for gpus in group.gains)])
    counts = [2**power for power in range(10) if 2**power <= top]
    beside.append(Curve("a GPU each: ideal", [(n, n) for n in counts], "ideal"))
    if results.shared and results.measured:
        cpus = results.measured[0].cpus
        best = [(float(n), results.ideal(n, cpus)) for n in counts]
        beside.append(Curve("shared cores: at best", best, "bound"))
    label = "speed-up over one rank"
    return _over_ranks(results, title, label, lambda base: lambda _: base.rate, beside, log=2)


def efficiency(
    results: Results, title: str = "Efficiency", published: Sequence[Published] = ()
) -> Panel:
    """Throughput over one rank's times GPUs, or times the cores that ranks share; in percent."""

    def unit(base: CellMeasured) -> Unit:
        return lambda ranks: base.rate * results.ideal(ranks, base.cpus) / 100

    beside = [
        Curve(group.label, [(n, 100 * gain / n) for n, gain in group.gains.items()], "published")
        for group in published
    ]
    label = "efficiency (% of the cores; grey: of GPUs)" if results.shared else "efficiency (%)"
    return _over_ranks(results, title, label, unit, beside)


def _over_ranks(
    results: Results,
    title: str,
    label: str,
    unit: Callable[[CellMeasured], Unit],
    beside: Sequence[Curve] = (),
    log: int = 0,
) -> Panel:
    """Every series over its ranks, in units that may follow from its one-rank run."""
    curves: list[Curve] = []
    for number, (name, series) in enumerate(results.series().items()):
        base = alone(results.every, series[0])
        own = unit(base or series[0])
        if base or log == 10:
            curves += _series(results, name, series, base, number, own)
    x_label = "ranks, on shared CPU cores" if results.shared else "GPUs, one rank each"
    return Panel(title, x_label, label, [*curves, *beside], log_x=2, log_y=log)


def _series(
    results: Results,
    name: str,
    series: Sequence[CellMeasured],
    base: CellMeasured | None,
    number: int,
    unit: Unit,
) -> Iterator[Curve]:
    """A series' measured line, and the predicted one with markers where nothing ran."""
    points = [(float(one.ranks), one.rate / unit(one.ranks)) for one in series]
    low, high = ([one.spread[end] / unit(one.ranks) for one in series] for end in (0, 1))
    yield Curve(name, points, "measured", number, low, high)
    own = [one for one in results.predicted if results.series_of(one.values) == name]
    if base and own:
        rates = [(one.gpus, one.rate, one.low or one.rate, one.high or one.rate) for one in own]
        rates = [(1, base.rate, base.rate, base.rate), *sorted(rates)]
        ends = [[row[end] / unit(row[0]) for row in rates] for end in (1, 2, 3)]
        line = [(float(row[0]), y) for row, y in zip(rates, ends[0], strict=True)]
        yield Curve(f"{name}, predicted", line, "predicted", number, ends[1], ends[2])


def learning(results: Results, title: str = "Accuracy by time") -> Panel:
    """Accuracy over the seconds of training."""
    every = [one for series in results.series().values() for one in series]
    curves = [
        Curve(_name(results, one), one.learning, colour=number) for number, one in enumerate(every)
    ]
    return Panel(title, "seconds of training", "accuracy", curves)


def phases(results: Results, title: str = "Phases of a step") -> Panel:
    """Where a step's time goes, in milliseconds."""
    return _bars(results, title, "milliseconds of a step, in the mean", lambda one: 1e3)


def shares(results: Results, title: str = "Where a step's time goes") -> Panel:
    """Where a step's time goes, in percent."""
    return _bars(results, title, "% of a step's time", lambda one: 100 / one.step_seconds)


def _bars(
    results: Results, title: str, label: str, factor: Callable[[CellMeasured], float]
) -> Panel:
    rows, spans = [], []
    for row, one in enumerate(one for series in results.series().values() for one in series):
        rows.append(_name(results, one))
        start = 0.0
        for part, name in _NAMES.items():
            length = factor(one) * one.parts[part]
            spans.append(Segment(row, start, length, name))
            start += length
    return Panel(title, label, rows=rows, spans=spans, parts=[*_NAMES.values()])


def _name(results: Results, one: CellMeasured) -> str:
    """The name of a measurement: its series, and its ranks where they differ."""
    ranks = "1 rank" if one.ranks == 1 else f"{one.ranks} ranks"
    name = results.series_of(one.values) + (" (slow reads)" if one.cell.jobs.throttled else "")
    return f"{name}, {ranks}" if len({other.ranks for other in results.measured}) > 1 else name


def time_by_size(results: Results, title: str = "An epoch over the size of its data") -> Panel:
    """Seconds of an epoch over the size of the data; lines are fitted below memory."""
    memory = results.memory_bytes
    largest = max((one.size or 0 for one in results.measured), default=0)
    unit, name = (_GIGA, "GB") if largest > _GIGA else (_MEGA, "MB")
    curves = []
    for number, (label, series) in enumerate(results.by_size().items()):
        curves.append(_sized(label, series, unit, number, "measured"))
        if line := results.line_of(series):
            end = 1.05 * (series[-1].size or 0)
            edge = min(memory, end)
            ends = [(size, line(size)) for size in (0.0, edge, end)]
            curves.append(Curve("", [(size / unit, took) for size, took in ends], "bound"))
        slow = [
            one
            for one in results.measured
            if one.cell.jobs.throttled and one.epochs and results.series_of(one.values) == label
        ]
        if slow:
            curves.append(_sized(f"{label}, slow storage", slow, unit, number, "predicted"))
    if curves and memory < 3 * largest:
        top = max(y for curve in curves for _, y in curve.points)
        curves.append(Curve("memory", [(memory / unit, 0), (memory / unit, top)], "bound"))
    return Panel(title, f"size of the data set ({name})", "seconds per epoch", curves)


def _sized(
    label: str, series: Sequence[CellMeasured], unit: float, number: int, style: str
) -> Curve:
    """Markers with the fastest and the slowest epoch as bars."""
    points = [((one.size or 0) / unit, one.epoch_seconds or 0.0) for one in series]
    low, high = ([end(one.epochs) for one in series] for end in (min, max))
    return Curve(label, points, style, number, low, high, line=False)


def timeline(results: Results, title: str = "The first steps of a job") -> Panel:
    """The parts of rank 0's first steps, one after the other, by the size of the data."""
    rows, spans = [], []
    for row, one in enumerate(sorted(results.measured, key=lambda one: one.size or 0)):
        rows.append(f"{_name(results, one)}, {one.cell.data}")
        samples, start = one.result["samples"], 0.0
        for step in range(min(_TIMELINE_STEPS, len(samples["seconds"]))):
            for part, name in _NAMES.items():
                spans.append(Segment(row, start, samples[part][step], name))
                start += samples[part][step]
    label = f"seconds, the first {_TIMELINE_STEPS} steps of rank 0"
    return Panel(title, label, rows=rows, spans=spans, parts=[*_NAMES.values()])


def milliseconds(part: str) -> Callable[[CellMeasured], float]:
    """Return a table's value: what computing, input or another part of a step takes."""
    return lambda one: 1e3 * one.parts[part]


def table(
    results: Results,
    title: str,
    columns: str,
    value: Callable[[CellMeasured], float | None] = lambda one: one.rate,
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
    for one in results.measured:
        number = value(one)
        if number is not None:
            rows[row(one.cell.values)][one.values[columns]] = f"{number:.4g}"
    return ResultTable(title, [*rows.values()])
