"""Finds lasting changes in a series of nightly values. Pure Python, no numpy.

Two rules. A value far below its level breaks at once (`breakage`). A lasting change is found by a
window-limited likelihood ratio (Lai 1995, J. R. Stat. Soc. B 57:613): the mean of the last 2 to 8
nights against the nights before them. A window's extreme night counts as much as its second, and
one night gone astray the other way not at all, so that a single spike neither is nor hides a
change. Level and spread are robust, evidence is discounted by the series' own autocorrelation,
and a weekly rhythm is taken out where the history shows one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import date
from enum import Enum
from itertools import pairwise
from statistics import median

MIN_NIGHTS, FEW_NIGHTS = 20, 6
"""Nights of a level before changes against it can be seen: of the first, of later ones."""
RETURN_NIGHTS = 3
"""Nights back at the old level after which a change is over."""
BASELINE_NIGHTS, SPREAD_NIGHTS = 60, 120
"""How far back the level is taken from, and how far back the spread."""
WINDOW_NIGHTS = 8
BREAKAGE = 0.15
"""A night this fraction below its level is a breakage the same night."""
_CLIP, _ASTRAY, _REST = 4.0, 3.0, 1.6
_EVIDENCE, _NOISY_EVIDENCE, _SMALL_EVIDENCE, _RISE_MORE = 2.3, 3.4, 3.9, 0.7
_LARGE_CHANGE, _LEAST_CHANGE = 0.03, 0.01
_BREAKAGE_SPREADS = 5.0
_NARROWEST = 0.003
_MAD_TO_SIGMA = 1.4826


class Kind(str, Enum):
    """What happened to a series."""

    DROP = "drop"
    RISE = "rise"
    BREAKAGE = "breakage"


@dataclass(frozen=True)
class Night:
    """What one night measured; more of them on one date are runs of the same night."""

    date: date
    value: float
    release: str = ""
    driver: str = ""
    node: str = ""


@dataclass(frozen=True)
class Change:
    """A change: the night it began, the night it was seen, and what changed with it.

    `change` is a fraction of the level `before`; `suspects` name what else changed that night.
    """

    kind: Kind
    began: date
    seen: date
    before: float
    after: float
    index: int
    suspects: tuple[str, ...] = ()

    @property
    def change(self) -> float:
        """After against before, as a fraction."""
        return self.after / self.before - 1 if self.before else 0.0


@dataclass(frozen=True)
class Analysis:
    """A whole series: its changes, its level now and how far it scatters (a fraction)."""

    nights: int
    changes: tuple[Change, ...]
    level: float
    spread: float
    enough: bool
    slow_nodes: tuple[str, ...] = ()

    @property
    def alarm(self) -> Change | None:
        """The last change, where it is one for the worse that still holds."""
        last = self.changes[-1] if self.changes else None
        return last if last and last.kind is not Kind.RISE else None


@dataclass
class _State:
    """What is known so far: where the level that holds began, and how series scattered before.

    `residuals` are deviations from the levels that held before; `before` is the last of those,
    and `earlier` what was known while it held.
    """

    start: int = 0
    before: float = math.nan
    residuals: list[float] = field(default_factory=list)
    earlier: tuple[int, list[float]] = (0, [])
    changes: list[tuple[Kind, int, int, float]] = field(default_factory=list)


@dataclass(frozen=True)
class _Known:
    """Of the nights before: spread as a fraction, how many made the level, autocorrelation."""

    spread: float
    nights: int
    correlation: float

    def variance(self, nights: int) -> float:
        """Of the sum of `nights` standardised values in a row, correlated up to three apart."""
        together = sum((1 - k / nights) * self.correlation**k for k in range(1, min(nights, 4)))
        return nights * (1 + 2 * together)


def analyse(series: Sequence[Night]) -> Analysis:
    """Everything there is to say of a series.

    Args:
        series: nights in any order; higher values are better; several per date are one night.
    """
    ordered = sorted(series, key=lambda night: night.date)
    each: dict[date, list[float]] = {}
    for night in ordered:
        each.setdefault(night.date, []).append(night.value)
    dates, values = [*each], [median(runs) for runs in each.values()]
    found = detect(values, [day.weekday() for day in dates])
    changes = tuple(_change(change, dates, values, ordered) for change in found)
    start = max((c.index for c in changes if c.kind is not Kind.BREAKAGE), default=0)
    level, spread = _level(values[start:][-BASELINE_NIGHTS:] or [0.0])
    return Analysis(
        nights=len(dates),
        changes=_still_true(changes, values),
        level=level,
        spread=spread / level if level else 0.0,
        enough=len(dates) > MIN_NIGHTS,
        slow_nodes=slow_nodes(ordered),
    )


def detect(
    values: Sequence[float], weekdays: Sequence[int] = ()
) -> list[tuple[Kind, int, int, float]]:
    """Changes of a series as (kind, first night, night seen, level before), by index.

    Nights are looked at one after the other, as they come; nothing looks ahead.
    """
    state = _State()
    for night in range(len(values)):
        _look(state, values, weekdays, night)
    return state.changes


def _look(state: _State, values: Sequence[float], weekdays: Sequence[int], night: int) -> None:
    """Judge one night against the nights before it."""
    _look_for_return(state, values, night)
    need = MIN_NIGHTS if len(state.residuals) < MIN_NIGHTS else FEW_NIGHTS
    if night - state.start < need:
        _look_for_breakage(state, values, night, state.before, _spread(state.residuals))
        return
    first = max(state.start + need, night - WINDOW_NIGHTS + 1)
    past = range(max(state.start, first - BASELINE_NIGHTS), first)
    days = [weekdays[i] for i in past] if weekdays else []
    rhythm = _weekend_effect([values[i] for i in past], days)
    calm = [_calm(values, weekdays, rhythm, i) for i in past]
    middle = median(calm)
    if not middle > 0:
        return
    residuals = _residuals(state, values, weekdays, rhythm, first)
    spread = max(_spread(residuals), _NARROWEST * middle)
    level = _mean(calm, middle, spread)
    _look_for_breakage(state, values, night, level, spread)
    now = [_calm(values, weekdays, rhythm, i) for i in range(first, night + 1)]
    known = _Known(spread / level, len(calm), _autocorrelation(residuals, spread))
    for kind, sign, more in ((Kind.DROP, -1, 0.0), (Kind.RISE, 1, _RISE_MORE)):
        z = [sign * (value - level) / spread for value in now]
        if not _lasting(z, known, more):
            continue
        began = first + _split(z)
        if began == night:
            continue  # one night is no lasting change
        state.changes.append((kind, began, night, level))
        state.earlier = (state.start, state.residuals)
        state.start, state.before, state.residuals = began, level, residuals
        return


def _look_for_return(state: _State, values: Sequence[float], night: int) -> None:
    """A change whose next nights are back at the level before did not last, or was chance.

    What was known before it holds again. Back from a drop is told, as a rise.
    """
    kind, began, seen, level = state.changes[-1] if state.changes else (Kind.BREAKAGE, 0, 0, 0.0)
    if kind is Kind.BREAKAGE or began != state.start:
        return
    if not RETURN_NIGHTS <= night - seen <= FEW_NIGHTS:
        return
    changed = median(values[began : seen + 1])
    back = median(values[night - RETURN_NIGHTS + 1 : night + 1])
    if abs(back - level) < abs(back - changed):
        if kind is Kind.DROP:
            state.changes.append((Kind.RISE, night - RETURN_NIGHTS + 1, night, changed))
        state.start, state.residuals = state.earlier


def _residuals(
    state: _State, values: Sequence[float], weekdays: Sequence[int], rhythm: float, first: int
) -> list[float]:
    """Deviations of the nights before `first` from the levels that held, the last 120 of them."""
    past = range(max(state.start, first - SPREAD_NIGHTS), first)
    calm = [_calm(values, weekdays, rhythm, i) for i in past]
    level = median(calm)
    return [*state.residuals, *(value - level for value in calm)][-SPREAD_NIGHTS:]


def _lasting(z: Sequence[float], known: _Known, more: float) -> bool:
    """Whether some window that ends tonight shows a lasting rise of standardised values."""
    if z[-1] <= 0:
        return False
    return any(_shows(z[-nights:], known, more) for nights in range(2, len(z) + 1))


def _shows(window: Sequence[float], known: _Known, more: float) -> bool:
    """Whether the mean of a window is too high for chance."""
    kept = sorted(min(value, _CLIP) for value in window if not _is_astray(value, window))
    if len(kept) < 2 or kept[-2] <= 0:
        return False
    rest, total = sum(kept[:-1]), sum(kept[:-1]) + kept[-2]
    size = median(kept) * known.spread
    evidence = total / math.sqrt(known.variance(len(kept)) * (1 + len(kept) / known.nights))
    if evidence <= _needed(size, known.spread) + more or size < _LEAST_CHANGE:
        return False
    return rest / math.sqrt(known.variance(len(kept) - 1)) > _REST


def _needed(size: float, spread: float) -> float:
    """How much evidence a change needs, in standard deviations.

    More where a series scatters by 2 % than by 1 %, and more for a change that is small.
    """
    noisy = min(1.0, max(0.0, (spread - 0.014) / 0.004))
    large = _EVIDENCE + noisy * (_NOISY_EVIDENCE - _EVIDENCE)
    return large if size >= _LARGE_CHANGE else max(large, _SMALL_EVIDENCE)


def _look_for_breakage(
    state: _State, values: Sequence[float], night: int, level: float, spread: float
) -> None:
    """A night far below its level is reported at once, the nights after it are not again."""
    if not level > 0:
        return
    drop = level - values[night]
    again = any(kind is Kind.BREAKAGE and night - seen <= 1 for kind, _, seen, _ in state.changes)
    if drop >= max(BREAKAGE * level, _BREAKAGE_SPREADS * spread) and not again:
        state.changes.append((Kind.BREAKAGE, night, night, level))


def _split(z: Sequence[float]) -> int:
    """The night that parts a window best into the old level, 0, and a new one (least squares)."""
    nights = [(i, min(2 * _CLIP, value)) for i, value in enumerate(z) if not _is_astray(value, z)]

    def misfit(first: int) -> float:
        after = [value for index, value in nights if index >= first]
        mean = sum(after) / len(after)
        before = sum(value * value for index, value in nights if index < first)
        return before + sum((value - mean) ** 2 for value in after)

    return min((index for index, _ in nights), key=misfit)


def _is_astray(value: float, window: Sequence[float]) -> bool:
    """Whether this is the one night of a window that lies far on the other side."""
    return value < -_ASTRAY and sum(other < -_ASTRAY for other in window) == 1


def _spread(residuals: Sequence[float]) -> float:
    """Robust standard deviation of deviations from a level; 0 where nothing is known.

    The larger of two: by the median absolute deviation, which underestimates for few values
    (Croux and Rousseeuw 1992), and the standard deviation of values clipped at four of those,
    which knows of heavy tails.
    """
    count = len(residuals)
    if count < 2:
        return 0.0
    mad = median(map(abs, residuals)) * _MAD_TO_SIGMA * count / (count - 0.8)
    clipped = sum(min(abs(residual), 4 * mad) ** 2 for residual in residuals)
    return max(mad, math.sqrt(clipped / (count - 1)))


def _level(values: Sequence[float]) -> tuple[float, float]:
    """Median and robust standard deviation, at least a small fraction of the median."""
    middle = median(values)
    spread = _spread([value - middle for value in values])
    return middle, max(spread, _NARROWEST * abs(middle), 1e-12)


def _mean(values: Sequence[float], middle: float, spread: float) -> float:
    """Mean of a level's nights, each at most 1.5 spreads from their median (Huber 1964)."""
    reach = 1.5 * spread
    return middle + sum(max(-reach, min(reach, v - middle)) for v in values) / len(values)


