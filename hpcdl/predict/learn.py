"""The statistical layer: how much each part of the model's loss counts, learned from rows.

The model gives the parts of a step beside computing (stragglers, exposed and hidden
communication, waiting for input), each as a share of computing. A step is 1 + sum of shares x
constants, so the loss between two counts of GPUs is the difference of two logarithms. The four
constants minimise a robust error (Huber's) of that loss, drawn toward the published ones by a
ridge; a source counts by the root of its rows, so that no source rules. Ranges are quantiles of
errors of sources that the fit had not seen, as parts of a scale that grows with the loss.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace

from hpcdl import facts
from hpcdl.predict.step import Constants, Step, largest_of

_RIDGE, _HUBER, _ROUNDS, _SWEEPS = 0.2, 0.03, 6, 40
Shares = tuple[float, float, float, float]
"""Stragglers, exposed and hidden communication, input: parts of computing, per constant."""


@dataclass(frozen=True)
class Pair:
    """A row and its base: shares of both steps, and the loss in logarithms that was measured."""

    source: str
    kind: str
    shares: Shares
    base: Shares
    loss: float

    def expected(self, constants: Sequence[float]) -> float:
        """The loss by the constants."""
        return math.log(_step(self.shares, constants) / _step(self.base, constants))


def shares(step: Step) -> Shares:
    """The shares of a step that was computed with every constant 1."""
    parts = (step.exposed / step.compute, step.contention / step.compute)
    return largest_of(step.gpus), *parts, step.input_wait / step.compute


def values(known: Constants) -> tuple[float, ...]:
    """The four constants in the order of shares."""
    return known.straggler, known.exposed, known.contention, known.input


def with_values(known: Constants, four: Sequence[float]) -> Constants:
    """Constants with other four."""
    straggler, exposed, contention, waits = four
    return replace(known, straggler=straggler, exposed=exposed, contention=contention, input=waits)


def fit(pairs: Sequence[Pair], prior: Sequence[float]) -> tuple[float, ...]:
    """The constants, none below 0; the prior's where there are no rows."""
    found, weights = tuple(prior), Counter(pair.source for pair in pairs)
    for _ in range(_ROUNDS if pairs else 0):
        normal = Normal(4)
        for pair in pairs:
            _add(normal, pair, found, weights[pair.source])
        found = normal.solved(_RIDGE, prior)
    return found


def left_out(
    pairs: Sequence[Pair], prior: Sequence[float], key: Callable[[Pair], str]
) -> list[float]:
    """The loss of every row by constants that were fitted without the rows of its own key.

    One step from the fit of all rows is enough: one key moves it little.
    """
    every, weights = fit(pairs, prior), Counter(pair.source for pair in pairs)
    own: dict[str, Normal] = {}
    for pair in pairs:
        _add(own.setdefault(key(pair), Normal(4)), pair, every, weights[pair.source])
    fitted = without_each(own, lambda rest: rest.solved(_RIDGE, prior, start=every))
    return [pair.expected(fitted[key(pair)]) for pair in pairs]


class Normal:
    """The normal equations of weighted least squares with `size` unknowns: matrix x = vector."""

    def __init__(self, size: int) -> None:
        self._matrix = [[0.0] * size for _ in range(size)]
        self._vector = [0.0] * size

    def add(self, slope: Sequence[float], goal: float, weight: float = 1.0) -> None:
        """A row: slope times the unknowns should be the goal."""
        for i, one in enumerate(slope):
            self._vector[i] += weight * one * goal
            for j, two in enumerate(slope):
                self._matrix[i][j] += weight * one * two

    def join(self, other: Normal, sign: int) -> None:
        """Add the rows of another one, or take them away."""
        for i, line in enumerate(other._matrix):
            self._vector[i] += sign * other._vector[i]
            self._matrix[i] = [a + sign * b for a, b in zip(self._matrix[i], line, strict=True)]

    def solved(
        self, ridge: float, prior: Sequence[float], *, start: Sequence[float] | None = None,
        least: float = 0.0, sweeps: int = _SWEEPS,
    ) -> tuple[float, ...]:  # fmt: skip
        """Unknowns of at least `least`, drawn to the prior, by coordinates in turn."""
        found = list(start or prior)
        for _ in range(sweeps):
            for i, line in enumerate(self._matrix):
                drawn = ridge * line[i] + 1e-9
                rest = sum(a * b for a, b in zip(line, found, strict=True)) - line[i] * found[i]
                goal = self._vector[i] + drawn * prior[i] - rest
                found[i] = max(least, goal / (line[i] + drawn))
        return tuple(found)


