"""A request to the model, checked on entry, and the forecast that answers it.

`answer(ScalingRequest(partition, "resnet50", gpus="1-32"))` gives a `Forecast`: counts of GPUs, and
the choices, fastest, cheapest, best below a loss. A field of the request declares its option of
`hpcdl predict`, too. Everything a user can get wrong is one `BadInput` here; after it values are
valid. Counts fill nodes: below one node any, above it whole nodes.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from hpcdl import facts
from hpcdl.predict import start
from hpcdl.predict.machine import (
    CPU,
    GIGA,
    NETWORK_HINT,
    Machine,
    NetworkSums,
    network,
    of_partition,
)
from hpcdl.predict.start import Calibration, Exchange, MeasuredRun
from hpcdl.predict.step import (
    ENDLESS,
    PRECISIONS,
    ModelSplit,
    SharedCores,
    StepTime,
    Workload,
    feed,
    predict_step,
    split_help,
    split_of,
    split_texts,
)
from hpcdl.system.declare import SWITCH, check, choice, listed, number, option, whole
from hpcdl.system.errors import BadInput
from hpcdl.system.frozen import dataclass
from hpcdl.system.text import count_of

if TYPE_CHECKING:
    from hpcdl.site import Partition

MOST_GPUS = 65_536
IMAGENET_IMAGES = 1_281_167
TOKENS = 1e9
"""Tokens of a transformer's epoch where nobody says how many."""
_HOUR = 3600.0
_LOSS = 0.1
"""The largest loss of efficiency of the largest efficient count."""
_SPLIT = "split it, such as --split tensor=8,stages=4,zero=1, or recompute: checkpointing=full"
_COUNTS = "write 8, 1,2,4 or a range 1-64"
_RANGE = re.compile(r"([0-9]{1,9})(?: *- *([0-9]{1,9}))?\Z")


def _amount(flag: str, text: str, least: float, most: float) -> float | None:
    """A number that the model chooses where it is not given; `flag` has its metavar behind it."""
    name, _, metavar = flag.partition(" ")
    amount: float | None = option(text, None, flag=name, metavar=metavar, **number(least, most))
    return amount


@dataclass(frozen=True)
class ScalingRequest:
    """A request; None leaves a choice to the model.

    `size` is the edge of an image in pixels, or a sequence's tokens. `gpus` is text as `expand`
    takes it; all of the partition by default. `real` images are read and decoded, ImageNet's where
    no field describes them; where not `ahead`, none is made before its step. `images_per_second`
    is a rate of one GPU.

    `result` is a result.json to start from; `exchanges` are the site's all-reduces, those within a
    node first. A `plan` splits a transformer; the batch is then a micro-batch.
    `cores` are those of the one machine that emulates all nodes.
    """

    partition: Partition
    model: str | None = option("the network, such as resnet50", None, type="string")
    gpus: str | None = option("8, 1,2,4 or 1-64 (all)", None, type="string", metavar="COUNTS")
    batch: int | None = option(
        "images per GPU and step (64)", None, flag="--batch-per-rank", **whole(1, 65_536)
    )
    precision: str | None = option(
        "precision (default: tf32 on A100 and newer, else fp32)",
        None,
        **choice(*PRECISIONS, "bf16"),
    )
    storage_gbs: float | None = _amount(
        "--storage GB/S", "read bandwidth of the file system of real images (enough)", 1e-6, 1e6
    )
    record_bytes: float | None = _amount(
        "--record-size BYTES", "bytes of an image's file (115129, ImageNet)", 1, 1e12
    )
    decode_rate: float | None = _amount(
        "--decode-rate IMAGES/S", "images that a core decodes per second", 1e-4, 1e9
    )
    images: float | None = _amount(
        "--images N", "images (sequences) per epoch (1281167, ImageNet)", 1, 1e13
    )
    tokens: float | None = _amount("--tokens N", "tokens per epoch of a transformer (1e9)", 1, 1e16)
    epochs: int = option("epochs (1)", 1, **whole(1, 1_000_000))
    deadline_hours: float | None = _amount(
        "--deadline HOURS", "time limit of the training, for `cheapest`", 1e-3, 1e6
    )
    size: int | None = option(
        "edge of the images, or tokens of a sequence", None, metavar="PIXELS", **whole(8, 1_000_000)
    )
    real: bool = option("whether images are read and decoded", False, **SWITCH, flag=None)
    ahead: bool = True
    images_per_second: float | None = option(
        "images/s of one GPU", None, flag=None, **number(1e-4, 1e12)
    )
    result: Path | None = None
    exchanges: tuple[Exchange, ...] = ()
    plan: ModelSplit | None = option(
        split_help(),
        None,
        flag="--split",
        metavar="KEY=N,KEY=N",
        read=split_of,
        write=split_texts,
        **listed({"type": "string"}),
    )
    cores: int | None = None

    @cached_property
    def run(self) -> MeasuredRun | None:
        """The run to start from: what is not asked for is as in it."""
        return start.read_result(self.result) if self.result else None

    @property
    def reads(self) -> bool:
        """Return whether images are read and decoded."""
        return self.real or bool(self.storage_gbs or self.record_bytes or self.decode_rate)


