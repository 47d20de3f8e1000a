"""Lasting changes of a series of nights: what changed, since when, how far, and with what. Pure.

`changes` finds them in the nights' values; here the nights are made from runs (nodes and weekends
that always differ are no change), and a change is told for people. An alarm is a change for the
worse that holds and is so sure that all series of a site together close the gate wrongly on at
most `BUDGET` of the nights; one that is less sure is a warning and closes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import date
from statistics import median

from hpcdl.regress import changes as law
from hpcdl.regress.changes import LEVEL_NIGHTS, Found, may_hold
from hpcdl.regress.estimate import (
    UNKNOWN,
    Nightly,
    Shared,
    level_of,
    nightly,
    shrunk,
    weekend_effect,
)
from hpcdl.regress.identity import Night

BUDGET = 0.01
"""The site's one knob: the part of nights on which its gate may be closed by chance alone."""
_NOW_NIGHTS, _LEVEL_RUNS, _ASKED = 7, 3, 60
_STEADY, _NODE_NIGHTS = 3, 5
"""Nights on one node before another one counts as a change; that tell how a node differs."""


@dataclass(frozen=True)
class Change:
    """A change for the worse that holds: the night it began, and what changed with it.

    `after` is the level of the last nights, `before` the one that the change ended; `suspects` name
    what else changed on its first night. `evidence` is a normal deviate; `sure` says that it
    suffices to close the site's gate. With `lower`, lower values are better.
    """

    began: date
    before: float
    after: float
    evidence: float
    sure: bool
    suspects: tuple[str, ...] = ()
    lower: bool = False

    @property
    def word(self) -> str:
        """What happened to the values: drop or rise."""
        return "rise" if self.lower else "drop"

    @property
    def change(self) -> float:
        """After against before, as a fraction."""
        return self.after / self.before - 1 if self.before else 0.0


@dataclass(frozen=True)
class Runs:
    """The runs of a series by date, and its nights.

    `plain` are their values less what nodes always differ by, `nights` also less what weekends do.
    """

    dates: Sequence[date]
    each: Sequence[Sequence[Night]]
    plain: Sequence[float]
    nights: Nightly


def runs_of(ordered: Iterable[Night], shared: Shared = UNKNOWN) -> Runs:
    """A series' runs, oldest first, as nights."""
    by_date: dict[date, list[Night]] = {}
    for night in ordered:
        by_date.setdefault(night.date, []).append(night)
    each = [*by_date.values()]
    offsets = _node_effects(each)
    found = nightly([[run.value - offsets.get(run.node, 0.0) for run in night] for night in each])
    calm = without_weekends(found, [day.weekday() for day in by_date])
    calm = replace(calm, shared=shared)
    return Runs([*by_date], each, found.values, calm)


def worse(
    series: Sequence[Night], watched: int = 1, shared: Shared = UNKNOWN, *, lower: bool = False
) -> Change | None:
    """The last change of a series that has not ended, where it is one for the worse.

    Nights may be in any order; several of one date are runs of one. `watched` series share the
    site's budget of nights that are closed by chance. Where `lower` values are better, a time is
    looked at as its rate, 1/t.
    """
    each = sorted(as_rates(series) if lower else series, key=lambda night: night.date)
    runs = runs_of(each, shared)
    active = [found for found in law.detect(runs.nights) if found.ended is None]
    if not active or active[-1].rise:
        return None
    change = _change(active[-1], runs, law.closing_strength(BUDGET, watched))
    if not lower:
        return change
    before, after = (1 / value if value else 0.0 for value in (change.before, change.after))
    return replace(change, before=before, after=after, lower=True)


def may_be_low_tonight(values: Sequence[float]) -> bool:
    """Return whether the law may find the last of some nights' values doubtful: a quick test."""
    recent = values[-31:-1]
    return bool(recent) and 3 * sum(value <= values[-1] for value in recent) <= len(recent) + 2


def is_doubtful(series: Sequence[Night], shared: Shared = UNKNOWN, *, lower: bool = False) -> bool:
    """Return whether the last night of a series should be measured again.

    As `worse`; several runs on its date are those so far.
    """
    ordered = sorted(as_rates(series) if lower else series, key=lambda night: night.date)
    if not ordered:  # no time of them is a number to compare
        return False
    tonight = [one.value for one in ordered if one.date == ordered[-1].date]
    if len(tonight) == 1 and not may_be_low_tonight([one.value for one in ordered]):
        return False
    before = next((one for one in reversed(ordered) if one.date != ordered[-1].date), ordered[-1])
    fresh = (before.release, before.driver) != (ordered[-1].release, ordered[-1].driver)
    return law.is_doubtful(runs_of(ordered, shared).nights, fresh=fresh)


