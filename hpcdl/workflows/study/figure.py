"""The figure of a study: panels drawn from findings, as SVG for papers and PNG for pages.

A panel is a function of one axes and the findings; the study's file chooses and orders them.
Filled markers are measured, with the 5th to 95th percentile of the steps as error bars; hollow
ones on broken lines are predicted, grey ones published. matplotlib is an extra, imported here
only, and only when a figure is drawn.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from io import BytesIO
from textwrap import wrap
from typing import Any

from hpcdl.system.errors import MissingPrerequisite
from hpcdl.workflows.study.collect import Findings, Measured
from hpcdl.workflows.study.forecast import Predicted
from hpcdl.workflows.study.judge import (
    alone,
    by_size,
    ideal_ranks,
    line_of,
    memory_bytes,
    series_name,
    throttled,
)
from hpcdl.workflows.study.model import PARTS, Panel, Published, matches

# Okabe and Ito's colours, which colour-blind readers can distinguish.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
_PART_COLOURS = {"compute": "#0072B2", "input": "#D55E00", "communication": "#E69F00",
                 "update": "#009E73", "other": "#BBBBBB"}  # fmt: skip
_PART_NAMES = {
    "compute": "computing",
    "input": "waiting for input",
    "communication": "communicating, not hidden",
    "update": "updating",
    "other": "everything else",
}
_MARKERS = "osD^vP*"
_PUBLISHED_MARKERS = "x+1234"
_GREY = "#767676"
_DPI = 160
_NARROW = 32
_CHARACTERS = 100
_TIMELINE_STEPS = 6
_MEGA, _GIGA = 1e6, 1e9


@dataclass(frozen=True)
class Scene:
    """What panels draw: findings, predictions, and the panel's own choice of measurements."""

    findings: Findings
    predicted: tuple[Predicted, ...]
    panel: Panel

    @property
    def measured(self) -> tuple[Measured, ...]:
        """The measurements that the panel's `where` chooses."""
        return tuple(one for one in self.findings.measured if matches(one.values, self.panel.where))

    @property
    def series(self) -> dict[str, list[Measured]]:
        """The measurements by line, in rising ranks."""
        found: dict[str, list[Measured]] = {}
        for one in sorted(self.measured, key=lambda one: one.ranks):
            found.setdefault(series_name(self.findings, one.values), []).append(one)
        return dict(sorted(found.items(), key=lambda item: self._order(item[1][0])))

    def _order(self, one: Measured) -> int:
        return self.findings.measured.index(one)

    def predictions(self, name: str) -> list[Predicted]:
        """The predictions of a line."""
        return [
            one
            for one in self.predicted
            if series_name(self.findings, one.values) == name
            and matches(one.values, self.panel.where)
        ]

    @property
    def published(self) -> tuple[Published, ...]:
        """The published numbers that the panel may show."""
        return tuple(
            one
            for one in self.findings.plan.study.published
            if all(self.panel.where.get(key, value) == value for key, value in one.where.items())
        )