class ScalingPoint(NamedTuple):
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
class Forecast:
    """Counts of GPUs, what they give, and what to take; `images` are those of an epoch.

    `notes` are caveats, `found` is what was used unasked.
    """

    request: ScalingRequest
    machine: Machine
    work: Workload
    calibration: Calibration
    images: float
    points: tuple[ScalingPoint, ...]
    notes: tuple[str, ...] = ()
    price: float | None = None
    found: tuple[str, ...] = ()

    def cost(self, point: ScalingPoint) -> float | None:
        """Return the training's cost, None if a GPU-hour has no price."""
        return None if self.price is None else point.gpu_hours * self.price


CountChoice = tuple[Forecast, ScalingPoint]


def choose(forecasts: Sequence[Forecast]) -> dict[str, CountChoice | None]:
    """The recommended counts of forecasts of one question; None where none meets the limits.

    fastest: most images per second. cheapest: least money where all have a price, else fewest
    GPU-hours, of those in time. efficient: the most GPUs whose loss is at most the limit. Counts
    that do not fit into memory, and those beyond the partition, are never chosen.
    """
    real = [(f, p) for f in forecasts for p in f.points if p.fits and not p.beyond]
    most = _HOUR * (forecasts[0].request.deadline_hours or math.inf)
    priced = all(forecast.price is not None for forecast in forecasts)

    def spent(choice: CountChoice) -> tuple[float, int]:
        forecast, point = choice
        return (forecast.cost(point) or 0.0) if priced else point.gpu_hours, point.gpus

    return {
        "fastest": max(real, key=lambda one: one[1].images_per_second, default=None),
        "cheapest": min((one for one in real if one[1].seconds <= most), key=spent, default=None),
        "efficient": max(
            (one for one in real if one[1].efficiency >= 1 - _LOSS),
            key=lambda one: one[1].gpus,
            default=None,
        ),
    }


