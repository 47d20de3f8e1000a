"""The model against published rows, none of whose source the constants have seen.

Every row of more than one GPU is predicted from the row of the fewest GPUs of the same source,
hardware and settings; what it does not state is taken from its source's scripts or assumed, and
said. The constants are fitted anew without the row's source (`left out`), and without its machine;
beside these figures stand simple laws, fitted in the same way. What the shipped constants give on
the rows they were fitted to is called so. Rows that cannot be predicted are named with the reason.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache

from hpcdl import facts
from hpcdl.predict import step as steps
from hpcdl.predict.hardware import ASSUMED, Machine, of_host
from hpcdl.predict.learn import Pair, Ranges, Spread, fit, kind_of, laws, left_out, scale, shares
from hpcdl.predict.network import kept_bytes, names, network
from hpcdl.predict.records import Bases, Record, read_records
from hpcdl.predict.step import Profile, Step, Training, constants

_NOT_A_REFERENCE = "do not use as scaling reference"
_SUPERLINEAR = 1.1
_MOST_ASSUMED = 256
_ROUNDS = 4
CONSTANTS = ("straggler", "exposed", "contention", "input")
SPEEDUP, IMAGES = "speed-up", "images/s"
BY_SOURCE = "the model, source left out"
BY_MACHINE = "the model, machine left out"
IN_SAMPLE = "the model, in-sample: on the rows it was fitted to"


@dataclass(frozen=True)
class Side:
    """One end of a comparison: so many GPUs on so many nodes of a machine."""

    machine: Machine
    training: Training
    gpus: int
    nodes: int

    def step(self, one: Profile, known: steps.Constants) -> Step:
        """The step of these GPUs."""
        return steps.predict_step(self.machine, self.training, one, self.gpus, self.nodes, known)


@dataclass(frozen=True)
class Case:
    """A row that can be predicted: how, and what it was measured at (in `unit`)."""

    record: Record
    base: Record
    row: Side
    start: Side
    one: Profile
    measured: float
    unit: str
    assumed: tuple[str, ...]

    @property
    def linear(self) -> float:
        """The value of scaling without any loss."""
        ratio = self.row.gpus / self.start.gpus
        return ratio * (1.0 if self.unit == SPEEDUP else self.base.rate or 0.0)

    @property
    def pair(self) -> Pair:
        """The case as the statistical layer sees it: by shares of steps whose constants are 1."""
        ends, known = (self.row, self.start), replace(_known(), **dict.fromkeys(CONSTANTS, 1.0))
        row, start = (shares(side.step(self.one, known)) for side in ends)
        bare = [
            replace(side, training=replace(side.training, form="no_overlap")).step(self.one, known)
            for side in ends
        ]
        sent, sent_before = (step.exposed / step.compute for step in bare)
        return Pair(
            self.record.source,
            self.kind,
            row,
            start,
            math.log(self.linear / self.measured),
            self.row.gpus,
            self.start.gpus,
            self.row.nodes,
            (sent, sent_before),
        )

    @property
    def kind(self) -> str:
        """Which ranges the row has."""
        return kind_of(self.row.nodes, real=self.row.training.feed is not steps.ENDLESS)


@cache
def _known() -> steps.Constants:
    return constants("early")


def case_of(record: Record, bases: Bases) -> Case | str:
    """How a row is predicted, or why it cannot be."""
    reason = _unusable(record)
    if reason:
        return reason
    base = bases.of(record)
    if base is None or not base.rate or not base.gpus or base.gpus % base.nodes:
        return "no row of fewer GPUs of its source, hardware and settings"
    gpus = record.gpus or 1
    machine = _machine_of(record, gpus)
    if machine is None:
        return f"the GPU '{record.gpu}' is not in the facts"
    if record.rate is None and base.gpus > 1:
        return "a speed-up, but no single-GPU row"
    training = _training(record, base, machine)
    said = (
        (not (record.batch or base.batch), f"batch {training.batch} per GPU"),
        (machine.name == ASSUMED, "host"),
        (base.batch != record.batch, f"base has batch {base.batch}"),
        (base.gpus > 1, f"base has {base.gpus} GPUs"),
    )
    start = Side(
        _machine_of(base, base.gpus) or machine,
        replace(training, accumulation=base.accumulation),
        base.gpus,
        base.nodes,
    )
    one = steps.profile(machine, training, _one_seconds(start, base.rate), _known())
    return Case(
        record,
        base,
        Side(machine, training, gpus, record.nodes),
        start,
        one,
        record.rate or record.speedup or 0.0,
        IMAGES if record.rate else SPEEDUP,
        tuple(text for so, text in said if so),
    )


def _machine_of(row: Record, gpus: int) -> Machine | None:
    return of_host(row.gpu, row.hardware, gpus // row.nodes, row.interconnect, row.cores)


def _one_seconds(start: Side, rate: float) -> float:
    """Seconds of one pass of one GPU, without what the base's own count loses."""
    measured = start.gpus * start.training.images / rate
    one = measured / start.training.accumulation
    for _ in range(_ROUNDS):
        found = steps.profile(start.machine, start.training, one, _known())
        one *= measured / start.step(found, _known()).seconds
    return one