def draw(findings: Findings, predicted: tuple[Predicted, ...]) -> dict[str, bytes]:
    """The figure by suffix: `svg` and `png`.

    Raises:
        MissingPrerequisite: matplotlib is not installed.
    """
    try:
        from matplotlib import rc_context
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as fault:
        raise MissingPrerequisite(
            "figures need matplotlib, which is not installed",
            hint="install it: pip install 'hpcdl[plots]'",
        ) from fault
    study = findings.plan.study
    with rc_context({"font.size": 9, "svg.fonttype": "none", "svg.hashsalt": study.name}):
        columns = min(3, len(study.figure))
        rows = -(-len(study.figure) // columns)
        figure = Figure(figsize=(4.9 * columns, 4.5 * rows + 0.4), dpi=_DPI, layout="constrained")
        FigureCanvasAgg(figure)
        grid = figure.subplots(rows, columns, squeeze=False).flatten()
        for index, (axes, panel) in enumerate(zip(grid, study.figure, strict=False)):
            scene = Scene(findings, predicted, panel)
            _PANELS[panel.panel](axes, scene)
            letter = f"({'abcdefgh'[index]}) " if len(study.figure) > 1 else ""
            axes.set_title(letter + panel.title, loc="left", fontsize=10, fontweight="bold")
        for axes in grid[len(study.figure) :]:
            axes.set_axis_off()
        figure.supxlabel(_footnote(findings), fontsize=6.5, color=_GREY, x=0.01, ha="left")
        return {suffix: _saved(figure, suffix) for suffix in ("svg", "png")}


def _saved(figure: Any, suffix: str) -> bytes:
    data = BytesIO()
    figure.savefig(data, format=suffix, metadata={"Date": None} if suffix == "svg" else {})
    return data.getvalue()


def caption(findings: Findings) -> str:
    """What the marks of the figure mean."""
    kinds = {panel.panel for panel in findings.plan.study.figure}
    if "time-by-size" in kinds:
        return (
            "Markers are the median of the epochs after the first, bars the fastest and slowest; "
            "lines go through the sizes below memory, and dashed where they only predict."
        )
    return (
        "Filled markers are the median step, bars the 5th to 95th percentile of the steps; "
        f"{_hollow(findings)}; grey ones published by others."
    )


def _hollow(findings: Findings) -> str:
    """What predictions start from, and what their bars are."""
    scale = findings.plan.scale
    source, bars = "the one-rank run", "the model's bounds, eight times in ten"
    if scale.execution.shared_cores:
        bars = "the model's largest error on cells that ran too"
        if scale.exchange_from is not None:
            cells = ", ".join(f"{key}={value}" for key, value in scale.exchange_from.items())
            source += f" and from what exchanging gradients costs on shared cores ({cells})"
    return f"hollow markers are predicted from {source}, their bars {bars}"


def _footnote(findings: Findings) -> str:
    """Where the figure's numbers come from, and what its marks mean."""
    plan = findings.plan
    cores = f", all ranks on {findings.cores} cores" if plan.scale.execution.shared_cores else ""
    first = f"{plan.study.name}, scale {plan.scale.name}, site {plan.site.name}{cores}. "
    drawn = any(panel.panel in {"speedup", "efficiency"} for panel in plan.study.figure)
    sources = [f"{one.label}: {one.source}" for one in plan.study.published if drawn]
    width = _CHARACTERS * min(3, len(plan.study.figure))
    return "\n".join([*wrap(first + caption(findings), width), *map(_wrapped, sources)])


def _wrapped(text: str) -> str:
    return text if len(text) <= 170 else text[:167] + "..."


def _style(number: int) -> dict[str, Any]:
    return {"color": _COLOURS[number % len(_COLOURS)], "marker": _MARKERS[number % len(_MARKERS)]}


def _rate(axes: Any, scene: Scene) -> None:
    """Images per second over ranks."""
    for number, (name, ones) in enumerate(scene.series.items()):
        _measured_line(axes, name, ones, number, _as_it_is)
        _predicted_line(axes, ones, scene.predictions(name), number, _as_it_is)
    axes.set_ylabel("images/s, all ranks")
    axes.set_yscale("log")
    _plain_log(axes)
    _ranks_axis(axes, scene)
    _legend(axes, predicted=bool(scene.predicted))


def _speedup(axes: Any, scene: Scene) -> None:
    """Throughput over one rank's, beside what was published and what is ideal."""
    _lines(axes, scene, lambda base, _: base.rate)
    for number, group in enumerate(scene.published):
        _published_line(axes, group, number)
    _ideal_line(axes, scene)
    axes.set_ylabel("speed-up over one rank")
    axes.set_yscale("log", base=2)
    _plain_log(axes)
    _ranks_axis(axes, scene)
    _legend(axes, predicted=bool(scene.predicted))


def _efficiency(axes: Any, scene: Scene) -> None:
    """Throughput over one rank's times GPUs, or times the cores that ranks share; in percent."""

    def whole(base: Measured, ranks: int) -> float:
        cpus = int(base.result["layout"]["cpus_per_rank"])
        return base.rate * ideal_ranks(scene.findings, ranks, cpus) / 100

    _lines(axes, scene, whole)
    for number, group in enumerate(scene.published):
        _published_line(axes, group, number, of_each=True)
    axes.axhline(100, color="0.75", linewidth=0.9, zorder=0, label="nothing lost: ideal")
    shared = scene.findings.plan.scale.execution.shared_cores
    axes.set_ylabel("efficiency (% of the cores; grey: of GPUs)" if shared else "efficiency (%)")
    axes.set_ylim(bottom=0)
    _ranks_axis(axes, scene)
    _legend(axes, predicted=bool(scene.predicted))


def _lines(axes: Any, scene: Scene, unit: Callable[[Measured, int], float]) -> None:
    """Every series that has one rank to compare with; the unit follows from that and the ranks."""
    for number, (name, ones) in enumerate(scene.series.items()):
        base = alone(scene.measured, ones[0])
        if base is not None:
            own = partial(unit, base)
            _measured_line(axes, name, ones, number, own)
            _predicted_line(axes, ones, scene.predictions(name), number, own)


Unit = Callable[[int], float]
"""Images/s that a mark at so many ranks counts as 1."""


def _as_it_is(_: int) -> float:
    return 1.0


def _measured_line(axes: Any, name: str, ones: Sequence[Measured], number: int, unit: Unit) -> None:
    y = [one.rate / unit(one.ranks) for one in ones]
    down = [max(0.0, one.rate - one.spread[0]) / unit(one.ranks) for one in ones]
    up = [max(0.0, one.spread[1] - one.rate) / unit(one.ranks) for one in ones]
    # Lines side by side would hide each other's bars.
    x = [one.ranks * (1 + 0.025 * (number % 4)) for one in ones]
    axes.errorbar(x, y, yerr=[down, up], label=name, capsize=2.5, linewidth=1.4, markersize=5,
                  elinewidth=0.9, **_style(number))  # fmt: skip


def _predicted_line(
    axes: Any, ones: Sequence[Measured], predicted: Sequence[Predicted], number: int, unit: Unit
) -> None:
    """The model's line from the one-rank run; only counts that did not run get a marker."""
    base = next((one for one in ones if one.ranks == 1), None)
    if base is None or not predicted:
        return
    ordered = sorted(predicted, key=lambda one: one.gpus)
    style = _style(number)
    axes.plot([1, *(one.gpus for one in ordered)],
              [base.rate / unit(1), *(one.rate / unit(one.gpus) for one in ordered)],
              linestyle="--", linewidth=1, color=style["color"])  # fmt: skip
    hollow = [one for one in ordered if one.measured is None]
    axes.errorbar(
        [one.gpus * (1 + 0.025 * (number % 4)) for one in hollow],
        [one.rate / unit(one.gpus) for one in hollow],
        yerr=[[(one.rate - (one.low or one.rate)) / unit(one.gpus) for one in hollow],
              [((one.high or one.rate) - one.rate) / unit(one.gpus) for one in hollow]],
        linestyle="none", capsize=2.5 if any(one.low for one in hollow) else 0, elinewidth=0.9,
        markersize=5.5, markerfacecolor="white", **style,
    )  # fmt: skip


def _published_line(axes: Any, group: Published, number: int, *, of_each: bool = False) -> None:
    """Published speed-ups; with `of_each` what each GPU keeps of one alone, in percent."""
    one = next((point.images_per_second for point in group.points if point.gpus == 1), None)
    pairs = [
        (point.gpus, point.speedup or (point.images_per_second or 0) / (one or 1))
        for point in group.points
        if point.speedup or (point.images_per_second and one)
    ]
    if of_each:
        pairs = [(gpus, 100 * speedup / gpus) for gpus, speedup in pairs]
    if pairs:
        axes.plot(*zip(*pairs, strict=True), linestyle=":", linewidth=1, color=_GREY,
                  marker=_PUBLISHED_MARKERS[number % len(_PUBLISHED_MARKERS)], markersize=7,
                  label=group.label)  # fmt: skip


def _ideal_line(axes: Any, scene: Scene) -> None:
    top = max(
        [one.ranks for one in scene.measured]
        + [one.gpus for one in scene.predicted if matches(one.values, scene.panel.where)]
        + [point.gpus for group in scene.published for point in group.points],
        default=1,
    )
    counts = [count for count in (1, 2, 4, 8, 16, 32, 64, 128) if count <= top]
    axes.plot(counts, counts, color="0.75", linewidth=0.9, zorder=0, label="a GPU each: ideal")
    if scene.findings.plan.scale.execution.shared_cores and scene.measured:
        cpus = int(scene.measured[0].result["layout"]["cpus_per_rank"])
        bound = [ideal_ranks(scene.findings, count, cpus) for count in counts]
        axes.plot(counts, bound, color="0.5", linewidth=0.9, zorder=0, linestyle=(0, (6, 2)),
                  label="shared cores: at best")  # fmt: skip


def _learning(axes: Any, scene: Scene) -> None:
    """Accuracy over the seconds of training."""
    for number, one in enumerate(one for ones in scene.series.values() for one in ones):
        axes.plot(*zip(*one.learning or [(0, 0)], strict=True), label=_bar_name(scene, one), linewidth=1.4,
                  markersize=4, **_style(number))  # fmt: skip
    axes.set_xlabel("seconds of training")
    axes.set_ylabel("accuracy")
    axes.set_ylim(0, 1)
    axes.grid(alpha=0.25)
    _legend_below(axes)


def _phases(axes: Any, scene: Scene) -> None:
    """Where a step's time goes, in milliseconds, with the spread of whole steps at its end."""
    ones = _bars(axes, scene, lambda one: {part: 1e3 * s for part, s in one.parts.items()})
    ends = [1e3 * one.step_seconds for one in ones]
    # Slow and fast steps, with checkpoints left out as in the rates that they come from.
    spans = [sorted(1e3 * int(one.result["global_batch"]) / rate for rate in one.spread)
             for one in ones]  # fmt: skip
    bars = [[max(0.0, end - low) for end, (low, _) in zip(ends, spans, strict=True)],
            [max(0.0, high - end) for end, (_, high) in zip(ends, spans, strict=True)]]  # fmt: skip
    axes.errorbar(ends, range(len(ones)), xerr=bars, linestyle="none", color="0.25", capsize=2.5,
                  elinewidth=0.9)  # fmt: skip
    axes.set_xlim(left=0)
    axes.set_xlabel("milliseconds of a step: mean, and the 5th to 95th percentile")


def _shares(axes: Any, scene: Scene) -> None:
    """Where a step's time goes, in percent."""
    _bars(axes, scene, lambda one: {part: 100 * share for part, share in one.shares.items()})
    axes.set_xlabel("% of a step's time")
    axes.set_xlim(0, 100)


def _bars(
    axes: Any, scene: Scene, values: Callable[[Measured], dict[str, float]]
) -> list[Measured]:
    """Bars from top to bottom, cut into their parts; gives whose they are."""
    ones = [one for series in scene.series.values() for one in series]
    names = [_bar_name(scene, one) for one in ones]
    left = [0.0] * len(ones)
    for part in PARTS:
        lengths = [values(one)[part] for one in ones]
        axes.barh(range(len(ones)), lengths, left=left, height=0.7, color=_PART_COLOURS[part],
                  label=_PART_NAMES[part], linewidth=0)  # fmt: skip
        left = [start + length for start, length in zip(left, lengths, strict=True)]
    axes.set_yticks(range(len(ones)), names)
    axes.invert_yaxis()
    axes.margins(x=0.04)
    axes.grid(axis="x", alpha=0.25)
    _legend_below(axes)
    return ones


def _bar_name(scene: Scene, one: Measured) -> str:
    ranks = "1 rank" if one.ranks == 1 else f"{one.ranks} ranks"
    counts = {other.ranks for other in scene.measured}
    name = series_name(scene.findings, one.values) + (
        " (slow reads)" if throttled(one.cell.run) else ""
    )
    return f"{name}, {ranks}" if len(counts) > 1 else name


def _time_by_size(axes: Any, scene: Scene) -> None:
    """Seconds of an epoch over the size of the data; lines are fitted below memory, then dashed."""
    memory = memory_bytes(scene.findings)
    largest = max((one.size or 0 for one in scene.measured), default=0)
    unit, name = (_GIGA, "GB") if largest > _GIGA else (_MEGA, "MB")
    for number, (label, ones) in enumerate(by_size(scene.findings, scene.measured).items()):
        _sized(axes, ones, unit, label=label, **_style(number))
        if line := line_of(scene.findings, ones):
            end = 1.05 * (ones[-1].size or 0)
            edge = min(memory, end)
            parts = [("-", 0.0, edge, line.at(edge)), ("--", edge, end, line.predicted(end))]
            for dashes, left, right, top in parts:
                if left < right:
                    axes.plot([left / unit, right / unit], [line.at(left), top], dashes,
                              linewidth=1, zorder=1, color=_style(number)["color"])  # fmt: skip
        slow = [one for one in scene.measured if throttled(one.cell.run) and one.epoch_seconds
                and series_name(scene.findings, one.values) == label]  # fmt: skip
        if slow:
            style = {**_style(number), "marker": "X", "markerfacecolor": "white"}
            _sized(axes, slow, unit, label=f"{label}, slow storage", linestyle="--", **style)
    if memory < 3 * largest:
        axes.axvline(memory / unit, color=_GREY, linestyle=":", linewidth=1.2)
        axes.annotate("memory", (memory / unit, 0.03), xycoords=("data", "axes fraction"),
                      rotation=90, va="bottom", ha="right", fontsize=7, color=_GREY)  # fmt: skip
    axes.set_xlabel(f"size of the data set ({name})")
    axes.set_ylabel("seconds per epoch")
    axes.set_xlim(left=0)
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.25)
    _legend_below(axes)