def answer(request: ScalingRequest) -> Forecast:
    """The forecast that a request asks for.

    Raises:
        BadInput: an unknown name, a number out of bounds, a file that cannot be used, or nothing
            says how fast one GPU is.
    """
    machine, work, base = prepare(request)
    counts, left_out = _counts(request, machine)
    images, measured = _images(request, work.net), _measured(request, work)
    one = predict_step(machine, replace(work, plan=None), base.seconds, 1, 1)
    # One GPU of the old pipeline waits, too: efficiency is then of a GPU that waits for nothing.
    reference = one.seconds if work.feed.ahead else one.compute
    ran_here = base.proof == "run" and base.batch >= work.batch

    lost, stretch = _lost(measured, machine, work, base.seconds)

    def point(gpus: int) -> ScalingPoint:
        nodes = max(1, gpus // machine.per_node)
        step = predict_step(machine, work, base.seconds, gpus, nodes)
        if gpus > 1:
            step = step._replace(losses={k: stretch * loss for k, loss in step.losses.items()})
        each_second = work.images_of(gpus) / step.seconds
        same = measured is not None and (measured.ranks, measured.nodes) == (gpus, nodes)
        low, high = _bounds(step, work, base, lost, same=same)
        return ScalingPoint(
            step,
            each_second,
            each_second * low,
            each_second * high,
            # A GPU that does not hold the whole network: the part of computing in a step.
            (step.compute if work.plan else reference) / step.seconds,
            request.epochs * images / each_second,
            beyond=0 < machine.nodes < nodes,
            # A run that had such a batch knows better; ranks on CPUs share the node's memory.
            fits=machine.gpu == CPU or ran_here or work.memory_bytes(gpus) <= machine.memory,
        )

    points = tuple(map(point, counts))
    notes = (*_notes(machine, work, base, points), *filter(None, [left_out]))
    return Forecast(request, machine, work, base, images, points, notes)


def _notes(
    machine: Machine, work: Workload, base: Calibration, points: Sequence[ScalingPoint]
) -> Iterator[str]:
    """The caveats of a forecast."""
    wide, node = work.plan.tensor if work.plan else 1, machine.per_node
    if base.batch != work.batch:
        yield (
            f"it was measured at batch {base.batch}; the same images/s are assumed at {work.batch}"
        )
    if not all(point.fits for point in points):
        gpus = min(point.gpus for point in points)
        where = f" on {count_of(gpus, 'GPU')}" if work.plan else ""
        yield (
            f"batch {work.batch} is not likely to fit{where}: it needs about "
            f"{work.memory_bytes(gpus) / GIGA:,.0f} GB, and the {machine.gpu} has "
            f"{machine.memory / GIGA:g} GB; {smallest_that_fits(machine, work)}"
        )
    if node % wide and wide % node:
        yield (
            f"{wide} GPUs of tensor parallelism do not divide the {node} of a node: "
            "that some of them work across nodes is not counted"
        )
    if work.shared:
        yield f"one machine emulates all nodes: ranks share its {work.shared.cores} cores"


def _lost(
    run: MeasuredRun | None, machine: Machine, work: Workload, alone: float
) -> tuple[float | None, float]:
    """The logarithm of what a run of several GPUs lost, and how many times the model's loss."""
    if run is None:
        return None, 1.0
    theirs = predict_step(machine, work, alone, run.ranks, run.nodes)
    lost = max(0.0, run.step - theirs.compute)
    return math.log1p(lost / theirs.compute), lost / (theirs.seconds - theirs.compute)


def _bounds(
    step: StepTime, work: Workload, base: Calibration, ran: float | None, *, same: bool
) -> tuple[float, float]:
    """Return factors on the rate: the true rate is between them eight times in ten.

    Beside a run of several GPUs, which lost `ran`, only what the count adds to or takes from that
    loss is unsure; nothing of its own count (`same`).
    """
    if step.gpus == 1 or (work.plan and base.proof != "run"):
        return base.low, base.high
    kind = kind_of(step.nodes, real=work.feed is not ENDLESS)
    if ran is None:
        # Errors of one GPU's rate and of the loss are independent: their squares add up.
        lows, highs = zip(factors(step.loss, kind), (base.low, base.high), strict=True)
        low, high = (math.hypot(*map(math.log, pair)) for pair in (lows, highs))
        return math.exp(-low), math.exp(high)
    low, high = (1.0, 1.0) if same else factors(abs(step.loss - ran), kind)
    return low / start.ONE_RUN, high * start.ONE_RUN


def kind_of(nodes: int, *, real: bool) -> str:
    """The kind of a row that has ranges of its own."""
    return "across" if nodes > 1 else "real" if real else "within"


def factors(loss: float, kind: str) -> tuple[float, float]:
    """Return factors on a rate of that loss: the true rate is between them eight times in ten.

    Errors grow with the loss, and a small one has some, too.
    """
    shipped = facts.load("predict")
    scale = shipped["scale"]["least"] + shipped["scale"]["per_loss"] * max(0.0, loss)
    row = shipped["ranges"][kind]
    return math.exp(-row["high"] * scale), math.exp(-row["low"] * scale)


def smallest_that_fits(machine: Machine, work: Workload) -> str:
    """The fewest GPUs, or else the largest batch, that fit into the memory; or what to change."""
    least = work.plan.gpus if work.plan else 1
    for gpus in (least << power for power in range(17) if work.plan):
        if gpus <= MOST_GPUS and work.memory_bytes(gpus) <= machine.memory:
            return f"the smallest that would fit is {count_of(gpus, 'GPU')}"
    one, two = (replace(work, batch=batch).memory_bytes(least) for batch in (1, 2))
    fits = math.floor((machine.memory - one) / (two - one)) + 1
    if fits > 0:
        return f"the largest batch that fits is {fits}"
    smaller = "take smaller images, or a GPU with more memory"
    return f"no batch fits: {_SPLIT if work.net.shape.blocks else smaller}"


# ---- counts of GPUs ----


def expand(text: str, per_node: int, replica: int = 1) -> tuple[int, ...]:
    """Counts of GPUs from text such as `8`, `1,2,4` or `1-64`: those that fill nodes and replicas.

    A range gives its doublings, its first and its last. Other text, and a count that fits nothing,
    is a `BadInput`.
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
        filling = [n for n in range(first, last + 1) if n <= per_node or n % per_node == 0]
        if not filling:
            down = first // per_node * per_node
            raise BadInput(
                f"{part.strip()} GPUs do not fill whole nodes of {per_node}",
                hint=f"take {down} or {down + per_node}",
            )
        whole = [n for n in filling if n % replica == 0]
        for n in whole:
            unit = replica if replica > 1 else per_node if n >= per_node else 1
            if n in (whole[0], whole[-1]) or (n // unit).bit_count() == 1:
                counts.add(n)
    if not counts:
        raise BadInput(
            f"none of these counts is a multiple of the {replica} GPUs of a replica",
            hint=f"give --gpus {replica} or a multiple: tensor times stages",
        )
    return tuple(sorted(counts))


def _counts(request: ScalingRequest, machine: Machine) -> tuple[tuple[int, ...], str]:
    """The counts of GPUs that are asked for, and why some are left out of a range."""
    text = request.gpus or f"1-{machine.per_node * machine.nodes}"
    replica = request.plan.gpus if request.plan else 1
    counts = expand(text, machine.per_node, replica)
    inside = tuple(count for count in counts if count <= machine.per_node)
    if machine.network is not None or inside == counts:
        return counts, ""
    if not inside or "-" not in text:
        _ = machine.between  # which says that it is not known
    return inside, f"more than one node is left out: the network is not known; {NETWORK_HINT}"


# ---- the machine and the training that a request means ----


def prepare(request: ScalingRequest) -> tuple[Machine, Workload, Calibration]:
    """The machine, the workload and one GPU's step that a request means."""
    check(request)
    if request.plan and request.reads:
        raise BadInput(
            "a split transformer reads no images", hint="leave out what describes images"
        )
    machine = of_partition(request.partition)
    for exchange in request.exchanges:  # links that the site's checks measured
        machine = start.with_exchange(machine, exchange)
    if run := request.run:
        start.same_machine(run, machine)
    work = _workload(request, run, machine)
    if run:
        return machine, work, start.from_result(run, work.batch)
    if request.images_per_second is not None:
        source = f"{request.images_per_second:g} images/s as given"
        seconds = work.batch / request.images_per_second
        return machine, work, Calibration(seconds, work.batch, source, "doubtful")
    return machine, work, start.from_facts(machine, work)


def _workload(request: ScalingRequest, run: MeasuredRun | None, machine: Machine) -> Workload:
    """Return the training: as asked, else as in the run, else the usual."""
    model = request.model or (run.model if run else None)
    if model is None:
        raise BadInput("no model is named", hint="give --model, for example --model resnet50")
    if run and model != run.model:
        raise _other(run, f"'{run.model}', not '{model}'", "model")
    own = (run.size or network(run.model).height) if run else None
    if run and request.size not in (None, own):
        raise _other(run, f"images of {own} pixels, not {request.size}", "size")
    net = network(model, request.size or (run.size if run else None))
    if request.plan:
        request.plan.check(net)
    fed = ENDLESS
    if request.reads:
        fed = feed(
            machine,
            net,
            (request.storage_gbs or 0) * GIGA or None,
            ahead=request.ahead,
            record_bytes=request.record_bytes,
            decode_rate=request.decode_rate,
        )
    return Workload(
        net,
        request.batch or (run.batch if run else 1 if request.plan else start.USUAL_BATCH),
        _precision(request, run, machine),
        feed=fed,
        plan=request.plan,
        shared=SharedCores(request.cores, run.cpus, run.ranks) if request.cores and run else None,
    )


def _precision(request: ScalingRequest, run: MeasuredRun | None, machine: Machine) -> str:
    """As asked, else as in the run, else what float32 is on that GPU."""
    # bf16 runs on the units of fp16, and its gradients stay float32: amp to the model.
    asked = "amp" if request.precision == "bf16" else request.precision
    if run is None:
        usual = "amp" if request.plan else "fp32"
        return asked or start.trained_precision(usual, machine.compute)
    found = start.trained_precision(run.precision, machine.compute, compress=run.compress)
    if asked and start.units_of(asked) != start.units_of(found):
        raise _other(run, f"the precision '{found}', not '{asked}'", "precision")
    return asked or found


def _other(run: MeasuredRun, found: str, what: str) -> BadInput:
    """A run of something else than is asked."""
    return BadInput(
        f"{run.origin} measured {found}",
        hint=f"leave --{what} out, or calibrate by a run of that {what}",
    )


def _images(request: ScalingRequest, net: NetworkSums) -> float:
    """Images (sequences) of an epoch."""
    if request.tokens is not None and (net.channels or request.images):
        raise BadInput(
            f"--tokens are of a transformer without --images, and '{net.name}' has "
            f"{'images' if net.channels else 'both'}",
            hint="give --images alone",
        )
    usual = IMAGENET_IMAGES if net.channels else (request.tokens or TOKENS) / net.height
    return request.images or usual


def _measured(request: ScalingRequest, work: Workload) -> MeasuredRun | None:
    """Return the run of several ranks that is of this training; at its count it is the answer."""
    run = request.run
    if run is None or request.plan or (run.model, run.batch) != (work.net.name, work.batch):
        return None
    return run if run.ranks > 1 else None
