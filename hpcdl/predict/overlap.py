"""What exchanging gradients costs, and what of it back-propagation hides.

Costs are lines, seconds = latency + bytes x rate, one per algorithm; the cheapest one for a size is
taken, as NCCL and MPI do. Gradients become ready from the last layer to the first. The link carries
one message at a time, so message k starts when it is ready and the one before it is done: start[k]
= max(done[k-1], ready[k]) (Shi and Chu, arXiv 1711.05979 and 1811.11141).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from hpcdl.predict.hardware import Link, Machine

_SHORTEST_CYCLE = 1e-12  # seconds; shorter ones are as good as none, and floats cannot count them


class Line(NamedTuple):
    """Seconds of a message: `latency` + bytes x `rate` (seconds per byte)."""

    latency: float
    rate: float

    def seconds(self, size: float) -> float:
        """Seconds of `size` bytes."""
        return self.latency + self.rate * size


def ring(ranks: int, link: Link) -> Line:
    """A ring over one kind of link: 2(N-1) steps of S/N bytes (Patarasuk, Yuan 2009)."""
    return Line(2 * (ranks - 1) * link.latency, 2 * (ranks - 1) / ranks / link.bandwidth)


def tree(ranks: int, link: Link) -> Line:
    """A double binary tree: two passes of 2 log2(N) steps at full bandwidth (NCCL 2.4)."""
    return Line(4 * math.ceil(math.log2(ranks)) * link.latency, 2 / link.bandwidth)


def lines(machine: Machine, local: int, nodes: int) -> tuple[Line, ...]:
    """The candidates for `nodes` nodes of `local` GPUs: a ring, and rings joined by a tree."""
    inside = ring(local, machine.inside)
    if nodes < 2:
        return (inside,)
    # NCCL's ring goes into and out of every node once. Every step waits for the slowest link;
    # those inside a node hide behind those between.
    ranks, outside = local * nodes, machine.between
    slowest = max(1 / machine.inside.bandwidth if local > 1 else 0.0, 1 / outside.bandwidth)
    flat = Line(2 * (ranks - 1) * outside.latency, 2 * (ranks - 1) / ranks * slowest)
    between = tree(nodes, outside)
    return flat, Line(inside.latency + between.latency, inside.rate + between.rate)


def parameter_server(machine: Machine, local: int, nodes: int) -> Line:
    """One way between the GPUs and parameter servers in host memory, one shard per node.

    Every GPU sends (or fetches) all its gradients: within the node over the root ports that
    its GPUs share; to the other nodes' shards over the network, `local` times the bytes.
    """
    rate = max(1 / machine.root, local / (machine.roots * machine.root))
    latency = machine.inside.latency
    if nodes > 1:
        rate = max(rate, local * ((nodes - 1) / nodes) / machine.between.bandwidth)
        latency += machine.between.latency
    return Line(latency, rate)


class Gradient(NamedTuple):
    """What may be sent: seconds of back-propagation until then, and bytes."""

    ready: float
    size: float


class Overlap(NamedTuple):
    """Seconds that the link works, and what of them outlasts back-propagation."""

    busy: float
    exposed: float


def gradients(backward: Sequence[float], sizes: Sequence[float]) -> tuple[Gradient, ...]:
    """Gradients as they become ready: seconds of backward passes, bytes, both in forward order."""
    found, clock = [], 0.0
    for seconds, size in zip(reversed(backward), reversed(sizes), strict=True):
        clock += seconds
        found.append(Gradient(clock, size))
    return tuple(found)


def wait_free(
    ready: Sequence[Gradient], cost: Sequence[tuple[float, float]], backward: float
) -> Overlap:
    """One message after the other, each when it is ready and the link is free.

    A message costs the least of latency + bytes x rate, over the (latency, rate) pairs of `cost`.
    """
    done = busy = 0.0
    (latency, rate), *others = cost
    for moment, size in ready:  # the hot loop of a scan over counts: plain arithmetic
        seconds = latency + size * rate
        for start, slope in others:
            other = start + size * slope
            if other < seconds:
                seconds = other
        done = (done if done > moment else moment) + seconds
        busy += seconds
    return Overlap(busy, max(0.0, done - backward))


def pack(ready: Sequence[Gradient], *, buffer_bytes: float, cycle: float) -> tuple[Gradient, ...]:
    """Horovod's messages: every `cycle` all that is ready goes, `buffer_bytes` at most at once.

    With NCCL the polling thread hands messages over and polls on, so they do not depend on
    how long messages take. A gradient larger than the buffer travels alone, as in Horovod.
    """
    packed: list[Gradient] = []
    index, look = 0, 0.0
    while index < len(ready):
        look = next_look(look, ready[index].ready, cycle)
        held = 0.0
        while index < len(ready) and ready[index].ready <= look:
            size = ready[index].size
            if held and held + size > buffer_bytes:
                packed.append(Gradient(look, held))
                held = 0.0
            held, index = held + size, index + 1
        packed.append(Gradient(look, held))
    return tuple(packed)


def buckets(ready: Sequence[Gradient], size: float) -> tuple[Gradient, ...]:
    """The messages of PyTorch's DDP: a bucket goes when it is full, without a cycle."""
    packed: list[Gradient] = []
    held = 0.0
    for gradient in ready:
        held += gradient.size
        if held >= size or gradient is ready[-1]:
            packed.append(Gradient(gradient.ready, held))
            held = 0.0
    return tuple(packed)


def next_look(last: float, ready: float, cycle: float) -> float:
    """When the thread that looked at `last` finds what is ready then: some cycles later.

    It sleeps the rest of a cycle between polls (RunLoopOnce in horovod/common/operations.cc).
    """
    base = last + cycle
    if ready <= base or cycle < _SHORTEST_CYCLE:
        return max(base, ready)
    cycles = -((base - ready) // cycle)  # rounded up
    # The grid may fall short of `ready` by a rounding error of the floats.
    return max(ready, base + cycles * cycle)
