"""Simple laws of scaling, which the model must beat: fitted without the source they are judged on.

Linear scaling; Amdahl's law and a logarithmic one, each with one parameter; alpha-beta, the
priced all-reduce with nothing overlapped; and a regression on what a table of rows shows. A law is
a loss in logarithms between the base's count and the row's. Parameters are those of the least
summed |error|, errors above a bound counted as the bound.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from hpcdl.predict.learn import Normal, Pair, without_each

_MOST_ERROR = 0.25
_RIDGE, _SWEEPS = 0.05, 300
_STEPS = tuple(0.001 * 1.12**step for step in range(60))


@dataclass(frozen=True)
class Row:
    """What a simple law sees of a row: counts, and communication per computing, of both ends."""

    pair: Pair
    gpus: int
    base: int
    nodes: int
    communication: float
    base_communication: float


Law = Callable[[Row, float], float]


def amdahl(row: Row, part: float) -> float:
    """A part of the work that does not scale."""
    return math.log((1 + part * (row.gpus - 1)) / (1 + part * (row.base - 1)))


def logarithmic(row: Row, part: float) -> float:
    """The same loss at every doubling."""
    return math.log((1 + part * math.log2(row.gpus)) / (1 + part * math.log2(row.base)))


def alpha_beta(row: Row) -> float:
    """An all-reduce after computing, at the links' published figures."""
    return math.log((1 + row.communication) / (1 + row.base_communication))


def table(rows: Sequence[Row]) -> list[tuple[str, list[float]]]:
    """The losses that every law expects of every row."""
    return [
        ("linear scaling", [0.0 for _ in rows]),
        ("Amdahl's law, 1 parameter", _one_parameter(rows, amdahl)),
        ("1/(1 + c log2 N), 1 parameter", _one_parameter(rows, logarithmic)),
        ("alpha-beta without overlap", [alpha_beta(row) for row in rows]),
        ("regression, 8 features", _regression(rows)),
    ]


def _one_parameter(rows: Sequence[Row], law: Law) -> list[float]:
    """Every row by the parameter that suits the rows of other sources best."""
    worse: dict[str, list[float]] = {}
    for row in rows:
        own = worse.setdefault(row.pair.source, [0.0] * len(_STEPS))
        for index, part in enumerate(_STEPS):
            own[index] += min(abs(math.exp(row.pair.loss - law(row, part)) - 1), _MOST_ERROR)
    total = [sum(column) for column in zip(*worse.values(), strict=True)]
    best = {}
    for source, own in worse.items():
        rest = [everything - one for everything, one in zip(total, own, strict=True)]
        best[source] = _STEPS[rest.index(min(rest))]
    return [law(row, best[row.pair.source]) for row in rows]


def _features(row: Row) -> list[float]:
    inside, sent = math.log2(row.gpus / row.nodes), row.communication
    return [math.log2(row.gpus / row.base), inside, math.log2(row.nodes),
            (row.pair.kind == "real") * inside, math.sqrt(sent), math.log1p(sent),
            float(row.nodes > 1), row.pair.shares[3]]  # fmt: skip


def _regression(rows: Sequence[Row]) -> list[float]:
    """Least squares with a small ridge, without the rows of the row's own source."""
    features = [_features(row) for row in rows]
    parts: dict[str, Normal] = {}
    for row, own in zip(rows, features, strict=True):
        parts.setdefault(row.pair.source, Normal(len(own))).add(own, row.pair.loss)
    none = [0.0] * len(features[0])
    fitted = without_each(
        parts, lambda rest: rest.solved(_RIDGE, none, least=-math.inf, sweeps=_SWEEPS)
    )
    return [
        sum(a * b for a, b in zip(own, fitted[row.pair.source], strict=True))
        for row, own in zip(rows, features, strict=True)
    ]