def without_each(
    parts: Mapping[str, Normal], solve: Callable[[Normal], tuple[float, ...]]
) -> dict[str, tuple[float, ...]]:
    """What all parts together give without each one."""
    found, (first, *others) = {}, parts.values()
    total = deepcopy(first)
    for part in others:
        total.join(part, 1)
    for name, part in parts.items():
        total.join(part, -1)
        found[name] = solve(total)
        total.join(part, 1)
    return found


def _add(normal: Normal, pair: Pair, found: Sequence[float], rows: int) -> None:
    """A row, linear around the constants found so far."""
    now, before = _step(pair.shares, found), _step(pair.base, found)
    slope = [one / now - two / before for one, two in zip(pair.shares, pair.base, strict=True)]
    error = pair.loss - math.log(now / before)
    weight = rows**-0.5 * min(1.0, _HUBER / max(abs(error), 1e-9))
    normal.add(slope, error + sum(map(float.__mul__, slope, found)), weight)


def _step(parts: Sequence[float], constants: Sequence[float]) -> float:
    a, b, c, d = parts
    e, f, g, h = constants
    return 1.0 + a * e + b * f + c * g + d * h


# ---- ranges ----


@dataclass(frozen=True)
class Spread:
    """Between which errors of the loss eight of ten rows of a kind lay, as parts of the scale."""

    low: float
    high: float


class Ranges:
    """Errors of left-out rows, by kind and source, and the range they give to another row."""

    def __init__(self, pairs: Sequence[Pair], expected: Sequence[float]) -> None:
        self._scores: dict[str, list[tuple[float, str]]] = {}
        for pair, loss in zip(pairs, expected, strict=True):
            score = (pair.loss - loss) / scale(loss)
            self._scores.setdefault(pair.kind, []).append((score, pair.source))
        self._all = [row for rows in self._scores.values() for row in rows]

    def of(self, kind: str, without: str = "") -> Spread:
        """The middle 80 % of a kind's errors, those of one source left out.

        Half of it is what all kinds together give, as a kind may be of few sources.
        """
        every = [self._middle(rows, without) for rows in (self._scores.get(kind, []), self._all)]
        return Spread(sum(one.low for one in every) / 2, sum(one.high for one in every) / 2)

    @staticmethod
    def _middle(rows: Sequence[tuple[float, str]], without: str) -> Spread:
        found = sorted(score for score, source in rows if source != without)
        if len(found) < _FEWEST:
            return Spread(0.0, 0.0)
        return Spread(found[len(found) // 10], found[-1 - len(found) // 10])


_FEWEST = 20


def scale(loss: float) -> float:
    """What errors of a loss are measured by: they grow with it, and a small one has some, too."""
    known = facts.load("links")["uncertainty"]["scale"]
    return float(known["least"] + known["per_loss"] * max(0.0, loss))


def kind_of(nodes: int, *, real: bool) -> str:
    """The kind of a row that has ranges of its own."""
    return "across" if nodes > 1 else "real" if real else "within"


def factors(loss: float, kind: str) -> tuple[float, float]:
    """Factors on a rate of that loss between which the truth lies eight times in ten."""
    row = facts.load("links")["uncertainty"][kind]
    return math.exp(-row["high"] * scale(loss)), math.exp(-row["low"] * scale(loss))
