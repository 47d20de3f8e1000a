"""Wait-free back-propagation: which communication a step hides, exactly.

Gradients become ready from the last layer to the first while back-propagation runs. The link
carries one message at a time, in order, so message k starts when it is ready and the one
before it is done: start[k] = max(done[k-1], ready[k]) (Shi and Chu, arXiv 1711.05979 and
1811.11141). Horovod's background thread polls every cycle and sends everything ready as
messages of at most one fusion buffer (horovod/common/operations.cc).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

_SHORTEST_CYCLE = 1e-12  # seconds; shorter ones are as good as none, and floats cannot count them
Cost = tuple[tuple[float, float], ...]
"""What a message costs: the least of latency + bytes x rate, over (latency, rate) pairs."""


class Gradient(NamedTuple):
    """What may be sent: seconds of back-propagation until then, and bytes."""

    ready: float
    size: float


class Overlap(NamedTuple):
    """Communication beside back-propagation.

    `busy` is the time the link works, `exposed` what of it outlasts back-propagation.
    """

    busy: float
    exposed: float


def gradients(backward: Sequence[float], sizes: Sequence[float]) -> tuple[Gradient, ...]:
    """Gradients as they become ready: seconds of backward passes, bytes, both in forward order."""
    found, clock = [], 0.0
    for seconds, size in zip(reversed(backward), reversed(sizes), strict=True):
        clock += seconds
        found.append(Gradient(clock, size))
    return tuple(found)


def wait_free(ready: Sequence[Gradient], cost: Cost, backward: float) -> Overlap:
    """One message after the other, each when it is ready and the link is free."""
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


def after(ready: Sequence[Gradient], cost: Cost, backward: float) -> Overlap:
    """Nothing overlapped: one all-reduce of everything after back-propagation (CNTK)."""
    size = sum(gradient.size for gradient in ready)
    return wait_free([Gradient(backward, size)], cost, backward)


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
