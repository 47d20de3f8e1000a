"""The model against every published row of more than one GPU, from its one-GPU row alone.

A prediction sees the base row, the hardware's published figures and the model's two published
constants; no measured value of the rows it is compared with. A second prediction fits those two
constants and the input's buffer on one half of the sources and tests them on the other half, both
ways. Rows that cannot be predicted are named with the reason.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from hpcdl import facts
from hpcdl.predict.feed import ENDLESS, feed
from hpcdl.predict.hardware import ASSUMED, Machine, of_host
from hpcdl.predict.network import Network, kept_bytes, names, network
from hpcdl.predict.records import Bases, Record
from hpcdl.predict.step import (
    PRECISIONS,
    Constants,
    Profile,
    Step,
    Training,
    constants,
    predict_step,
    profile,
    unfed_seconds,
)

_MOST_ASSUMED = 256
_NOT_A_REFERENCE = "do not use as scaling reference"
_SPEEDUP = "speed-up"
_IMAGES = "images/s"


@dataclass(frozen=True)
class Case:
    """A row that can be predicted: how, and what it was measured at (in `unit`)."""

    record: Record
    base: Record
    machine: Machine
    training: Training
    one_seconds: float
    measured: float
    unit: str
    assumed: tuple[str, ...]


@dataclass(frozen=True)
class Judged:
    """A row, what was measured and what the model says; `error` is relative."""

    case: Case
    predicted: float
    step: Step

    @property
    def error(self) -> float:
        """(predicted - measured) / measured."""
        return self.predicted / self.case.measured - 1


@dataclass(frozen=True)
class Unfit:
    """A row the model is not compared with, and why.

    `predicted` is the model's value all the same, where only the row's own source warns of it.
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
class Half:
    """One half of the sources, predicted with constants fitted on the other."""

    sources: tuple[str, ...]
    constants: Constants
    buffer: int
    errors: Errors


@dataclass(frozen=True)
class Validation:
    """All of it: rows by the published constants, halves by constants of each other."""

    judged: tuple[Judged, ...]
    unfit: tuple[Unfit, ...]
    halves: tuple[Half, ...]
    crossed: Errors | None
    parts: tuple[tuple[str, Errors], ...]

    @property
    def warned(self) -> tuple[Judged, ...]:
        """Rows that are left out only because their source warns of them."""
        return tuple(row.predicted for row in self.unfit if row.predicted)


@lru_cache(maxsize=4)
def validate(records: tuple[Record, ...], known: Constants | None = None) -> Validation:
    """Compare the model with every record of more than one GPU."""
    known = known or constants("early")
    cases, unfit = [], []
    bases = Bases(records)
    for record in records:
        if record.gpus == 1:
            continue
        found = case_of(record, bases)
        if isinstance(found, Unfit):
            unfit.append(found)
        elif _NOT_A_REFERENCE in record.notes:
            unfit.append(Unfit(record, f"its source warns: {record.notes}", judge(found, known)))
        else:
            cases.append(found)
    judged = tuple(judge(case, known) for case in cases)
    halves, crossed = cross_fit(cases, known)
    return Validation(judged, tuple(unfit), halves, crossed, parts(cases, known))


