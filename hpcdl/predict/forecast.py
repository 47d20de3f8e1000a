"""A range of GPU counts on one machine, and the choices: fastest, cheapest, best below a loss.

Everything in it is a pure function of a machine, a workload and a calibration. Counts fill nodes:
below one node any, above it whole nodes.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from hpcdl import facts
from hpcdl.predict.hardware import CPU, GIGA, Machine
from hpcdl.predict.network import FLOAT_BYTES, kept_bytes
from hpcdl.predict.parallel import planned_bytes
from hpcdl.predict.rate import Calibration
from hpcdl.predict.results import MeasuredLoss, nearest, stretched
from hpcdl.predict.step import (
    ENDLESS,
    StepTime,
    Workload,
    lengthened,
    peak_of,
    predict_step,
    scaling_law,
)
from hpcdl.system.errors import BadInput
from hpcdl.system.text import count_of

MOST_GPUS = 65_536
IMAGENET_IMAGES = 1_281_167
TOKENS = 1e9
"""Tokens of a transformer's epoch where nobody says how many."""
_HOUR = 3600.0
_SPLIT = "split it (--tensor, --pipeline-stages, --zero 3) or recompute (--checkpointing full)"
_COUNTS = "write 8, 1,2,4 or a range 1-64"
_RANGE = re.compile(r"([0-9]{1,9})(?: *- *([0-9]{1,9}))?\Z")


@dataclass(frozen=True)
class ScalingPoint:
    """One count of GPUs; `low` and `high` bound images per second, eight times in ten.

    `seconds` are those of the whole training: all epochs. `fits` is whether the batch is likely to
    fit into the GPUs' memory, `beyond` whether the partition has fewer nodes.
    """

    step: StepTime
    images_per_second: float
    low: float
    high: float
    efficiency: float
    seconds: float
    beyond: bool
    fits: bool

    @property
    def gpus(self) -> int:
        """GPUs in all."""
        return self.step.gpus

    @property
    def speedup(self) -> float:
        """Speed-up over one GPU."""
        return self.gpus * self.efficiency

    @property
    def gpu_hours(self) -> float:
        """GPU-hours of the training."""
        return self.gpus * self.seconds / _HOUR


@dataclass(frozen=True)
class Choices:
    """The recommended counts; None where no count meets the limits."""

    fastest: ScalingPoint | None
    cheapest: ScalingPoint | None
    efficient: ScalingPoint | None


@dataclass(frozen=True)
class PlanLimits:
    """The limits of a choice: loss of efficiency as a part, hours of the training."""

    loss: float = 0.1
    deadline_hours: float | None = None


@dataclass(frozen=True)
class DataAmount:
    """The images (sequences) of an epoch, and epochs of the training."""

    images: float = IMAGENET_IMAGES
    epochs: int = 1


_IMAGENET, _LIMITS = DataAmount(), PlanLimits()


@dataclass(frozen=True)
class Forecast:
    """Counts of GPUs, what they give, and what to take; `links` is what was measured of them.

    `left_out` says why some counts of a range are not there, `found` what was used unasked.
    """

    machine: Machine
    work: Workload
    calibration: Calibration
    data: DataAmount
    points: tuple[ScalingPoint, ...]
    choices: Choices
    limits: PlanLimits = _LIMITS
    price: float | None = None
    links: tuple[str, ...] = ()
    left_out: str = ""
    found: tuple[str, ...] = field(default=())

    @property
    def watts(self) -> float | None:
        """A GPU's power at most, where it is published."""
        known = facts.load("gpus")["gpus"].get(self.machine.gpu, {})
        return float(known["tdp_w"]) if "tdp_w" in known else None

    def kilowatt_hours(self, point: ScalingPoint) -> float | None:
        """Energy of the training's GPUs at most."""
        return None if self.watts is None else point.gpu_hours * self.watts / 1000

    def cost(self, point: ScalingPoint) -> float | None:
        """Return the training's cost, None if a GPU-hour has no price."""
        return None if self.price is None else point.gpu_hours * self.price

    def operations(self, point: ScalingPoint) -> float:
        """Operations per second and GPU, of both passes, without what is computed again."""
        return 6 * self.work.net.macs * point.images_per_second / point.gpus

    def peak_part(self, point: ScalingPoint) -> float:
        """The part of the GPU's peak that these operations are."""
        return self.operations(point) / peak_of(self.machine, self.work.precision)

    @property
    def notes(self) -> tuple[str, ...]:
        """Return the caveats of the forecast."""
        base, batch, plan = self.calibration, self.work.batch, self.work.plan
        wide, node = plan.tensor if plan else 1, self.machine.per_node
        lacking = " and ".join(self.machine.lacks(self.work.precision))
        notes = (
            (
                base.batch != batch,
                f"it was measured at batch {base.batch}; the same images/s are assumed at {batch}",
            ),
            (not all(point.fits for point in self.points), self._memory_note),
            (
                node % wide and wide % node,
                f"{wide} GPUs of tensor parallelism do not divide the {node} of a node: "
                "that some of them work across nodes is not counted",
            ),
            (
                lacking,
                f"{lacking} of the {self.machine.gpu} are not known: a similar GPU's are used "
                "for memory traffic",
            ),
            (
                self.work.shared,
                "one machine emulates all nodes: ranks share its "
                f"{self.work.shared.cores if self.work.shared else 0} cores",
            ),
            (True, self.left_out),
        )
        return tuple(text for wanted, text in notes if wanted and text)

    @property
    def _memory_note(self) -> str:
        """Describe how much memory is missing on the fewest GPUs, and what would fit."""
        gpus = min(point.gpus for point in self.points)
        needs, has = memory_bytes(self.work, gpus), self.machine.memory
        where = f" on {count_of(gpus, 'GPU')}" if self.work.plan else ""
        return (
            f"batch {self.work.batch} is not likely to fit{where}: it needs about "
            f"{needs / GIGA:,.0f} GB, and the {self.machine.gpu} has {has / GIGA:g} GB; "
            f"{smallest_that_fits(self.machine, self.work)}"
        )


