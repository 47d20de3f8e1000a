"""One synchronous training step of N GPUs, from one GPU's step: the scaling model itself.

    step = t1 x (1 + a x log2 N)               waiting for the slowest of N ranks
         + b x all-reduce without overlap      what back-propagation does not hide
         + what the pace of the input costs

t1 is one GPU's step; the two numbers a and b are fitted by `python -m tools.validate`.

Transformers that are split over GPUs, in the same terms:

    step = micro-batches x slowest stage + (all stages - the slowest) / virtual stages
         + exchange of gradients between replicas + update of the weights

Of equal stages that is (m + (p - 1) / v) stages, 1F1B with its bubble (Narayanan et al. 2021, arXiv
2104.04473). Matrices reach a learned part of the GPU's peak; all else moves what a block keeps
twice, and twice that backwards. Tensor parallelism adds two all-reduces each way, a recomputed
block two more, sequence parallelism another gathering. Of these and of the exchange computing hides
a part, one number for each (facts/links.yaml).

Activations of a block by Korthikanti et al. (2022, arXiv 2205.05198, equations 1 to 6): with
nothing recomputed s b h (34 + 5 a s / h) bytes in half precision. Tensor parallelism shards
24 + 5 a s / h of it, and sequence parallelism the other 10. State by Rajbhandari et al. (2020,
arXiv 1910.02054): stages of ZeRO shard the optimizer's, then gradients, then weights.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from hpcdl import facts
from hpcdl.predict.machine import (
    FLOAT_BYTES,
    HALF_BYTES,
    Machine,
    NetworkSums,
    allreduce,
    kept_bytes,
)
from hpcdl.system.declare import SWITCH, build, choice, entries, option, typed, whole
from hpcdl.system.errors import BadInput
from hpcdl.system.text import did_you_mean

_MOST_PARTS = 100_000
_FLOW = 4
_LARGE = 1e15
CHECKPOINTING = ("none", "selective", "full")
_ADAM = 8.0  # bytes of both moments of a weight
_UPDATE = 34.0  # bytes that clipping and Adam move of a weight: 5 x 4 read, 3 x 4 and 2 written


def _parts(text: str, name: str) -> int:
    parts: int = option(text, 1, flag=name, **whole(1, _MOST_PARTS))
    return parts


@dataclass(frozen=True)
class ModelSplit:
    """How a transformer is split over GPUs, and what is recomputed.

    `tensor` GPUs share every block; `stages` of a pipeline hold some blocks each, in `interleave`
    pieces (virtual stages); other GPUs are replicas. `sequence` shards layer norms and dropout,
    too. `zero` is ZeRO's stage, 3 is FSDP. A step has `micro_batches` per replica.
    `checkpointing` keeps all, recomputes attention's core (`selective`) or whole blocks (`full`).
    `fused` attention (FlashAttention) never keeps its scores.
    """

    tensor: int = _parts("tensor parallelism: GPUs that share every block", "tensor")
    stages: int = _parts("stages of a pipeline that hold some blocks each", "stages")
    interleave: int = _parts("virtual stages of a pipeline per GPU", "interleave")
    micro_batches: int = _parts(
        "micro-batches, each of --batch-per-rank; 4 per stage", "micro-batches"
    )
    sequence: bool = option("share layer norms and dropout, too", False, flag="sequence", **SWITCH)
    zero: int = option("ZeRO: 1, 2, or 3 as FSDP", 0, flag="zero", **whole(0, 3))
    checkpointing: str = option(
        "recompute selective (attention) or full blocks",
        CHECKPOINTING[0],
        flag="checkpointing",
        **choice(*CHECKPOINTING),
    )
    fused: bool = option("attention that never keeps its scores", True, flag="fused", **SWITCH)

    def check(self, net: NetworkSums) -> None:
        """Refuse what a network cannot be split into; the first fault is raised."""
        shape, pieces = net.shape, self.stages * self.interleave
        faults = (
            (
                not shape.blocks,
                f"'{net.name}' is no transformer, and only blocks are split",
                "leave out --split, or name a transformer such as gpt_18b",
            ),
            (
                shape.heads % self.tensor,
                f"{self.tensor} GPUs cannot share {shape.heads} heads",
                f"give tensor a divisor of {shape.heads}",
            ),
            (
                self.stages > shape.blocks,
                f"{shape.blocks} blocks are too few for {self.stages} stages",
                f"give stages={shape.blocks} at most",
            ),
            (
                self.interleave > 1 and (self.stages < 2 or shape.blocks % pieces),
                f"{shape.blocks} blocks do not divide into {pieces} virtual stages of a pipeline",
                f"stages times interleave is a divisor of {shape.blocks}",
            ),
        )
        for wrong, message, hint in faults:
            if wrong:
                raise BadInput(message, hint=hint)

    @property
    def gpus(self) -> int:
        """GPUs of a replica."""
        return self.tensor * self.stages

    def blocks(self, net: NetworkSums) -> tuple[int, int]:
        """Blocks of the fullest stage, and of the first and the last one."""
        return -(-net.shape.blocks // self.stages), net.shape.blocks // self.stages


def split_help() -> str:
    """The help of `--split`: each key with its default."""
    parts = [f"{one.flag}: {one.help} ({str(one.default).lower()})" for one in entries(ModelSplit)]
    return f"how a transformer is split. {'; '.join(parts)}"


def split_of(texts: Sequence[str]) -> ModelSplit:
    """The split that texts such as `tensor=8,zero=1` give, each key once.

    A pipeline has four micro-batches per stage where none are given: a fifth of it is its bubble.
    """
    names = {str(one.flag): one.name for one in entries(ModelSplit)}
    given: dict[str, str] = {}
    for part in ",".join(texts).split(","):
        key, _, text = (word.strip() for word in part.partition("="))
        if key not in names or not text:
            hint = f"write {key}=N" if key in names else did_you_mean(key, names)
            hint = hint if key else "write tensor=8,zero=1"
            raise BadInput(f"has '{part}', which is no KEY=N of a split", hint=hint)
        if names[key] in given:
            raise BadInput(f"has '{key}' twice", hint="give each key of a split once")
        given[names[key]] = text
    split = build(ModelSplit, typed(ModelSplit, argparse.Namespace(**given)))
    pipeline = split.stages > 1 and "micro_batches" not in given
    return replace(split, micro_batches=_FLOW * split.stages) if pipeline else split


def split_texts(plan: ModelSplit) -> list[str]:
    """The texts that mean a split."""
    return [f"{one.flag}={getattr(plan, one.name)}".lower() for one in entries(ModelSplit)]


# ---- memory ----


def kept(
    net: NetworkSums, plan: ModelSplit, batch: int, element: int, again: str | None = None
) -> float:
    """Bytes of activations that a block keeps until its backward pass.

    `batch` are sequences, `element` is an activation's bytes, `again` other checkpointing.
    """
    shape, again = net.shape, again or plan.checkpointing
    tokens, share = net.height * batch, plan.tensor if plan.sequence else 1
    whole = tokens * shape.hidden
    if again == "full":
        return element * whole / share
    # Two layer norms and the inputs of both parts; two masks of dropout are bytes.
    common = (4 * element + 2) * whole / share
    inner = (3 if shape.gated else 2) * shape.inner
    own = element * tokens * (2 * shape.hidden + 2 * (shape.keys or shape.hidden) + inner)
    core = shape.heads * net.height * tokens if again == "none" and not plan.fused else 0
    return common + (own + (2 * element + 1) * core) / plan.tensor


def activation_bytes(net: NetworkSums, plan: ModelSplit, batch: int, element: int) -> float:
    """Bytes of activations on the fullest GPU, of the first stage or the last one."""
    most, ends = plan.blocks(net)
    # In 1F1B the first stage keeps a micro-batch per stage, and interleaved some more.
    per_block, flying = kept(net, plan, batch, element), float(min(plan.stages, plan.micro_batches))
    if plan.interleave > 1:
        flying += (plan.stages - 1) / plan.interleave
    working = kept(net, plan, batch, element, "none") if plan.checkpointing == "full" else 0.0
    # The last stage has logits and their gradients, in float32.
    logits = 2 * FLOAT_BYTES * net.height * batch * net.shape.vocabulary / plan.tensor
    return max(flying * most * per_block, ends * per_block + logits) + working


def stage_parameters(net: NetworkSums, plan: ModelSplit) -> float:
    """Parameters of the fullest GPU: of most blocks, or of the first stage with its embedding."""
    most, ends = plan.blocks(net)
    return (
        max(most * net.shape.block_parameters, ends * net.shape.block_parameters + net.shape.table)
        / plan.tensor
    )


def state_bytes(net: NetworkSums, plan: ModelSplit, replicas: int, element: int) -> float:
    """Bytes of weights, gradients and Adam's moments on the fullest GPU.

    Beside weights of half precision there is a float32 copy; gradients are summed in float32.
    """
    optimizer = _ADAM + (FLOAT_BYTES if element < FLOAT_BYTES else 0)
    parts = enumerate((optimizer, FLOAT_BYTES, element), start=1)
    each = sum(part / (replicas if plan.zero >= stage else 1) for stage, part in parts)
    # FSDP gathers the weights of a block while the one before is computed.
    gathered = 2 * element * net.shape.block_parameters / plan.tensor if plan.zero > 2 else 0.0
    return stage_parameters(net, plan) * each + gathered


def planned_bytes(net: NetworkSums, plan: ModelSplit, batch: int, gpus: int, element: int) -> float:
    """Bytes that a step needs of each GPU's memory: state, activations, and CUDA's own."""
    own: float = facts.load("links")["context_bytes"]
    state = state_bytes(net, plan, max(1, gpus // plan.gpus), element)
    return state + activation_bytes(net, plan, batch, element) + own


# ---- time ----


def utilisation(gpu: str, plan: ModelSplit) -> dict[str, float]:
    """The part of its peak that a GPU's matrices reach, and the likely range of a rate."""
    known: dict[str, dict[str, float]] = facts.load("predict")["utilisation"][
        "fused" if plan.fused else "plain"
    ]
    return known.get(family(gpu), known["other"])


