"""The figure of a study: panels drawn from findings, as SVG for papers and PNG for pages.

The study's file chooses and orders the panels, each a function of one axes and the findings.
Filled markers are measured, with the 5th to 95th percentile of the steps as error bars; hollow
ones on broken lines are predicted, grey ones published. matplotlib is imported only to draw.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from textwrap import wrap
from typing import Any

from hpcdl.system.errors import BadInput
from hpcdl.system.figures import drawn, legend_below, plain_log
from hpcdl.system.safe_read import read_regular
from hpcdl.workflows.study import collect as lines
from hpcdl.workflows.study.collect import CellMeasured, Findings
from hpcdl.workflows.study.forecast import Predicted
from hpcdl.workflows.study.model import Panel, Published, matches

# Okabe and Ito's colours, which colour-blind readers can distinguish.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
_PARTS = {
    "compute": {"color": "#0072B2", "label": "computing"},
    "input": {"color": "#D55E00", "label": "waiting for input"},
    "communication": {"color": "#E69F00", "label": "communicating, not hidden"},
    "update": {"color": "#009E73", "label": "updating"},
    "other": {"color": "#BBBBBB", "label": "everything else"},
}
_MARKERS = "osD^vP*"
_PUBLISHED_MARKERS = "x+1234"
_GREY = "#767676"
_TIMELINE_STEPS = 6
_LARGEST_TIMELINE = 200_000_000
_MEGA, _GIGA = 1e6, 1e9

Unit = Callable[[int], float]
"""Images/s that a mark at so many ranks counts as 1."""


@dataclass(frozen=True)
class Scene:
    """The input of a panel: findings, predictions, and the panel's own choice of measurements."""

    findings: Findings
    predicted: tuple[Predicted, ...]
    panel: Panel

    @property
    def measured(self) -> tuple[CellMeasured, ...]:
        """The measurements that the panel's `where` chooses."""
        return tuple(one for one in self.findings.measured if matches(one.values, self.panel.where))

    @property
    def series(self) -> dict[str, list[CellMeasured]]:
        """The measurements by line, in rising ranks."""
        found: dict[str, list[CellMeasured]] = {}
        for one in sorted(self.measured, key=lambda one: one.ranks):
            found.setdefault(lines.series_name(self.findings, one.values), []).append(one)
        order = self.findings.measured.index
        return dict(sorted(found.items(), key=lambda item: order(item[1][0])))

    def predictions(self, name: str) -> list[Predicted]:
        """The predictions of a line."""
        return [
            one
            for one in self.predicted
            if matches(one.values, self.panel.where)
            and lines.series_name(self.findings, one.values) == name
        ]

    @property
    def published(self) -> list[Published]:
        """The published numbers that the panel may show."""
        asked, groups = self.panel.where, self.findings.plan.study.published
        return [one for one in groups if matches({**one.where, **asked}, one.where)]


def _style(number: int) -> dict[str, Any]:
    return {"color": _COLOURS[number % len(_COLOURS)], "marker": _MARKERS[number % len(_MARKERS)]}


def _rate(axes: Any, scene: Scene) -> None:
    _over_ranks(axes, scene, "images/s, all ranks", lambda _: lambda _: 1.0, log=10)


def _speedup(axes: Any, scene: Scene) -> None:
    """Throughput over one rank's, beside what was published and what is ideal."""
    _published_lines(axes, scene, of_each=False)
    _ideal_line(axes, scene)
    _over_ranks(axes, scene, "speed-up over one rank", lambda base: lambda _: base.rate, log=2)


def _efficiency(axes: Any, scene: Scene) -> None:
    """Throughput over one rank's times GPUs, or times the cores that ranks share; in percent."""

    def unit(base: CellMeasured) -> Unit:
        cpus = int(base.result["layout"]["cpus_per_rank"])
        return lambda ranks: base.rate * lines.ideal_ranks(scene.findings, ranks, cpus) / 100

    _published_lines(axes, scene, of_each=True)
    axes.axhline(100, color="0.75", linewidth=0.9, zorder=0, label="nothing lost: ideal")
    label = (
        "efficiency (% of the cores; grey: of GPUs)" if scene.findings.shared else "efficiency (%)"
    )
    _over_ranks(axes, scene, label, unit)
    axes.set_ylim(bottom=0)