def memory_bytes(work: Workload, gpus: int) -> float:
    """About what a step keeps in each GPU's memory: activations, and the state of the weights.

    Weights, gradients and momenta are float32; transformers have Adam's second moment, too. FSDP
    shards the state over `gpus`.
    """
    net, element = work.net, work.activation_bytes
    if work.plan:
        return planned_bytes(net, work.plan, work.batch, gpus, element)
    state = net.parameters * FLOAT_BYTES * (3 if net.channels else 4)
    shards = gpus if work.form == "fsdp" else 1
    return state / shards + kept_bytes(net, work.batch, element)


def smallest_that_fits(machine: Machine, work: Workload) -> str:
    """The fewest GPUs, or else the largest batch, that fit into the memory; or what to change."""
    for changed, options in _splits(machine, work):
        least = changed.plan.gpus if changed.plan else 1
        for gpus in (least << power for power in range(17) if least << power <= MOST_GPUS):
            if memory_bytes(changed, gpus) <= machine.memory:
                more = f" with {options}" if options else ""
                return f"the smallest that would fit is {count_of(gpus, 'GPU')}{more}"
    least = work.plan.gpus if work.plan else 1
    one, two = (memory_bytes(replace(work, batch=batch), least) for batch in (1, 2))
    fits = math.floor((machine.memory - one) / (two - one)) + 1
    if fits > 0:
        return f"the largest batch that fits is {fits}"
    if work.net.shape.blocks:
        return f"no batch fits: {_SPLIT}"
    return "no batch fits: take smaller images, or a GPU with more memory"


def _splits(machine: Machine, work: Workload) -> Iterable[tuple[Workload, str]]:
    """A training whose GPUs share the state, and the same split more, with the options for it."""
    if work.form == "fsdp" or work.plan:
        yield work, ""
    if not work.plan:
        return
    wide = math.gcd(machine.per_node, work.net.shape.heads)
    for options, changes in (
        ("--checkpointing full", {"checkpointing": "full"}),
        ("--checkpointing full --zero 3", {"checkpointing": "full", "zero": 3}),
        (
            f"--checkpointing full --zero 3 --tensor {wide} --sequence-parallel",
            {"checkpointing": "full", "zero": 3, "tensor": wide, "sequence": True},
        ),
    ):
        yield replace(work, plan=replace(work.plan, **changes)), options


