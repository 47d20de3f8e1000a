"""What earlier nights tell of a series: level, spread, dependence, tails, seasonality. Pure.

Robust throughout: a bad night in the past shall neither raise what is allowed tonight nor hide in
the level. The spread is Huber's "proposal 2" (values are clipped at 2.5 of the very spread that
comes out), which for normal noise is far less uncertain than the median absolute deviation; all
else that makes evidence weaker than it looks is told beside it.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from statistics import median

NARROWEST = 0.003
"""Of a level: no series is taken to scatter less."""
_MAD_TO_SIGMA = 1.4826
_CLIP, _CONSISTENT = 2.5, 0.97757
"""Where deviations are clipped, and the variance of normal ones that are clipped there."""
_ROUNDS = 3
_FEW_FOR_CORRELATION = 20
_REACH_NIGHTS = 3
_DOUBT_OF_FEW, _DOUBT_OF_DEPENDENCE, _DOUBT_OF_TAILS = 4.0, 1.1, 0.11


@dataclass(frozen=True)
class Estimate:
    """Of the nights before one.

    `level`, `spread` and `seasonality` (by which weekends differ) are in the series' unit; `nights`
    made the level; `z` are standardised deviations of these and earlier nights from their levels.
    """

    level: float
    spread: float
    nights: int
    seasonality: float
    z: Sequence[float]

    @cached_property
    def correlation(self) -> float:
        """Of neighbouring nights, 0 where it is negative or little is known."""
        clipped = [max(-_CLIP, min(_CLIP, value)) for value in self.z]
        power = sum(x * x for x in clipped)
        if power <= 0 or len(clipped) < _FEW_FOR_CORRELATION:
            return 0.0
        return max(0.0, min(0.7, sum(a * b for a, b in pairwise(clipped)) / power))

    @cached_property
    def tails(self) -> float:
        """Kurtosis of the deviations, clipped at 5; 3 for normal noise."""
        squares = [min(25.0, value * value) for value in self.z]
        power = sum(squares)
        return len(squares) * sum(x * x for x in squares) / power**2 if power > 0 else 3.0

    @property
    def noise(self) -> float:
        """The spread as a fraction of the level."""
        return self.spread / self.level

    def deviation(self, nights: int) -> float:
        """Of the sum of `nights` standardised values in a row, the level being an estimate too."""
        reach = range(1, min(nights, _REACH_NIGHTS + 1))
        together = sum((1 - k / nights) * self.correlation**k for k in reach)
        return math.sqrt(nights * (1 + 2 * together) * (1 + nights / self.nights))

    def reach(self, spreads: float) -> float:
        """So many spreads in the series' unit, and more where few nights tell of them."""
        return spreads * self.spread * self.few

    @property
    def few(self) -> float:
        """How much more evidence is needed, as a factor, since the spread is an estimate."""
        return 1 + _DOUBT_OF_FEW / len(self.z)

    @cached_property
    def uncertainty(self) -> float:
        """How much more evidence is needed, as a factor, than where all of this is known."""
        dependent = _DOUBT_OF_DEPENDENCE * min(0.3, max(0.0, self.correlation - 0.1))
        heavy = _DOUBT_OF_TAILS * min(2.0, max(0.0, self.tails - 3))
        return self.few * (1 + dependent + heavy)


def estimate(
    past: Sequence[float], weekdays: Sequence[int], deviations: Sequence[float]
) -> Estimate | None:
    """What the nights before tell, or None where they have no level.

    Args:
        past: the values that make the level.
        weekdays: of these values, 0 for Monday; none where they are not known.
        deviations: of earlier nights, from the levels that held then; those of `past` are added.
    """
    seasonality = weekend_effect(past, weekdays)
    calm = without_seasonality(past, weekdays, seasonality)
    middle = median(calm)
    if not middle > 0:
        return None
    all_of_them = [*deviations, *(value - middle for value in calm)]
    spread = max(spread_of(all_of_them), NARROWEST * middle)
    z = [deviation / spread for deviation in all_of_them]
    return Estimate(_mean(calm, middle, spread), spread, len(calm), seasonality, z)


def spread_of(deviations: Sequence[float]) -> float:
    """Robust standard deviation of deviations from a level (Huber 1964); 0 for fewer than two."""
    count = len(deviations)
    if count < 2:
        return 0.0
    squares = sorted([deviation * deviation for deviation in deviations])
    middle = (math.sqrt(squares[count // 2]) + math.sqrt(squares[(count - 1) // 2])) / 2
    spread = middle * _MAD_TO_SIGMA * count / (count - 0.8)
    for _ in range(_ROUNDS):
        most = (_CLIP * spread) ** 2
        inside = bisect_left(squares, most)
        clipped = sum(squares[:inside]) + (count - inside) * most
        spread = math.sqrt(clipped / (count - 1) / _CONSISTENT)
    return spread


def level_of(values: Sequence[float]) -> tuple[float, float]:
    """Median and robust standard deviation, at least a small fraction of the median."""
    middle = median(values)
    spread = spread_of([value - middle for value in values])
    return middle, max(spread, NARROWEST * abs(middle))


def weekend_effect(values: Sequence[float], weekdays: Sequence[int]) -> float:
    """How far weekends lie from working days, less what may be chance (James and Stein 1961)."""
    if not weekdays:
        return 0.0
    weekend = [v for v, day in zip(values, weekdays, strict=True) if day >= 5]
    week = [v for v, day in zip(values, weekdays, strict=True) if day < 5]
    if len(weekend) < 4 or len(week) < 10:
        return 0.0
    effect = median(weekend) - median(week)
    _, spread = level_of(week)
    chance = 1.25 * spread * math.sqrt(1 / len(weekend) + 1 / len(week))
    return effect * max(0.0, 1 - (1.2 * chance / effect) ** 2) if effect else 0.0


def without_seasonality(
    values: Sequence[float], weekdays: Sequence[int], seasonality: float
) -> Sequence[float]:
    """The values as they would be on working days."""
    if not seasonality:
        return values
    return [v - seasonality if day >= 5 else v for v, day in zip(values, weekdays, strict=True)]


def _mean(values: Sequence[float], middle: float, spread: float) -> float:
    """Mean of a level's nights, each at most 1.5 spreads from their median (Huber 1964)."""
    reach = 1.5 * spread
    return middle + sum(max(-reach, min(reach, v - middle)) for v in values) / len(values)