def _over_ranks(
    axes: Any, scene: Scene, label: str, unit: Callable[[CellMeasured], Unit], log: int = 0
) -> None:
    """Every series over its ranks, in units that may follow from its one-rank run."""
    for number, (name, ones) in enumerate(scene.series.items()):
        base = lines.alone(scene.measured, ones[0])
        if base is not None or scene.panel.panel == "rate":
            own = unit(base or ones[0])
            _measured_line(axes, name, ones, number, own)
            _predicted_line(axes, ones, scene.predictions(name), number, own)
    axes.set_ylabel(label)
    if log:
        axes.set_yscale("log", base=log)
        plain_log(axes)
    _finish(axes, scene)


def _measured_line(
    axes: Any, name: str, ones: Sequence[CellMeasured], number: int, unit: Unit
) -> None:
    y = [one.rate / unit(one.ranks) for one in ones]
    low, high = ([one.spread[at] / unit(one.ranks) for one in ones] for at in (0, 1))
    # Lines side by side would hide each other's bars.
    x = [one.ranks * (1 + 0.025 * (number % 4)) for one in ones]
    axes.errorbar(
        x,
        y,
        yerr=_apart(low, y, high),
        label=name,
        capsize=2.5,
        linewidth=1.4,
        markersize=5,
        elinewidth=0.9,
        **_style(number),
    )


def _predicted_line(
    axes: Any, ones: Sequence[CellMeasured], predicted: Sequence[Predicted], number: int, unit: Unit
) -> None:
    """The model's line from the one-rank run; only counts that did not run get a marker."""
    base = next((result for result in ones if result.ranks == 1), None)
    if base is None or not predicted:
        return
    ordered, style = sorted(predicted, key=lambda prediction: prediction.gpus), _style(number)
    axes.plot(
        [1, *(prediction.gpus for prediction in ordered)],
        [base.rate / unit(1), *(prediction.rate / unit(prediction.gpus) for prediction in ordered)],
        linestyle="--",
        linewidth=1,
        color=style["color"],
    )
    hollow = [prediction for prediction in ordered if prediction.measured is None]
    y = [prediction.rate / unit(prediction.gpus) for prediction in hollow]
    low = [(prediction.low or prediction.rate) / unit(prediction.gpus) for prediction in hollow]
    high = [(prediction.high or prediction.rate) / unit(prediction.gpus) for prediction in hollow]
    axes.errorbar(
        [prediction.gpus * (1 + 0.025 * (number % 4)) for prediction in hollow],
        y,
        yerr=_apart(low, y, high),
        linestyle="none",
        elinewidth=0.9,
        markersize=5.5,
        capsize=2.5 if any(prediction.low for prediction in hollow) else 0,
        markerfacecolor="white",
        **style,
    )


def _published_lines(axes: Any, scene: Scene, *, of_each: bool) -> None:
    """Published speed-ups; with `of_each` what each GPU keeps of one alone, in percent."""
    for number, group in enumerate(scene.published):
        rates = {point.gpus: point.images_per_second for point in group.points}
        every = [
            (point.gpus, point.speedup or (point.images_per_second or 0) / (rates.get(1) or 1))
            for point in group.points
            if point.speedup or (point.images_per_second and rates.get(1))
        ]
        pairs = [(gpus, 100 * gain / gpus if of_each else gain) for gpus, gain in every]
        if pairs:
            axes.plot(
                *zip(*pairs, strict=True),
                linestyle=":",
                linewidth=1,
                color=_GREY,
                marker=_PUBLISHED_MARKERS[number % len(_PUBLISHED_MARKERS)],
                markersize=7,
                label=group.label,
            )


