"""What an all-reduce costs: latency and bandwidth per link, ring, tree and two levels.

Costs are lines, seconds = latency + bytes x rate, one per algorithm; the cheapest one for a
size is taken, as NCCL and MPI do. Ring: 2(N-1) steps of S/N bytes (Patarasuk, Yuan 2009).
Tree: two passes of 2 log2(N) steps, full bandwidth (NCCL 2.4's double tree). Two levels:
reduce-scatter in the node, rings between the nodes, all-gather in the node; the node's network
is shared by its GPUs.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from hpcdl.predict.hardware import Link, Machine

ALGORITHMS = ("ring", "tree", "two-level")


@dataclass(frozen=True)
class Line:
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


def _outside(machine: Machine, nodes: int) -> Link:
    """The network where there are several nodes; nobody needs to know it within one."""
    return machine.between if nodes > 1 else machine.pair


def flat(machine: Machine, local: int, nodes: int) -> Line:
    """One ring through all GPUs, as NCCL lays it: into and out of every node once."""
    ranks = local * nodes
    if ranks < 2:
        return FREE
    inside, outside = machine.link(local), _outside(machine, nodes)
    steps, rate = (
        2 * (ranks - 1) / ranks,
        max(
            1 / inside.bandwidth if local > 1 else 0.0, 1 / outside.bandwidth if nodes > 1 else 0.0
        ),
    )
    # Every step waits for the slowest link; those inside a node hide behind those between.
    latency = outside.latency if nodes > 1 else inside.latency
    return Line(2 * (ranks - 1) * latency, steps * rate)


def two_level(machine: Machine, local: int, nodes: int) -> Line:
    """Reduce-scatter in the node, `local` rings between nodes at once, all-gather in it."""
    inside = ring(local, machine.link(local))
    between = ring(nodes, _outside(machine, nodes))
    return Line(inside.latency + between.latency, inside.rate + between.rate)


def _tree(machine: Machine, local: int, nodes: int) -> Line:
    inside = ring(local, machine.link(local))
    between = tree(nodes, _outside(machine, nodes))
    return Line(inside.latency + between.latency, inside.rate + between.rate)


def lines(machine: Machine, local: int, nodes: int, algorithm: str = "auto") -> tuple[Line, ...]:
    """The candidates for `nodes` nodes of `local` GPUs; `auto` holds all of ALGORITHMS."""
    known = {"ring": flat, "tree": _tree, "two-level": two_level}
    chosen = ALGORITHMS if algorithm == "auto" and nodes > 1 else ("ring",)
    if algorithm in known:
        chosen = (algorithm,)
    return tuple(known[name](machine, local, nodes) for name in chosen)


def parameter_server(machine: Machine, local: int, nodes: int) -> Line:
    """One way between the GPUs and parameter servers in host memory, one shard per node.

    Every GPU sends (or fetches) all its gradients: within the node over the root ports that
    its GPUs share; to the other nodes' shards over the network, `local` times the bytes.
    """
    rate = max(1 / machine.root, local / machine.host_rate)
    latency = machine.pair.latency
    if nodes > 1:
        remote = (nodes - 1) / nodes
        rate = max(rate, local * remote / machine.between.bandwidth)
        latency += machine.between.latency
    return Line(latency, rate)
