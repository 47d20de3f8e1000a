"""A request to the model, checked on entry, and its answer: what other packages call.

`answer(Request(partition, "resnet50", gpus="1-32"))` gives a `Forecast`. Everything a user
can get wrong is one `BadInput` here; after it values are valid.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from hpcdl.predict import calibrate, results
from hpcdl.predict.exchange import Exchange, fitted, read_exchange
from hpcdl.predict.feed import ENDLESS, IMAGENET, PIPELINES, SYNTHETIC, feed
from hpcdl.predict.forecast import IMAGENET_IMAGES, Forecast, expand, forecast
from hpcdl.predict.hardware import CPU, GIGA, NETWORK_HINT, Machine, of_partition, slowest
from hpcdl.predict.measured import Measured
from hpcdl.predict.memory import CHECKPOINTING, Plan
from hpcdl.predict.network import Network, network
from hpcdl.predict.records import read_records
from hpcdl.predict.step import FORMS, PRECISIONS, Constants, Training, constants, peak_of
from hpcdl.system.errors import BadInput
from hpcdl.system.text import did_you_mean

if TYPE_CHECKING:
    from hpcdl.site import Partition

MEGA = 1e6
_HUGE = 1e300
_DEFAULT_BATCH = 64
_MOST_PARTS = 100_000
_BOUNDS = {
    "batch": (1, 65_536, "images per GPU"),
    "size": (8, 1_000_000, "pixels of an edge, or tokens of a sequence"),
    "images": (1, 1e13, "images of an epoch"),
    "loss": (0.0, 0.99, "loss of efficiency, as a part"),
    "deadline_hours": (1e-3, 1e6, "hours"),
    "storage_gbs": (1e-6, 1e6, "GB/s of storage"),
    "link_gbs": (1e-4, 1e5, "GB/s within a node"),
    "network_gbs": (1e-4, 1e5, "GB/s between nodes"),
    "cycle_ms": (0.0, 1e4, "ms of Horovod's cycle"),
    "fusion_mb": (0.0, 1e5, "MB of Horovod's fusion buffer"),
    "images_per_second": (1e-4, 1e9, "images/s of one GPU"),
}


@dataclass(frozen=True)
class Request:
    """What is asked; None leaves a choice to the model.

    `size` is the edge of an image in pixels, or a sequence's tokens; the network's own if None.
    `pipeline` is that of `hpcdl train`: the old one makes no image ahead. `gpus` is text as
    `expand` takes it; all of the partition by default. `loss` is a part, 0.1 for 10 %. `result`
    is a result.json to start from, `repeats` are more runs of the same training, of as many
    ranks or of others; `images_per_second` is one GPU's rate.
    `exchanges` are all-reduce checks or their results, one within a node, one between nodes at
    most.
    `link_gbs` and `network_gbs` are bus bandwidths that an all-reduce check measured within a
    node and between nodes; they replace the published ones. `cycle_ms` and `fusion_mb` are
    HOROVOD_CYCLE_TIME and HOROVOD_FUSION_THRESHOLD; Horovod's defaults of today if None.
    A `plan` splits a transformer; the batch is then a micro-batch.
    """

    partition: Partition
    model: str | None = None
    gpus: str | None = None
    batch: int | None = None
    precision: str | None = None
    form: str = "horovod"
    data: str = SYNTHETIC
    pipeline: str = "new"
    storage_gbs: float | None = None
    images: int | None = None
    loss: float = 0.1
    deadline_hours: float | None = None
    every: bool = False
    result: Path | None = None
    repeats: tuple[Path, ...] = ()
    images_per_second: float | None = None
    exchanges: tuple[Path | Exchange, ...] = ()
    link_gbs: float | None = None
    network_gbs: float | None = None
    cycle_ms: float | None = None
    fusion_mb: float | None = None
    size: int | None = None
    plan: Plan | None = None

    @property
    def measured_links(self) -> list[Exchange]:
        """The all-reduce checks, those within a node first."""
        read = (one if isinstance(one, Exchange) else read_exchange(one) for one in self.exchanges)
        return sorted(read, key=lambda one: one.nodes)

    @property
    def constants(self) -> Constants:
        """The model's constants, with Horovod's settings as asked."""
        known = constants()
        if self.cycle_ms is not None:
            known = replace(known, cycle=self.cycle_ms / 1000)
        if self.fusion_mb is not None:
            known = replace(known, fusion_bytes=self.fusion_mb * MEGA)
        return known


def answer(request: Request) -> Forecast:
    """The forecast that a request asks for.

    Raises:
        BadInput: an unknown name, a number out of bounds, a file that cannot be used, or
            nothing that says how fast one GPU is.
    """
    machine, training, calibration = prepare(request)
    counts, left_out = _counts(request, machine)
    found = forecast(
        machine, training, calibration, counts, images=request.images or IMAGENET_IMAGES,
        loss=request.loss, deadline_hours=request.deadline_hours, known=request.constants,
        measured=_measured(request, training),
    )  # fmt: skip
    links = tuple(one.describe for one in request.measured_links)
    return replace(found, links=links, left_out=left_out)


def _measured(request: Request, training: Training) -> tuple[Measured, ...]:
    """What runs of several ranks lost, by their layout; a run of another training is refused."""
    paths = [request.result, *request.repeats] if request.result and not request.plan else []
    groups: dict[tuple[int, int], list[float]] = {}
    found = [(path, results.read_result(path)) for path in filter(None, paths)]
    for path, result in found:
        if _shape(result) != _shape(found[0][1]):
            what = "model, batch, precision, compression and image size"
            raise BadInput(f"{path} measured {_told(result)}, and {request.result} did not",
                           hint=f"give runs of the same {what}, or one run")  # fmt: skip
        same = (result.model, result.batch) == (training.net.name, training.batch)
        if same and result.ranks > 1:
            groups.setdefault((result.ranks, result.nodes), []).append(result.step)
    return tuple(Measured(*layout, tuple(steps)) for layout, steps in groups.items())


def _shape(result: results.Result) -> tuple[object, ...]:
    """What repeated runs of one training share."""
    return result.model, result.batch, result.precision, result.compress, result.size


def _told(result: results.Result) -> str:
    size = f", {result.size} pixels" if result.size else ""
    compressed = ", compressed" if result.compress else ""
    return f"'{result.model}' at batch {result.batch}, {result.precision}{compressed}{size}"


def _counts(request: Request, machine: Machine) -> tuple[tuple[int, ...], str]:
    """The counts of GPUs that are asked for, and why some are left out of a range."""
    text = request.gpus or f"1-{machine.per_node * machine.nodes}"
    counts = expand(text, machine.per_node, every=request.every or request.plan is not None)
    counts = _replicas(counts, request) if request.plan else counts
    inside = tuple(count for count in counts if count <= machine.per_node)
    if machine.network is not None or inside == counts:
        return counts, ""
    if not inside or "-" not in text:
        _ = machine.between
    return inside, f"more than one node is left out: the network is not known; {NETWORK_HINT}"


def _replicas(counts: tuple[int, ...], request: Request) -> tuple[int, ...]:
    """The counts that hold whole replicas: doublings and the last, or all."""
    one = request.plan.gpus if request.plan else 1
    whole = [count for count in counts if count % one == 0]
    if not whole:
        raise BadInput(f"none of these counts is a multiple of the {one} GPUs of a replica",
                       hint=f"give --gpus {one} or a multiple: tensor times stages")  # fmt: skip
    usual = [n for n in whole if (n // one).bit_count() == 1 or n == whole[-1]]
    return tuple(whole if request.every else usual)


def prepare(request: Request) -> tuple[Machine, Training, calibrate.Calibration]:
    """The machine, the training and one GPU's step that a request means."""
    _check(request)
    machine = _measured_links(request, of_partition(request.partition))
    result = results.read_result(request.result) if request.result else None
    if request.result and result:
        results.same_machine(request.result, result.place, machine)
    for path in request.repeats:
        results.same_machine(path, results.read_result(path).place, machine)
    training = _training(request, result, machine)
    if result and request.result:
        base = calibrate.from_result(result, request.result)
        base = replace(base, seconds=base.seconds * training.batch / result.batch)
    elif request.images_per_second is not None:
        known = machine.gpu != CPU and not machine.lacks(training.precision)
        peak = peak_of(machine, training.precision) if known else math.inf
        base = calibrate.from_images_per_second(request.images_per_second, training, peak)
    elif training.plan:
        base = calibrate.from_plan(machine, training)
    else:
        base = calibrate.from_records(machine, training, read_records())
    return machine, training, base