def _autocorrelation(residuals: Sequence[float], spread: float) -> float:
    """Correlation of neighbouring nights, 0 where it is negative or little is known."""
    z = [max(-2.5, min(2.5, residual / spread)) for residual in residuals]
    power = sum(x * x for x in z)
    if power <= 0 or len(z) < MIN_NIGHTS:
        return 0.0
    return max(0.0, min(0.7, sum(a * b for a, b in pairwise(z)) / power))


def _weekend_effect(values: Sequence[float], weekdays: Sequence[int]) -> float:
    """How far weekends lie from working days, 0 where the history does not show it clearly."""
    if not weekdays:
        return 0.0
    weekend = [v for v, day in zip(values, weekdays, strict=True) if day >= 5]
    week = [v for v, day in zip(values, weekdays, strict=True) if day < 5]
    if len(weekend) < 4 or len(week) < MIN_NIGHTS:
        return 0.0
    effect = median(weekend) - median(week)
    _, spread = _level(week)
    doubt = 1.25 * spread * math.sqrt(1 / len(weekend) + 1 / len(week))
    return effect if abs(effect) > 2.5 * doubt else 0.0


def _calm(values: Sequence[float], weekdays: Sequence[int], rhythm: float, index: int) -> float:
    """A value without its weekly rhythm."""
    return values[index] - (rhythm if rhythm and weekdays[index] >= 5 else 0.0)


