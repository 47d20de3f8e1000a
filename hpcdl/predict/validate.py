"""The model against published rows, none of whose source the constants have seen.

Every row of more than one GPU is predicted from the row of the fewest GPUs of its source (one,
where there is one). The constants are fitted anew without the row's source (`left out`), and
without its machine; beside these figures stand laws with at most one parameter of their own,
fitted in the same way. What the shipped constants give on the rows they were fitted to is called
so. Rows that cannot be predicted are named with the reason.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache

from hpcdl import facts
from hpcdl.predict import laws
from hpcdl.predict.cases import Case, case_of, pair_of, profile_of, unit
from hpcdl.predict.learn import Pair, Ranges, Spread, fit, left_out, scale, values
from hpcdl.predict.records import Bases, Record, read_records
from hpcdl.predict.step import Constants, Step, constants

_NOT_A_REFERENCE = "do not use as scaling reference"
_SUPERLINEAR = 1.1
BY_SOURCE = "the model, source left out"
BY_MACHINE = "the model, machine left out"
IN_SAMPLE = "the model, in-sample: on the rows it was fitted to"


@dataclass(frozen=True)
class Judged:
    """A row, what was measured, and what the model says without having seen its source.

    `low` and `high` bound eight of ten; `step` is that of the shipped constants; `error` relative.
    """

    case: Case
    predicted: float
    low: float
    high: float
    step: Step

    @property
    def error(self) -> float:
        """(predicted - measured) / measured."""
        return self.predicted / self.case.measured - 1

    @property
    def inside(self) -> bool:
        """Whether the measured value lies in the range."""
        return self.low <= self.case.measured <= self.high


@dataclass(frozen=True)
class Unfit:
    """A row the model is not compared with, and why.

    `predicted` is the shipped model's value all the same, where the row itself is uncertain.
    """

    record: Record
    reason: str
    predicted: Judged | None = None


@dataclass(frozen=True)
class Errors:
    """Errors of a set of rows: median and 90th percentile of |error|, and the mean error."""

    rows: int
    median: float
    ninetieth: float
    bias: float


@dataclass(frozen=True)
class Validation:
    """All of it: rows, the table of models and laws, and the ranges by kind."""

    judged: tuple[Judged, ...]
    unfit: tuple[Unfit, ...]
    table: tuple[tuple[str, Errors], ...]
    constants: tuple[float, ...]
    spreads: tuple[tuple[str, Spread], ...]

    @property
    def warned(self) -> tuple[Judged, ...]:
        """Rows that are left out though they could be predicted."""
        return tuple(row.predicted for row in self.unfit if row.predicted)


@lru_cache(maxsize=4)
def validate(records: tuple[Record, ...], known: Constants | None = None) -> Validation:
    """Compare the model with every record of more than one GPU.

    Rows of a file of the user's own are fitted together with ours, each without its source.
    """
    known = known or constants("early")
    cases, unfit = _sorted_out(records, known)
    if not cases:
        return Validation((), tuple(unfit), (), (), ())
    ids = {record.id for record in records}
    every = [*cases, *(case for case in _ours() if case.record.id not in ids)]
    pairs = tuple(pair_of(case, known) for case in every)
    prior = published()
    expected = left_out(pairs, prior, lambda pair: pair.source)
    ranges = Ranges(pairs, expected)
    shown = [pair.expected(values(known)) for pair in pairs]
    judged = tuple(
        _judged(case, loss, ranges.of(pair.kind, pair.source), known)
        for case, pair, loss in zip(cases, pairs, expected, strict=False)
    )
    table = _table(every, pairs, expected, shown, len(cases))
    spreads = tuple((kind, ranges.of(kind)) for kind in ("within", "real", "across"))
    return Validation(judged, tuple(unfit), table, fit(pairs, prior), spreads)


@cache
def _ours() -> tuple[Case, ...]:
    return tuple(_sorted_out(read_records(), constants("early"))[0])


def published() -> tuple[float, ...]:
    """The published constants, to which the fit is drawn."""
    row = facts.load("links")["constants"]["published"]
    return tuple(row[name] for name in ("straggler", "exposed", "contention", "input"))


def _sorted_out(records: Iterable[Record], known: Constants) -> tuple[list[Case], list[Unfit]]:
    cases, unfit = [], []
    bases = Bases(records)
    for record in records:
        if record.gpus == 1:
            continue
        found = case_of(record, bases)
        if isinstance(found, str):
            unfit.append(Unfit(record, found))
        elif _NOT_A_REFERENCE in record.notes:
            unfit.append(_doubted(found, f"its source warns: {record.notes}", known))
        elif found.measured > _SUPERLINEAR * found.linear:
            unfit.append(_doubted(found, "more than linear: its base was hindered", known))
        else:
            cases.append(found)
    return cases, unfit


def _doubted(case: Case, reason: str, known: Constants) -> Unfit:
    expected = pair_of(case, known).expected(values(known))
    return Unfit(case.record, reason, _judged(case, expected, Spread(0.0, 0.0), known))


def _judged(case: Case, expected: float, spread: Spread, known: Constants) -> Judged:
    value, wide = case.linear * math.exp(-expected), scale(expected)
    low, high = value * math.exp(-spread.high * wide), value * math.exp(-spread.low * wide)
    return Judged(case, value, low, high, case.row.step(profile_of(case, known), known))


def _table(
    cases: Sequence[Case], pairs: Sequence[Pair], expected: Sequence[float],
    shown: Sequence[float], count: int,
) -> tuple[tuple[str, Errors], ...]:  # fmt: skip
    """The model and the laws on the first `count` rows, fitted without their source (machine)."""
    machines = {
        id(pair): f"{case.row.machine.gpu} {case.record.system}"
        for case, pair in zip(cases, pairs, strict=True)
    }
    losses = [
        (BY_SOURCE, expected),
        (BY_MACHINE, left_out(pairs, published(), lambda pair: machines[id(pair)])),
        *laws.table([laws.Row(pair, *_plain(c)) for c, pair in zip(cases, pairs, strict=True)]),
        (IN_SAMPLE, shown),
    ]
    return tuple(
        (name, errors([math.exp(pairs[i].loss - found[i]) - 1 for i in range(count)]))
        for name, found in losses
    )


def _plain(case: Case) -> tuple[int, int, int, float, float]:
    """What simple laws look at: GPUs, the base's, nodes, and unhidden communication of both."""
    known = unit(constants("early"))
    one = profile_of(case, known)
    bare = [
        replace(side, training=replace(side.training, form="no_overlap")).step(one, known)
        for side in (case.row, case.start)
    ]
    row, start = (step.exposed / step.compute for step in bare)
    return case.row.gpus, case.start.gpus, case.row.nodes, row, start


