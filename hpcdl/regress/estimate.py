"""Estimates from the nights before a night: level, spread, tails, dependence. Pure.

The spread is Huber's "proposal 2" (1964, Ann. Math. Stat. 35:73). One night counts for no more than
its rarity among the nights before allows: evidence z is cut where exp(-z^2/2) is the share of
them that lay as far (a robust likelihood ratio is a cut one: Huber 1965, Ann. Math. Stat. 36:1753).
It counts for as much as the night beside it, so that two such nights are no spike.
Dependence is that of neighbouring nights (AR 1); its innovations are what is summed.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import accumulate, pairwise
from statistics import NormalDist, median
from typing import NamedTuple

from hpcdl.regress.identity import LARGEST

_NORMAL = NormalDist()
NARROWEST = 0.003
"""Of a level: no series is taken to scatter less."""
_MAD_TO_SIGMA = 1.4826
_CLIP, _CONSISTENT, _ROUNDS = 2.5, 0.97757, 8
"""Huber's proposal 2: where deviations are cut, the variance that normal ones keep, iterations."""
_MOST_DEPENDENT = 0.9
"""Memory of a night is at most this: beyond it 90 nights do not tell."""


@dataclass(frozen=True)
class Noise:
    """Of the nights before one.

    `level` and `spread` are in the series' unit; `ranks` are sorted deviations in spreads;
    `memory` is the part of a night's deviation that the next one has as well, `variance` that of
    one innovation. A step of 1 is 1 in the innovation of its first night, 1 - memory in later ones.
    """

    level: float
    spread: float
    ranks: Sequence[float]
    memory: float
    variance: float

    def evidence(self, values: Sequence[float]) -> list[float]:
        """Standardised values, each cut where its rarity ends, unless its neighbour is as far."""
        level, spread = self.level, self.spread
        return _cut([(value - level) / spread for value in values], self.ranks)

    def innovations(
        self, values: Sequence[float], before: float = 0.0
    ) -> tuple[list[float], float]:
        """Return deviations less what the nights before predict of them, and the last deviation.

        `before` is that of the night before them.
        """
        each = self.evidence(values)
        return _innovations(each, self.memory, before), each[-1]

    def normal(self, t: float, nights: int) -> float:
        """Student's t of a mean of `nights` as the normal deviate that is as rare."""
        return as_normal(t, self.degrees(nights))

    def degrees(self, nights: int) -> float:
        """Of freedom of a mean of `nights`: the spread is an estimate, and the dependence is."""
        later = 1 - 1 / (1 + (nights - 1) * (1 - self.memory) ** 2)
        unsure = 2 * later * later * (2 / (1 - self.memory) - 1)
        return max(3.0, len(self.ranks) / (1 + unsure))


def _cut(each: Sequence[float], ranks: Sequence[float]) -> list[float]:
    """Standardised values as `Noise.evidence` gives them, by the sorted ones of other nights."""
    count, most, cut = len(ranks), caps(len(ranks)), [*each]
    for index, z in enumerate(each):
        if -0.9 < z < 0.9:  # no more than two in three nights lie as far: nothing to cut
            continue
        cap = most[bisect_right(ranks, z) if z < 0 else count - bisect_left(ranks, z)]
        if abs(z) > cap:
            before = each[index - 1] if index else 0.0
            after = each[index + 1] if index + 1 < len(each) else 0.0
            cap = max(cap, before, after) if z > 0 else max(cap, -before, -after)
            cut[index] = math.copysign(min(abs(z), cap), z)
    return cut


def _innovations(each: Sequence[float], memory: float, before: float = 0.0) -> list[float]:
    if not memory:
        return [*each]
    return [z - memory * past for past, z in pairwise([before, *each])]


def as_normal(t: float, degrees: float) -> float:
    """The size of Student's t as the normal deviate that is as rare (Wallace 1959)."""
    size = math.sqrt(degrees * math.log1p(t * t / degrees))
    return size * (8 * degrees + 1) / (8 * degrees + 3)


@lru_cache(maxsize=512)
def caps(count: int) -> tuple[float, ...]:
    """Return how much a night counts at most, by how many of `count` nights before were as far."""
    return tuple(-_NORMAL.inv_cdf((rank + 0.5) / (count + 1)) for rank in range(count + 1))


def noise_of(past: Sequence[float], earlier: Sequence[float], step: float) -> Noise | None:
    """Return the estimate from the nights before, or None if they have no level.

    `past` are the values that make it, `earlier` deviations of nights before those from the levels
    that held then; `step` is as in `Nightly`.
    """
    middle = median(past)
    if not 1 / LARGEST < middle < LARGEST:
        return None
    deviations = [*earlier, *[value - middle for value in past]]
    spread = max(spread_of(deviations), NARROWEST * middle, step / 2)
    level = middle + _nearer_mean(deviations[len(earlier) :], 1.5 * spread)  # Huber 1964
    z = [deviation / spread for deviation in deviations]
    ranks = sorted(z)
    evidence = _cut(z, ranks)
    memory = _memory(evidence)
    new = _innovations(evidence, memory)
    variance = sum(e * e for e in new) / max(1, len(new) - 2)
    return Noise(level, spread, ranks, memory, max(variance, 0.3))


def _nearer_mean(deviations: Sequence[float], reach: float) -> float:
    """The mean, where what lies farther than `reach` counts for as much."""
    ordered = sorted(deviations)
    low, high = bisect_left(ordered, -reach), bisect_right(ordered, reach)
    far = len(ordered) - high - low
    return (sum(ordered[low:high]) + reach * far) / len(ordered)


