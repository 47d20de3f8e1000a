"""Wait-free back-propagation: which communication a step hides, exactly.

Gradients become ready from the last layer to the first while back-propagation runs. The link
carries one message at a time, in order, so message k starts when it is ready and the one
before it is done: start[k] = max(done[k-1], ready[k]) (Shi and Chu, arXiv 1711.05979 and
1811.11141). Horovod's background thread looks every cycle and sends everything ready as
messages of at most one fusion buffer (horovod/common/operations.cc).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

Cost = Callable[[float], float]
"""Seconds of an all-reduce of so many bytes."""


class Gradient(NamedTuple):
    """A layer's gradient: seconds of back-propagation until it is ready, and its bytes."""

    ready: float
    size: float


class Message(NamedTuple):
    """What one all-reduce carries: its bytes, and when it starts and is done."""

    size: float
    start: float
    done: float


class Overlap(NamedTuple):
    """Communication beside back-propagation.

    `busy` is the time the link works, `exposed` what of it outlasts back-propagation.
    """

    backward: float
    busy: float
    exposed: float
    messages: tuple[Message, ...]


def gradients(backward: Sequence[float], sizes: Sequence[float]) -> tuple[Gradient, ...]:
    """Gradients in the order they become ready.

    Args:
        backward: seconds of every layer's backward pass, in forward order.
        sizes: bytes of every layer's gradient, in forward order.
    """
    found, clock = [], 0.0
    for seconds, size in zip(reversed(backward), reversed(sizes), strict=True):
        clock += seconds
        found.append(Gradient(clock, size))
    return tuple(found)


def wait_free(ready: Sequence[Gradient], cost: Cost, backward: float) -> Overlap:
    """One message per layer, as Caffe-MPI, MXNet and unfused TensorFlow send them."""
    messages, done = [], 0.0
    for moment, size in ready:
        start = max(done, moment)
        done = start + cost(size)
        messages.append(Message(size, start, done))
    return _overlap(messages, backward)


def fused(
    ready: Sequence[Gradient],
    cost: Cost,
    backward: float,
    *,
    buffer_bytes: float,
    cycle: float,
    blocking: bool = False,
) -> Overlap:
    """Horovod: every `cycle` seconds all that is ready goes, `buffer_bytes` at most at once.

    A gradient larger than the buffer travels alone, as in Horovod. With NCCL the thread that
    looks hands messages over and looks on; with MPI it waits for them (`blocking`).
    """
    messages: list[Message] = []
    index, look, free = 0, 0.0, 0.0
    while index < len(ready):
        look = next_look(look, free if blocking else 0.0, ready[index].ready, cycle)
        last, size, free = index, 0.0, max(free, look)
        while last < len(ready) and ready[last].ready <= look:
            if size and size + ready[last].size > buffer_bytes:
                free = _send(messages, size, free, cost)
                size = 0.0
            size += ready[last].size
            last += 1
        free = _send(messages, size, free, cost)
        index = last
    return _overlap(messages, backward)


def after(ready: Sequence[Gradient], cost: Cost, backward: float) -> Overlap:
    """Nothing overlapped: one all-reduce of everything after back-propagation (CNTK)."""
    size = sum(gradient.size for gradient in ready)
    return _overlap([Message(size, backward, backward + cost(size))], backward)


def next_look(last: float, free: float, ready: float, cycle: float) -> float:
    """When the thread that looked at `last`, and is free at `free`, finds what is ready then.

    It sleeps the rest of a cycle between looks; after work of more than a cycle it looks at
    once and counts its cycles from there (RunLoopOnce in horovod/common/operations.cc).
    """
    base = max(last + cycle, free)
    if ready <= base:
        return base
    if cycle <= 0:
        return ready
    cycles = -((base - ready) // cycle)  # rounded up
    # The grid may fall short of `ready` by a rounding error of the floats.
    return max(ready, base + cycles * cycle)


def _send(messages: list[Message], size: float, start: float, cost: Cost) -> float:
    done = start + cost(size)
    messages.append(Message(size, start, done))
    return done


def _overlap(messages: Sequence[Message], backward: float) -> Overlap:
    busy = sum(message.done - message.start for message in messages)
    last = messages[-1].done if messages else 0.0
    return Overlap(backward, busy, max(0.0, last - backward), tuple(messages))
