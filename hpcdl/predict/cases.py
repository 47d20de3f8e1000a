"""Published rows as cases that the model can be compared with: a row, and what it starts from.

The base is the row of the fewest GPUs of the same source, hardware and settings. What a row does
not state is taken from its source's scripts or assumed, and said with the case.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache

from hpcdl import facts
from hpcdl.predict import step as steps
from hpcdl.predict.feed import ENDLESS, feed
from hpcdl.predict.hardware import ASSUMED, Machine, of_host
from hpcdl.predict.learn import Pair, kind_of, shares, with_values
from hpcdl.predict.network import Network, kept_bytes, names, network
from hpcdl.predict.records import Bases, Record
from hpcdl.predict.step import PRECISIONS, Constants, Profile, Step, Training, constants

_MOST_ASSUMED = 256
SPEEDUP = "speed-up"
IMAGES = "images/s"
_ROUNDS = 4


@dataclass(frozen=True)
class Side:
    """One end of a comparison: so many GPUs on so many nodes of a machine."""

    machine: Machine
    training: Training
    gpus: int
    nodes: int

    def step(self, one: Profile, known: Constants) -> Step:
        """The step of these GPUs."""
        return steps.predict_step(self.machine, self.training, one, self.gpus, self.nodes, known)


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
    def linear(self) -> float:
        """The value of scaling without any loss."""
        ratio = self.row.gpus / self.start.gpus
        return ratio * (1.0 if self.unit == SPEEDUP else self.base.rate or 0.0)

    @property
    def kind(self) -> str:
        """Which ranges the row has."""
        return kind_of(self.row.nodes, real=self.row.training.feed.supply(1) < float("inf"))


def unit(known: Constants) -> Constants:
    """Every constant 1: a step's parts are then shares as they are."""
    return with_values(known, (1.0, 1.0, 1.0, 1.0))


def pair_of(case: Case, known: Constants) -> Pair:
    """A case as the statistical layer sees it."""
    one, plain = profile_of(case, known), unit(known)
    return Pair(
        case.record.source, case.kind, shares(case.row.step(one, plain)),
        shares(case.start.step(one, plain)), math.log(case.linear / case.measured),
    )  # fmt: skip


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
        replace(training, accumulation=base.accumulation), base.gpus, base.nodes,
    )  # fmt: skip
    rate, unit = (record.speedup, SPEEDUP) if record.rate is None else (record.rate, IMAGES)
    return Case(
        record, base, Side(machine, training, gpus, record.nodes), start,
        _one_seconds(start, base), rate or 0.0, unit, tuple(text for so, text in said if so),
    )  # fmt: skip


def _machine_of(row: Record, gpus: int) -> Machine | None:
    return of_host(row.gpu, row.hardware, gpus // row.nodes, row.interconnect, row.cores)


def _one_seconds(start: Side, base: Record) -> float:
    """Seconds of one pass of one GPU, without what the base's own count loses."""
    known = constants("early")
    measured = start.gpus * start.training.images / (base.rate or 1.0)
    one = measured / start.training.accumulation
    for _ in range(_ROUNDS):
        found = steps.profile(start.machine, start.training, one, known)
        one *= measured / start.step(found, known).seconds
    return one


def _unusable(record: Record) -> str:
    """Why a row alone rules itself out, or nothing."""
    reasons = (
        (record.gpus is None, "its number of GPUs is not stated"),
        (record.rate is None and record.speedup is None,
         "no number: images per second and speed-up are not stated"),
        ((record.gpus or 0) % record.nodes,
         f"{record.gpus} GPUs do not spread evenly over {record.nodes} nodes"),
        (record.model not in names(), f"the layers of model '{record.model}' are not known"),
        (record.precision not in PRECISIONS, f"the precision '{record.precision}' is not known"),
    )  # fmt: skip
    return next((reason for so, reason in reasons if so), "")


def _training(record: Record, base: Record, machine: Machine) -> Training:
    net, data = network(record.model, record.size), record.data
    # Some frameworks' own scripts decode on a fixed number of threads.
    known = facts.load("links")["decode_threads"]
    fixed = [row["threads"] for row in known if record.framework.startswith(row["framework"])]
    # Synthetic images are made once, and DALI decodes on the GPU.
    endless = not data or data.startswith(("synthetic", "not stated")) or "DALI" in data
    decoders = replace(machine, cores=min([machine.cores, *fixed]))
    return Training(
        net, record.batch or base.batch or assumed_batch(net, machine, record.precision),
        record.precision, form_of(record),
        ENDLESS if endless or not net.channels else feed(decoders, net),
        accumulation=record.accumulation,
    )  # fmt: skip


def form_of(record: Record) -> str:
    """The form a row's `variable_update` names, else that of its framework.

    TensorFlow's `replicated` without NCCL adds gradients on one device per variable and copies
    the sums back: a parameter server whose shards are the devices.
    """
    update = record.update.lower()
    known: list[tuple[str, str]] = facts.load("links")["forms"]
    named = next((form for word, form in known if word in update), "")
    return named or ("horovod" if "horovod" in record.framework.lower() else "replicated")


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
    return steps.profile(case.row.machine, case.row.training, case.one_seconds, known)