def _sized(axes: Any, ones: Sequence[Measured], unit: float, **style: Any) -> None:
    """Markers with the fastest and the slowest epoch as bars."""
    y = [one.epoch_seconds or 0 for one in ones]
    down = [middle - min(one.epochs) for middle, one in zip(y, ones, strict=True)]
    up = [max(one.epochs) - middle for middle, one in zip(y, ones, strict=True)]
    style.setdefault("linestyle", "none")
    axes.errorbar([(one.size or 0) / unit for one in ones], y, yerr=[down, up], capsize=2.5,
                  elinewidth=0.9, markersize=5, linewidth=1, **style)  # fmt: skip


def _timeline(axes: Any, scene: Scene) -> None:
    """The profiler's timeline of the largest data set: all ranks, the first steps of each job."""
    row, labels = 0, []
    for one in _profiled(scene):
        for rank, events in sorted(_events(one).items()):
            for part in PARTS:
                spans = [(at, took) for name, at, took in events if name == part]
                axes.broken_barh(spans, (row - 0.36, 0.72), color=_PART_COLOURS[part], linewidth=0)
            labels.append(f"{_bar_name(scene, one)}, rank {rank}")
            row += 1
    axes.set_yticks(range(row), labels, fontsize=7)
    axes.invert_yaxis()
    axes.set_xlabel(f"seconds from the start of the epoch, first {_TIMELINE_STEPS} steps")
    axes.grid(axis="x", alpha=0.25)
    for part in PARTS:
        axes.barh([0], [0], color=_PART_COLOURS[part], label=_PART_NAMES[part])
    _legend_below(axes)