def _unusable(record: Record) -> str:
    """Why a row alone rules itself out, or nothing."""
    reasons = (
        (record.gpus is None, "its number of GPUs is not stated"),
        (
            record.rate is None and record.speedup is None,
            "no number: images per second and speed-up are not stated",
        ),
        (
            (record.gpus or 0) % record.nodes,
            f"{record.gpus} GPUs do not spread evenly over {record.nodes} nodes",
        ),
        (record.model not in names(), f"the layers of model '{record.model}' are not known"),
        (
            record.precision not in steps.PRECISIONS,
            f"the precision '{record.precision}' is not known",
        ),
    )
    return next((reason for so, reason in reasons if so), "")


def _training(record: Record, base: Record, machine: Machine) -> Training:
    net, data = network(record.model, record.size), record.data
    # Some frameworks' own scripts decode on a fixed number of threads.
    known = facts.load("links")["decode_threads"]
    fixed = [row["threads"] for row in known if record.framework.startswith(row["framework"])]
    # Synthetic images are made once, and DALI decodes on the GPU.
    endless = not data or data.startswith(("synthetic", "not stated")) or "DALI" in data
    decoders = replace(machine, cores=min([machine.cores, *fixed]))
    # Without a batch, the largest power of two that a GPU's memory holds.
    batch, kept = 1, kept_bytes(net, 1, Training(net, 1, record.precision).activation_bytes)
    while batch < _MOST_ASSUMED and 2 * batch * kept <= machine.memory:
        batch *= 2
    return Training(
        net,
        record.batch or base.batch or batch,
        record.precision,
        form_of(record),
        steps.ENDLESS if endless or not net.channels else steps.feed(decoders, net),
        accumulation=record.accumulation,
    )


def form_of(record: Record) -> str:
    """The form a row's `variable_update` names, else that of its framework.

    TensorFlow's `replicated` without NCCL adds gradients on one device per variable and copies
    the sums back: a parameter server whose shards are the devices.
    """
    update = record.update.lower()
    known: list[tuple[str, str]] = facts.load("links")["forms"]
    named = next((form for word, form in known if word in update), "")
    return named or ("horovod" if "horovod" in record.framework.lower() else "replicated")


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
    table: tuple[tuple[str, Errors], ...] = ()
    constants: tuple[float, ...] = ()
    spreads: tuple[tuple[str, Spread], ...] = ()


@lru_cache(maxsize=4)
def validate(records: tuple[Record, ...]) -> Validation:
    """Compare the model with every record of more than one GPU.

    Rows of a file of the user's own are fitted together with ours, each without its source.
    """
    cases, unfit = _sorted_out(records)
    if not cases:
        return Validation((), tuple(unfit))
    ids = {record.id for record in records}
    every = [*cases, *(case for case in _ours() if case.record.id not in ids)]
    pairs, prior = [case.pair for case in every], published()
    expected = left_out(pairs, prior, [pair.source for pair in pairs])
    ranges = Ranges(pairs, expected)
    machines = [f"{case.row.machine.gpu} {case.record.system}" for case in every]
    losses = [
        (BY_SOURCE, expected),
        (BY_MACHINE, left_out(pairs, prior, machines)),
        *laws(pairs),
        (IN_SAMPLE, [pair.expected(_four()) for pair in pairs]),
    ]
    return Validation(
        tuple(
            _judged(case, loss, ranges.of(pair.kind, pair.source))
            for case, pair, loss in zip(cases, pairs, expected, strict=False)
        ),
        tuple(unfit),
        tuple(
            (
                name,
                errors(
                    [
                        math.exp(pair.loss - loss) - 1
                        for _, pair, loss in zip(cases, pairs, found, strict=False)
                    ]
                ),
            )
            for name, found in losses
        ),
        fit(pairs, prior),
        tuple((kind, ranges.of(kind)) for kind in ("within", "real", "across")),
    )


@cache
def _ours() -> tuple[Case, ...]:
    return tuple(_sorted_out(read_records())[0])


def published() -> tuple[float, ...]:
    """The published constants, to which the fit is drawn."""
    row = facts.load("links")["constants"]["published"]
    return tuple(row[name] for name in CONSTANTS)


def _four() -> list[float]:
    return [getattr(_known(), name) for name in CONSTANTS]


def _sorted_out(records: Iterable[Record]) -> tuple[list[Case], list[Unfit]]:
    cases, unfit = [], []
    bases = Bases(records)
    for record in records:
        if record.gpus == 1:
            continue
        found = case_of(record, bases)
        if isinstance(found, str):
            unfit.append(Unfit(record, found))
        elif _NOT_A_REFERENCE in record.notes:
            unfit.append(_doubted(found, f"its source warns: {record.notes}"))
        elif found.measured > _SUPERLINEAR * found.linear:
            unfit.append(_doubted(found, "more than linear: its base was hindered"))
        else:
            cases.append(found)
    return cases, unfit


def _doubted(case: Case, reason: str) -> Unfit:
    judged = _judged(case, case.pair.expected(_four()), Spread(0.0, 0.0))
    return Unfit(case.record, reason, judged)


def _judged(case: Case, expected: float, spread: Spread) -> Judged:
    value, wide = case.linear * math.exp(-expected), scale(expected)
    low, high = value * math.exp(-spread.high * wide), value * math.exp(-spread.low * wide)
    return Judged(case, value, low, high, case.row.step(case.one, _known()))


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
