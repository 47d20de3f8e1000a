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
from hpcdl.predict.feed import ENDLESS, feed
from hpcdl.predict.hardware import ASSUMED, Machine, of_host
from hpcdl.predict.learn import (
    Pair,
    Ranges,
    Spread,
    fit,
    kind_of,
    left_out,
    scale,
    shares,
    values,
    with_values,
)
from hpcdl.predict.network import Network, kept_bytes, names, network
from hpcdl.predict.records import Bases, Record, read_records
from hpcdl.predict.step import (
    PRECISIONS,
    Constants,
    Profile,
    Step,
    Training,
    constants,
    predict_step,
    profile,
)

_MOST_ASSUMED = 256
_NOT_A_REFERENCE = "do not use as scaling reference"
_SUPERLINEAR = 1.1
_SPEEDUP = "speed-up"
_IMAGES = "images/s"
_ROUNDS = 4
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

    def step(self, one: Profile, known: Constants) -> Step:
        """The step of these GPUs."""
        return predict_step(self.machine, self.training, one, self.gpus, self.nodes, known)


@dataclass(frozen=True)
class Case:
    """A row that can be predicted: how, and what it was measured at (in `unit`)."""

    record: Record
    base: Record
    row: Side
    start: Side
    one_seconds: float
    measured: float
    unit: str
    assumed: tuple[str, ...]

    @property
    def machine(self) -> Machine:
        """The row's machine."""
        return self.row.machine

    @property
    def training(self) -> Training:
        """What the row trains."""
        return self.row.training

    @property
    def linear(self) -> float:
        """The value of scaling without any loss."""
        ratio = self.row.gpus / self.start.gpus
        return ratio * (1.0 if self.unit == _SPEEDUP else self.base.rate or 0.0)

    @property
    def kind(self) -> str:
        """Which ranges the row has."""
        return kind_of(self.row.nodes, real=self.training.feed.supply(1) < float("inf"))


@dataclass(frozen=True)
class Judged:
    """A row, what was measured, and what the model says without having seen its source.

    `low` and `high` bound eight of ten; `shown` is the value of the shipped constants, `step` the
    step they give; `error` is relative.
    """

    case: Case
    predicted: float
    low: float
    high: float
    shown: float
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
        _judged(*row, ranges, known) for row in zip(cases, pairs, expected, shown, strict=False)
    )
    return Validation(
        judged, tuple(unfit), _table(every, pairs, expected, shown, len(cases)),
        fit(pairs, prior),
        tuple((kind, ranges.of(kind)) for kind in ("within", "real", "across")),
    )  # fmt: skip


@cache
def _ours() -> tuple[Case, ...]:
    """The cases of the facts, from which rows of other files are judged."""
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
        if isinstance(found, Unfit):
            unfit.append(found)
        elif _NOT_A_REFERENCE in record.notes:
            unfit.append(_doubted(found, f"its source warns: {record.notes}", known))
        elif found.measured > _SUPERLINEAR * found.linear:
            unfit.append(_doubted(found, "more than linear: its base was hindered", known))
        else:
            cases.append(found)
    return cases, unfit


def _doubted(case: Case, reason: str, known: Constants) -> Unfit:
    value = case.linear * math.exp(-pair_of(case, known).expected(values(known)))
    step = case.row.step(profile_of(case, known), known)
    return Unfit(case.record, reason, Judged(case, value, value, value, value, step))


def _judged(
    case: Case, pair: Pair, expected: float, shown: float, ranges: Ranges, known: Constants
) -> Judged:
    spread, wide = ranges.of(pair.kind, pair.source), scale(expected)
    value = case.linear * math.exp(-expected)
    return Judged(
        case, value, value * math.exp(-spread.high * wide), value * math.exp(-spread.low * wide),
        case.linear * math.exp(-shown), case.row.step(profile_of(case, known), known),
    )  # fmt: skip


