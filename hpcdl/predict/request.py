"""A request to the model, checked on entry, and its answer: what other packages call.

`answer(Request(partition, "resnet50", gpus="1-32"))` gives a `Forecast`. Everything a user
can get wrong is one `BadInput` here; after it values are valid.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from hpcdl.predict import calibrate, results
from hpcdl.predict import step as steps
from hpcdl.predict.forecast import IMAGENET_IMAGES, Forecast, expand, forecast
from hpcdl.predict.hardware import CPU, GIGA, NETWORK_HINT, Machine, of_partition, slowest
from hpcdl.predict.network import Network, network
from hpcdl.predict.parallel import CHECKPOINTING, Plan
from hpcdl.predict.records import read_records
from hpcdl.predict.results import Exchange, Measured, Result
from hpcdl.predict.step import FORMS, SYNTHETIC, Training
from hpcdl.system.errors import BadInput
from hpcdl.system.text import did_you_mean

if TYPE_CHECKING:
    from hpcdl.site import Partition

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
    "images_per_second": (1e-4, 1e9, "images/s of one GPU"),
}
_NAMES = {
    "form": FORMS,
    "precision": (*steps.PRECISIONS, "bf16"),
    "data": (SYNTHETIC, steps.IMAGENET),
    "pipeline": steps.PIPELINES,
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
    node and between nodes; they replace the published ones.
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
    size: int | None = None
    plan: Plan | None = None

    @cached_property
    def runs(self) -> list[Result]:
        """The runs to start from; of the first one, unless another is asked for, is the rest."""
        return [results.read_result(path) for path in (self.result, *self.repeats) if path]

    @cached_property
    def links(self) -> list[Exchange]:
        """The all-reduce checks, those within a node first."""
        read = (
            one if isinstance(one, Exchange) else results.read_exchange(one)
            for one in self.exchanges
        )
        return sorted(read, key=lambda one: one.nodes)


def answer(request: Request) -> Forecast:
    """The forecast that a request asks for.

    A `BadInput` tells of an unknown name, a number out of bounds, a file that cannot be used, or
    that nothing says how fast one GPU is.
    """
    machine, training, calibration = prepare(request)
    counts, left_out = _counts(request, machine)
    found = forecast(
        machine,
        training,
        calibration,
        counts,
        images=request.images or IMAGENET_IMAGES,
        loss=request.loss,
        deadline_hours=request.deadline_hours,
        measured=_measured(request, training),
    )
    return replace(found, links=tuple(one.describe for one in request.links), left_out=left_out)


def _measured(request: Request, training: Training) -> tuple[Measured, ...]:
    """What runs of several ranks lost, by their layout; a run of another training is refused."""
    groups: dict[tuple[int, int], list[float]] = {}
    for run in request.runs if request.result and not request.plan else ():
        if run.training != request.runs[0].training:
            what = "model, batch, precision, compression and image size"
            raise BadInput(
                f"{run.origin} measured {run.described}, and {request.result} did not",
                hint=f"give runs of the same {what}, or one run",
            )
        if (run.model, run.batch) == (training.net.name, training.batch) and run.ranks > 1:
            groups.setdefault((run.ranks, run.nodes), []).append(run.step)
    return tuple(Measured(*layout, tuple(seconds)) for layout, seconds in groups.items())


def _counts(request: Request, machine: Machine) -> tuple[tuple[int, ...], str]:
    """The counts of GPUs that are asked for, and why some are left out of a range."""
    text, plan = request.gpus or f"1-{machine.per_node * machine.nodes}", request.plan
    counts = expand(text, machine.per_node, every=request.every or plan is not None)
    if plan:
        counts = _replicas(counts, plan.gpus, every=request.every)
    inside = tuple(count for count in counts if count <= machine.per_node)
    if machine.network is not None or inside == counts:
        return counts, ""
    if not inside or "-" not in text:
        _ = machine.between  # which says that it is not known
    return inside, f"more than one node is left out: the network is not known; {NETWORK_HINT}"


def _replicas(counts: tuple[int, ...], one: int, *, every: bool) -> tuple[int, ...]:
    """The counts that hold whole replicas of `one` GPUs: doublings and the last, or all."""
    whole = [count for count in counts if count % one == 0]
    if not whole:
        raise BadInput(
            f"none of these counts is a multiple of the {one} GPUs of a replica",
            hint=f"give --gpus {one} or a multiple: tensor times stages",
        )
    return tuple(n for n in whole if every or (n // one).bit_count() == 1 or n == whole[-1])


def prepare(request: Request) -> tuple[Machine, Training, calibrate.Calibration]:
    """The machine, the training and one GPU's step that a request means."""
    _check(request)
    machine = _with_links(request, of_partition(request.partition))
    for each in request.runs:
        results.same_machine(each, machine)
    run = request.runs[0] if request.result else None
    training = _training(request, run, machine)
    if run:
        base = calibrate.from_result(run, training.batch)
    elif request.images_per_second is not None:
        known = machine.gpu != CPU and not machine.lacks(training.precision)
        peak = steps.peak_of(machine, training.precision) if known else math.inf
        base = calibrate.from_images_per_second(request.images_per_second, training, peak)
    elif training.plan:
        base = calibrate.from_plan(machine, training)
    else:
        base = calibrate.from_records(machine, training, read_records())
    return machine, training, base


