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
    if base is None or not own:
        return
    every = [(one.gpus, one.rate) for one in sorted(own, key=lambda one: one.gpus)]
    line = [(float(n), rate / unit(n)) for n, rate in ((1, base.rate), *every)]
    yield Curve("", line, "predicted", number, markers=False)
    hollow = [one for one in own if one.measured is None]
    yield Curve(
        f"{name}, predicted",
        [(float(one.gpus), one.rate / unit(one.gpus)) for one in hollow],
        "predicted",
        number,
        [(one.low or one.rate) / unit(one.gpus) for one in hollow],
        [(one.high or one.rate) / unit(one.gpus) for one in hollow],
        line=False,
    )


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
            below = [(0.0, line.at(0)), (edge / unit, line.at(edge))]
            beyond = [(edge / unit, line.at(edge)), (end / unit, line.predicted(end))]
            curves += [Curve("", below, "ideal"), Curve("", beyond, "bound")]
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


def timeline(results: Results, title: str = "A job's timeline") -> Panel:
    """The parts of the first steps of each profiled job, by rank 0's samples."""
    rows: list[str] = []
    spans: list[Segment] = []
    for one in sorted(results.measured, key=lambda one: one.size or 0):
        if not (one.cell.results / "profile").is_dir():
            continue
        samples = one.result["samples"]
        columns = [samples.get(part) or [] for part in _NAMES]
        begun = 0.0
        for step in list(zip(*columns, strict=False))[:_TIMELINE_STEPS]:
            for name, took in zip(_NAMES.values(), step, strict=True):
                spans.append(Segment(len(rows), begun, took, name))
                begun += took
        rows.append(_name(results, one))
    label = f"seconds from the start, first {_TIMELINE_STEPS} steps"
    return Panel(title, label, rows=rows or ["no timeline"], spans=spans, parts=[*_NAMES.values()])


def table(results: Results, title: str, columns: str, value: str = "rate") -> ResultTable:
    """A column for each value of a key, also for one that has no result: its cells say `-`.

    `value` is rate (images/s), step or a part of it (milliseconds), accuracy, or staleness.
    """
    rows: dict[str, dict[str, str]] = {}
    varied = [
        key
        for key in dict.fromkeys(key for cell in results.cells for key in cell.values)
        if len({cell.values.get(key) for cell in results.cells}) > 1 or key == "gpus"
    ]

    def row(values: Values) -> str:
        named = [key for key in values if key != columns and key in varied]
        return ", ".join(
            results.shown(key, values[key]) if key == "model" else f"{key} {values[key]}"
            for key in named
        )

    for cell in results.cells:
        name = row(cell.values)
        rows.setdefault(name, {"cell": name})[cell.values[columns]] = "-"
    for one in results.measured:
        number = _value_of(one, value)
        if number is not None:
            rows[row(one.cell.values)][one.values[columns]] = f"{number:.4g}"
    return ResultTable(title, [*rows.values()])


def _value_of(one: CellMeasured, name: str) -> float | None:
    """A measurement's value for a table; None if its job has none."""
    if name == "accuracy":
        return one.metrics.get(name)
    if name == "staleness":
        return float(one.result.get("asynchronous", {}).get("mean_staleness", 0.0))
    milliseconds = {part: 1e3 * seconds for part, seconds in one.parts.items()}
    return {**milliseconds, "rate": one.rate, "step": 1e3 * one.step_seconds}[name]
