"""A request to the model, checked on entry, and its answer: what other packages call.

`answer(ScalingRequest(partition, "resnet50", gpus="1-32"))` gives a `Forecast`. A field declares
its option of `hpcdl predict`, too. Everything a user can get wrong is one `BadInput` here; after it
values are valid.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from hpcdl.predict import rate, results
from hpcdl.predict.forecast import (
    IMAGENET_IMAGES,
    TOKENS,
    DataAmount,
    Forecast,
    PlanLimits,
    expand,
    forecast,
)
from hpcdl.predict.hardware import CPU, GIGA, NETWORK_HINT, Machine, of_partition, slowest
from hpcdl.predict.network import NetworkSums, network
from hpcdl.predict.parallel import ModelSplit
from hpcdl.predict.results import Exchange, MeasuredLoss, MeasuredRun
from hpcdl.predict.step import (
    ENDLESS,
    FORMS,
    IMAGENET,
    PIPELINES,
    PRECISIONS,
    SYNTHETIC,
    Feed,
    SharedCores,
    Workload,
    feed,
    peak_of,
)
from hpcdl.system.declare import check, option
from hpcdl.system.errors import BadInput

if TYPE_CHECKING:
    from hpcdl.site import Partition


def _number(text: str, low: float, high: float, flag: str, metavar: str) -> float | None:
    """An option that is a number of at least `low` and at most `high`."""
    found: float | None = option(
        text, None, type="number", minimum=low, maximum=high, flag=flag, metavar=metavar
    )
    return found


@dataclass(frozen=True)
class ScalingRequest:
    """A request; None leaves a choice to the model.

    `size` is the edge of an image in pixels, or a sequence's tokens. `pipeline` is that of
    `hpcdl train`: the old one makes no image ahead. `gpus` is text as `expand` takes it; all of the
    partition by default. `loss` is a part, 0.1 for 10 %.

    `result` is a result.json to start from, `repeats` are more runs of the same training, of as
    many ranks or of others; `exchanges` are all-reduce checks or their results, one within a node
    and one between nodes at most. A `plan` splits a transformer; the batch is then a micro-batch.
    `cores` are those of the one machine that emulates all nodes.
    """

    partition: Partition
    model: str | None = option("the network, such as resnet50", None, type="string")
    gpus: str | None = option(
        "8, 1,2,4 or 1-64 (default: all)", None, type="string", metavar="COUNTS"
    )
    batch: int | None = option(
        "images per GPU and step (64)", None, type="integer", minimum=1, maximum=65_536
    )
    precision: str | None = option(
        "fp32, tf32, amp, bf16 or fp16 (default: tf32 on A100 and newer, else fp32)",
        None,
        type="string",
        enum=[*PRECISIONS, "bf16"],
    )
    form: str = option(", ".join(FORMS), "horovod", type="string", enum=list(FORMS))
    data: str = option(
        "synthetic (default) or imagenet", SYNTHETIC, type="string", enum=[SYNTHETIC, IMAGENET]
    )
    pipeline: str = option(
        "new (default), or old: without prefetching", "new", type="string", enum=list(PIPELINES)
    )
    storage_gbs: float | None = _number(
        "file system read bandwidth", 1e-6, 1e6, "--storage", "GB/S"
    )
    record_bytes: float | None = _number(
        "bytes of an image's file (115129, ImageNet)", 1, 1e12, "--record-size", "BYTES"
    )
    decode_rate: float | None = _number(
        "images that a CPU core decodes per second", 1e-4, 1e9, "--decode-rate", "IMAGES/S"
    )
    images: float | None = _number(
        "images (sequences) per epoch (1281167, ImageNet)", 1, 1e13, "--images", "N"
    )
    tokens: float | None = _number(
        "tokens per epoch of a transformer (1e9)", 1, 1e16, "--tokens", "N"
    )
    epochs: int = option("epochs (1)", 1, type="integer", minimum=1, maximum=1_000_000)
    loss: float = option(
        "largest loss of efficiency, for the largest efficient count (10)",
        0.1,
        type="number",
        minimum=0,
        maximum=99,
        metavar="PERCENT",
        read=lambda percent: percent / 100,
        write=lambda part: 100 * part,
    )
    deadline_hours: float | None = _number(
        "time limit of the training, for `cheapest`", 1e-3, 1e6, "--deadline", "HOURS"
    )
    every: bool = option("also counts between the doublings", False, type="boolean")
    images_per_second: float | None = _number("rate of one GPU", 1e-4, 1e9, "--one", "IMAGES/S")
    link_gbs: float | None = _number(
        "all-reduce bus bandwidth measured within a node", 1e-4, 1e5, "--link", "GB/S"
    )
    network_gbs: float | None = _number(
        "all-reduce bus bandwidth measured between nodes", 1e-4, 1e5, "--network", "GB/S"
    )
    size: int | None = option(
        "edge of the images, or tokens of a sequence (the network's own)",
        None,
        type="integer",
        minimum=8,
        maximum=1_000_000,
        metavar="PIXELS",
    )
    result: Path | None = None
    repeats: tuple[Path, ...] = ()
    exchanges: tuple[Path | Exchange, ...] = ()
    plan: ModelSplit | None = None
    cores: int | None = None

    @cached_property
    def runs(self) -> list[MeasuredRun]:
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

    @property
    def real(self) -> bool:
        """Return whether images are read and decoded."""
        return self.data != SYNTHETIC or bool(self.record_bytes or self.decode_rate)


def answer(request: ScalingRequest) -> Forecast:
    """The forecast that a request asks for.

    Raises:
        BadInput: an unknown name, a number out of bounds, a file that cannot be used, or nothing
            says how fast one GPU is.
    """
    machine, work, calibration = prepare(request)
    counts, left_out = _counts(request, machine)
    prediction = forecast(
        machine,
        work,
        calibration,
        counts,
        data=_amount(request, work.net),
        limits=PlanLimits(request.loss, request.deadline_hours),
        measured=_measured(request, work),
    )
    return replace(
        prediction, links=tuple(exchange.describe for exchange in request.links), left_out=left_out
    )


def _amount(request: ScalingRequest, net: NetworkSums) -> DataAmount:
    if request.tokens is not None and (net.channels or request.images):
        raise BadInput(
            f"--tokens are of a transformer without --images, and '{net.name}' has "
            f"{'images' if net.channels else 'both'}",
            hint="give --images alone",
        )
    usual = IMAGENET_IMAGES if net.channels else (request.tokens or TOKENS) / net.height
    return DataAmount(request.images or usual, request.epochs)


def _measured(request: ScalingRequest, work: Workload) -> tuple[MeasuredLoss, ...]:
    """Return the losses of runs of several ranks; a run of another training is refused."""
    groups: dict[tuple[int, int], list[float]] = {}
    for run in request.runs if request.result and not request.plan else ():
        if run.training != request.runs[0].training:
            what = "model, batch, precision, compression and image size"
            raise BadInput(
                f"{run.origin} measured {run.described}, and {request.result} did not",
                hint=f"give runs of the same {what}, or one run",
            )
        if (run.model, run.batch) == (work.net.name, work.batch) and run.ranks > 1:
            groups.setdefault((run.ranks, run.nodes), []).append(run.step)
    return tuple(MeasuredLoss(*layout, tuple(seconds)) for layout, seconds in groups.items())


def _counts(request: ScalingRequest, machine: Machine) -> tuple[tuple[int, ...], str]:
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


def prepare(request: ScalingRequest) -> tuple[Machine, Workload, rate.Calibration]:
    """The machine, the workload and one GPU's step that a request means."""
    check(request)
    if request.plan:
        check(request.plan)
    _check_together(request)
    machine = _with_links(request, of_partition(request.partition))
    for each in request.runs:
        results.same_machine(each, machine)
    run = request.runs[0] if request.result else None
    work = _workload(request, run, machine)
    if run:
        base = rate.from_result(run, work.batch)
    elif request.images_per_second is not None:
        known = machine.gpu != CPU and not machine.lacks(work.precision)
        peak = peak_of(machine, work.precision) if known else math.inf
        base = rate.from_images_per_second(request.images_per_second, work, peak)
    elif work.plan:
        base = rate.from_plan(machine, work)
    else:
        base = rate.from_rows(machine, work)
    return machine, work, base