def _measured_links(request: Request, machine: Machine) -> Machine:
    """The machine with the links that its all-reduce checks measured, each kind once."""
    found = request.measured_links
    for one in found:
        results.same_machine(one.origin, one.place, machine)
    stated = [request.link_gbs, request.network_gbs]
    for several, name in enumerate(("within a node", "between nodes")):
        said = sum((one.nodes > 1) == several for one in found) + (stated[several] is not None)
        if found and said > 1:
            once = "give one result of an all-reduce check, or --link or --network"
            raise BadInput(f"the links {name} are given twice", hint=once)
    for one in found:
        machine = fitted(machine, one)
    if request.link_gbs is not None:
        inside = replace(machine.inside, bandwidth=request.link_gbs * GIGA, measured=True)
        machine = replace(machine, inside=inside)
    if request.network_gbs is not None:
        between = machine.network or slowest()
        between = replace(between, bandwidth=request.network_gbs * GIGA, measured=True)
        machine = replace(machine, network=between)
    return machine


def _check(request: Request) -> None:
    """Names and bounds; the first fault is raised."""
    for field, (low, high, what) in _BOUNDS.items():
        value = getattr(request, field)
        if value is not None and not low <= value <= high:
            # An integer may be beyond all floats.
            shown = math.copysign(math.inf, value > 0 or -1) if abs(value) >= _HUGE else value
            raise BadInput(f"{what}: {shown:g} is not between {low:g} and {high:g}")
    for field, known in (
        ("form", FORMS), ("precision", (*PRECISIONS, "bf16")), ("data", (SYNTHETIC, IMAGENET)),
        ("pipeline", PIPELINES),
    ):  # fmt: skip
        value = getattr(request, field)
        if value is not None and value not in known:
            raise BadInput(f"unknown {field} '{value}'", hint=did_you_mean(value, known))
    if request.result and request.images_per_second is not None:
        raise BadInput("a run and a stated rate both say how fast one GPU is",
                       hint="give --calibrate or --one, not both")  # fmt: skip
    for given, what in ((request.storage_gbs is not None, "storage"),
                        (request.pipeline != "new", "pipeline")):  # fmt: skip
        if given and request.data == SYNTHETIC:
            raise BadInput(f"synthetic data need no {what}", hint="give --data imagenet as well")


