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
from dataclasses import dataclass
from typing import NamedTuple

from hpcdl import facts
from hpcdl.predict.step import Step, largest_of

_RIDGE, _HUBER, _ROUNDS, _SWEEPS = 0.2, 0.03, 6, 40
_FEWEST = 20
Shares = tuple[float, float, float, float]
"""Stragglers, exposed and hidden communication, input: parts of computing, per constant."""


@dataclass(frozen=True)
class Pair:
    """A row and its base: shares of both steps, and the loss in logarithms that was measured.

    Simple laws see the counts of GPUs (`base_gpus` of the base) and `nodes` alone, and, where
    nothing hides it, `communication` per computing of both ends.
    """

    source: str
    kind: str
    shares: Shares
    base: Shares
    loss: float
    gpus: int
    base_gpus: int
    nodes: int
    communication: tuple[float, float]

    def expected(self, constants: Sequence[float]) -> float:
        """The loss by the constants."""
        return math.log(_step(self.shares, constants) / _step(self.base, constants))


def shares(step: Step) -> Shares:
    """The shares of a step that was computed with every constant 1."""
    parts = (step.exposed / step.compute, step.contention / step.compute)
    return largest_of(step.gpus), *parts, step.input_wait / step.compute


def fit(pairs: Sequence[Pair], prior: Sequence[float]) -> tuple[float, ...]:
    """The constants, none below 0; the prior's where there are no rows."""
    found, weights = tuple(prior), Counter(pair.source for pair in pairs)
    for _ in range(_ROUNDS if pairs else 0):
        normal = Normal(4)
        for pair in pairs:
            _add(normal, pair, found, weights[pair.source])
        found = normal.solved(_RIDGE, prior)
    return found


def left_out(pairs: Sequence[Pair], prior: Sequence[float], keys: Sequence[str]) -> list[float]:
    """The loss of every row by constants that were fitted without the rows of its own key.

    One step from the fit of all rows is enough: one key moves it little.
    """
    every, weights = fit(pairs, prior), Counter(pair.source for pair in pairs)
    own: dict[str, Normal] = {}
    for pair, key in zip(pairs, keys, strict=True):
        _add(own.setdefault(key, Normal(4)), pair, every, weights[pair.source])
    fitted = without_each(own, lambda rest: rest.solved(_RIDGE, prior, start=every))
    return [pair.expected(fitted[key]) for pair, key in zip(pairs, keys, strict=True)]


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
        self,
        ridge: float,
        prior: Sequence[float],
        *,
        start: Sequence[float] | None = None,
        least: float = 0.0,
        sweeps: int = _SWEEPS,
    ) -> tuple[float, ...]:
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


class Spread(NamedTuple):
    """Between which errors of the loss eight of ten rows of a kind lay, as parts of the scale."""

    low: float
    high: float


class Ranges:
    """Errors of left-out rows, by kind and source, and the range they give to another row."""

    def __init__(self, pairs: Sequence[Pair], expected: Sequence[float]) -> None:
        self._rows = [
            (pair.kind, pair.source, (pair.loss - loss) / scale(loss))
            for pair, loss in zip(pairs, expected, strict=True)
        ]

    def of(self, kind: str, without: str = "") -> Spread:
        """The middle 80 % of a kind's errors, those of one source left out.

        Half of it is what all kinds together give, as a kind may be of few sources.
        """
        rest = [(own, score) for own, source, score in self._rows if source != without]
        low, high = 0.0, 0.0
        for scores in ([score for own, score in rest if own == kind], [score for _, score in rest]):
            if len(scores) >= _FEWEST:
                found, tenth = sorted(scores), len(scores) // 10
                low, high = low + found[tenth] / 2, high + found[-1 - tenth] / 2
        return Spread(low, high)


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


# ---- simple laws, which the model must beat: fitted without the source they are judged on ----

_MOST_ERROR = 0.25
_LAW_RIDGE, _LAW_SWEEPS = 0.05, 300
_PARTS = tuple(0.001 * 1.12**step for step in range(60))


def laws(pairs: Sequence[Pair]) -> list[tuple[str, list[float]]]:
    """The losses that every law expects of every row.

    Linear scaling; Amdahl's law and a logarithmic one, each with one parameter; alpha-beta, the
    priced all-reduce with nothing overlapped, at the links' published figures; and a regression
    on what a table of rows shows.
    """
    return [
        ("linear scaling", [0.0 for _ in pairs]),
        (
            "Amdahl's law, 1 parameter",
            _one_parameter(pairs, [(pair.gpus - 1, pair.base_gpus - 1) for pair in pairs]),
        ),
        (
            "1/(1 + c log2 N), 1 parameter",
            _one_parameter(
                pairs, [(math.log2(pair.gpus), math.log2(pair.base_gpus)) for pair in pairs]
            ),
        ),
        ("alpha-beta without overlap", [_loss(1, pair.communication) for pair in pairs]),
        ("regression, 8 features", _regression(pairs)),
    ]


def _loss(part: float, growths: tuple[float, float]) -> float:
    """The loss where a part of one GPU's work grows so between one GPU and both ends."""
    row, base = growths
    return math.log((1 + part * row) / (1 + part * base))


def _one_parameter(pairs: Sequence[Pair], growths: Sequence[tuple[float, float]]) -> list[float]:
    """Every row by the part that suits the rows of other sources best.

    That of the least summed |error|, errors above a bound counted as the bound.
    """
    worse: dict[str, list[float]] = {}
    for pair, growth in zip(pairs, growths, strict=True):
        own = worse.setdefault(pair.source, [0.0] * len(_PARTS))
        for index, part in enumerate(_PARTS):
            own[index] += min(abs(math.exp(pair.loss - _loss(part, growth)) - 1), _MOST_ERROR)
    total = [sum(column) for column in zip(*worse.values(), strict=True)]
    best = {}
    for source, own in worse.items():
        rest = [everything - one for everything, one in zip(total, own, strict=True)]
        best[source] = _PARTS[rest.index(min(rest))]
    return [_loss(best[pair.source], growth) for pair, growth in zip(pairs, growths, strict=True)]


def _regression(pairs: Sequence[Pair]) -> list[float]:
    """Least squares with a small ridge, without the rows of the row's own source."""
    features = [
        [
            math.log2(pair.gpus / pair.base_gpus),
            inside,
            math.log2(pair.nodes),
            (pair.kind == "real") * inside,
            math.sqrt(sent),
            math.log1p(sent),
            float(pair.nodes > 1),
            pair.shares[3],
        ]
        for pair in pairs
        for inside, sent in [(math.log2(pair.gpus / pair.nodes), pair.communication[0])]
    ]
    parts: dict[str, Normal] = {}
    for pair, own in zip(pairs, features, strict=True):
        parts.setdefault(pair.source, Normal(len(own))).add(own, pair.loss)
    none = [0.0] * len(features[0])
    fitted = without_each(
        parts, lambda rest: rest.solved(_LAW_RIDGE, none, least=-math.inf, sweeps=_LAW_SWEEPS)
    )
    return [
        sum(a * b for a, b in zip(own, fitted[pair.source], strict=True))
        for pair, own in zip(pairs, features, strict=True)
    ]