def _profiled(scene: Scene) -> Iterator[Measured]:
    """One job of every line that wrote a timeline: that of the largest data set."""
    chosen: dict[str, Measured] = {}
    for one in sorted(scene.measured, key=lambda one: one.size or 0):
        if (one.folder / "timeline.json").is_file():
            chosen[_bar_name(scene, one)] = one
    yield from chosen.values()


def _events(one: Measured) -> dict[int, list[tuple[str, float, float]]]:
    """(part, start, seconds) of the first steps, by rank, from timeline.json."""
    trace = json.loads((one.folder / "timeline.json").read_text())["traceEvents"]
    found: dict[int, list[tuple[str, float, float]]] = {}
    for event in trace:
        # Threads of traced steps are there too; only a step's parts say which step they are of.
        if event.get("args", {}).get("step", _TIMELINE_STEPS) < _TIMELINE_STEPS:
            spans = found.setdefault(int(event["pid"]), [])
            spans.append((event["name"], event["ts"] / 1e6, event["dur"] / 1e6))
    return found


def _ranks_axis(axes: Any, scene: Scene) -> None:
    from matplotlib.ticker import FixedLocator, NullLocator, ScalarFormatter

    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_locator(FixedLocator([2**power for power in range(13)]))
    axes.xaxis.set_major_formatter(ScalarFormatter())
    axes.xaxis.set_minor_locator(NullLocator())
    shared = scene.findings.plan.scale.execution.shared_cores
    axes.set_xlabel("ranks, on shared CPU cores" if shared else "GPUs, one rank each")
    axes.grid(alpha=0.25)