def _with_links(request: Request, machine: Machine) -> Machine:
    """The machine with the links that were measured: by all-reduce checks, or as stated."""
    for one in request.links:
        results.same_machine(one, machine)
    stated = (request.link_gbs, request.network_gbs)
    for several, name in enumerate(("within a node", "between nodes")):
        checks = sum((one.nodes > 1) == several for one in request.links)
        if checks + (stated[several] is not None) > 1:
            once = "give one result of an all-reduce check, or --link or --network"
            raise BadInput(f"the links {name} are given twice", hint=once)
    for one in request.links:
        machine = results.fitted(machine, one)
    link, between = machine.inside, machine.network or slowest()
    if request.link_gbs is not None:
        link = replace(link, bandwidth=request.link_gbs * GIGA, measured=True)
        machine = replace(machine, inside=link)
    if request.network_gbs is not None:
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
            raise BadInput(
                f"{what}: {shown:g} is not between {low:g} and {high:g}",
                hint="leave it out for the usual value",
            )
    for field, known in _NAMES.items():
        value = getattr(request, field)
        if value is not None and value not in known:
            raise BadInput(f"unknown {field} '{value}'", hint=did_you_mean(value, known))
    if request.result and request.images_per_second is not None:
        raise BadInput(
            "a run and a stated rate both say how fast one GPU is",
            hint="give --calibrate or --one, not both",
        )
    for given, what in (
        (request.storage_gbs is not None, "storage"),
        (request.pipeline != "new", "pipeline"),
    ):
        if given and request.data == SYNTHETIC:
            raise BadInput(f"synthetic data need no {what}", hint="give --data imagenet as well")


def _precision(request: Request, run: Result | None, machine: Machine) -> str:
    """As asked, else as in the run, else what float32 is on that GPU."""
    # bf16 runs on the units of fp16, and its gradients stay float32: amp to the model.
    asked = "amp" if request.precision == "bf16" else request.precision
    if run is None:
        return asked or ("amp" if request.plan else results.usual_precision(machine.compute))
    measured = results.trained_precision(run.precision, machine.compute, compress=run.compress)
    if asked and not results.alike(asked, measured):
        raise _other(run, f"the precision '{measured}', not '{asked}'", "precision")
    return asked or measured


def _other(run: Result, measured: str, what: str) -> BadInput:
    """A run of something else than is asked."""
    return BadInput(
        f"{run.origin} measured {measured}",
        hint=f"leave --{what} out, or calibrate by a run of that {what}",
    )


def _training(request: Request, run: Result | None, machine: Machine) -> Training:
    """What is trained: as asked, else as in the run, else the usual."""
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
        _check_plan(request.plan, request, net)
    rate, ahead = (request.storage_gbs or 0) * GIGA or None, request.pipeline == "new"
    real = request.data != SYNTHETIC
    return Training(
        net,
        request.batch or (run.batch if run else 1 if request.plan else _DEFAULT_BATCH),
        _precision(request, run, machine),
        request.form,
        steps.feed(machine, net, rate, ahead=ahead) if real else steps.ENDLESS,
        plan=request.plan,
    )


def _check_plan(plan: Plan, request: Request, net: Network) -> None:
    """Whether a network can be split so; the first fault is raised."""
    shape, pieces = net.shape, plan.stages * plan.interleave
    parts = (
        ("tensor", plan.tensor),
        ("pipeline-stages", plan.stages),
        ("interleave", plan.interleave),
        ("micro-batches", plan.micro_batches),
    )
    bounds = [
        (
            not 1 <= value <= _MOST_PARTS,
            f"--{name} is 1 to {_MOST_PARTS}, not {value}",
            f"leave out --{name}, which is then 1 or what suits the stages",
        )
        for name, value in parts
    ]
    faults = (
        (
            not shape.blocks,
            f"'{net.name}' is no transformer, and only blocks are split",
            "leave out the options that split, or name a transformer such as gpt_18b",
        ),
        *bounds,
        (
            plan.zero not in range(4),
            f"--zero is a stage of ZeRO, 0 to 3, not {plan.zero}",
            "3 is FSDP",
        ),
        (
            plan.checkpointing not in CHECKPOINTING,
            f"--checkpointing is {', '.join(CHECKPOINTING)}, not '{plan.checkpointing}'",
            did_you_mean(plan.checkpointing, CHECKPOINTING),
        ),
        (
            request.form != FORMS[0] or request.data != SYNTHETIC,
            "a split transformer exchanges in its own form, and reads no images",
            "leave out --form and --data; --zero 3 is FSDP",
        ),
        (
            shape.heads % max(1, plan.tensor),
            f"{plan.tensor} GPUs cannot share {shape.heads} heads",
            f"give --tensor a divisor of {shape.heads}",
        ),
        (
            plan.stages > shape.blocks,
            f"{shape.blocks} blocks are too few for {plan.stages} stages",
            f"give --pipeline-stages {shape.blocks} at most",
        ),
        (
            plan.interleave > 1 and plan.stages < 2,
            "only stages of a pipeline are virtual stages",
            "give --pipeline-stages as well, or leave out --interleave",
        ),
        (
            shape.blocks and plan.interleave > 1 and shape.blocks % pieces,
            f"{shape.blocks} blocks do not divide into {pieces} virtual stages of a pipeline",
            f"stages times --interleave is a divisor of {shape.blocks}",
        ),
    )
    for wrong, said, hint in faults:
        if wrong:
            raise BadInput(said, hint=hint)