def case_of(record: Record, bases: Bases) -> Case | Unfit:
    """How a row is predicted, or why it cannot be."""
    reason = _unusable(record)
    if reason:
        return Unfit(record, reason)
    base = bases.of(record)
    if base is None or not base.rate:
        return Unfit(record, "no single-GPU row of its source, hardware and settings")
    gpus, nodes = record.gpus or 1, record.nodes
    machine = of_host(record.gpu, record.hardware, gpus // nodes, record.interconnect)
    if machine is None:
        return Unfit(record, f"the GPU '{record.gpu}' is not in the facts")
    training, assumed = _training(record, base, machine)
    if machine.name == ASSUMED:
        assumed = (*assumed, "host")
    if base.batch != record.batch:
        assumed = (*assumed, f"base has batch {base.batch}")
    measured = training.batch / base.rate
    rate, unit = (record.speedup, _SPEEDUP) if record.rate is None else (record.rate, _IMAGES)
    return Case(
        record, base, machine, training, unfed_seconds(training, measured),
        rate or 0.0, unit, assumed,
    )  # fmt: skip


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
    net = network(record.model)
    assumed: tuple[str, ...] = ()
    batch = record.batch or base.batch or _documented_batch(record, machine)
    if batch is None:
        batch = assumed_batch(net, machine, record.precision)
        assumed = (f"batch {batch} per GPU",)
    threads = min([machine.cores, *_decode_threads(record.framework)])
    synthetic = not record.data or record.data.startswith(("synthetic", "not stated"))
    training = Training(
        net, batch, record.precision, form_of(record),
        ENDLESS if synthetic else feed(replace(machine, cores=threads), net),
    )  # fmt: skip
    return training, assumed


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
    if "parameter_server" in update or "no nccl" in update:
        return "parameter_server"
    if "replicated" in update:
        return "replicated"
    if "horovod" in update or "horovod" in record.framework.lower():
        return "horovod"
    return "replicated"


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


def judge(case: Case, known: Constants, one: Profile | None = None) -> Judged:
    """Predict one row: images per second from its base, or the speed-up.

    Its one-GPU step `one` is the same whatever the form, the input and the two constants are.
    """
    one = one or profile_of(case, known)
    gpus = case.record.gpus or 1
    step = predict_step(case.machine, case.training, one, gpus, case.record.nodes, known)
    alone = predict_step(case.machine, case.training, one, 1, 1, known)
    speedup = gpus * alone.seconds / step.seconds
    base = case.base.rate or 0.0
    predicted = speedup if case.unit == _SPEEDUP else speedup * base
    return Judged(case, predicted, step)


def profile_of(case: Case, known: Constants) -> Profile:
    """The one-GPU step of a case, layer by layer."""
    return profile(case.machine, case.training, case.one_seconds, known)


def errors(values: Sequence[float]) -> Errors:
    """Median, 90th percentile (nearest rank) and mean of relative errors."""
    sizes = sorted(map(abs, values))
    rank = min(len(sizes) - 1, max(0, -(-9 * len(sizes) // 10) - 1))
    return Errors(len(sizes), statistics.median(sizes), sizes[rank], statistics.fmean(values))


def grouped(judged: Iterable[Judged], key: Callable[[Judged], str]) -> dict[str, Errors]:
    """Errors by source, by model or by whatever `key` gives, the largest group first."""
    groups: dict[str, list[float]] = {}
    for row in judged:
        groups.setdefault(key(row), []).append(row.error)
    ordered = sorted(groups.items(), key=lambda item: (-len(item[1]), item[0]))
    return {name: errors(values) for name, values in ordered}


def parts(cases: Sequence[Case], known: Constants) -> tuple[tuple[str, Errors], ...]:
    """What each part of the model is worth: errors as the parts are added one by one."""
    if not cases:
        return ()
    calm = replace(known, straggler=0.0, contention=0.0)
    fed = [replace(case, training=replace(case.training, feed=ENDLESS)) for case in cases]
    bare = [
        replace(case, training=replace(case.training, form="no_overlap"))
        if case.training.form != "parameter_server"
        else case
        for case in fed
    ]
    linear = [(case.record.gpus or 1) * (case.base.rate or 0.0) for case in cases]
    rates = [
        case.measured * (case.base.rate or 0.0) if case.unit == _SPEEDUP else case.measured
        for case in cases
    ]
    ideal = [predicted / rate - 1 for predicted, rate in zip(linear, rates, strict=True)]
    steps: tuple[tuple[str, Sequence[Case], Constants], ...] = (
        ("communication, nothing overlapped", bare, calm),
        ("communication by the recursion", fed, calm),
        ("+ stragglers", fed, replace(known, contention=0.0)),
        ("+ contention", fed, known),
        ("+ input (the whole model)", cases, known),
    )
    ones = [profile_of(case, known) for case in cases]
    found = [
        (name, errors([judge(case, c, one).error for case, one in zip(some, ones, strict=True)]))
        for name, some, c in steps
    ]
    return (("ideal scaling", errors(ideal)), *found)


# ---- constants fitted on one half of the sources, judged on the other ----

_STRAGGLERS = tuple(0.004 * index for index in range(21))
_BUFFERS = (1, 2, 3, 4)
_CONTENTIONS = tuple(0.05 * index for index in range(21))


def cross_fit(cases: Sequence[Case], known: Constants) -> tuple[tuple[Half, ...], Errors | None]:
    """Fit on each half of the sources, predict the other; nothing with fewer than two sources."""
    halves = split_sources(case.record.source for case in cases)
    if len(halves) < 2:
        return (), None
    parts = [[case for case in cases if case.record.source in half] for half in halves]
    found, crossed = [], []
    for index, half in enumerate(halves):
        fitted, buffer = fit(parts[1 - index], known)
        values = [judge(with_buffer(case, buffer), fitted).error for case in parts[index]]
        crossed += values
        found.append(Half(half, fitted, buffer, errors(values)))
    return tuple(found), errors(crossed)


def split_sources(sources: Iterable[str]) -> tuple[tuple[str, ...], ...]:
    """Sources in two halves of about as many rows: each joins the smaller one, largest first."""
    counts = Counter(sources)
    halves: list[list[str]] = [[], []]
    rows = [0, 0]
    for name, count in sorted(counts.items(), key=lambda item: (-item[1], item[0])):
        smaller = 0 if rows[0] <= rows[1] else 1
        halves[smaller].append(name)
        rows[smaller] += count
    return tuple(tuple(half) for half in halves if half)


def fit(cases: Sequence[Case], known: Constants) -> tuple[Constants, int]:
    """The two constants and the input's buffer with the least mean |error|.

    Errors above 25 % count as such, so that a few rows do not rule the fit.
    """
    found = []
    # A buffer changes nothing where the input never ends.
    unfed = {i: _fit_part(case, known) for i, case in enumerate(cases) if _endless(case)}
    for buffer in _BUFFERS:
        parts = [
            unfed.get(i) or _fit_part(with_buffer(case, buffer), known)
            for i, case in enumerate(cases)
        ]
        found += [
            (sum(_loss(part, contention, straggler) for part in parts),
             contention, straggler, buffer)
            for contention in _CONTENTIONS
            for straggler in _STRAGGLERS
        ]  # fmt: skip
    _, contention, straggler, buffer = min(found)
    return replace(known, contention=contention, straggler=straggler), buffer


def _endless(case: Case) -> bool:
    return case.training.feed.supply(case.record.nodes) == float("inf")


def with_buffer(case: Case, buffer: int) -> Case:
    """A case whose input has another buffer, its one-GPU step computed again."""
    feed = replace(case.training.feed, buffer=buffer)
    training = replace(case.training, feed=feed)
    measured = training.batch / (case.base.rate or 1.0)
    return replace(case, training=training, one_seconds=unfed_seconds(training, measured))


@dataclass(frozen=True)
class _Part:
    """What of a row's error the two constants change: all else is worked out once."""

    fixed: float
    per_contention: float
    per_straggler: float
    kept: float
    target: float


def _fit_part(case: Case, known: Constants) -> _Part:
    """Seconds without both constants, seconds per unit of each, and the measured step."""
    alone = profile_of(case, known)
    one = judge(case, replace(known, contention=0.0, straggler=0.0), alone).step
    both = judge(case, replace(known, contention=1.0, straggler=1.0), alone).step
    base = (case.base.rate or 0.0) * (case.record.speedup or 0.0)
    rate = case.record.rate or base
    target = case.training.batch * (case.record.gpus or 1) / rate
    unfed = one.seconds - one.input_wait
    return _Part(unfed, both.contention, both.straggler, one.seconds / unfed, target)


def _loss(part: _Part, contention: float, straggler: float) -> float:
    unfed = part.fixed + contention * part.per_contention + straggler * part.per_straggler
    return min(abs(part.target / (unfed * part.kept) - 1), 0.25)