def _with_links(request: ScalingRequest, machine: Machine) -> Machine:
    """The machine with the links that were measured: by all-reduce checks, or as stated."""
    for exchange in request.links:
        results.same_machine(exchange, machine)
    stated = (request.link_gbs, request.network_gbs)
    for several, name in enumerate(("within a node", "between nodes")):
        checks = sum((exchange.nodes > 1) == several for exchange in request.links)
        if checks + (stated[several] is not None) > 1:
            once = "give one result of an all-reduce check, or --link or --network"
            raise BadInput(f"the links {name} are given twice", hint=once)
    for exchange in request.links:
        machine = results.fitted(machine, exchange)
    link, between = machine.inside, machine.network or slowest()
    if request.link_gbs is not None:
        link = replace(link, bandwidth=request.link_gbs * GIGA, measured=True)
        machine = replace(machine, inside=link)
    if request.network_gbs is not None:
        between = replace(between, bandwidth=request.network_gbs * GIGA, measured=True)
        machine = replace(machine, network=between)
    return machine


def _check_together(request: ScalingRequest) -> None:
    """Refuse values that exclude each other."""
    if request.result and request.images_per_second is not None:
        raise BadInput(
            "a run and a stated rate both give the speed of one GPU",
            hint="give --calibrate or --one, not both",
        )
    for given, what in (
        (request.storage_gbs is not None, "storage"),
        (request.pipeline != "new", "pipeline"),
    ):
        if given and not request.real:
            raise BadInput(
                f"synthetic data need no {what}",
                hint="give --data imagenet, or --record-size and --decode-rate, as well",
            )