def _ideal_line(axes: Any, scene: Scene) -> None:
    top = max(
        [
            1,
            *(one.ranks for one in scene.measured),
            *(one.gpus for one in scene.predicted if matches(one.values, scene.panel.where)),
            *(point.gpus for group in scene.published for point in group.points),
        ],
    )
    counts = [count for count in (1, 2, 4, 8, 16, 32, 64, 128) if count <= top]
    axes.plot(counts, counts, color="0.75", linewidth=0.9, zorder=0, label="a GPU each: ideal")
    if scene.findings.shared and scene.measured:
        cpus = int(scene.measured[0].result["layout"]["cpus_per_rank"])
        bound = [lines.ideal_ranks(scene.findings, count, cpus) for count in counts]
        axes.plot(
            counts,
            bound,
            color="0.5",
            linewidth=0.9,
            zorder=0,
            linestyle=(0, (6, 2)),
            label="shared cores: at best",
        )


def _learning(axes: Any, scene: Scene) -> None:
    for number, one in enumerate(one for ones in scene.series.values() for one in ones):
        points = tuple(zip(*one.learning, strict=True)) or ((), ())
        axes.plot(
            *points, label=_bar_name(scene, one), linewidth=1.4, markersize=4, **_style(number)
        )
    axes.set(xlabel="seconds of training", ylabel="accuracy", ylim=(0, 1))
    axes.grid(alpha=0.25)
    legend_below(axes)


def _phases(axes: Any, scene: Scene) -> None:
    """Where a step's time goes, in milliseconds, with the spread of whole steps at its end."""
    ones = _bars(axes, scene, lambda one: {part: 1e3 * s for part, s in one.parts.items()})
    ends = [1e3 * one.step_seconds for one in ones]
    # Slow and fast steps, with checkpoints left out as in the rates that they come from.
    slow, fast = (
        [1e3 * int(one.result["global_batch"]) / one.spread[at] for one in ones] for at in (0, 1)
    )
    axes.errorbar(
        ends,
        range(len(ones)),
        xerr=_apart(fast, ends, slow),
        linestyle="none",
        color="0.25",
        capsize=2.5,
        elinewidth=0.9,
    )
    axes.set(xlabel="milliseconds of a step: mean, and the 5th to 95th percentile", xlim=(0, None))


def _shares(axes: Any, scene: Scene) -> None:
    _bars(axes, scene, lambda one: {part: 100 * share for part, share in one.shares.items()})
    axes.set(xlabel="% of a step's time", xlim=(0, 100))


def _bars(
    axes: Any, scene: Scene, values: Callable[[CellMeasured], dict[str, float]]
) -> list[CellMeasured]:
    """Bars from top to bottom, cut into their parts; gives whose they are."""
    ones = [one for series in scene.series.values() for one in series]
    names = [_bar_name(scene, one) for one in ones]
    left = [0.0] * len(ones)
    for part, look in _PARTS.items():
        lengths = [values(one)[part] for one in ones]
        axes.barh(range(len(ones)), lengths, left=left, height=0.7, linewidth=0, **look)
        left = [start + length for start, length in zip(left, lengths, strict=True)]
    axes.set_yticks(range(len(ones)), names)
    axes.invert_yaxis()
    axes.margins(x=0.04)
    axes.grid(axis="x", alpha=0.25)
    legend_below(axes)
    return ones


def _bar_name(scene: Scene, one: CellMeasured) -> str:
    ranks = "1 rank" if one.ranks == 1 else f"{one.ranks} ranks"
    slow = " (slow reads)" if lines.throttled(one.cell.run) else ""
    name = lines.series_name(scene.findings, one.values) + slow
    return f"{name}, {ranks}" if len({other.ranks for other in scene.measured}) > 1 else name


