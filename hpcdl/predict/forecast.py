"""A range of GPU counts on one machine, and the choices: fastest, cheapest, best below a loss.

Everything in it is a pure function of a machine, a training and a calibration. Counts fill nodes:
below one node any, above it whole nodes.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from hpcdl import facts
from hpcdl.predict import step as steps
from hpcdl.predict.calibrate import Calibration
from hpcdl.predict.hardware import CPU, GIGA, Machine
from hpcdl.predict.learn import factors, kind_of
from hpcdl.predict.network import FLOAT_BYTES, kept_bytes
from hpcdl.predict.parallel import planned_bytes
from hpcdl.predict.results import Measured, nearest, stretched
from hpcdl.system.errors import BadInput

MOST_GPUS = 65_536
IMAGENET_IMAGES = 1_281_167
_HOUR = 3600.0
_SPLIT = "split it (--tensor, --pipeline-stages, --zero 3) or recompute (--checkpointing full)"
_COUNTS = "write 8, 1,2,4 or a range 1-64"
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
    def notes(self) -> tuple[str, ...]:
        """What a person should know before believing any of it."""
        base, batch, plan = self.calibration, self.training.batch, self.training.plan
        wide, node = plan.tensor if plan else 1, self.machine.per_node
        lacking = " and ".join(self.machine.lacks(self.training.precision))
        said = (
            (
                base.batch != batch,
                f"it was measured at batch {base.batch}; the same images/s are assumed at {batch}",
            ),
            # A run that had such a batch knows better than an estimate; ranks on CPUs share memory.
            (
                self.machine.gpu != CPU and not (base.proof == "run" and base.batch >= batch),
                self._memory_note,
            ),
            (
                node % wide and wide % node,
                f"{wide} GPUs of tensor parallelism do not divide the {node} of a node: "
                "that some of them work across nodes is not counted",
            ),
            (
                lacking,
                f"{lacking} of the {self.machine.gpu} are not known: the shares of the "
                "layers are a kindred GPU's",
            ),
            (True, self.left_out),
        )
        return tuple(text for so, text in said if so and text)

    @property
    def _memory_note(self) -> str:
        """What to do where the fewest GPUs do not hold the batch."""
        batch, has = self.training.batch, self.machine.memory
        gpus = min((point.gpus for point in self.points), default=1)
        one, two, needs = (
            memory_bytes(replace(self.training, batch=n), gpus) for n in (1, 2, batch)
        )
        if needs <= has:
            return ""
        fits = math.floor((has - one) / (two - one)) + 1
        # Convolutions are not split: there only a smaller batch or image helps.
        less = f"no batch: {_SPLIT}" if self.training.net.shape.blocks else "no batch"
        where = f" on {gpus} GPUs" if self.training.plan else ""
        return (
            f"batch {batch} is not likely to fit{where}: it needs about "
            f"{needs / GIGA:,.0f} GB, and the {self.machine.gpu} has {has / GIGA:g} GB, "
            f"enough for {fits if fits > 0 else less}"
        )


def memory_bytes(training: steps.Training, gpus: int) -> float:
    """About what a step keeps in each GPU's memory: activations, and the state of the weights.

    Weights, gradients and momenta are float32; transformers have Adam's second moment, too. FSDP
    shards the state over `gpus`.
    """
    net, element = training.net, training.activation_bytes
    if training.plan:
        return planned_bytes(net, training.plan, training.batch, gpus, element)
    state = net.parameters * FLOAT_BYTES * (3 if net.channels else 4)
    shards = gpus if training.form == "fsdp" else 1
    return state / shards + kept_bytes(net, training.batch, element)


def forecast(
    machine: Machine,
    training: steps.Training,
    calibration: Calibration,
    counts: Sequence[int],
    *,
    images: int = IMAGENET_IMAGES,
    loss: float = 0.1,
    deadline_hours: float | None = None,
    measured: Sequence[Measured] = (),
) -> Forecast:
    """Predict every count of GPUs (as `expand` gives them), and choose.

    `images` are those of an epoch, `loss` is the largest loss of efficiency that is accepted (0.1
    for 10 %), `deadline_hours` the limit of an epoch for the cheapest choice, `measured`
    are runs of several GPUs here.
    """
    known = steps.constants()
    one = steps.profile(machine, training, calibration.seconds, known)
    alone = steps.predict_step(machine, replace(training, plan=None), one, 1, 1, known)

    def point(gpus: int) -> Point:
        nodes = max(1, gpus // machine.per_node)
        step = steps.predict_step(machine, training, one, gpus, nodes, known)
        ran = nearest(measured, gpus, nodes) if gpus > 1 else None
        if ran:
            theirs = steps.predict_step(machine, training, one, ran.ranks, ran.nodes, known)
            lost = stretched(step.loss, ran.loss(step.compute), theirs.loss)
            if (ran.ranks, ran.nodes) == (gpus, nodes):  # the run itself, whatever one rank does
                step = replace(step, compute=min(step.compute, ran.middle))
                lost = ran.loss(step.compute)
            step = steps.lengthened(step, lost)
        rate = training.images_of(gpus) / step.seconds
        low, high = _bounds(step, training, calibration, ran)
        # One GPU does not hold what is split: there, it is the part of computing in a step.
        gain = (step.compute if training.plan else alone.seconds) / step.seconds
        return Point(
            step,
            rate,
            rate * low,
            rate * high,
            gpus * gain,
            gain,
            images / rate,
            beyond=0 < machine.nodes < nodes,
        )

    points = tuple(map(point, counts))
    # Of a split transformer more GPUs may hold what fewer do not; a run knows better.
    whole = not training.plan or calibration.proof == "run"
    fit = [p for p in points if whole or memory_bytes(training, p.gpus) <= machine.memory]
    choices = choose(fit or points, loss, deadline_hours)
    return Forecast(machine, training, calibration, images, points, choices)


def _bounds(
    step: steps.Step, training: steps.Training, base: Calibration, ran: Measured | None
) -> tuple[float, float]:
    """Factors on the rate between which the truth lies eight times in ten.

    Beside runs of several GPUs, only what the count adds to or takes from their loss is unsure.
    """
    if step.gpus == 1 or (training.plan and base.proof != "run"):
        return base.low, base.high
    kind = kind_of(step.nodes, real=training.feed is not steps.ENDLESS)
    if ran is None:
        low, high = factors(step.loss, kind)
        return low * base.low, high * base.high
    noise = math.exp(-ran.spread)
    if (ran.ranks, ran.nodes) == (step.gpus, step.nodes):
        return noise, 1 / noise
    low, high = factors(abs(step.loss - ran.loss(step.compute)), kind)
    return noise * low, high / noise


def choose(points: Sequence[Point], loss: float, deadline_hours: float | None = None) -> Choices:
    """Fastest: most images per second. Cheapest: fewest GPU-hours of those in time.

    Efficient: the most GPUs whose efficiency is at least 1 - loss. Counts beyond the
    partition are not chosen while there are others.
    """
    real = [point for point in points if not point.beyond] or list(points)
    limit = _HOUR * deadline_hours if deadline_hours else math.inf
    timely = [point for point in real if point.epoch_seconds <= limit]
    thrifty = [point for point in real if point.efficiency >= 1 - loss]
    return Choices(
        max(real, key=lambda p: p.images_per_second, default=None),
        min(timely, key=lambda p: (p.gpu_hours, p.gpus), default=None),
        max(thrifty, key=lambda p: p.gpus, default=None),
        loss,
        deadline_hours,
    )


def expand(text: str, per_node: int, *, every: bool = False) -> tuple[int, ...]:
    """Counts of GPUs from text such as `8`, `1,2,4` or `1-64`.

    A range gives its doublings and its end, rounded to whole nodes; with `every`, all counts
    that fill nodes. Other text, and a single count that fills no nodes, is a `BadInput`.
    """
    found: set[int] = set()
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
        found.update(_range(first, last, per_node, every))
    if not found:
        raise BadInput(
            f"no count in '{text[:60]}' fills whole nodes of {per_node}",
            hint=f"take a range with {per_node} or {2 * per_node} in it",
        )
    return tuple(sorted(found))


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