def _precision(request: ScalingRequest, run: MeasuredRun | None, machine: Machine) -> str:
    """As asked, else as in the run, else what float32 is on that GPU."""
    # bf16 runs on the units of fp16, and its gradients stay float32: amp to the model.
    asked = "amp" if request.precision == "bf16" else request.precision
    if run is None:
        return asked or ("amp" if request.plan else results.usual_precision(machine.compute))
    measured = results.trained_precision(run.precision, machine.compute, compress=run.compress)
    if asked and not results.alike(asked, measured):
        raise _other(run, f"the precision '{measured}', not '{asked}'", "precision")
    return asked or measured


def _other(run: MeasuredRun, measured: str, what: str) -> BadInput:
    """A run of something else than is asked."""
    return BadInput(
        f"{run.origin} measured {measured}",
        hint=f"leave --{what} out, or calibrate by a run of that {what}",
    )


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
        _check_split(request)
    shared = None
    if request.cores and run:
        shared = SharedCores(request.cores, run.cpus, run.ranks)
    return Workload(
        net,
        request.batch or (run.batch if run else 1 if request.plan else rate.USUAL_BATCH),
        _precision(request, run, machine),
        request.form,
        _feed(request, machine, net) if request.real else ENDLESS,
        plan=request.plan,
        shared=shared,
    )


def _feed(request: ScalingRequest, machine: Machine, net: NetworkSums) -> Feed:
    return feed(
        machine,
        net,
        (request.storage_gbs or 0) * GIGA or None,
        ahead=request.pipeline == "new",
        record_bytes=request.record_bytes,
        decode_rate=request.decode_rate,
    )


def _check_split(request: ScalingRequest) -> None:
    if request.form != FORMS[0] or request.real:
        raise BadInput(
            "a split transformer exchanges in its own form, and reads no images",
            hint="leave out --form and --data; --zero 3 is FSDP",
        )