def _table(
    cases: Sequence[Case],
    pairs: Sequence[Pair],
    expected: Sequence[float],
    shown: Sequence[float],
    count: int,
) -> tuple[tuple[str, Errors], ...]:
    """The model and the laws on the first `count` rows, fitted without their source (machine)."""
    machines = {
        id(pair): f"{case.machine.gpu} {case.record.system}"
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
    known = _unit(constants("early"))
    one = profile_of(case, known)
    bare = [
        replace(side, training=replace(side.training, form="no_overlap")).step(one, known)
        for side in (case.row, case.start)
    ]
    row, start = (step.exposed / step.compute for step in bare)
    return case.row.gpus, case.start.gpus, case.row.nodes, row, start


def _unit(known: Constants) -> Constants:
    return with_values(known, (1.0, 1.0, 1.0, 1.0))


def pair_of(case: Case, known: Constants) -> Pair:
    """A case as the statistical layer sees it."""
    one, unit = profile_of(case, known), _unit(known)
    return Pair(
        case.record.source, case.kind, shares(case.row.step(one, unit)),
        shares(case.start.step(one, unit)), math.log(case.linear / case.measured),
    )  # fmt: skip


def case_of(record: Record, bases: Bases) -> Case | Unfit:
    """How a row is predicted, or why it cannot be."""
    reason = _unusable(record)
    if reason:
        return Unfit(record, reason)
    base = bases.of(record)
    if base is None or not base.rate or not base.gpus or base.gpus % base.nodes:
        return Unfit(record, "no row of fewer GPUs of its source, hardware and settings")
    gpus = record.gpus or 1
    machine = _machine_of(record, gpus)
    if machine is None:
        return Unfit(record, f"the GPU '{record.gpu}' is not in the facts")
    if record.rate is None and base.gpus > 1:
        return Unfit(record, "a speed-up, but no single-GPU row")
    training, assumed = _training(record, base, machine)
    if machine.name == ASSUMED:
        assumed = (*assumed, "host")
    if base.batch != record.batch:
        assumed = (*assumed, f"base has batch {base.batch}")
    if base.gpus > 1:
        assumed = (*assumed, f"base has {base.gpus} GPUs")
    start = Side(
        _machine_of(base, base.gpus) or machine,
        replace(training, accumulation=base.accumulation), base.gpus, base.nodes,
    )  # fmt: skip
    rate, unit = (record.speedup, _SPEEDUP) if record.rate is None else (record.rate, _IMAGES)
    return Case(
        record, base, Side(machine, training, gpus, record.nodes), start,
        _one_seconds(start, base), rate or 0.0, unit, assumed,
    )  # fmt: skip


def _machine_of(record: Record, gpus: int) -> Machine | None:
    return of_host(
        record.gpu, record.hardware, gpus // record.nodes, record.interconnect, record.cores
    )


def _one_seconds(start: Side, base: Record) -> float:
    """Seconds of one pass of one GPU, without what the base's own count loses."""
    known = constants("early")
    measured = start.gpus * start.training.images / (base.rate or 1.0)
    one = measured / start.training.accumulation
    for _ in range(_ROUNDS):
        found = profile(start.machine, start.training, one, known)
        one *= measured / start.step(found, known).seconds
    return one


def _unusable(record: Record) -> str:
    """Why a row alone rules itself out, or nothing."""
    if record.gpus is None:
        return "its number of GPUs is not stated"
    if record.rate is None and record.speedup is None:
        return "no number: images per second and speed-up are not stated"
    if record.gpus % record.nodes:
        return f"{record.gpus} GPUs do not spread evenly over {record.nodes} nodes"
    if record.model not in names():
        return f"the layers of model '{record.model}' are not known"
    if record.precision not in PRECISIONS:
        return f"the precision '{record.precision}' is not known"
    return ""


def _training(record: Record, base: Record, machine: Machine) -> tuple[Training, tuple[str, ...]]:
    net = network(record.model, record.size)
    assumed: tuple[str, ...] = ()
    batch = record.batch or base.batch or _documented_batch(record, machine)
    if batch is None:
        batch = assumed_batch(net, machine, record.precision)
        assumed = (f"batch {batch} per GPU",)
    threads = min([machine.cores, *_decode_threads(record.framework)])
    endless = _made_at_once(record.data) or not net.channels
    training = Training(
        net, batch, record.precision, form_of(record),
        ENDLESS if endless else feed(replace(machine, cores=threads), net),
        accumulation=record.accumulation,
    )  # fmt: skip
    return training, assumed


def _made_at_once(data: str) -> bool:
    """Whether data are synthetic, or decoded on the GPU by DALI."""
    return not data or data.startswith(("synthetic", "not stated")) or "DALI" in data


def _decode_threads(framework: str) -> list[int]:
    """Threads on which a framework's own script decodes, where it takes a fixed number."""
    rows = facts.load("links")["decode_threads"]
    return [row["threads"] for row in rows if framework.startswith(row["framework"])]


def form_of(record: Record) -> str:
    """The form a row's `variable_update` names, else that of its framework.

    TensorFlow's `replicated` without NCCL adds gradients on one device per variable and copies
    the sums back: a parameter server whose shards are the devices.
    """
    update = record.update.lower()
    known: list[tuple[str, str]] = facts.load("links")["forms"]
    named = next((form for word, form in known if word in update), "")
    return named or ("horovod" if "horovod" in record.framework.lower() else "replicated")


def _documented_batch(record: Record, machine: Machine) -> int | None:
    """The batch that the source's own scripts use, where its table states none."""
    wanted = (record.source, record.model, machine.gpu, record.precision)
    for row in facts.load("links")["documented_batches"]["rows"]:
        if (row["publisher"], row["model"], row["gpu"], row["precision"]) == wanted:
            return int(row["batch"])
    return None


def assumed_batch(net: Network, machine: Machine, precision: str) -> int:
    """The largest power of two that a GPU's memory holds, where a source states no batch."""
    kept = kept_bytes(net, 1, Training(net, 1, precision).activation_bytes)
    batch = 1
    while batch < _MOST_ASSUMED and 2 * batch * kept <= machine.memory:
        batch *= 2
    return batch


@lru_cache(maxsize=4096)
def profile_of(case: Case, known: Constants) -> Profile:
    """The one-GPU step of a case, layer by layer."""
    return profile(case.machine, case.training, case.one_seconds, known)


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
