"""All-reduce and copies checked without ReFrame: sizes, names, what a result says. Pure."""

from __future__ import annotations

from hpcdl import facts
from hpcdl.predict.hardware import usual_link
from hpcdl.regress.result import Measured
from hpcdl.results.faults import Fault, FaultKind
from hpcdl.results.records import at
from hpcdl.site import Partition

SIZES = (1 << 16, 1 << 20, 1 << 24, 1 << 26)
"""Bytes: a small layer's gradient, Horovod's fusion at work, and what large models send."""
SMALL_SIZES = (1 << 16, 1 << 20, 1 << 22)
"""On a single node: its memory carries everything several times."""
REPEATS, SHARED_REPEATS = 20, 200
"""Iterations of each size. On a single node the best of many seconds counts: another program may
keep its CPUs for longer than 20 iterations take."""
_UNITS = ((1 << 20, "MiB"), (1 << 10, "KiB"))


def size_name(size: int) -> str:
    """`4MiB` for 4194304."""
    return next((f"{size // unit}{name}" for unit, name in _UNITS if size >= unit), f"{size}B")


def metric_name(size: int) -> str:
    """The metric of messages of a size."""
    return f"bus_gbs_{size_name(size)}"


def bandwidth(measured: Measured, size: int, *, best: bool = False) -> float | None:
    """Bus bandwidth in GB/s for messages of a size: the median, or the best iteration's."""
    return measured.number("summary", "best_bus_gbs" if best else "bus_gbs", str(size))


def nccl_faults(measured: Measured) -> list[Fault]:
    """What is wrong with the way that GPUs were joined."""
    if at(measured.values, "versions", "nccl_built") is not False:
        return []
    text = "Horovod was built without NCCL: GPUs wait for MPI through the host's memory"
    return [Fault(FaultKind.NCCL, text)]


def copies_of(gpus: int) -> tuple[str, ...]:
    """The ways that data are copied on a node with so many GPUs."""
    if not gpus:
        return ("host_to_host",)
    return ("host_to_device", "device_to_host", *(("device_to_device",) if gpus > 1 else ()))


def copy_rate(measured: Measured, way: str, *, best: bool = False) -> float | None:
    """GB/s of copies one way: of the slowest GPU or pair, its median copy or its best."""
    return measured.number("summary", f"{'best_' if best else ''}{way}_gbs")


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
