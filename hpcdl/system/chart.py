"""Charts as SVG, without a library: curves over an axis.

A `Panel` holds curves; `svg` draws panels side by side, each with its legend below. Filled markers
are measured, hollow ones predicted, grey crosses published by others.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from textwrap import wrap

from hpcdl.system.text import inert

# Okabe and Ito's colours, which colour-blind readers can distinguish.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
_GREY = "#767676"
_DASHES = {"predicted": "5 3", "published": "1.5 3", "bound": "7 3"}
_WIDTH, _HEIGHT = 440.0, 300.0
_LEFT, _TOP, _PLOT = 58.0, 26.0, 230.0
_LINE = 14.0
_PER_ROW = 3


@dataclass(frozen=True)
class Curve:
    """A line with a marker at each point; `low` and `high` are the ends of the points' bars.

    `style` is measured, predicted, published, ideal, or bound: the last two have no markers.
    """

    name: str
    points: Sequence[tuple[float, float]]
    style: str = "measured"
    colour: int = 0
    low: Sequence[float] = ()
    high: Sequence[float] = ()

    @property
    def paint(self) -> str:
        """Its colour."""
        return COLOURS[self.colour % len(COLOURS)] if self.style in _OURS else _GREY


_OURS = ("measured", "predicted")


@dataclass(frozen=True)
class Panel:
    """One part of a figure. `log_x` and `log_y` are the base of a logarithmic axis, or 0."""

    title: str
    x_label: str
    y_label: str
    curves: Sequence[Curve]
    log_x: int = 0
    log_y: int = 0


@dataclass(frozen=True)
class Axis:
    """From values to positions; `base` of a logarithmic axis, or 0."""

    low: float
    high: float
    start: float
    end: float
    base: int = 0

    @classmethod
    def over(cls, values: Sequence[float], start: float, end: float, base: int) -> Axis:
        """An axis that holds all values: from 0, or with room on both sides if logarithmic."""
        if base:
            known = [value for value in values if value > 0] or [1.0]
            return cls(min(known) / 1.15, max(known) * 1.15, start, end, base)
        return cls(0.0, 1.05 * max([*values, 0.0]) or 1.0, start, end)

    def at(self, value: float) -> float:
        """The position of a value."""
        low, high = self.low, self.high
        if self.base:
            low, high, value = math.log(low), math.log(high), math.log(max(value, self.low / 2))
        return self.start + (value - low) / (high - low) * (self.end - self.start)

    @property
    def ticks(self) -> list[float]:
        """Round numbers to name on the axis."""
        if self.base:
            steps = (1, 2, 5) if self.base == 10 else (1,)
            powers = range(-30, 60)
            every = (step * float(self.base) ** power for power in powers for step in steps)
            return [tick for tick in every if self.low <= tick <= self.high]
        raw = (self.high - self.low) / 5
        size = 10.0 ** math.floor(math.log10(raw))
        step = next(size * factor for factor in (1, 2, 5, 10) if size * factor >= raw)
        return [step * number for number in range(int(self.high / step) + 1)]


def svg(panels: Sequence[Panel], foot: str = "") -> str:
    """The figure of some panels, with a caption below."""
    rows = [panels[start : start + _PER_ROW] for start in range(0, len(panels), _PER_ROW)]
    parts, top, number = [], 0.0, 0
    for row in rows:
        height = max(_height(panel) for panel in row)
        for column, panel in enumerate(row):
            letter = f"({chr(97 + number)}) " if len(panels) > 1 else ""
            body = "\n".join(_panel(panel, letter))
            parts.append(f'<g transform="translate({column * _WIDTH:g},{top:g})">\n{body}\n</g>')
            number += 1
        top += height
    width = _WIDTH * max(len(row) for row in rows)
    lines = wrap(inert(foot), int(width / 5.2))
    parts += [_text(8, top + _LINE * (1 + n), line, size=9) for n, line in enumerate(lines)]
    height = top + _LINE * (len(lines) + 1)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:g}" height="{height:g}" '
        f'viewBox="0 0 {width:g} {height:g}" font-family="sans-serif" font-size="10">\n'
        f'<rect width="100%" height="100%" fill="white"/>\n' + "\n".join(parts) + "\n</svg>\n"
    )


def _height(panel: Panel) -> float:
    return _HEIGHT + _LINE * (len({curve.name for curve in panel.curves}) + 1)


def _panel(panel: Panel, letter: str) -> Iterator[str]:
    bottom = _TOP + _PLOT
    yield _text(8, 16, letter + panel.title, size=11, more='font-weight="bold"')
    curves = panel.curves
    ends = [y for curve in curves for y in (*curve.low, *curve.high)]
    x = Axis.over([p[0] for c in curves for p in c.points], _LEFT, _WIDTH - 12, panel.log_x)
    ys = [point[1] for curve in curves for point in curve.points] + ends
    y = Axis.over(ys, bottom, _TOP, panel.log_y)
    yield from _axes(x, y, panel, bottom)
    for number, curve in reversed([*enumerate(curves)]):  # the first are on top
        yield from _curve(curve, x, y, number)
    named = {curve.name: curve for curve in curves}
    for number, (name, curve) in enumerate(named.items()):
        at = bottom + 46 + _LINE * number
        yield from _curve(
            Curve(name, [(0, 0), (1, 0)], curve.style, curve.colour),
            Axis(0, 1, _LEFT, _LEFT + 24),
            Axis(0, 1, at - 3, 0),
            0,
        )
        yield _text(_LEFT + 34, at, name)


def _axes(x: Axis, y: Axis, panel: Panel, bottom: float) -> Iterator[str]:
    for tick in x.ticks:
        yield _line([(x.at(tick), bottom), (x.at(tick), _TOP)], "#eee")
        yield _text(x.at(tick), bottom + 13, f"{tick:g}", anchor="middle")
    for tick in y.ticks:
        yield _line([(x.start, y.at(tick)), (x.end, y.at(tick))], "#eee")
        yield _text(_LEFT - 5, y.at(tick) + 3, f"{tick:g}", anchor="end")
    yield _line([(x.start, _TOP), (x.start, bottom), (x.end, bottom)], "#444")
    yield _text((x.start + x.end) / 2, bottom + 28, panel.x_label, anchor="middle")
    middle = (_TOP + bottom) / 2
    more = f'transform="rotate(-90 12 {middle:g})"'
    yield _text(12, middle, panel.y_label, anchor="middle", more=more)


def _curve(curve: Curve, x: Axis, y: Axis, number: int) -> Iterator[str]:
    places = [(x.at(a), y.at(b)) for a, b in curve.points]
    yield _line(places, curve.paint, _DASHES.get(curve.style, ""))
    shift = 2.0 * (number % 4)  # bars side by side would hide each other
    for (at, _), low, high in zip(places, curve.low, curve.high, strict=False):
        yield _line([(at + shift, y.at(low)), (at + shift, y.at(high))], curve.paint)
    for across, up in places if curve.style not in ("ideal", "bound") else ():
        if curve.style == "published":
            yield _line([(across - 3, up - 3), (across + 3, up + 3)], curve.paint)
            yield _line([(across - 3, up + 3), (across + 3, up - 3)], curve.paint)
        else:
            fill = "white" if curve.style == "predicted" else curve.paint
            place = f'cx="{across:.1f}" cy="{up:.1f}" r="3"'
            yield f'<circle {place} fill="{fill}" stroke="{curve.paint}"/>'


def _text(
    x: float, y: float, text: str, *, size: int = 10, anchor: str = "", more: str = ""
) -> str:
    anchor = f' text-anchor="{anchor}"' if anchor else ""
    more = f" {more}" if more else ""
    body = escape(inert(text))
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" fill="#333"{anchor}{more}>{body}</text>'
    )


def _line(places: Sequence[tuple[float, float]], colour: str, dashes: str = "") -> str:
    points = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
    dashed = f' stroke-dasharray="{dashes}"' if dashes else ""
    return f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="1.3"{dashed}/>'
