"""One synchronous training step of N GPUs, from one GPU's step: the scaling model itself.

    step = t1 x (1 + a x log2 N)               waiting for the slowest of N ranks
         + b x all-reduce without overlap      what back-propagation does not hide
         + what the pace of the input costs

t1 is one GPU's step; the two numbers a and b are fitted by `python -m tools.validate`.

Forms: `horovod` and `ddp` (an all-reduce beside back-propagation), `parameter_server` (gradients
to host memory, weights back), `no_overlap` (one all-reduce after back-propagation:
`tf.distribute`, CNTK). Sharded transformers are split ones (split.py).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

from hpcdl import facts
from hpcdl.predict.hardware import Machine, allreduce, parameter_server
from hpcdl.predict.network import FLOAT_BYTES, HALF_BYTES, NetworkSums, kept_bytes
from hpcdl.predict.split import ModelSplit, SplitWork, planned_bytes, split_step, utilisation

FORMS = ("horovod", "ddp", "parameter_server", "no_overlap")
PRECISIONS = ("fp32", "tf32", "amp", "fp16")
SYNTHETIC, IMAGENET = "synthetic", "imagenet"
PIPELINES = ("new", "old")
STRAGGLERS, COMMUNICATION, INPUT = "stragglers", "communication", "input"
_LIMITS = 0.05
"""A loss limits a step where it is more than this part of it."""


class Feed(NamedTuple):
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

    def wait(self, unfed: float, batch: int, gpus: int, nodes: int) -> float:
        """Seconds by which input makes a step of `unfed` seconds longer; `batch` per GPU."""
        if not self.ahead:
            return batch * (1 / self.one_core + gpus / self.storage)
        supply = min(self.decode * nodes, self.storage)
        return unfed / pace(gpus * batch / unfed, supply, self.buffer) - unfed


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
    """The two numbers of the law, see facts/predict.yaml."""

    straggler: float
    exchange: float


def scaling_law() -> ScalingLaw:
    """The numbers that were fitted to published rows."""
    return ScalingLaw(**facts.load("predict")["law"])


class SharedCores(NamedTuple):
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
    plan: ModelSplit | None = None
    shared: SharedCores | None = None

    def images_of(self, gpus: int) -> int:
        """Images (sequences) of a step of `gpus` GPUs."""
        if self.plan is None:
            return gpus * self.batch
        return gpus // self.plan.gpus * self.batch * self.plan.micro_batches

    @property
    def activation_bytes(self) -> int:
        """Bytes of an activation."""
        return FLOAT_BYTES if self.precision in {"fp32", "tf32"} else HALF_BYTES

    @property
    def gradient_bytes(self) -> int:
        """Bytes of a gradient on the link: mixed precision keeps float32 gradients."""
        return HALF_BYTES if self.precision == "fp16" else FLOAT_BYTES

    def memory_bytes(self, gpus: int) -> float:
        """About what a step keeps in each GPU's memory: activations, and the state of the weights.

        Weights, gradients and momenta are float32; transformers have Adam's second moment, too.
        """
        net, element = self.net, self.activation_bytes
        if self.plan:
            return planned_bytes(net, self.plan, self.batch, gpus, element)
        state = net.parameters * FLOAT_BYTES * (3 if net.channels else 4)
        return state + kept_bytes(net, self.batch, element)

    def split_on(self, machine: Machine) -> SplitWork:
        """Return what the GPUs of a split training compute and exchange."""
        return SplitWork(
            machine,
            self.net,
            self.batch,
            machine.peak(self.precision),
            self.activation_bytes,
            self.gradient_bytes,
            utilisation(machine.gpu, self.plan or ModelSplit())["part"],
        )


class StepTime(NamedTuple):
    """A predicted step of `gpus` GPUs on `nodes` nodes; seconds.

    It is the computing of the mean rank and `losses` by name. Start-up costs are more than half of
    the time of all messages where `latency_bound`.
    """

    gpus: int
    nodes: int
    compute: float
    losses: Mapping[str, float]
    latency_bound: bool = False

    @property
    def seconds(self) -> float:
        """Seconds of the step."""
        return self.compute + sum(self.losses.values())

    @property
    def loss(self) -> float:
        """Return the logarithm of the step over its computing."""
        return math.log(self.seconds / self.compute)

    @property
    def limit(self) -> str:
        """Return what limits the step: compute, or the largest loss if above 5 % of the step."""
        worst = max(self.losses, key=lambda name: self.losses[name])
        if self.losses[worst] <= _LIMITS * self.seconds:
            return "compute"
        return "latency" if worst == COMMUNICATION and self.latency_bound else worst

    def losing(self, loss: float) -> StepTime:
        """The step with another loss in logarithms, its parts in proportion."""
        now, then = self.seconds - self.compute, self.compute * math.expm1(loss)
        if now <= 0:
            return self._replace(losses={**self.losses, STRAGGLERS: then})
        return self._replace(losses={name: part * then / now for name, part in self.losses.items()})


def predict_step(machine: Machine, work: Workload, one: float, gpus: int, nodes: int) -> StepTime:
    """The step of `gpus` GPUs spread evenly over `nodes` nodes; one GPU's pass takes `one`."""
    law, compute, exposed = scaling_law(), one, 1.0
    if work.plan:
        split = work.split_on(machine)
        paced = replace(split, pace=one / split.alone(work.plan))
        compute, losses = split_step(paced, work.plan, gpus)
        losses[STRAGGLERS] = compute * law.straggler * math.log2(gpus)
        return StepTime(gpus, nodes, compute, losses)
    if work.shared:  # nothing hides the exchange: it needs the cores that compute
        compute *= work.shared.stretch(gpus)
    elif work.form != "no_overlap":
        exposed = law.exchange
    whole, transfer = exchange_seconds(machine, work, max(1, gpus // nodes), nodes)
    losses = {
        INPUT: work.feed.wait(compute, work.batch, gpus, nodes),
        COMMUNICATION: exposed * whole,
        STRAGGLERS: compute * law.straggler * math.log2(gpus),
    }
    return StepTime(gpus, nodes, compute, losses, latency_bound=2 * transfer < whole)


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
    return cost.seconds(size), cost.rate * size