def errors(found: Sequence[float]) -> Errors:
    """Median, 90th percentile (nearest rank) and mean of relative errors."""
    sizes = sorted(map(abs, found))
    rank = min(len(sizes) - 1, max(0, -(-9 * len(sizes) // 10) - 1))
    return Errors(len(sizes), statistics.median(sizes), sizes[rank], statistics.fmean(found))


def grouped(judged: Iterable[Judged], key: Callable[[Judged], str]) -> dict[str, Errors]:
    """Errors by source, by model or by whatever `key` gives, the largest group first."""
    groups: dict[str, list[float]] = {}
    for row in judged:
        groups.setdefault(key(row), []).append(row.error)
    ordered = sorted(groups.items(), key=lambda item: (-len(item[1]), item[0]))
    return {name: errors(found) for name, found in ordered}


def coverage(judged: Sequence[Judged]) -> dict[str, float]:
    """The part of rows inside their range, by kind and over all."""
    kinds = {"all": list(judged)}
    for row in judged:
        kinds.setdefault(row.case.kind, []).append(row)
        alone = "from one GPU" if row.case.start.gpus == 1 else "from several GPUs"
        kinds.setdefault(alone, []).append(row)
    return {name: sum(row.inside for row in rows) / len(rows) for name, rows in kinds.items()}
