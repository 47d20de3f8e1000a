"""One synchronous training step of N GPUs, from one GPU's step: the scaling model itself.

    step = t1 x (1 + a x E[largest of N normal deviates]       waiting for the slowest rank
                   + b x all-reduce without overlap / t1       what back-propagation does not hide
                   + c x what the pace of the input costs / t1)

t1 is one GPU's step; the three numbers a, b, c are fitted by `python -m tools.validate`.

Forms: `horovod`, `ddp` and `replicated` (an all-reduce beside back-propagation), `fsdp` (sharded:
weights gathered twice, gradients scattered), `parameter_server` (gradients to host memory, weights
back), `no_overlap` (one all-reduce after back-propagation: `tf.distribute`, CNTK). Of several
passes (`accumulation`) the last one exchanges.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from statistics import NormalDist
from typing import NamedTuple

from hpcdl import facts
from hpcdl.predict.allreduce import allreduce, parameter_server
from hpcdl.predict.hardware import Machine
from hpcdl.predict.network import FLOAT_BYTES, HALF_BYTES, NetworkSums
from hpcdl.predict.parallel import ModelSplit, SplitWork, split_step, utilisation

FORMS = ("horovod", "ddp", "fsdp", "replicated", "parameter_server", "no_overlap")
PRECISIONS = ("fp32", "tf32", "amp", "fp16")
SYNTHETIC, IMAGENET = "synthetic", "imagenet"
PIPELINES = ("new", "old")
_LIMITS = 0.05
"""A loss limits a step where it is more than this part of it."""


@dataclass(frozen=True)
class Feed:
    """The input: images per second of a node's cores (`decode`) and of the whole storage.

    `buffer` is the number of batches between input and computing. `one_core` is what a core makes;
    where nothing is made `ahead` (the old pipeline), each rank has one, and every step waits for
    its whole batch to be read, by all ranks from one storage, and decoded.
    """

    decode: float
    storage: float
    buffer: int
    one_core: float = math.inf
    ahead: bool = True

    def wait(self, unfed: float, batch: int, gpus: int, nodes: int, weight: float) -> float:
        """Seconds by which input makes a step of `unfed` seconds longer; `batch` per GPU.

        Decoding counts by `weight`, as it was learned; storage as it is given.
        """
        if not self.ahead:
            return batch * (1 / self.one_core + gpus / self.storage)
        decoding, reading = (
            unfed / pace(gpus * batch / unfed, supply, self.buffer) - unfed
            for supply in (self.decode * nodes, self.storage)
        )
        return max(weight * decoding, reading)


ENDLESS = Feed(math.inf, math.inf, 2)
"""Synthetic data: made once, always there."""


def feed(
    machine: Machine,
    net: NetworkSums,
    storage_rate: float | None = None,
    *,
    ahead: bool = True,
    record_bytes: float | None = None,
    decode_rate: float | None = None,
) -> Feed:
    """The input of real images on a machine, whose cores decode them at the network's size.

    `storage_rate` is bytes per second that the storage gives to all nodes (None: enough); `ahead`
    is whether images are made while the step before is computed. Records of `record_bytes` that a
    core decodes at `decode_rate` per second are ImageNet's where not given.
    """
    inputs = facts.load("links")["input"]
    augmented = net.name in inputs["augmented_models"]
    parts = [inputs["decode"], *([inputs["augment"]] if augmented else [])]
    usual = 1 / float(sum(part["fixed_s"] + part["per_pixel_s"] * net.pixels for part in parts))
    one_core, record = decode_rate or usual, record_bytes or inputs["bytes_per_image"]
    storage = storage_rate / record if storage_rate else math.inf
    return Feed(machine.cores * one_core, storage, inputs["buffer"], one_core, ahead)


def pace(demand: float, supply: float, buffer: int) -> float:
    """The part of its pace that computing keeps behind an input of `supply` (1: all of it).

    Both take varying times, so the faster one waits at times: with exponential times this is the
    queue M/M/1/K, (1 - r^K) / (1 - r^(K+1)), r the demand over the supply, K the `buffer`.
    """
    ratio = demand / supply
    if abs(ratio - 1) < 1e-6:
        return buffer / (buffer + 1)
    if ratio > 1:  # the same, written with 1/r, so that large powers cannot overflow
        inverse = 1 / ratio
        return float(inverse * (1 - inverse**buffer) / (1 - inverse ** (buffer + 1)))
    return float((1 - ratio**buffer) / (1 - ratio ** (buffer + 1)))


class ScalingLaw(NamedTuple):
    """The three numbers of the law, see facts/predict.yaml."""

    straggler: float
    exchange: float
    input: float


def scaling_law() -> ScalingLaw:
    """The numbers that were fitted to published rows."""
    return ScalingLaw(**facts.load("predict")["law"])


@dataclass(frozen=True)
class SharedCores:
    """Cores of one machine that emulates all nodes, where every rank keeps `cpus` busy.

    One GPU's step was measured among `ranks`.
    """

    cores: int
    cpus: int
    ranks: int = 1

    def stretch(self, gpus: int) -> float:
        """How much longer a rank computes among `gpus` than among those of the measured step."""
        here, there = (max(1.0, count * self.cpus / self.cores) for count in (gpus, self.ranks))
        return here / there


@dataclass(frozen=True)
class Workload:
    """The training: network, images per GPU and step, precision, form, input.

    With a `plan` the batch is a micro-batch of a replica. `shared` cores slow ranks down.
    """

    net: NetworkSums
    batch: int
    precision: str = "fp32"
    form: str = "horovod"
    feed: Feed = ENDLESS
    accumulation: int = 1
    plan: ModelSplit | None = None
    shared: SharedCores | None = None

    def images_of(self, gpus: int) -> int:
        """Images (sequences) of a step of `gpus` GPUs."""
        if self.plan is None:
            return gpus * self.images
        return gpus // self.plan.gpus * self.batch * self.plan.micro_batches

    @property
    def images(self) -> int:
        """Images (sequences) of one GPU per exchange."""
        return self.batch * self.accumulation

    @property
    def activation_bytes(self) -> int:
        """Bytes of an activation."""
        return FLOAT_BYTES if self.precision in {"fp32", "tf32"} else HALF_BYTES

    @property
    def gradient_bytes(self) -> int:
        """Bytes of a gradient on the link: mixed precision keeps float32 gradients."""
        half = self.precision == "fp16" or (self.precision == "amp" and self.form == "fsdp")
        return HALF_BYTES if half else FLOAT_BYTES


@dataclass(frozen=True)
class StepTime:
    """A predicted step of `gpus` GPUs on `nodes` nodes; seconds.

    The parts add up to `seconds`: computing of the mean rank, waiting for the slowest one,
    exposed communication, waiting for input, and `losses` that only a split step has.
    `latency_part` is the share of start-up costs in the time of all messages.
    """

    gpus: int
    nodes: int
    compute: float
    straggler: float
    communication: float
    input_wait: float
    latency_part: float
    losses: Mapping[str, float] = field(default_factory=dict)

    @property
    def seconds(self) -> float:
        """Seconds of the step."""
        waits = self.straggler + self.communication + self.input_wait
        return self.compute + waits + sum(self.losses.values())

    @property
    def loss(self) -> float:
        """Return the logarithm of the step over its computing."""
        return math.log(self.seconds / self.compute)

    @property
    def limit(self) -> str:
        """Return what limits the step: compute, or the largest loss if above 5 % of the step."""
        losses = {
            "input": self.input_wait,
            "latency" if self.latency_part > 0.5 else "communication": self.communication,
            "stragglers": self.straggler,
            **self.losses,
        }
        worst = max(losses, key=lambda name: losses[name])
        return worst if losses[worst] > _LIMITS * self.seconds else "compute"


def peak_of(machine: Machine, precision: str) -> float:
    """Peak operations per second of a GPU in a precision."""
    fp32, tf32, half = machine.flops
    return {"fp32": fp32, "tf32": tf32}.get(precision, half)


@lru_cache(maxsize=8192)
def largest_of(ranks: int) -> float:
    """Expected largest of `ranks` standard normal deviates (Blom 1958); 0 for one."""
    return NormalDist().inv_cdf((ranks - 0.375) / (ranks + 0.25)) if ranks > 1 else 0.0


def predict_step(
    machine: Machine,
    work: Workload,
    one: float,
    gpus: int,
    nodes: int,
    law: ScalingLaw | None = None,
) -> StepTime:
    """The step of `gpus` GPUs spread evenly over `nodes` nodes; one GPU's pass takes `one`."""
    law = law or scaling_law()
    if work.plan:
        split = split_work(machine, work)
        paced = replace(split, pace=one / split.alone(work.plan))
        whole, sent, losses = split_step(paced, work.plan, gpus)
        return StepTime(gpus, nodes, whole, 0.0, sent, 0.0, 0.0, losses)
    compute = one * work.accumulation
    if work.shared:  # nothing hides the exchange: it needs the cores that compute
        compute *= work.shared.stretch(gpus)
    whole, transfer = exchange_seconds(machine, work, max(1, gpus // nodes), nodes)
    hidden = work.form != "no_overlap" and not work.shared
    return StepTime(
        gpus,
        nodes,
        compute,
        straggler=compute * law.straggler * largest_of(gpus),
        communication=(law.exchange if hidden else 1.0) * whole,
        input_wait=work.feed.wait(compute, work.images, gpus, nodes, law.input),
        latency_part=1 - transfer / whole if whole else 0.0,
    )


def split_work(machine: Machine, work: Workload) -> SplitWork:
    """Return what the GPUs of a split training compute and exchange."""
    return SplitWork(
        machine,
        work.net,
        work.batch,
        peak_of(machine, work.precision),
        work.activation_bytes,
        work.gradient_bytes,
        utilisation(machine.gpu, work.plan or ModelSplit())["part"],
    )


def lengthened(step: StepTime, loss: float) -> StepTime:
    """The step with another loss in logarithms, its parts in proportion."""
    now, then = step.seconds - step.compute, step.compute * math.expm1(loss)
    if now <= 0:
        return replace(step, straggler=then)
    parts = ("straggler", "communication", "input_wait")
    return replace(step, **{name: getattr(step, name) * then / now for name in parts})


def exchange_seconds(
    machine: Machine, work: Workload, local: int, nodes: int
) -> tuple[float, float]:
    """Seconds of exchanging all gradients where nothing hides it, and of these the transfer."""
    if local * nodes < 2:
        return 0.0, 0.0
    size = float(work.net.parameters * work.gradient_bytes)
    if work.form == "parameter_server":
        cost = parameter_server(machine, local, nodes)
        transfer = 2 * cost.rate * size
        return transfer + 2 * work.net.tensors * cost.latency, transfer
    cost = min(allreduce(machine, local, nodes), key=lambda line: line.seconds(size))
    # Three halves of an all-reduce a pass: weights are gathered twice, gradients scattered.
    times = 1.5 * work.accumulation if work.form == "fsdp" else 1.0
    return times * cost.seconds(size), times * cost.rate * size