def _precision(request: Request, result: results.Result | None, machine: Machine) -> str:
    """As asked, else as in the result, else what float32 is on that GPU."""
    # bf16 runs on the units of fp16, and its gradients stay float32: amp to the model.
    asked = "amp" if request.precision == "bf16" else request.precision
    if result is None:
        return asked or ("amp" if request.plan else results.usual_precision(machine.compute))
    measured = results.trained_precision(
        result.precision, machine.compute, compress=result.compress
    )
    if asked and not results.alike(asked, measured):
        raise _other(request, f"the precision '{measured}', not '{asked}'", "precision")
    return asked or measured


def _other(request: Request, measured: str, what: str) -> BadInput:
    """A run of something else than is asked."""
    return BadInput(f"{request.result} measured {measured}",
                    hint=f"leave --{what} out, or calibrate by a run of that {what}")  # fmt: skip


def _training(request: Request, result: results.Result | None, machine: Machine) -> Training:
    """What is trained: as asked, else as in the result, else the usual."""
    model = request.model or (result.model if result else None)
    if model is None:
        raise BadInput("no model is named", hint="give --model, for example --model resnet50")
    if result and model != result.model:
        raise _other(request, f"'{result.model}', not '{model}'", "model")
    own = (result.size or network(result.model).height) if result else None
    if own and request.size not in (None, own):
        raise _other(request, f"images of {own} pixels, not {request.size}", "size")
    net = network(model, request.size or (result.size if result else None))
    if request.plan:
        _check_plan(request.plan, request, net)
    rate, ahead = (request.storage_gbs or 0) * GIGA or None, request.pipeline == "new"
    return Training(
        net, request.batch or (result.batch if result else 1 if request.plan else _DEFAULT_BATCH),
        _precision(request, result, machine), request.form,
        ENDLESS if request.data == SYNTHETIC else feed(machine, net, rate, ahead=ahead),
        plan=request.plan,
    )  # fmt: skip


def _check_plan(plan: Plan, request: Request, net: Network) -> None:
    """Whether a network can be split so; the first fault is raised."""
    shape, pieces = net.shape, plan.stages * plan.interleave
    parts = (("tensor", plan.tensor), ("pipeline-stages", plan.stages),
             ("interleave", plan.interleave), ("micro-batches", plan.micro_batches))  # fmt: skip
    bounds = [(not 1 <= value <= _MOST_PARTS, f"--{name} is 1 to {_MOST_PARTS}, not {value}",
               f"leave out --{name}, which is then 1 or what suits the stages")
              for name, value in parts]  # fmt: skip
    faults = (
        (not shape.blocks, f"'{net.name}' is no transformer, and only blocks are split",
         "leave out the options that split, or name a transformer such as gpt_18b"),
        *bounds,
        (plan.zero not in range(4), f"--zero is a stage of ZeRO, 0 to 3, not {plan.zero}",
         "3 is FSDP"),
        (plan.checkpointing not in CHECKPOINTING,
         f"--checkpointing is {', '.join(CHECKPOINTING)}, not '{plan.checkpointing}'",
         did_you_mean(plan.checkpointing, CHECKPOINTING)),
        (request.form != FORMS[0] or request.data != SYNTHETIC,
         "a split transformer exchanges in its own form, and reads no images",
         "leave out --form and --data; --zero 3 is FSDP"),
        (shape.heads % max(1, plan.tensor), f"{plan.tensor} GPUs cannot share {shape.heads} heads",
         f"give --tensor a divisor of {shape.heads}"),
        (plan.stages > shape.blocks, f"{shape.blocks} blocks are too few for {plan.stages} stages",
         f"give --pipeline-stages {shape.blocks} at most"),
        (plan.interleave > 1 and plan.stages < 2, "only stages of a pipeline are virtual stages",
         "give --pipeline-stages as well, or leave out --interleave"),
        (shape.blocks and plan.interleave > 1 and shape.blocks % pieces,
         f"{shape.blocks} blocks do not divide into {pieces} virtual stages of a pipeline",
         f"stages times --interleave is a divisor of {shape.blocks}"),
    )  # fmt: skip
    for wrong, said, hint in faults:
        if wrong:
            raise BadInput(said, hint=hint)
