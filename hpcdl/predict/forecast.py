"""A range of GPU counts on one machine, and the choices: fastest, cheapest, best below a loss.

`forecast` is what other packages call; everything in it is a pure function of a machine, a
training and a calibration. Counts fill nodes: below one node any, above it whole nodes.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from hpcdl import facts
from hpcdl.predict import step as steps
from hpcdl.predict.calibrate import Calibration
from hpcdl.predict.feed import ENDLESS
from hpcdl.predict.hardware import CPU, GIGA, Machine
from hpcdl.predict.learn import factors, kind_of
from hpcdl.predict.measured import Measured, nearest, stretched
from hpcdl.predict.memory import planned_bytes
from hpcdl.predict.network import FLOAT_BYTES, kept_bytes
from hpcdl.system.errors import BadInput

MOST_GPUS = 65_536
IMAGENET_IMAGES = 1_281_167
_HOUR = 3600.0
_SPLIT = "split it (--tensor, --pipeline-stages, --zero 3) or recompute (--checkpointing full)"
_RANGE = re.compile(r"([0-9]{1,9})(?: *- *([0-9]{1,9}))?\Z")


@dataclass(frozen=True)
class Point:
    """One count of GPUs; `low` and `high` bound images per second, eight times in ten."""

    step: steps.Step
    images_per_second: float
    low: float
    high: float
    speedup: float
    efficiency: float
    epoch_seconds: float
    beyond: bool

    @property
    def gpus(self) -> int:
        """GPUs in all."""
        return self.step.gpus

    @property
    def gpu_hours(self) -> float:
        """GPU-hours of an epoch."""
        return self.gpus * self.epoch_seconds / _HOUR


@dataclass(frozen=True)
class Choices:
    """The recommended counts; None where no count meets the limits."""

    fastest: Point | None
    cheapest: Point | None
    efficient: Point | None
    loss: float
    deadline_hours: float | None


@dataclass(frozen=True)
class Forecast:
    """Counts of GPUs, what they give, and what to take; `links` is what was measured of them.

    `left_out` says why some counts of a range are not there.
    """

    machine: Machine
    training: steps.Training
    calibration: Calibration
    images: int
    points: tuple[Point, ...]
    choices: Choices
    price: float | None = None
    links: tuple[str, ...] = ()
    left_out: str = ""

    @property
    def watts(self) -> float | None:
        """A GPU's power at most, where it is published."""
        known = facts.load("gpus")["gpus"].get(self.machine.gpu, {})
        return float(known["tdp_w"]) if "tdp_w" in known else None

    def kilowatt_hours(self, point: Point) -> float | None:
        """Energy of an epoch's GPUs at most."""
        return None if self.watts is None else point.gpu_hours * self.watts / 1000

    def cost(self, point: Point) -> float | None:
        """What an epoch costs, where a GPU-hour has a price."""
        return None if self.price is None else point.gpu_hours * self.price

    def operations(self, point: Point) -> float:
        """Operations per second and GPU, of both passes, without what is computed again."""
        return 6 * self.training.net.macs * point.images_per_second / point.gpus

    @property
    def _memory_notes(self) -> list[str]:
        """What to do where the fewest GPUs do not hold the batch."""
        base, batch, has = self.calibration, self.training.batch, self.machine.memory
        gpus = min((point.gpus for point in self.points), default=1)
        needs = memory_bytes(self.training, gpus)
        # A run that had such a batch knows better than an estimate; ranks on CPUs share memory.
        proven = base.proof == "run" and base.batch >= batch
        if needs <= has or proven or self.machine.gpu == CPU:
            return []
        one, two = (memory_bytes(replace(self.training, batch=n), gpus) for n in (1, 2))
        fits = math.floor((has - one) / (two - one)) + 1
        # Convolutions are not split: there only a smaller batch or image helps.
        less = f"no batch: {_SPLIT}" if self.training.net.shape.blocks else "no batch"
        where = f" on {gpus} GPUs" if self.training.plan else ""
        return [f"batch {batch} is not likely to fit{where}: it needs about "
                f"{needs / GIGA:,.0f} GB, and "
                f"the {self.machine.gpu} has {has / GIGA:g} GB, "
                f"enough for {fits if fits > 0 else less}"]  # fmt: skip

    @property
    def _split_notes(self) -> list[str]:
        """That groups of tensor parallelism do not fill nodes."""
        plan = self.training.plan
        wide, node = plan.tensor if plan else 1, self.machine.per_node
        if not (node % wide and wide % node):
            return []
        return [f"{wide} GPUs of tensor parallelism do not divide the {node} of a node: that some "
                "of them work across nodes is not counted"]  # fmt: skip

    @property
    def notes(self) -> tuple[str, ...]:
        """What a person should know before believing any of it."""
        base, batch, gpu = self.calibration, self.training.batch, self.machine.gpu
        said: list[str] = []
        if base.batch != batch:
            same = "the same images/s are assumed"
            said.append(f"it was measured at batch {base.batch}; {same} at {batch}")
        said += [*self._memory_notes, *self._split_notes]
        if lacking := self.machine.lacks(self.training.precision):
            said.append(f"{' and '.join(lacking)} of the {gpu} are not known: the shares of the "
                        "layers are a kindred GPU's")  # fmt: skip
        return (*said, self.left_out) if self.left_out else tuple(said)