def family(gpu: str) -> str:
    """GPUs that compute alike; an H200 is an H100 with other memory."""
    return gpu.partition("-")[0].replace("H200", "H100")


def whole_on_one(machine: Machine, work: Workload) -> float:
    """Seconds of a micro-batch on one GPU that holds everything and recomputes nothing."""
    plan = ModelSplit(fused=work.plan is None or work.plan.fused)
    part = utilisation(machine.gpu, plan)["part"]
    return split_step(machine, replace(work, plan=plan), 1, part)[0]


def split_step(
    machine: Machine, work: Workload, gpus: int, efficiency: float, pace: float = 1.0
) -> tuple[float, dict[str, float]]:
    """Seconds of a step of `gpus` GPUs in as many replicas as there are, and what is lost, by name.

    Computing is without what is computed again. Matrices reach `efficiency` of the peak; `pace`
    stretches computing to a measured step.
    """
    net, plan, batch = work.net, work.plan or ModelSplit(), work.batch
    peak = machine.peak(work.precision) * efficiency * plan.tensor

    def seconds(macs: float, size: float) -> float:  # of its multiply-adds, writing, and reading
        return pace * (2 * macs * batch / peak + 2 * size / machine.memory_rate)

    every = kept(net, plan, batch, work.activation_bytes, "none")
    scores = every - kept(net, plan, batch, work.activation_bytes, "selective")
    core = seconds(2.0 * net.shape.hidden * net.height**2, scores)
    forward = seconds(net.shape.block_macs(net.height), every)
    again = {"none": 0.0, "selective": core, "full": forward}[plan.checkpointing]
    # Fused attention computes its scores, half of its core, with every backward pass.
    forward += core / 6 if plan.fused else 0.0
    words = net.height * net.shape.vocabulary
    output = 3 * seconds(float(words * net.shape.hidden), FLOAT_BYTES * batch * words / plan.tensor)

    reduced, sent = _passed(machine, work, plan)
    one, blocks, (most, ends) = 3 * forward + again + reduced, net.shape.blocks, plan.blocks(net)
    slowest = max(most * one if plan.stages > 1 else 0.0, ends * one + output) + sent
    through = blocks * one + output + sent * plan.stages
    share, replicas = plan.micro_batches / plan.stages, gpus // plan.gpus
    passing = plan.micro_batches * slowest + (through - slowest) / plan.interleave
    weights = stage_parameters(net, plan) / (replicas if plan.zero else 1)
    update = pace * _UPDATE * weights / machine.memory_rate
    return share * (3 * blocks * forward + output) + update, {
        "communication": _exchanged(machine, work, plan, replicas),
        "recomputing": share * blocks * again,
        "tensor": share * blocks * reduced,
        "bubble": passing - share * through,
        "stages": plan.micro_batches * sent,
    }