def forecast(
    machine: Machine,
    work: Workload,
    calibration: Calibration,
    counts: Sequence[int],
    *,
    data: DataAmount = _IMAGENET,
    limits: PlanLimits = _LIMITS,
    measured: Sequence[MeasuredLoss] = (),
) -> Forecast:
    """Predict every count of GPUs (as `expand` gives them), and choose.

    `measured` are runs of several GPUs here.
    """
    law, one_gpu = scaling_law(), calibration.seconds
    alone = predict_step(machine, replace(work, plan=None), one_gpu, 1, 1, law)
    # One GPU of the old pipeline waits, too: efficiency is then of a GPU that waits for nothing.
    reference = alone.seconds if work.feed.ahead else alone.compute
    ran_here = calibration.proof == "run" and calibration.batch >= work.batch

    def point(gpus: int) -> ScalingPoint:
        nodes = max(1, gpus // machine.per_node)
        step = predict_step(machine, work, one_gpu, gpus, nodes, law)
        ran = nearest(measured, gpus, nodes) if gpus > 1 else None
        if ran:
            theirs = predict_step(machine, work, one_gpu, ran.ranks, ran.nodes, law)
            lost = stretched(step.loss, ran.loss(theirs.compute), theirs.loss)
            if (ran.ranks, ran.nodes) == (gpus, nodes):  # the run itself, whatever one rank does
                step = replace(step, compute=min(step.compute, ran.middle))
                lost = ran.loss(step.compute)
            step = lengthened(step, lost)
        rate = work.images_of(gpus) / step.seconds
        low, high = _bounds(step, work, calibration, ran)
        # A GPU that does not hold the whole network: the part of computing in a step.
        gain = (step.compute if work.plan else reference) / step.seconds
        holds = memory_bytes(work, gpus) <= machine.memory
        return ScalingPoint(
            step,
            rate,
            rate * low,
            rate * high,
            gain,
            data.epochs * data.images / rate,
            beyond=0 < machine.nodes < nodes,
            # A run that had such a batch knows better; ranks on CPUs share the node's memory.
            fits=machine.gpu == CPU or ran_here or holds,
        )

    points = tuple(map(point, counts))
    return Forecast(machine, work, calibration, data, points, choose(points, limits), limits)


def _bounds(
    step: StepTime, work: Workload, base: Calibration, ran: MeasuredLoss | None
) -> tuple[float, float]:
    """Return factors on the rate: the true rate is between them eight times in ten.

    Beside runs of several GPUs, only what the count adds to or takes from their loss is unsure.
    """
    if step.gpus == 1 or (work.plan and base.proof != "run"):
        return base.low, base.high
    kind = kind_of(step.nodes, real=work.feed is not ENDLESS)
    if ran is None:
        # Errors of one GPU's rate and of the loss are independent: their squares add up.
        lows, highs = zip(factors(step.loss, kind), (base.low, base.high), strict=True)
        low, high = (math.hypot(*map(math.log, pair)) for pair in (lows, highs))
        return math.exp(-low), math.exp(high)
    noise = math.exp(-ran.spread)
    if (ran.ranks, ran.nodes) == (step.gpus, step.nodes):
        return noise, 1 / noise
    low, high = factors(abs(step.loss - ran.loss(step.compute)), kind)
    return noise * low, high / noise


def kind_of(nodes: int, *, real: bool) -> str:
    """The kind of a row that has ranges of its own."""
    return "across" if nodes > 1 else "real" if real else "within"


def scale(loss: float) -> float:
    """Return the scale of a loss's errors: they grow with it, and a small one has some, too."""
    known = facts.load("predict")["scale"]
    return float(known["least"] + known["per_loss"] * max(0.0, loss))


def factors(loss: float, kind: str) -> tuple[float, float]:
    """Return factors on a rate of that loss: the true rate is between them eight times in ten."""
    row = facts.load("predict")["ranges"][kind]
    return math.exp(-row["high"] * scale(loss)), math.exp(-row["low"] * scale(loss))


def choose(points: Sequence[ScalingPoint], limits: PlanLimits = _LIMITS) -> Choices:
    """Fastest: most images per second. Cheapest: fewest GPU-hours of those in time.

    Efficient: the most GPUs whose loss is at most the limit. Counts that do not fit into memory,
    and those beyond the partition, are never chosen.
    """
    real = [point for point in points if point.fits and not point.beyond]
    most = _HOUR * limits.deadline_hours if limits.deadline_hours else math.inf
    timely = [point for point in real if point.seconds <= most]
    thrifty = [point for point in real if point.efficiency >= 1 - limits.loss]
    return Choices(
        max(real, key=lambda p: p.images_per_second, default=None),
        min(timely, key=lambda p: (p.gpu_hours, p.gpus), default=None),
        max(thrifty, key=lambda p: p.gpus, default=None),
    )


def expand(text: str, per_node: int, *, every: bool = False) -> tuple[int, ...]:
    """Counts of GPUs from text such as `8`, `1,2,4` or `1-64`.

    A range gives its doublings and its end, rounded to whole nodes; with `every`, all counts
    that fill nodes. Other text, and a single count that fills no nodes, is a `BadInput`.
    """
    counts: set[int] = set()
    for part in text.split(","):
        match = _RANGE.match(part.strip())
        if not match:
            raise BadInput(f"'{text[:60]}' is not a count of GPUs", hint=_COUNTS)
        first, last = int(match[1]), int(match[2] or match[1])
        if not 1 <= first <= last <= MOST_GPUS:
            raise BadInput(
                f"'{part}' is not between 1 and {MOST_GPUS} GPUs, in rising order", hint=_COUNTS
            )
        down = first if first <= per_node else first // per_node * per_node
        if not match[2] and first != down:
            raise BadInput(
                f"{first} GPUs do not fill whole nodes of {per_node}",
                hint=f"take {down} or {down + per_node}",
            )
        counts.update(_range(first, last, per_node, every))
    if not counts:
        raise BadInput(
            f"no count in '{text[:60]}' fills whole nodes of {per_node}",
            hint=f"take a range with {per_node} or {2 * per_node} in it",
        )
    return tuple(sorted(counts))


def _range(first: int, last: int, per_node: int, every: bool) -> Iterable[int]:
    """Every count that fills nodes, or the first, the last and the doublings between them."""
    inside = range(first, min(last, per_node) + 1)
    start = -(-max(first, per_node) // per_node) * per_node
    whole = sorted({*inside, *range(start, last + 1, per_node)})
    if every or not whole:
        return whole
    value, counts = 1, {whole[0], whole[-1]}
    while value <= last:
        counts.add(value)
        # A node is never left half filled on the way to the next.
        value = per_node if value < per_node < 2 * value else 2 * value
    return [count for count in counts if first <= count]
