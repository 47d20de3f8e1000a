"""Finds lasting changes in a series of nightly values. Pure Python, no numpy.

Two rules. A value far below its level breaks at once (`breakage`). A lasting change is found by a
window-limited likelihood ratio (Lai 1995, J. R. Stat. Soc. B 57:613): the mean of the last 2 to 8
nights against the nights before them (`estimate`). A window's extreme night counts for little more
than its second, or not at all where it alone lies far off, so that a single spike neither is nor
hides a change. A change whose next nights are back where they were has ended (Wald 1945).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from enum import Enum
from statistics import median, median_low
from typing import NamedTuple

from hpcdl.regress.estimate import Estimate, estimate, level_of, spread_of
from hpcdl.regress.nodes import slow_nights

MIN_NIGHTS, FEW_NIGHTS = 20, 6
"""Nights of a level before changes against it can be seen: of the first, of later ones."""
BASELINE_NIGHTS, SPREAD_NIGHTS = 90, 120
"""How far back the level is taken from, and how far back the spread."""
WINDOW_NIGHTS = 8
BREAKAGE = 0.15
"""A night this fraction below its level is a breakage the same night."""
_BREAKAGE_SPREADS = 5.0
_OUTLIER, _LONE, _LONE_SIZE = 3.0, 4.6, 0.09
"""Spreads that one night lies off the other way, or alone the same way (and a fraction)."""
_GAP, _ABOVE = 0.01, 2.0
"""How far beyond the second the extreme night of a window counts (a fraction of the level), and
how far beyond the median any night of a longer one (spreads)."""
_CALM, _NOISY = 0.013, 0.016
_EVIDENCE, _NOISY_EVIDENCE, _SMALL_EVIDENCE, _RISE_MORE = 2.1, 2.85, 3.9, 0.7
"""Spreads of the mean: of a calm series, of a noisy one, of a small change; more for rises."""
_MORE = {2: 0.3, 3: 0.0}
_MORE_OF_MANY = 0.9
_LEAST = {2: 0.031, 3: 0.025}
_LEAST_OF_MANY, _LEAST_CHANGE = 0.025, 0.01
"""How large a change must be by nights, as a fraction of the level; with much evidence, any."""
_RETURN, _RETURN_NIGHTS = 3.5, 30
"""Log likelihood that a series is back, and for how long after a change that is asked."""
_FRESH_NIGHTS = 10
_NEAR, _STEADY = 2, 3
"""Nights that what changed with it may lie off; nights on one node before another one counts."""
_SUSPICIOUS, _SUSPICIOUS_DROP = 1.9, 0.1


class Kind(str, Enum):
    """What happened to a series."""

    DROP = "drop"
    RISE = "rise"
    BREAKAGE = "breakage"


class Night(NamedTuple):
    """What one night measured; more of them on one date are runs of the same night."""

    date: date
    value: float
    release: str = ""
    driver: str = ""
    node: str = ""


@dataclass(frozen=True)
class Change:
    """A change: the night it began, the night it was seen, and what changed with it.

    `change` is a fraction of the level `before`; `suspects` name what else changed that night;
    `ended` is the first of the nights that were back at the level before.
    """

    kind: Kind
    began: date
    seen: date
    before: float
    after: float
    index: int
    suspects: tuple[str, ...] = ()
    ended: date | None = None
    end_index: int | None = None

    @property
    def edges(self) -> tuple[int, ...]:
        """The nights on which levels begin because of it."""
        if self.kind is Kind.BREAKAGE:
            return ()
        return (self.index,) if self.end_index is None else (self.index, self.end_index)

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
        """The last change that has not ended, where it is one for the worse."""
        last = next((one for one in reversed(self.changes) if one.ended is None), None)
        return last if last and last.kind is not Kind.RISE else None


class Found(NamedTuple):
    """A change by index: its first night, the night it was seen, the level before, its end."""

    kind: Kind
    began: int
    seen: int
    before: float
    ended: int | None = None


@dataclass(frozen=True)
class _Level:
    """A level that holds: its first night, and the deviations from the levels before it."""

    start: int = 0
    deviations: tuple[float, ...] = ()


@dataclass
class _State:
    """What is known so far.

    `now` is the level that holds and `earlier` the one before the last change, whose height and
    spread are in `before`; `back` is the night after which changes are looked for again.
    """

    values: Sequence[float]
    weekdays: Sequence[int]
    now: _Level = field(default_factory=_Level)
    earlier: _Level = field(default_factory=_Level)
    before: Estimate | None = None
    back: int = 0
    changes: list[Found] = field(default_factory=list)
    known: tuple[int, Estimate | None] = (-_FRESH_NIGHTS, None)

    @property
    def need(self) -> int:
        """Nights that a level must have before changes against it can be seen."""
        return MIN_NIGHTS if len(self.now.deviations) < MIN_NIGHTS else FEW_NIGHTS

    def first(self, night: int) -> int:
        """The first night of the longest window that ends with this one."""
        return max(self.now.start + self.need, night - WINDOW_NIGHTS + 1)

    def calm(self, known: Estimate, first: int, end: int) -> list[float]:
        """Values without their weekly seasonality."""
        if not (shift := known.seasonality):
            return list(self.values[first:end])
        return [self.values[i] - shift * (self.weekdays[i] >= 5) for i in range(first, end)]

    def estimate(self, night: int) -> Estimate | None:
        """What the nights before the window of this one tell."""
        first = self.first(night)
        past = range(max(self.now.start, first - BASELINE_NIGHTS), first)
        missing = max(0, SPREAD_NIGHTS - len(past))
        return estimate(
            [self.values[i] for i in past],
            [self.weekdays[i] for i in past] if self.weekdays else (),
            self.now.deviations[-missing:] if missing else (),
        )

    def first_known(self, night: int) -> Estimate | None:
        """What the very first nights tell: enough to see that something broke."""
        return None if night < FEW_NIGHTS - 1 else estimate(self.values[:night], (), ())

    def known_at(self, night: int) -> Estimate | None:
        """An estimate that may be a few nights old."""
        if not 0 <= night - self.known[0] < _FRESH_NIGHTS:
            self.known = (night, self.estimate(night))
        return self.known[1]


def analyse(series: Sequence[Night], least: float = 0.0) -> Analysis:
    """Everything there is to say of a series.

    Args:
        series: nights in any order; higher values are better; several per date are one night.
        least: how far below the others a node must lie to be slow, as a fraction.
    """
    ordered = sorted(series, key=lambda night: night.date)
    each: dict[date, list[Night]] = {}
    for night in ordered:
        each.setdefault(night.date, []).append(night)
    dates, values = [*each], nightly([[run.value for run in runs] for runs in each.values()])
    changes = tuple(
        _change(found, dates, values, each)
        for found in detect(values, [day.weekday() for day in dates])
        if not _is_over(found, values)
    )
    start = max((edge for change in changes for edge in change.edges), default=0)
    level, spread = level_of(values[start:][-BASELINE_NIGHTS:] or [0.0])
    return Analysis(
        nights=len(dates),
        changes=changes,
        level=level,
        spread=spread / level if level else 0.0,
        enough=len(dates) > MIN_NIGHTS,
        slow_nodes=slow_nodes(ordered, least),
    )


def is_alarming(runs: Iterable[tuple[str, float]]) -> bool:
    """Whether a change for the worse holds at the end of a series: `analyse`, but only that.

    Args:
        runs: time as ISO 8601 and value, oldest first.
    """
    each: dict[str, list[float]] = {}
    for time, value in runs:
        each.setdefault(time[:10], []).append(value)
    values = nightly([*each.values()])
    found = detect(values, [date.fromisoformat(day).weekday() for day in each])
    lasting = [one for one in found if one.ended is None and not _is_over(one, values)]
    return bool(lasting) and lasting[-1].kind is not Kind.RISE


def nightly(runs: Sequence[Sequence[float]]) -> list[float]:
    """The value of each night: the mean of its runs, each as near to their median as runs lie.

    Means of a few runs scatter less than their medians; an outlier must not move them.
    """
    middles = [median(night) for night in runs]
    inside = [
        run - middle
        for night, middle in zip(runs, middles, strict=True)
        if len(night) > 2
        for run in night
    ]
    reach = 2 * spread_of(inside)
    return [
        sum(max(middle - reach, min(middle + reach, run)) for run in night) / len(night)
        if len(night) > 2
        else middle
        for night, middle in zip(runs, middles, strict=True)
    ]


def detect(values: Sequence[float], weekdays: Sequence[int] = ()) -> list[Found]:
    """Changes of a series, by index.

    Nights are looked at one after the other, as they come; nothing looks ahead.
    """
    state = _State(values, weekdays)
    for night in range(len(values)):
        _look(state, night)
    return state.changes


def _look(state: _State, night: int) -> None:
    """Judge one night against the nights before it."""
    _look_for_return(state, night)
    if night - state.now.start < state.need:
        _look_for_breakage(state, night, state.before or state.first_known(night))
        return
    known = state.known_at(night)
    if known is None or not _is_suspicious(state, known, night):
        return
    known = state.estimate(night)
    state.known = (night, known)
    if known is None:
        return
    _look_for_breakage(state, night, known)
    _look_for_change(state, night, known)


def _is_suspicious(state: _State, known: Estimate, night: int) -> bool:
    """Whether a closer look may find something: most nights of most series need none."""
    if state.values[night] < known.level * (1 - _SUSPICIOUS_DROP):
        return True
    low = high = 0.0
    recent = state.calm(known, max(state.first(night), state.back), night + 1)
    for nights, value in enumerate(reversed(recent), 1):
        z = (value - known.level) / known.spread
        low, high = low - min(z, 1.0), high + max(z, -1.0)
        if nights > 1 and max(low, high) > _SUSPICIOUS * nights**0.5:
            return True
    return False


def _look_for_change(state: _State, night: int, known: Estimate) -> None:
    """A window that ends tonight and shows a lasting change begins a new level."""
    first = max(state.first(night), state.back)
    recent = state.calm(known, first, night + 1)
    for kind, sign, more in ((Kind.DROP, -1, 0.0), (Kind.RISE, 1, _RISE_MORE)):
        z = [sign * (value - known.level) / known.spread for value in recent]
        if not _lasting(z, known, more):
            continue
        began = first + _split(z)
        if began == night:
            continue  # one night is no lasting change
        state.changes.append(Found(kind, began, night, known.level))
        state.earlier = state.now
        state.before = known
        state.now = _Level(began, _deviations(state, known, first))
        state.known = (-_FRESH_NIGHTS, None)
        return


def _deviations(state: _State, known: Estimate, first: int) -> tuple[float, ...]:
    """Deviations of the nights before `first` from the levels that held, the last 120 of them."""
    past = state.calm(known, max(state.now.start, first - SPREAD_NIGHTS), first)
    middle = median(past)
    return (*state.now.deviations, *(value - middle for value in past))[-SPREAD_NIGHTS:]


def _look_for_return(state: _State, night: int) -> None:
    """A change whose next nights are back at the level before did not last, or was chance.

    A sequential test of the old level against the new one, over the nights since it was seen.
    What was known before it holds again.
    """
    backwards = range(len(state.changes) - 1, -1, -1)
    index = next((i for i in backwards if state.changes[i].kind is not Kind.BREAKAGE), None)
    if index is None:
        return
    last, before = state.changes[index], state.before
    nights = night - last.seen
    if before is None or last.ended is not None or not 1 <= nights <= _RETURN_NIGHTS:
        return
    z = [(v - before.level) / before.spread for v in state.calm(before, last.began, night + 1)]
    changed, since = z[:-nights], z[-nights:]
    shift = median(changed)
    if shift * sum(shift / 2 - value for value in since) > _RETURN:
        state.changes[index] = last._replace(ended=last.seen + 1)
        state.now, state.back = state.earlier, night + 1
        state.known = (-_FRESH_NIGHTS, None)


def _lasting(z: Sequence[float], known: Estimate, more: float) -> bool:
    """Whether some window that ends tonight shows a lasting rise of standardised values."""
    if not z or z[-1] <= 0:
        return False
    return any(_shows(z[-nights:], known, more) for nights in range(2, len(z) + 1))


def _shows(window: Sequence[float], known: Estimate, more: float) -> bool:
    """Whether the mean of a window is too high for chance."""
    kept = _kept(window, known)
    count = len(kept)
    if count < 2:
        return False
    total = sum(kept)
    if total <= _EVIDENCE * math.sqrt(count):
        return False  # whatever else is known: the usual case, and a quick answer
    size = total / count * known.noise
    if len(window) > max(_LEAST):
        size = min(size, median(kept) * known.noise)
    evidence = total / known.deviation(count) / known.uncertainty - more
    enough = _needed(known.noise) + _MORE.get(count, _MORE_OF_MANY)
    large = size >= _LEAST.get(count, _LEAST_OF_MANY) and evidence > enough
    return large or (size >= _LEAST_CHANGE and evidence > _SMALL_EVIDENCE)


def _kept(window: Sequence[float], known: Estimate) -> list[float]:
    """What counts of a window, in order: no single night decides, on either side."""
    kept = sorted(value for value in window if not _is_outlier(value, window))
    lone = max(_LONE, _LONE_SIZE / known.noise)
    far = sum(value > lone for value in kept)
    if far == 1 or (far == 2 and kept[0] < lone / 2):
        kept = kept[:-far]
    if len(kept) > 1:
        kept[-1] = min(kept[-1], kept[-2] + _GAP / known.noise)
    most = median_low(kept) + _ABOVE if len(kept) > max(_LEAST) else math.inf
    return [min(value, most) for value in kept]


def _needed(noise: float) -> float:
    """How much evidence a change needs: more where a series scatters by 2 % than by 1 %."""
    noisy = min(1.0, max(0.0, (noise - _CALM) / (_NOISY - _CALM)))
    return _EVIDENCE + noisy * (_NOISY_EVIDENCE - _EVIDENCE)


def _look_for_breakage(state: _State, night: int, known: Estimate | None) -> None:
    """A night far below its level is reported at once, the nights after it are not again."""
    if known is None:
        return
    drop = known.level - state.values[night]
    again = any(one.kind is Kind.BREAKAGE and night - one.seen <= 1 for one in state.changes[-2:])
    if drop >= max(BREAKAGE * known.level, known.reach(_BREAKAGE_SPREADS)) and not again:
        state.changes.append(Found(Kind.BREAKAGE, night, night, known.level))


def _split(z: Sequence[float]) -> int:
    """The night that parts a window best into the old level, 0, and a new one (least squares)."""
    nights = [(i, min(2 * _LONE, value)) for i, value in enumerate(z) if not _is_outlier(value, z)]

    def misfit(first: int) -> float:
        after = [value for index, value in nights if index >= first]
        mean = sum(after) / len(after)
        before = sum(value * value for index, value in nights if index < first)
        return before + sum((value - mean) ** 2 for value in after)

    return min((index for index, _ in nights), key=misfit)


def _is_outlier(value: float, window: Sequence[float]) -> bool:
    """Whether this is the one night of a window that lies far on the other side."""
    return value < -_OUTLIER and sum(other < -_OUTLIER for other in window) == 1


def _is_over(found: Found, values: Sequence[float]) -> bool:
    """Whether some night after a breakage was well again: then it is history, no alarm."""
    well = found.before * (1 - BREAKAGE / 2)
    later = range(found.began + 1, len(values))
    return found.kind is Kind.BREAKAGE and any(values[night] > well for night in later)


def _change(
    found: Found,
    dates: Sequence[date],
    values: Sequence[float],
    each: Mapping[date, Sequence[Night]],
) -> Change:
    began, suspects = _suspects(found, [each[day] for day in dates])
    after = median(values[began : found.seen + 1])
    ended = None if found.ended is None else dates[found.ended]
    return Change(found.kind, dates[began], dates[found.seen], found.before, after,
                  began, suspects, ended, found.ended)  # fmt: skip


def _suspects(found: Found, nights: Sequence[Sequence[Night]]) -> tuple[int, tuple[str, ...]]:
    """What changed with it, and since when.

    Noise may move a change by a night or two: where something else changed so near, it began
    then. A breakage needs no dating.
    """
    reach = 0 if found.kind is Kind.BREAKAGE else _NEAR
    near = range(max(1, found.began - reach), min(found.seen, found.began + reach) + 1)
    for night in sorted(near, key=lambda night: abs(night - found.began)):
        if changed := _changed(nights, night):
            return night, changed
    return found.began, ()


def _changed(nights: Sequence[Sequence[Night]], began: int) -> tuple[str, ...]:
    """What was different from this night on: release, driver, or the one node that was used."""
    found = []
    for what in ("release", "driver", "node"):
        past = nights[max(0, began - _STEADY) : began] if what == "node" else [nights[began - 1]]
        old = {getattr(run, what) for night in past for run in night} - {""}
        new = {getattr(run, what) for run in nights[began]} - {""}
        steady = what != "node" or len(old) == len(new) == 1
        if old and new and old != new and steady:
            found.append(f"{what} {'+'.join(sorted(old))} -> {'+'.join(sorted(new))}")
    return tuple(found)


def slow_nodes(series: Sequence[Night], least: float = 0.0) -> tuple[str, ...]:
    """Nodes that are slower than the others on the last nights on which several were measured."""
    each: dict[date, dict[str, list[float]]] = {}
    for night in series:
        if night.node:
            each.setdefault(night.date, {}).setdefault(night.node, []).append(night.value)
    nights = [{node: median(values) for node, values in each[day].items()} for day in sorted(each)]
    return slow_nights(nights, least)
