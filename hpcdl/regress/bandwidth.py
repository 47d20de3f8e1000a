"""All-reduce and copies: sizes of messages, names, what the hardware cannot pass. Pure."""

from __future__ import annotations

from hpcdl import facts
from hpcdl.predict.hardware import usual_link
from hpcdl.site import Partition

SIZES = (1 << 16, 1 << 20, 1 << 24, 1 << 26)
"""Bytes: a small layer's gradient, Horovod's fusion at work, and what large models send."""
SMALL_SIZES = (1 << 16, 1 << 20, 1 << 22)
"""On a single node: its memory carries everything several times."""
REPEATS, SHARED_REPEATS = 20, 200
"""Iterations of each size. On a single node the best of many seconds counts: another program may
keep its CPUs for longer than 20 iterations take."""
_UNITS = ((1 << 20, "MiB"), (1 << 10, "KiB"), (1, "B"))


def metric_name(size: int) -> str:
    """The metric of messages of a size: `bus_gbs_4MiB`."""
    unit, name = next(one for one in _UNITS if size >= one[0])
    return f"bus_gbs_{size // unit}{name}"


def copies_of(gpus: int) -> tuple[str, ...]:
    """The ways that data are copied on a node with so many GPUs."""
    if not gpus:
        return ("host_to_host",)
    return ("host_to_device", "device_to_host", *(("device_to_device",) if gpus > 1 else ()))


def most_gbs(partition: Partition) -> float | None:
    """GB/s each way of what joins a GPU to others (facts/links.yaml, gpus.yaml), None if unknown.

    No copy to or from it passes that. Bus bandwidth may be twice as much where switches add, so
    that data cross once.
    """
    if partition.gpu is None:
        return None
    row = facts.load("links")["links"].get(usual_link(partition.gpu)) or {}
    both_ways = partition.gpu.figures.nvlink_gbs
    return row.get("gbs") or (both_ways / 2 if both_ways else None)