def _time_by_size(axes: Any, scene: Scene) -> None:
    """Seconds of an epoch over the size of the data; lines are fitted below memory, then dashed."""
    memory = lines.memory_bytes(scene.findings)
    largest = max((result.size or 0 for result in scene.measured), default=0)
    unit, name = (_GIGA, "GB") if largest > _GIGA else (_MEGA, "MB")
    for number, (label, ones) in enumerate(lines.by_size(scene.findings, scene.measured).items()):
        _sized(axes, ones, unit, label=label, **_style(number))
        if line := lines.line_of(scene.findings, ones):
            end = 1.05 * (ones[-1].size or 0)
            edge = min(memory, end)
            parts = [("-", 0.0, edge, line.at(edge)), ("--", edge, end, line.predicted(end))]
            for dashes, left, right, top in parts:
                if left < right:
                    axes.plot(
                        [left / unit, right / unit],
                        [line.at(left), top],
                        dashes,
                        linewidth=1,
                        zorder=1,
                        color=_style(number)["color"],
                    )
        slow = [
            result
            for result in scene.measured
            if lines.throttled(result.cell.run)
            and result.epoch_seconds
            and lines.series_name(scene.findings, result.values) == label
        ]
        if slow:
            style = {**_style(number), "marker": "X", "markerfacecolor": "white"}
            _sized(axes, slow, unit, label=f"{label}, slow storage", linestyle="--", **style)
    if memory < 3 * largest:
        axes.axvline(memory / unit, color=_GREY, linestyle=":", linewidth=1.2)
        axes.annotate(
            "memory",
            (memory / unit, 0.03),
            xycoords=("data", "axes fraction"),
            rotation=90,
            va="bottom",
            ha="right",
            fontsize=7,
            color=_GREY,
        )
    axes.set(xlabel=f"size of the data set ({name})", ylabel="seconds per epoch")
    axes.set(xlim=(0, None), ylim=(0, None))
    axes.grid(alpha=0.25)
    legend_below(axes)


def _sized(axes: Any, ones: Sequence[CellMeasured], unit: float, **style: Any) -> None:
    """Markers with the fastest and the slowest epoch as bars."""
    y = [one.epoch_seconds or 0 for one in ones]
    bars = _apart([min(one.epochs) for one in ones], y, [max(one.epochs) for one in ones])
    style.setdefault("linestyle", "none")
    axes.errorbar(
        [(one.size or 0) / unit for one in ones],
        y,
        yerr=bars,
        capsize=2.5,
        elinewidth=0.9,
        markersize=5,
        linewidth=1,
        **style,
    )


def _timeline(axes: Any, scene: Scene) -> None:
    """The profiler's timeline of the largest data set: all ranks, the first steps of each job."""
    labels: list[str] = []  # of rows
    profiled = [
        one
        for one in sorted(scene.measured, key=lambda one: one.size or 0)
        if (one.folder / "timeline.json").is_file()
    ]
    for name, one in {_bar_name(scene, one): one for one in profiled}.items():
        try:
            by_rank = _events(one)
        except (BadInput, ValueError, LookupError, TypeError, AttributeError, RecursionError):
            labels.append(f"{name}: timeline.json is damaged")
            continue
        for rank, events in sorted(by_rank.items()):
            for part, look in _PARTS.items():
                spans = [(at, took) for kind, at, took in events if kind == part]
                axes.broken_barh(
                    spans, (len(labels) - 0.36, 0.72), color=look["color"], linewidth=0
                )
            labels.append(f"{name}, rank {rank}")
    axes.set_yticks(range(len(labels)), labels, fontsize=7)
    axes.invert_yaxis()
    axes.set_xlabel(f"seconds from the start of the epoch, first {_TIMELINE_STEPS} steps")
    axes.grid(axis="x", alpha=0.25)
    for look in _PARTS.values():
        axes.barh([0], [0], **look)
    legend_below(axes)


def _events(one: CellMeasured) -> dict[int, list[tuple[str, float, float]]]:
    """(part, start, seconds) of the first steps, by rank, from timeline.json."""
    text = read_regular(one.folder / "timeline.json", _LARGEST_TIMELINE, "timeline")
    by_rank: dict[int, list[tuple[str, float, float]]] = {}
    for event in json.loads(text)["traceEvents"]:
        # Threads of traced steps are there too; only a step's parts say which step they are of.
        if event.get("args", {}).get("step", _TIMELINE_STEPS) < _TIMELINE_STEPS:
            spans = by_rank.setdefault(int(event["pid"]), [])
            spans.append((event["name"], event["ts"] / 1e6, event["dur"] / 1e6))
    return by_rank