def _memory(evidence: Sequence[float]) -> float:
    """From the correlation of neighbouring nights."""
    power = sum(x * x for x in evidence)
    count = len(evidence)
    if power <= 0 or count < 8:
        return 0.0
    r = sum(map(float.__mul__, evidence[1:], evidence[:-1])) / power
    r = r + (1 + 3 * max(0.0, r)) / count  # Kendall 1954: estimates are low by this
    return round(max(0.0, min(_MOST_DEPENDENT, r)), 2)


def spread_of(deviations: Sequence[float]) -> float:
    """Robust standard deviation of deviations from a level (Huber 1964); 0 for fewer than two."""
    count = len(deviations)
    if count < 2:
        return 0.0
    squares = sorted([deviation * deviation for deviation in deviations])
    middle = (math.sqrt(squares[count // 2]) + math.sqrt(squares[(count - 1) // 2])) / 2
    spread = middle * _MAD_TO_SIGMA * count / (count - 0.8)
    sums = [0.0, *accumulate(squares)]
    for _ in range(_ROUNDS):
        most = (_CLIP * spread) ** 2
        inside = bisect_left(squares, most)
        clipped = sums[inside] + (count - inside) * most
        spread = math.sqrt(clipped / (count - 1) / _CONSISTENT)
    return spread


def level_of(values: Sequence[float]) -> tuple[float, float]:
    """Median and robust standard deviation, at least a small fraction of the median."""
    middle = median(values)
    return middle, max(spread_of([value - middle for value in values]), NARROWEST * abs(middle))


def resolution_of(values: Sequence[float]) -> float:
    """The step of values that only take a few, 0 for others."""
    distinct = sorted(set(values))
    if len(distinct) < 2 or 3 * len(distinct) > len(values):
        return 0.0
    return min(after - before for before, after in pairwise(distinct))


class Shared(NamedTuple):
    """What is known of the part of a run's deviation that all runs of its night share.

    Sums over nights that were measured again: of the first run's deviation times that of the
    others, and of the first one's square. They begin as an opinion of few nights.
    """

    products: float = 0.6
    squares: float = 4.0

    @property
    def part(self) -> float:
        """The part, from 0 to 0.95."""
        return max(0.0, min(0.95, self.products / self.squares))

    def opinion(self, nights: float = 40.0) -> Shared:
        """The same, as the opinion of at most so many nights."""
        times = min(1.0, nights / self.squares)
        return Shared(self.products * times, self.squares * times)

    def and_night(self, first: float, others: Sequence[float]) -> Shared:
        """With one more night: the deviations of its first run and of the others, in spreads."""
        first, *rest = (max(-4.0, min(4.0, run)) for run in (first, *others))
        weight = (len(rest) + 1) / 4
        products = weight * first * sum(rest) / len(rest)
        return Shared(self.products + products, self.squares + weight * first * first)


UNKNOWN = Shared()


@dataclass(frozen=True)
class Nightly:
    """The nights of a series.

    A value each, the resolution (0 where it is fine), the runs of each, unless all nights have one,
    and what the site's series tell of what runs share.
    """

    values: list[float]
    step: float
    runs: Sequence[Sequence[float]] = ()
    shared: Shared = UNKNOWN

    @cached_property
    def usual(self) -> float:
        """The number of runs that a night has; the scatter of nights is that of so many."""
        return median(map(len, self.runs)) if self.runs else 1.0

    @property
    def sample(self) -> Sequence[float]:
        """What tells of the scatter of nights: of a night that was measured again its first run.

        Without those low runs every later one would look like none before.
        """
        return self.firsts if self.usual == 1 else self.values

    @cached_property
    def firsts(self) -> Sequence[float]:
        """The first run of each night."""
        return [runs[0] for runs in self.runs] if self.runs else self.values


def nightly(runs: Sequence[Sequence[float]]) -> Nightly:
    """Each night as the mean of its runs, each as near to their median as runs lie.

    Means of a few runs scatter less than their medians; an outlier must not move them.
    """
    every = [run for night in runs for run in night]
    step = resolution_of(every)
    if len(every) == len(runs):
        return Nightly(every, step)
    size = median(map(len, runs)) if runs else 0
    # A run that was repeated because it was low is no fair one: the others are.
    fair = [night[1:] if size == 1 and len(night) > 1 else night for night in runs]
    each = [(night, median(night)) for night in fair]
    inside = spread_of([run - middle for night, middle in each if len(night) > 2 for run in night])
    reach = 2 * max(inside, step)
    values = [_near(night, middle, reach) if len(night) > 2 else middle for night, middle in each]
    return Nightly(values, step / size, runs)


def _near(night: Sequence[float], middle: float, reach: float) -> float:
    least, most = middle - reach, middle + reach
    if min(night) < least or max(night) > most:
        night = [max(least, min(most, run)) for run in night]
    return sum(night) / len(night)


def weekend_effect(values: Sequence[float], weekdays: Sequence[int]) -> float:
    """Return how far weekends are from workdays, less what may be chance (James and Stein 1961)."""
    weekend = [v for v, day in zip(values, weekdays, strict=True) if day >= 5]
    week = [v for v, day in zip(values, weekdays, strict=True) if day < 5]
    return shrunk(weekend, week) if len(weekend) >= 4 and len(week) >= 10 else 0.0


def shrunk(some: Sequence[float], others: Sequence[float]) -> float:
    """Return the difference of two groups' medians, less what may be chance."""
    middle = median(others)
    effect = median(some) - middle
    spread = spread_of([value - middle for value in others])
    chance = 1.25 * spread * math.sqrt(1 / len(some) + 1 / len(others))
    return effect * max(0.0, 1 - (1.2 * chance / effect) ** 2) if effect else 0.0
