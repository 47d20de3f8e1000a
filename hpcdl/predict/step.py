"""One synchronous training step, from a measured step of one GPU: the scaling model itself.

    step = t1 x (1 + a x E[largest of N normal deviates]     waiting for the slowest rank
                 + b x communication that outlasts back-propagation (overlap.py)
                 + c x communication hidden behind it, which slows computing down
                 + d x what the pace of the input costs)

t1 is one GPU's measured step; a, b, c and d are learned (learn.py).

Forms: `horovod` (fused all-reduce), `ddp` (in buckets), `fsdp` (sharded: weights gathered twice,
gradients scattered), `replicated` (one all-reduce per layer), `parameter_server` (gradients to host
memory, weights back while the next forward pass runs), `no_overlap` (one all-reduce after
back-propagation: `tf.distribute`, CNTK). Of several passes (`accumulation`) the last one exchanges.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from statistics import NormalDist

from hpcdl import facts
from hpcdl.predict import overlap
from hpcdl.predict.hardware import Machine
from hpcdl.predict.network import FLOAT_BYTES, HALF_BYTES, Network, roofline, scaled
from hpcdl.predict.parallel import Plan, Work, learned, split

FORMS = ("horovod", "ddp", "fsdp", "replicated", "parameter_server", "no_overlap")
_BUCKET = 25 * 2**20
"""Bytes of a bucket of DDP: `bucket_cap_mb` in torch/nn/parallel/distributed.py."""
PRECISIONS = ("fp32", "tf32", "amp", "fp16")
SYNTHETIC, IMAGENET = "synthetic", "imagenet"
PIPELINES = ("new", "old")


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
    machine: Machine, net: Network, storage_rate: float | None = None, *, ahead: bool = True
) -> Feed:
    """The input of real images on a machine, whose cores decode them at the network's size.

    `storage_rate` is bytes per second that the storage gives to all nodes (None: enough); `ahead`
    is whether images are made while the step before is computed.
    """
    known = facts.load("links")["input"]
    augmented = net.name in known["augmented_models"]
    parts = [known["decode"], *([known["augment"]] if augmented else [])]
    one_core = 1 / float(sum(part["fixed_s"] + part["per_pixel_s"] * net.pixels for part in parts))
    storage = storage_rate / known["bytes_per_image"] if storage_rate else math.inf
    return Feed(machine.cores * one_core, storage, known["buffer"], one_core, ahead)


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


@dataclass(frozen=True)
class Constants:
    """The model's four constants, see facts/links.yaml, and Horovod's two settings."""

    straggler: float
    exposed: float
    contention: float
    input: float
    fusion_bytes: float
    cycle: float


@dataclass(frozen=True)
class Training:
    """What is trained: network, images per GPU and step, precision, form, input.

    With a `plan` the batch is a micro-batch of a replica.
    """

    net: Network
    batch: int
    precision: str = "fp32"
    form: str = "horovod"
    feed: Feed = ENDLESS
    accumulation: int = 1
    plan: Plan | None = None

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
class Profile:
    """One GPU's step, layer by layer, ready for the recursion. Seconds and bytes.

    `packed` are Horovod's messages; `total` is the step without waiting for input.
    """

    total: float
    backward: float
    forward: float
    size: float
    gradients: tuple[overlap.Gradient, ...]
    packed: tuple[overlap.Gradient, ...]


@dataclass(frozen=True)
class Step:
    """A predicted step of `gpus` GPUs on `nodes` nodes; seconds.

    The parts add up to `seconds`: computing of the mean rank, waiting for the slowest one,
    exposed communication, contention, waiting for input. `latency_part` is the share of
    start-up costs in the time of all messages. `losses` are what only a split step has.
    """

    gpus: int
    nodes: int
    compute: float
    straggler: float
    exposed: float
    contention: float
    input_wait: float
    busy: float
    latency_part: float
    losses: Mapping[str, float] = field(default_factory=dict)

    @property
    def seconds(self) -> float:
        """Seconds of the step."""
        waits = self.straggler + self.exposed + self.contention + self.input_wait
        return self.compute + waits + sum(self.losses.values())

    @property
    def loss(self) -> float:
        """What the step is longer than its computing, in logarithms."""
        return math.log(self.seconds / self.compute)

    @property
    def limit(self) -> str:
        """What limits it: compute, or the largest loss where losses exceed 5 %."""
        transfer = self.busy * (1 - self.latency_part)
        # Latency: start-ups and the wait for Horovod's cycle outweigh the transfers.
        small = self.latency_part > 0.5 or transfer < self.exposed / 2
        kind = "latency" if small else "communication"
        losses = {
            "input": self.input_wait,
            kind: self.exposed + self.contention,
            "stragglers": self.straggler,
            **self.losses,
        }
        worst = max(losses, key=lambda name: losses[name])
        return worst if losses[worst] > 0.05 * self.seconds else "compute"


def constants(horovod: str = "now") -> Constants:
    """The constants of facts/links.yaml, fitted to published rows.

    `horovod` is whose defaults: `now`, or `early` for the releases behind the published rows.
    """
    known = facts.load("links")
    four, settings = known["constants"], known["horovod"][horovod]
    return Constants(
        four["straggler"],
        four["exposed"],
        four["contention"],
        four["input"],
        settings["fusion_bytes"],
        settings["cycle_s"],
    )


def profile(
    machine: Machine, training: Training, step_seconds: float, known: Constants | None = None
) -> Profile:
    """Layer times of one GPU whose step takes `step_seconds` without waiting for input."""
    peak, known = peak_of(machine, training.precision), known or constants()
    shares = roofline(
        training.net, training.batch, peak, machine.memory_rate, training.activation_bytes
    )
    times = scaled(shares, step_seconds)
    sizes = [layer.parameters * float(training.gradient_bytes) for layer in training.net.layers]
    ready = overlap.gradients(times.backward, sizes)
    packed = (
        overlap.buckets(ready, _BUCKET)
        if training.form == "ddp"
        else overlap.pack(ready, buffer_bytes=known.fusion_bytes, cycle=known.cycle)
    )
    forward, backward = sum(times.forward), sum(times.backward)
    return Profile(times.total, backward, forward, sum(sizes), ready, packed)


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
    training: Training,
    one: Profile,
    gpus: int,
    nodes: int,
    known: Constants | None = None,
) -> Step:
    """The step of `gpus` GPUs spread evenly over `nodes` nodes."""
    known = known or constants()
    if training.plan:
        work = work_of(machine, training)
        pace = one.total / work.alone(training.plan)
        whole, sent, losses = split(replace(work, pace=pace), training.plan, gpus)
        return Step(gpus, nodes, whole, 0.0, sent, 0.0, 0.0, sent, 0.0, losses)
    compute = one.total * training.accumulation
    exposed, busy, transfer = _communication(machine, training, one, max(1, gpus // nodes), nodes)
    # What was measured here needs no correction.
    link = machine.between if nodes > 1 else machine.inside
    return Step(
        gpus,
        nodes,
        compute,
        straggler=compute * known.straggler * largest_of(gpus),
        exposed=(1.0 if link.measured else known.exposed) * exposed,
        contention=known.contention * max(0.0, busy - exposed),
        input_wait=training.feed.wait(compute, training.images, gpus, nodes, known.input),
        busy=busy,
        latency_part=1 - transfer / busy if busy else 0.0,
    )


def work_of(machine: Machine, training: Training) -> Work:
    """What the GPUs of a split training compute and exchange."""
    return Work(
        machine,
        training.net,
        training.batch,
        peak_of(machine, training.precision),
        training.activation_bytes,
        training.gradient_bytes,
        learned(machine.gpu, training.plan or Plan())["efficiency"],
    )


def lengthened(step: Step, loss: float) -> Step:
    """The step with another loss in logarithms, its parts in proportion."""
    now, then = step.seconds - step.compute, step.compute * math.expm1(loss)
    if now <= 0:
        return replace(step, straggler=then)
    parts = ("straggler", "exposed", "contention", "input_wait")
    return replace(step, **{name: getattr(step, name) * then / now for name in parts})


def _communication(
    machine: Machine, training: Training, one: Profile, local: int, nodes: int
) -> tuple[float, float, float]:
    """Seconds exposed, seconds of the link at work, and of these the transfers alone."""
    if local * nodes < 2:
        return 0.0, 0.0, 0.0
    if training.form == "parameter_server":
        # Gradients go during back-propagation, weights come during the next forward pass.
        line = overlap.parameter_server(machine, local, nodes)
        push = overlap.wait_free(one.gradients, (line,), one.backward)
        pull = len(one.gradients) * line.latency + line.rate * one.size
        exposed = push.exposed + max(0.0, pull - one.forward)
        return exposed, push.busy + pull, 2 * line.rate * one.size
    candidates = overlap.lines(machine, local, nodes)
    rate = min(line.rate for line in candidates)
    if training.form == "fsdp":
        # Three halves of an all-reduce a pass, beside the computing of both passes; the first
        # and the last layers' share has nothing to hide behind.
        passes = 1.5 * rate * one.size * training.accumulation
        room = (one.forward + one.backward) * training.accumulation
        return max(passes / max(1, len(one.gradients)), passes - room), passes, passes
    whole = (overlap.Gradient(one.backward, one.size),)
    sent = {"no_overlap": whole, "replicated": one.gradients}.get(training.form, one.packed)
    found = overlap.wait_free(sent, candidates, one.backward)
    return found.exposed, found.busy, min(found.busy, rate * one.size)