def learn_shared(each: Sequence[Sequence[Night]]) -> Shared:
    """What the series of a site tell of the part of a deviation that all runs of a night share.

    One series is measured again on a few nights only; those of a site together know the part well.
    Of many series every nth is asked; series whose nights have several runs anyway tell nothing.
    """
    learnt = Shared(0.0, 0.0)
    for series in each[:: 1 + len(each) // _ASKED]:
        nights = runs_of(sorted(series, key=lambda night: night.date)).nights
        if nights.usual == 1 < max(map(len, nights.runs), default=1):
            learnt = Shared(*map(float.__add__, learnt, law.shared_by(nights)))
            learnt = Shared(*map(float.__sub__, learnt, UNKNOWN))
    return Shared(*map(float.__add__, learnt, UNKNOWN)).opinion()


def at_level(nights: Sequence[Night], since: str) -> list[Night]:
    """The nights, those before an accepted level moved to it, so that their noise still counts."""
    before = [night for night in nights if night.date.isoformat() < since]
    after = [night.value for night in nights if night.date.isoformat() >= since]
    if not since or not before or len(after) < _LEVEL_RUNS:
        return [night for night in nights if night.date.isoformat() >= since]
    old = median(night.value for night in before[-LEVEL_NIGHTS:])
    times = median(after[:LEVEL_NIGHTS]) / old if old else 1.0
    moved = [night._replace(value=night.value * times) for night in before]
    return [*moved, *nights[len(before) :]]


def as_rates(series: Iterable[Night]) -> list[Night]:
    """Times as rates, so that higher is better; what is no time is left out."""
    return [night._replace(value=1 / night.value) for night in series if night.value > 0]


def may_be_worse(values: Sequence[float], nodes: Sequence[str], *, lower: bool = False) -> bool:
    """Return whether a series may have a lasting change for the worse: a quick test.

    `values` are of each night, oldest first, the mean of its runs; `nodes` where it was one.
    """
    if lower:
        values, nodes = (
            [1 / value for value in values if value > 0],
            [on for value, on in zip(values, nodes, strict=True) if value > 0],
        )
    return may_hold(values) or (len({*nodes}) > 1 and may_hold(_alike(values, nodes)))


def means_alike(runs: Sequence[Night]) -> tuple[Sequence[float], Sequence[str]]:
    """Each night's mean, as `may_be_worse` takes it, of runs as if their nodes were alike."""
    by_date: dict[date, list[float]] = {}
    values = _alike([run.value for run in runs], [run.node for run in runs])
    for run, value in zip(runs, values, strict=True):
        by_date.setdefault(run.date, []).append(value)
    return [sum(night) / len(night) for night in by_date.values()], [""] * len(by_date)


def _alike(values: Sequence[float], nodes: Sequence[str]) -> list[float]:
    """The values less what nodes usually differ by, which hides a change from a quick look."""
    each: dict[str, list[float]] = {}
    for value, on in zip(values, nodes, strict=True):
        each.setdefault(on, []).append(value)
    level = median(values)
    apart = {on: median(some) - level for on, some in each.items() if len(some) >= _NODE_NIGHTS}
    return [value - apart.get(on, 0.0) for value, on in zip(values, nodes, strict=True)]


def without_weekends(nights: Nightly, weekdays: Sequence[int]) -> Nightly:
    """The nights as they would be on working days."""
    effect = weekend_effect(nights.values, weekdays)
    if not effect:
        return nights
    less = [effect * (day >= 5) for day in weekdays]
    values = [value - one for value, one in zip(nights.values, less, strict=True)]
    runs = [[run - one for run in each] for each, one in zip(nights.runs, less, strict=False)]
    return Nightly(values, nights.step, runs)


def _node_effects(each: Sequence[Sequence[Night]]) -> dict[str, float]:
    """Return how far each node is from the others, beside the nights around (7 before, 7 after).

    Twice, since nights on other nodes are no measure of each other before this is known.
    """
    on = {frozenset([run.node for run in night]) for night in each}
    if len(on) < 2:
        return {}  # what all nights have in common is no difference between them
    effects: dict[str, float] = {}
    for _ in range(2):
        middles = [
            median(run.value - effects.get(run.node, 0.0) for run in night) for night in each
        ]
        apart: dict[str, list[float]] = {}
        for index, night in enumerate(each):
            level = median(middles[max(0, index - 7) : index + 8])
            for run in night:
                apart.setdefault(run.node, []).append(run.value - level)
        for name, values in apart.items():
            others = [value for other, rest in apart.items() if other != name for value in rest]
            if min(len(values), len(others)) >= _NODE_NIGHTS:
                part = len(others) / (len(values) + len(others))
                effects[name] = shrunk(values, others) * part
    return effects


def _change(change: Found, runs: Runs, enough: float) -> Change:
    evidence = law.evidence_now(change, runs.nights)
    now = runs.plain[change.level_start :][-_NOW_NIGHTS:]
    began, clear = law.onset(change, runs.nights)
    # Noise may move an onset: where something changed on a night that is clear, it began then.
    # What came a night before or after is not blamed.
    changed = {night: _changed(runs.each, night) for night in clear if night > 0}
    began, suspects = next(((n, what) for n, what in changed.items() if what), (began, ()))
    return Change(
        began=runs.dates[began],
        before=change.before,
        after=sum(now) / len(now) if len(now) < 3 else level_of(now)[0],
        evidence=round(min(evidence, 99.0), 2),
        sure=evidence >= enough,
        suspects=suspects,
    )


def _changed(nights: Sequence[Sequence[Night]], began: int) -> tuple[str, ...]:
    """Return what changed on this night: release, driver, or the only node."""
    changes = []
    for what in ("release", "driver", "node"):
        past = nights[max(0, began - _STEADY) : began] if what == "node" else [nights[began - 1]]
        old = {getattr(run, what) for night in past for run in night} - {""}
        new = {getattr(run, what) for run in nights[began]} - {""}
        steady = what != "node" or len(old) == len(new) == 1
        if old and new and old != new and steady:
            changes.append(f"{what} {'+'.join(sorted(old))} -> {'+'.join(sorted(new))}")
    return tuple(changes)