def _plain_log(axes: Any) -> None:
    """Numbers as people write them on a logarithmic axis, some between the powers."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    base = axes.yaxis.get_transform().base
    axes.yaxis.set_major_locator(LogLocator(base, subs=(1, 2, 5) if base == 10 else (1,)))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.yaxis.set_minor_formatter(NullFormatter())


def _legend(axes: Any, *, predicted: bool) -> None:
    """Measured lines first, then what hollow markers mean, then what others published."""
    from matplotlib.lines import Line2D

    found = dict(zip(*reversed(axes.get_legend_handles_labels()), strict=True))
    ours = {name: handle for name, handle in found.items() if not isinstance(handle, Line2D)}
    if predicted:
        ours["predicted"] = Line2D([], [], color="0.3", linestyle="--", linewidth=1, marker="o",
                                   markerfacecolor="white", markersize=5.5)  # fmt: skip
    rest = {name: handle for name, handle in found.items() if name not in ours}
    both = {**ours, **rest}
    _legend_below(axes, both.values(), both.keys())


def _legend_below(axes: Any, *entries: Any) -> None:
    """A legend under the axis' name, where it hides nothing; no wider than the axes."""
    names = [str(name) for name in (entries[1] if entries else axes.get_legend_handles_labels()[1])]
    narrow = max(map(len, names), default=0) <= _NARROW
    axes.legend(*entries, fontsize=7, frameon=False, loc="upper center",
                bbox_to_anchor=(0.5, -0.14), ncols=2 if narrow else 1)  # fmt: skip


_PANELS: dict[str, Callable[[Any, Scene], None]] = {
    "rate": _rate,
    "speedup": _speedup,
    "efficiency": _efficiency,
    "phases": _phases,
    "learning": _learning,
    "shares": _shares,
    "time-by-size": _time_by_size,
    "timeline": _timeline,
}