def _still_true(changes: Sequence[Change], values: Sequence[float]) -> tuple[Change, ...]:
    """The changes without a breakage that was over the next night: it is history, no alarm."""

    def recovered(change: Change) -> bool:
        over = change.kind is Kind.BREAKAGE and change.index < len(values) - 1
        return over and values[change.index + 1] > change.before * (1 - BREAKAGE / 2)

    return tuple(change for change in changes if not recovered(change))


def _change(
    found: tuple[Kind, int, int, float],
    dates: Sequence[date],
    values: Sequence[float],
    series: Sequence[Night],
) -> Change:
    kind, began, seen, before = found
    after = median(values[began : seen + 1])
    suspects = _suspects(series, dates, began)
    return Change(kind, dates[began], dates[seen], before, after, began, suspects)


def _suspects(series: Sequence[Night], dates: Sequence[date], began: int) -> tuple[str, ...]:
    """What was different from the night of a change on: release, driver or node."""
    if began == 0:
        return ()
    before = [night for night in series if night.date == dates[began - 1]]
    after = [night for night in series if night.date == dates[began]]
    found = []
    for what in ("release", "driver", "node"):
        old = {getattr(night, what) for night in before} - {""}
        new = {getattr(night, what) for night in after} - {""}
        if old and new and old != new:
            found.append(f"{what} {'+'.join(sorted(old))} -> {'+'.join(sorted(new))}")
    return tuple(found)


def slow_nodes(series: Sequence[Night], nights: int = 3) -> tuple[str, ...]:
    """Nodes that are slower than the others on the last nights on which several were measured.

    A node's value is its median over those nights against the median of all; slow is more than
    4 % and 4 robust standard deviations of the nodes below it.
    """
    days = sorted({night.date for night in series if night.node})[-nights:]
    recent = [night for night in series if night.node and night.date in days]
    names = sorted({night.node for night in recent})
    if len(names) < 3:
        return _slower_of_two(recent, names)
    each = {name: median(n.value for n in recent if n.node == name) for name in names}
    middle, spread = _level(list(each.values()))
    limit = max(0.04 * middle, 4 * spread)
    return tuple(name for name, value in each.items() if middle - value > limit)


def _slower_of_two(recent: Sequence[Night], names: Sequence[str]) -> tuple[str, ...]:
    """Of two nodes one is slow only when it is far slower, and on every night."""
    if len(names) != 2:
        return ()
    one, other = ([n.value for n in recent if n.node == name] for name in names)
    if max(one) < min(other) * (1 - BREAKAGE):
        return (names[0],)
    return (names[1],) if max(other) < min(one) * (1 - BREAKAGE) else ()
