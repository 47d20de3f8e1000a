"""The cost of exchanging gradients when nothing hides it.

Costs are lines, seconds = latency + bytes x rate, one per algorithm; the cheapest one for a size is
taken, as NCCL and MPI do.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from hpcdl.predict.hardware import Link, Machine


class MessageCost(NamedTuple):
    """Seconds of a message: `latency` + bytes x `rate` (seconds per byte)."""

    latency: float
    rate: float

    def seconds(self, size: float) -> float:
        """Seconds of `size` bytes."""
        return self.latency + self.rate * size


def ring(ranks: int, link: Link) -> MessageCost:
    """A ring over one kind of link: 2(N-1) steps of S/N bytes (Patarasuk, Yuan 2009)."""
    return MessageCost(2 * (ranks - 1) * link.latency, 2 * (ranks - 1) / ranks / link.bandwidth)


def tree(ranks: int, link: Link) -> MessageCost:
    """A double binary tree: two passes of 2 log2(N) steps at full bandwidth (NCCL 2.4)."""
    return MessageCost(4 * math.ceil(math.log2(ranks)) * link.latency, 2 / link.bandwidth)


def allreduce(machine: Machine, local: int, nodes: int) -> tuple[MessageCost, ...]:
    """The candidates for `nodes` nodes of `local` GPUs: a ring, and rings joined by a tree."""
    inside = ring(local, machine.inside)
    if nodes < 2:
        return (inside,)
    # NCCL's ring goes into and out of every node once. Every step waits for the slowest link;
    # those inside a node hide behind those between.
    ranks, outside = local * nodes, machine.between
    slowest = max(1 / machine.inside.bandwidth if local > 1 else 0.0, 1 / outside.bandwidth)
    flat = MessageCost(2 * (ranks - 1) * outside.latency, 2 * (ranks - 1) / ranks * slowest)
    between = tree(nodes, outside)
    return flat, MessageCost(inside.latency + between.latency, inside.rate + between.rate)


def parameter_server(machine: Machine, local: int, nodes: int) -> MessageCost:
    """One way between the GPUs and parameter servers in host memory, one shard per node.

    Every GPU sends (or fetches) all its gradients: within the node over the root ports that
    its GPUs share; to the other nodes' shards over the network, `local` times the bytes.
    """
    rate = max(1 / machine.root, local / (machine.roots * machine.root))
    latency = machine.inside.latency
    if nodes > 1:
        rate = max(rate, local * ((nodes - 1) / nodes) / machine.between.bandwidth)
        latency += machine.between.latency
    return MessageCost(latency, rate)