def _apart(low: Sequence[float], middle: Sequence[float], high: Sequence[float]) -> Any:
    """How far bars reach below and above their middle."""
    below = [max(0.0, b - a) for a, b in zip(low, middle, strict=True)]
    return [below, [max(0.0, b - a) for a, b in zip(middle, high, strict=True)]]


def _finish(axes: Any, scene: Scene) -> None:
    """The axis of ranks; measured lines, then hollow markers, then what others published."""
    from matplotlib.lines import Line2D
    from matplotlib.ticker import FixedLocator, NullLocator, ScalarFormatter

    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_locator(FixedLocator([2**power for power in range(13)]))
    axes.xaxis.set_major_formatter(ScalarFormatter())
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xlabel(
        "ranks, on shared CPU cores" if scene.findings.shared else "GPUs, one rank each"
    )
    axes.grid(alpha=0.25)
    handles = dict(zip(*reversed(axes.get_legend_handles_labels()), strict=True))
    ours = {name: handle for name, handle in handles.items() if not isinstance(handle, Line2D)}
    if scene.predicted:
        ours["predicted"] = Line2D(
            [],
            [],
            color="0.3",
            linestyle="--",
            linewidth=1,
            marker="o",
            markerfacecolor="white",
            markersize=5.5,
        )
    both = {**ours, **handles}
    legend_below(axes, both.values(), both.keys())


PANELS: dict[str, Callable[[Any, Scene], None]] = {
    "rate": _rate,
    "speedup": _speedup,
    "efficiency": _efficiency,
    "phases": _phases,
    "learning": _learning,
    "shares": _shares,
    "time-by-size": _time_by_size,
    "timeline": _timeline,
}


def draw(findings: Findings, predicted: tuple[Predicted, ...]) -> dict[str, bytes]:
    """The figure by suffix: `svg` and `png`; without matplotlib a `MissingPrerequisite`."""
    plan, study = findings.plan, findings.plan.study
    columns = min(3, len(study.figure))
    rows = -(-len(study.figure) // columns)
    cores = f", all ranks on {findings.cores} cores" if findings.shared else ""
    first = f"{study.name}, scale {plan.scale.name}, site {plan.site.name}{cores}. "
    beside = any(panel.panel in {"speedup", "efficiency"} for panel in study.figure)
    sources = [f"{one.label}: {one.source}" for one in study.published if beside]
    short = [text if len(text) <= 170 else text[:167] + "..." for text in sources]
    foot = "\n".join([*wrap(first + caption(findings), 100 * columns), *short])

    def fill(figure: Any) -> None:
        grid = figure.subplots(rows, columns, squeeze=False).flatten()
        for index, (axes, panel) in enumerate(zip(grid, study.figure, strict=False)):
            PANELS[panel.panel](axes, Scene(findings, predicted, panel))
            letter = f"({'abcdefgh'[index]}) " if len(study.figure) > 1 else ""
            axes.set_title(letter + panel.title, loc="left", fontsize=10, fontweight="bold")
        for axes in grid[len(study.figure) :]:
            axes.set_axis_off()
        figure.supxlabel(foot, fontsize=6.5, color=_GREY, x=0.01, ha="left")

    look = {"font.size": 9, "svg.fonttype": "none", "svg.hashsalt": study.name}
    return drawn((4.9 * columns, 4.5 * rows + 0.4), fill, "svg", "png", settings=look)


def caption(findings: Findings) -> str:
    """Return the legend of the figure's marks."""
    kinds = {panel.panel for panel in findings.plan.study.figure}
    if "time-by-size" in kinds:
        return (
            "Markers are the median of the epochs after the first, bars the fastest and slowest; "
            "lines go through the sizes below memory, and dashed where they only predict."
        )
    source, bars = "the one-rank run", "the model's bounds, eight times in ten"
    if findings.shared:
        bars = "the model's largest error on cells that ran too"
        if teachers := findings.plan.scale.exchange_from:
            cells = ", ".join(f"{key}={value}" for key, value in teachers.items())
            source += f" and from what exchanging gradients costs on shared cores ({cells})"
    return (
        "Filled markers are the median step, bars the 5th to 95th percentile of the steps; hollow "
        f"markers are predicted from {source}, their bars {bars}; grey ones published by others."
    )