def memory_bytes(training: steps.Training, gpus: int) -> float:
    """About what a step keeps in each GPU's memory: activations, and the state of the weights.

    Weights, gradients and momenta are float32; transformers have Adam's second moment, too. FSDP
    shards the state over `gpus`.
    """
    if training.plan:
        element = training.activation_bytes
        return planned_bytes(training.net, training.plan, training.batch, gpus, element)
    state = training.net.parameters * FLOAT_BYTES * (3 if training.net.channels else 4)
    shards = gpus if training.form == "fsdp" else 1
    return state / shards + kept_bytes(training.net, training.batch, training.activation_bytes)


def forecast(
    machine: Machine, training: steps.Training, calibration: Calibration, counts: Sequence[int], *,
    images: int = IMAGENET_IMAGES, loss: float = 0.1, deadline_hours: float | None = None,
    known: steps.Constants | None = None, measured: Sequence[Measured] = (),
) -> Forecast:  # fmt: skip
    """Predict every count of GPUs (as `expand` gives them), and choose.

    `images` are those of an epoch, `loss` is the largest loss of efficiency that is accepted (0.1
    for 10 %), `deadline_hours` the limit of an epoch for the cheapest choice, `known` are the
    model's constants (default: the facts'), `measured` runs of several GPUs here.
    """
    known = known or steps.constants()
    one = steps.profile(machine, training, calibration.seconds, known)
    alone = steps.predict_step(machine, replace(training, plan=None), one, 1, 1, known)
    points = []
    for gpus in counts:
        nodes = max(1, gpus // machine.per_node) if gpus > machine.per_node else 1
        step = steps.predict_step(machine, training, one, gpus, nodes, known)
        ran = nearest(measured, gpus, nodes) if gpus > 1 else None
        if ran:
            theirs = steps.predict_step(machine, training, one, ran.ranks, ran.nodes, known)
            lost = stretched(_loss(step), ran.loss(step.compute), _loss(theirs))
            if (ran.ranks, ran.nodes) == (gpus, nodes):  # the run itself, whatever one rank does
                step = replace(step, compute=min(step.compute, ran.middle))
                lost = ran.loss(step.compute)
            step = steps.lengthened(step, lost)
        rate = training.images_of(gpus) / step.seconds
        low, high = _bounds(step, training, calibration, ran)
        # One GPU does not hold what is split: there, it is the part of computing in a step.
        gain = (step.compute if training.plan else alone.seconds) / step.seconds
        beyond = 0 < machine.nodes < nodes
        points.append(
            Point(step, rate, rate * low, rate * high, gpus * gain, gain, images / rate, beyond)
        )
    # Of a split transformer more GPUs may hold what fewer do not; a run knows better.
    whole = not training.plan or calibration.proof == "run"
    fit = [p for p in points if whole or memory_bytes(training, p.gpus) <= machine.memory]
    choices = choose(fit or points, loss, deadline_hours)
    return Forecast(machine, training, calibration, images, tuple(points), choices)


def _loss(step: steps.Step) -> float:
    """What a step is longer than its computing, in logarithms."""
    return math.log(step.seconds / step.compute)


def _bounds(
    step: steps.Step, training: steps.Training, base: Calibration, ran: Measured | None
) -> tuple[float, float]:
    """Factors on the rate between which the truth lies eight times in ten.

    Beside runs of several GPUs, only what the count adds to or takes from their loss is unsure.
    """
    if step.gpus == 1 or (training.plan and base.proof != "run"):
        return base.low, base.high
    kind = kind_of(step.nodes, real=training.feed is not ENDLESS)
    if ran is None:
        low, high = factors(_loss(step), kind)
        return low * base.low, high * base.high
    noise = math.exp(-ran.spread)
    if (ran.ranks, ran.nodes) == (step.gpus, step.nodes):
        return noise, 1 / noise
    low, high = factors(abs(_loss(step) - ran.loss(step.compute)), kind)
    return noise * low, high / noise


def choose(points: Sequence[Point], loss: float, deadline_hours: float | None = None) -> Choices:
    """Fastest: most images per second. Cheapest: fewest GPU-hours of those in time.

    Efficient: the most GPUs whose efficiency is at least 1 - loss. Counts beyond the
    partition are not chosen while there are others.
    """
    real = [point for point in points if not point.beyond] or list(points)
    limit = _HOUR * deadline_hours if deadline_hours else float("inf")
    timely = [point for point in real if point.epoch_seconds <= limit]
    thrifty = [point for point in real if point.efficiency >= 1 - loss]
    return Choices(
        max(real, key=lambda p: p.images_per_second, default=None),
        min(timely, key=lambda p: (p.gpu_hours, p.gpus), default=None),
        max(thrifty, key=lambda p: p.gpus, default=None), loss, deadline_hours,
    )  # fmt: skip


def legal(gpus: int, per_node: int) -> bool:
    """Whether a count fills nodes."""
    return gpus <= per_node or gpus % per_node == 0


def expand(text: str, per_node: int, *, every: bool = False) -> tuple[int, ...]:
    """Counts of GPUs from text such as `8`, `1,2,4` or `1-64`.

    A range gives its doublings and its end, rounded to whole nodes; with `every`, all counts
    that fill nodes.

    Raises:
        BadInput: not of that format, out of bounds, or a single count that fills no nodes.
    """
    found: set[int] = set()
    for part in text.split(","):
        match = _RANGE.match(part.strip())
        if not match:
            raise BadInput(
                f"'{text[:60]}' is not a count of GPUs", hint="write 8, 1,2,4 or a range 1-64"
            )
        first, last = int(match[1]), int(match[2] or match[1])
        if not 1 <= first <= last <= MOST_GPUS:
            raise BadInput(f"'{part}' is not between 1 and {MOST_GPUS} GPUs, in rising order")
        if not match[2] and not legal(first, per_node):
            down = first // per_node * per_node
            raise BadInput(f"{first} GPUs do not fill whole nodes of {per_node}",
                           hint=f"take {down} or {down + per_node}")  # fmt: skip
        found.update(_range(first, last, per_node, every) if match[2] else [first])
    if not found:
        raise BadInput(f"no count in '{text[:60]}' fills whole nodes of {per_node}",
                       hint=f"take a range with {per_node} or {2 * per_node} in it")  # fmt: skip
    return tuple(sorted(found))


def _range(first: int, last: int, per_node: int, every: bool) -> Iterable[int]:
    if every:
        inside = range(first, min(last, per_node) + 1)
        start = -(-max(first, per_node) // per_node) * per_node
        return [*inside, *range(start, last + 1, per_node)]
    counts, value = [], 1
    while value <= last:
        if value >= first:
            counts.append(value)
        # A node is never left half filled on the way to the next.
        value = per_node if value < per_node < 2 * value else 2 * value
    whole = last if last <= per_node else last // per_node * per_node
    start = first if legal(first, per_node) else -(-first // per_node) * per_node
    return [count for count in {start, *counts, whole} if first <= count <= last]
