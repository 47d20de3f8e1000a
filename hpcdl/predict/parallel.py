"""A step of a transformer that is split over GPUs: tensor, pipeline and data parallelism.

    step = micro-batches x slowest stage + (all stages - the slowest) / virtual stages
         + exchange of gradients between replicas + update of the weights

Of equal stages that is (m + (p - 1) / v) stages, 1F1B with its bubble (Narayanan et al. 2021, arXiv
2104.04473). Matrices reach a learned part of the GPU's peak; all else moves what a block keeps
twice, and twice that backwards. Tensor parallelism adds two all-reduces each way, a recomputed
block two more, sequence parallelism another gathering. Beside plain attention nothing hides them,
as in Megatron-LM until 2022; software with FlashAttention hides a part of them and of the exchange
of gradients, and what is hidden slows the computing that hides it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hpcdl import facts
from hpcdl.predict.allreduce import lines
from hpcdl.predict.hardware import Machine
from hpcdl.predict.memory import Plan, kept, stage_parameters
from hpcdl.predict.network import FLOAT_BYTES, HALF_BYTES, Network

_UPDATE = 34.0  # bytes that clipping and Adam move of a weight: 5 x 4 read, 3 x 4 and 2 written


Split = tuple[float, float, dict[str, float]]
"""Seconds of a step: computing without what is computed again, exchange, and other losses."""


@dataclass(frozen=True)
class Work:
    """What is trained and where: micro-batches of `batch` sequences, `peak` operations/s.

    `element` is the bytes of an activation, `gradient` of a gradient on the link; `efficiency` is
    the part of the peak that matrices reach; `pace` stretches computing to a measured step.
    """

    machine: Machine
    net: Network
    batch: int
    peak: float
    element: int
    gradient: int
    efficiency: float
    pace: float = 1.0

    def alone(self, plan: Plan) -> float:
        """Seconds of a micro-batch on one GPU that holds everything and recomputes nothing."""
        return split(self, Plan(fused=plan.fused), 1)[0]

    def block(self, plan: Plan) -> tuple[float, float]:
        """Seconds of a block's forward pass, and of what is computed again."""
        net, every = self.net, kept(self.net, plan, self.batch, self.element, "none")
        scores = every - kept(net, plan, self.batch, self.element, "selective")
        core = self._seconds(2.0 * net.shape.hidden * net.height**2, scores, plan)
        forward = self._seconds(net.layers[1].macs + net.layers[2].macs, every, plan)
        # Of what is kept, selective checkpointing computes a part of all but the matrices again.
        light = _overlap(plan)["selective"] * self._seconds(0.0, every, plan)
        again = {"none": 0.0, "selective": light + core, "full": forward}
        # Fused attention computes its scores, half of its core, with every backward pass.
        usual = core / 2 if plan.fused else 0.0
        return forward + usual / 3, again[plan.checkpointing]

    def output(self, plan: Plan) -> float:
        """Seconds of the output layer, both passes; its logits are float32."""
        logits = FLOAT_BYTES * self.net.height * self.batch * self.net.shape.vocabulary
        return 3 * self._seconds(self.net.layers[-1].macs, logits / plan.tensor, plan)

    def _seconds(self, macs: float, size: float, plan: Plan) -> float:
        """Seconds of a sequence's multiply-adds, and of writing and reading `size` bytes."""
        work = 2 * macs * self.batch / (self.peak * self.efficiency * plan.tensor)
        return self.pace * (work + 2 * size / self.machine.memory_rate)

    def passed(self, plan: Plan) -> tuple[float, float]:
        """Seconds of a block's all-reduces, and of a micro-batch that every GPU sends a part of."""
        machine, reduced, sent = self.machine, 0.0, 0.0
        size = self.element * self.net.height * self.batch * self.net.shape.hidden
        if plan.tensor > 1:
            local = min(plan.tensor, machine.per_node)
            links = lines(machine, local, -(-plan.tensor // local))
            times = 4 + 2 * (plan.checkpointing == "full") + plan.sequence
            shown = 1.0 if plan.tensor > local else 1 - _overlap(plan)["tensor"]
            reduced = shown * times * min(line.seconds(size) for line in links)
        if plan.stages > 1:
            within = plan.gpus <= machine.per_node
            link, share = (machine.inside, 1) if within else (machine.between, machine.per_node)
            one = link.latency + size / plan.tensor * share / link.bandwidth
            sent = 2 * plan.interleave * one
        return reduced, sent


def learned(gpu: str, plan: Plan) -> dict[str, float]:
    """The part of its peak that a GPU's matrices reach, and the likely range of a rate."""
    known: dict[str, dict[str, float]] = _known("families", plan)
    return known.get(family(gpu), known["other"])


def family(gpu: str) -> str:
    """GPUs that compute alike; an H200 is an H100 with other memory."""
    return gpu.partition("-")[0].replace("H200", "H100")


def _overlap(plan: Plan) -> dict[str, float]:
    """What is hidden of the exchange inside blocks (`tensor`) and of gradients (`exchange`)."""
    known: dict[str, float] = _known("overlap", plan)
    return known


def _known(what: str, plan: Plan) -> Any:
    """What is learned of software with the plan's kind of attention."""
    return facts.load("parallel")[what]["fused" if plan.fused else "plain"]


def split(work: Work, plan: Plan, gpus: int) -> Split:
    """The step of `gpus` GPUs in as many replicas as there are."""
    blocks, (most, ends) = work.net.shape.blocks, plan.blocks(work.net)
    (forward, again), (reduced, sends) = work.block(plan), work.passed(plan)
    output = work.output(plan)
    one = 3 * forward + again + reduced
    slowest = max(most * one if plan.stages > 1 else 0.0, ends * one + output) + sends
    every = blocks * one + output + sends * plan.stages
    share, replicas = plan.micro_batches / plan.stages, gpus // plan.gpus
    passing = plan.micro_batches * slowest + (every - slowest) / plan.interleave
    weights = stage_parameters(work.net, plan) / (replicas if plan.zero else 1)
    update = work.pace * _UPDATE * weights / work.machine.memory_rate
    return (
        share * (3 * blocks * forward + output) + update,
        _exchange(work, plan, replicas, blocks * forward),
        {"recomputing": share * blocks * again, "tensor": share * blocks * reduced,
         "bubble": passing - share * every, "stages": plan.micro_batches * sends},
    )  # fmt: skip


def _exchange(work: Work, plan: Plan, replicas: int, forward: float) -> float:
    """Seconds that exchanging gradients, and with FSDP weights, adds to a step.

    A part of the passes over a replica's last micro-batch can hide it, of FSDP every one.
    """
    if replicas < 2:
        return 0.0
    # Replicas lie side by side in a node, and the groups of a node share its network.
    local = min(replicas, max(1, work.machine.per_node // plan.tensor))
    nodes = -(-replicas // local)
    groups = max(1, work.machine.per_node // local) if nodes > 1 else 1
    rate = groups * min(line.rate for line in lines(work.machine, local, nodes))
    whole, blocks = rate * stage_parameters(work.net, plan), work.net.shape.blocks
    overlap, passes, times = _overlap(plan), 2 * forward / plan.stages, 1
    if plan.zero > 2:
        whole, passes, times = 1.5 * whole * HALF_BYTES, 1.5 * passes, plan.micro_batches
    elif plan.fused and plan.zero:  # gradients are scattered, and weights gathered
        whole, passes = whole * (work.gradient + HALF_BYTES) / 2, 1.5 * passes
    else:
        whole *= work.gradient
    if not plan.fused and plan.zero < 3 and plan.stages > 1:
        return whole
    shown = max(whole / blocks, times * (whole - overlap["exchange"] * passes))
    return shown + overlap["contention"] * times * min(whole, passes)
