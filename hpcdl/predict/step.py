"""One synchronous training step, from a measured step of one GPU: the scaling model itself.

    step = t1 x (1 + a x E[largest of N normal deviates]     waiting for the slowest rank
                 + b x communication that outlasts back-propagation (overlap.py)
                 + c x communication hidden behind it, which slows computing down
                 + d x what the pace of the input costs (feed.py))

t1 is one GPU's measured step; a, b, c and d are learned (learn.py). Where nothing is made ahead,
the whole time of the input is added instead.

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
from hpcdl.predict import overlap as wfbp  # wait-free back-propagation
from hpcdl.predict.allreduce import Line, lines, parameter_server
from hpcdl.predict.feed import ENDLESS, Feed
from hpcdl.predict.hardware import Machine
from hpcdl.predict.memory import Plan
from hpcdl.predict.network import FLOAT_BYTES, HALF_BYTES, Network, roofline, scaled
from hpcdl.predict.parallel import Work, learned, split

FORMS = ("horovod", "ddp", "fsdp", "replicated", "parameter_server", "no_overlap")
_BUCKET = 25 * 2**20
"""Bytes of a bucket of DDP: `bucket_cap_mb` in torch/nn/parallel/distributed.py."""
PRECISIONS = ("fp32", "tf32", "amp", "fp16")


@dataclass(frozen=True)
class Constants:
    """The model's four constants, see facts/links.yaml, and Horovod's two settings."""

    contention: float
    straggler: float
    exposed: float
    input: float
    fusion_bytes: float
    cycle: float


@dataclass(frozen=True)
class Training:
    """What is trained: network, images per GPU and step, precision, form, input.

    Without `trees` an all-reduce is a ring. With a `plan` the batch is a micro-batch of a replica.
    """

    net: Network
    batch: int
    precision: str = "fp32"
    form: str = "horovod"
    feed: Feed = ENDLESS
    trees: bool = True
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
    gradients: tuple[wfbp.Gradient, ...]
    packed: tuple[wfbp.Gradient, ...]


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
    def limit(self) -> str:
        """What limits it: compute, or the largest loss where losses exceed 5 %."""
        network = self.exposed + self.contention
        transfer = self.busy * (1 - self.latency_part)
        # Latency: start-ups and the wait for Horovod's cycle outweigh the transfers.
        small = self.latency_part > 0.5 or transfer < self.exposed / 2
        kind = "latency" if small else "communication"
        losses = {"input": self.input_wait, kind: network, "stragglers": self.straggler,
                  **self.losses}  # fmt: skip
        worst = max(losses, key=lambda name: losses[name])
        return worst if losses[worst] > 0.05 * self.seconds else "compute"


def constants(horovod: str = "now") -> Constants:
    """The constants of facts/links.yaml, fitted to published rows.

    `horovod` is whose defaults: `now`, or `early` for the releases behind the published rows.
    """
    four, settings = facts.load("links")["constants"], facts.load("links")["horovod"][horovod]
    return Constants(four["contention"], four["straggler"], four["exposed"], four["input"],
                     settings["fusion_bytes"], settings["cycle_s"])  # fmt: skip


def profile(
    machine: Machine, training: Training, step_seconds: float, known: Constants | None = None
) -> Profile:
    """Layer times of one GPU whose step takes `step_seconds` without waiting for input."""
    peak = peak_of(machine, training.precision)
    shares = roofline(
        training.net, training.batch, peak, machine.memory_rate, training.activation_bytes
    )
    times = scaled(shares, step_seconds)
    sizes = [layer.parameters * float(training.gradient_bytes) for layer in training.net.layers]
    known = known or constants()
    ready = wfbp.gradients(times.backward, sizes)
    packed = (
        wfbp.buckets(ready, _BUCKET) if training.form == "ddp"
        else wfbp.pack(ready, buffer_bytes=known.fusion_bytes, cycle=known.cycle)
    )  # fmt: skip
    forward, backward = sum(times.forward), sum(times.backward)
    return Profile(times.total, backward, forward, sum(sizes), ready, packed)


def peak_of(machine: Machine, precision: str) -> float:
    """Peak operations per second of a GPU in a precision."""
    fp32, tf32, half = machine.flops
    return {"fp32": fp32, "tf32": tf32}.get(precision, half)


@lru_cache(maxsize=8192)
def largest_of(ranks: int) -> float:
    """Expected largest of `ranks` standard normal deviates (Blom 1958); 0 for one."""
    if ranks < 2:
        return 0.0
    return NormalDist().inv_cdf((ranks - 0.375) / (ranks + 0.25))


def predict_step(
    machine: Machine, training: Training, one: Profile, gpus: int, nodes: int,
    known: Constants | None = None,
) -> Step:  # fmt: skip
    """The step of `gpus` GPUs spread evenly over `nodes` nodes."""
    known = known or constants()
    if training.plan:
        work = work_of(machine, training)
        pace = one.total / work.alone(training.plan)
        whole, sent, losses = split(replace(work, pace=pace), training.plan, gpus)
        return Step(gpus, nodes, whole, 0.0, sent, 0.0, 0.0, sent, 0.0, losses)
    local = max(1, gpus // nodes)
    compute = one.total * training.accumulation
    straggler = compute * known.straggler * largest_of(gpus)
    exposed, busy, transfer = _communication(machine, training, one, local, nodes)
    contention = known.contention * max(0.0, busy - exposed)
    # What was measured here needs no correction.
    outside = 1.0 if machine.measured(nodes) else known.exposed
    return Step(
        gpus, nodes, compute, straggler, outside * exposed, contention,
        input_wait=_waiting(training, compute, gpus, nodes, known), busy=busy,
        latency_part=1 - transfer / busy if busy else 0.0,
    )  # fmt: skip


def work_of(machine: Machine, training: Training) -> Work:
    """What the GPUs of a split training compute and exchange."""
    known = learned(machine.gpu, training.plan or Plan())
    return Work(
        machine, training.net, training.batch, peak_of(machine, training.precision),
        training.activation_bytes, training.gradient_bytes, known["efficiency"],
    )  # fmt: skip


def lengthened(step: Step, loss: float) -> Step:
    """The step with another loss in logarithms, its parts in proportion."""
    now, then = step.seconds - step.compute, step.compute * math.expm1(loss)
    if now <= 0:
        return replace(step, straggler=then)
    parts = ("straggler", "exposed", "contention", "input_wait")
    return replace(step, **{name: getattr(step, name) * then / now for name in parts})


def _waiting(training: Training, unfed: float, gpus: int, nodes: int, known: Constants) -> float:
    """Seconds of waiting for input: decoding as it was learned, storage as it is given."""
    made, images = training.feed, training.images
    if not made.ahead:
        return made.wait(unfed, images, gpus, nodes)
    endless = float("inf")
    decoding = replace(made, storage=endless).wait(unfed, images, gpus, nodes)
    reading = replace(made, decode=endless).wait(unfed, images, gpus, nodes)
    return max(known.input * decoding, reading)


def overlap(training: Training, one: Profile, candidates: wfbp.Cost) -> wfbp.Overlap:
    """An all-reduce form beside back-propagation."""
    cost = cost_of(candidates)
    if training.form == "no_overlap":
        return wfbp.after(one.gradients, cost, one.backward)
    sent = one.gradients if training.form == "replicated" else one.packed
    return wfbp.wait_free(sent, cost, one.backward)


def cost_of(candidates: wfbp.Cost) -> wfbp.Cost:
    """The candidates without those that another one beats at every size."""
    return tuple(
        one
        for one in dict.fromkeys(candidates)
        if not any(o != one and o[0] <= one[0] and o[1] <= one[1] for o in candidates)
    )


def _communication(
    machine: Machine, training: Training, one: Profile, local: int, nodes: int
) -> tuple[float, float, float]:
    """Seconds exposed, seconds of the link at work, and of these the transfers alone."""
    if local * nodes < 2:
        return 0.0, 0.0, 0.0
    if training.form == "parameter_server":
        return _served(parameter_server(machine, local, nodes), one)
    candidates = lines(machine, local, nodes)[: 2 if training.trees else 1]
    if training.form == "fsdp":
        return _sharded(min(line.rate for line in candidates), training, one)
    found = overlap(training, one, candidates)
    rate = min(line.rate for line in candidates)
    return found.exposed, found.busy, min(found.busy, rate * one.size)


def _sharded(rate: float, training: Training, one: Profile) -> tuple[float, float, float]:
    """FSDP: three halves of an all-reduce a pass, beside the computing of both passes.

    The first and the last layers' share has nothing to hide behind.
    """
    passes = 1.5 * rate * one.size * training.accumulation
    first = passes / max(1, len(one.gradients))
    room = (one.forward + one.backward) * training.accumulation
    return max(first, passes - room), passes, passes


def _served(line: Line, one: Profile) -> tuple[float, float, float]:
    """Parameter server: gradients go during back-propagation, weights come during forward."""
    push = wfbp.wait_free(one.gradients, (line,), one.backward)
    pull = len(one.gradients) * line.latency + line.rate * one.size
    exposed = push.exposed + max(0.0, pull - one.forward)
    return exposed, push.busy + pull, 2 * line.rate * one.size