def _passed(machine: Machine, work: Workload, plan: ModelSplit) -> tuple[float, float]:
    """Seconds of a block's all-reduces, and of a micro-batch that every GPU sends a part of."""
    reduced = sent = 0.0
    size = work.activation_bytes * work.net.height * work.batch * work.net.shape.hidden
    if plan.tensor > 1:
        local = min(plan.tensor, machine.per_node)
        times = 4 + 2 * (plan.checkpointing == "full") + plan.sequence
        once = allreduce(machine, local, -(-plan.tensor // local), size)
        reduced = facts.load("links")["exposed"]["tensor"] * times * once
    if plan.stages > 1:
        within = plan.gpus <= machine.per_node
        link, share = (machine.inside, 1) if within else (machine.between, machine.per_node)
        part = size / plan.tensor * share
        sent = 2 * plan.interleave * (link.latency + part / link.bandwidth)
    return reduced, sent


def _exchanged(machine: Machine, work: Workload, plan: ModelSplit, replicas: int) -> float:
    """Seconds that exchanging gradients, and with FSDP weights, adds to a step."""
    if replicas < 2:
        return 0.0
    # Replicas lie side by side in a node, and the groups of a node share its network.
    local = min(replicas, max(1, machine.per_node // plan.tensor))
    nodes = -(-replicas // local)
    groups = max(1, machine.per_node // local) if nodes > 1 else 1
    # FSDP gathers weights in both passes of every micro-batch, and scatters gradients.
    weights = 1.5 * HALF_BYTES * plan.micro_batches
    each = weights if plan.zero > 2 else work.gradient_bytes
    size = groups * stage_parameters(work.net, plan) * each
    exposed: float = facts.load("links")["exposed"]["exchange"]
    # Gradients go in buckets while the rest is computed: latencies hide.
    return exposed * size * allreduce(machine, local, nodes, _LARGE) / _LARGE


# ---- a step ----


PRECISIONS = ("fp32", "tf32", "amp", "fp16")
STRAGGLERS, COMMUNICATION, INPUT = "stragglers", "communication", "input"
_LIMITS = 0.05
"""A loss limits a step where it is more than this part of it."""


class Feed(NamedTuple):
    """The input: images per second of a node's cores (`decode`) and of the whole storage.

    `one_core` is what a core makes; where nothing is made `ahead` (the old pipeline), each rank has
    one, and every step waits for its whole batch to be read, by all ranks from one storage, and
    decoded.
    """

    decode: float
    storage: float
    one_core: float = math.inf
    ahead: bool = True

    def wait(self, unfed: float, batch: int, gpus: int, nodes: int) -> float:
        """Seconds by which input makes a step of `unfed` seconds longer; `batch` per GPU."""
        if not self.ahead:
            return batch * (1 / self.one_core + gpus / self.storage)
        supply = min(self.decode * nodes, self.storage)
        return unfed / pace(gpus * batch / unfed, supply) - unfed


ENDLESS = Feed(math.inf, math.inf)
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
    usual = 1 / float(
        sum(part["fixed_s"] + part["per_pixel_s"] * net.height * net.width for part in parts)
    )
    one_core, record = decode_rate or usual, record_bytes or inputs["bytes_per_image"]
    storage = storage_rate / record if storage_rate else math.inf
    return Feed(machine.cores * one_core, storage, one_core, ahead)


def pace(demand: float, supply: float) -> float:
    """The part of its pace that computing keeps behind an input of `supply` (1: all of it).

    Both take varying times, so the faster one waits at times. With exponential times, one batch in
    use and one prefetched it is the queue M/M/1/2: (1 - r^2) / (1 - r^3), r the demand over supply.
    """
    ratio = demand / supply
    return (1 + ratio) / (1 + ratio + ratio * ratio)


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
    """The training: network, images per GPU and step, precision, input.

    With a `plan` the batch is a micro-batch of a replica. `shared` cores slow ranks down.
    """

    net: NetworkSums
    batch: int
    precision: str = "fp32"
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


class StepTime(NamedTuple):
    """A predicted step of `gpus` GPUs on `nodes` nodes; seconds.

    It is the computing of the mean rank and `losses` by name.
    """

    gpus: int
    nodes: int
    compute: float
    losses: Mapping[str, float]

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
        return worst if self.losses[worst] > _LIMITS * self.seconds else "compute"


def predict_step(machine: Machine, work: Workload, alone: float, gpus: int, nodes: int) -> StepTime:
    """The step of `gpus` GPUs spread evenly over `nodes` nodes; one GPU's pass takes `alone`."""
    law, compute = facts.load("predict")["law"], alone
    if work.plan:
        part, pace = (
            utilisation(machine.gpu, work.plan)["part"],
            alone / whole_on_one(machine, work),
        )
        compute, losses = split_step(machine, work, gpus, part, pace)
        losses[STRAGGLERS] = compute * law["straggler"] * math.log2(gpus)
        return StepTime(gpus, nodes, compute, losses)
    local, between, exposed = max(1, gpus // nodes), nodes, law["exchange"]
    if work.shared:  # one machine: nothing hides the exchange, for which ranks share cores, too
        local, between, exposed = gpus, 1, work.shared.stretch(gpus)
        compute *= exposed
    whole = exchange_seconds(machine, work, local, between)
    losses = {
        INPUT: work.feed.wait(compute, work.batch, gpus, nodes),
        COMMUNICATION: exposed * whole,
        STRAGGLERS: compute * law["straggler"] * math.log2(gpus),
    }
    return StepTime(gpus, nodes, compute, losses)


def exchange_seconds(machine: Machine, work: Workload, local: int, nodes: int) -> float:
    """Seconds of exchanging all gradients where nothing hides it."""
    if local * nodes < 2:
        return 0.0
    return allreduce(machine, local, nodes, float(work.net.parameters * work.gradient_bytes))
