"""What an all-reduce costs: latency and bandwidth per link, by a ring or by trees.

Costs are lines, seconds = latency + bytes x rate, one per algorithm; the cheapest one for a
size is taken, as NCCL and MPI do. Ring: 2(N-1) steps of S/N bytes (Patarasuk, Yuan 2009).
Tree: a ring in each node, between nodes two passes of 2 log2(N) steps at full bandwidth (NCCL
2.4's double tree).
"""

from __future__ import annotations

import math
from typing import NamedTuple

from hpcdl.predict.hardware import Link, Machine


class Line(NamedTuple):
    """Seconds of a message: `latency` + bytes x `rate` (seconds per byte)."""

    latency: float
    rate: float

    def seconds(self, size: float) -> float:
        """Seconds of `size` bytes."""
        return self.latency + self.rate * size


FREE = Line(0.0, 0.0)


def ring(ranks: int, link: Link) -> Line:
    """A ring of `ranks` over one kind of link."""
    if ranks < 2:
        return FREE
    return Line(2 * (ranks - 1) * link.latency, 2 * (ranks - 1) / ranks / link.bandwidth)


def tree(ranks: int, link: Link) -> Line:
    """A double binary tree of `ranks`: few steps, each byte up and down once."""
    if ranks < 2:
        return FREE
    return Line(4 * math.ceil(math.log2(ranks)) * link.latency, 2 / link.bandwidth)


def flat(machine: Machine, local: int, nodes: int) -> Line:
    """One ring through all GPUs, as NCCL lays it: into and out of every node once."""
    if nodes < 2:
        return ring(local, machine.inside)
    # Every step waits for the slowest link; those inside a node hide behind those between.
    inside = 1 / machine.inside.bandwidth if local > 1 else 0.0
    ranks, outside = local * nodes, machine.between
    rate = 2 * (ranks - 1) / ranks * max(inside, 1 / outside.bandwidth)
    return Line(2 * (ranks - 1) * outside.latency, rate)


def lines(machine: Machine, local: int, nodes: int) -> tuple[Line, ...]:
    """The candidates for `nodes` nodes of `local` GPUs: a ring, and rings joined by trees."""
    if nodes < 2:
        return (flat(machine, local, nodes),)
    inside, between = ring(local, machine.inside), tree(nodes, machine.between)
    both = Line(inside.latency + between.latency, inside.rate + between.rate)
    return flat(machine, local, nodes), both


def parameter_server(machine: Machine, local: int, nodes: int) -> Line:
    """One way between the GPUs and parameter servers in host memory, one shard per node.

    Every GPU sends (or fetches) all its gradients: within the node over the root ports that
    its GPUs share; to the other nodes' shards over the network, `local` times the bytes.
    """
    rate = max(1 / machine.root, local / machine.host_rate)
    latency = machine.inside.latency
    if nodes > 1:
        remote = (nodes - 1) / nodes
        rate = max(rate, local * remote / machine.between.bandwidth)
        latency += machine.between.latency
    return Line(latency, rate)
