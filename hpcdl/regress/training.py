"""The jobs of checks: ranks on a partition, their names, sizes of messages. Pure."""

from __future__ import annotations

from hpcdl.jobs.spec import JobSpec
from hpcdl.site import Partition

MINUTES = 10
SIZES = (1 << 16, 1 << 20, 1 << 24, 1 << 26)
"""Bytes of the all-reduce: a small layer's gradient, Horovod's fusion at work, what large models
send. Their references say what a job's gradients meet, and its expectation starts from them."""
SMALL_SIZES = (1 << 16, 1 << 20, 1 << 22)
"""On a single node: its memory carries everything several times."""
_BINARY = ((1 << 20, "MiB"), (1 << 10, "KiB"), (1, "B"))
ALL = 0
"""Instead of a number of ranks: one per GPU of the node, or per socket without GPUs."""


def ranks_on(partition: Partition, ranks: int) -> int:
    """Ranks per node, where `ranks` may be ALL."""
    return ranks or partition.gpus_per_node or partition.sockets


def shape_name(nodes: int, ranks: int) -> str:
    """`2x4`, or `2xall`."""
    return f"{nodes}x{ranks or 'all'}"


def metric_name(size: int) -> str:
    """The metric of messages of a size: `bus_gbs_4MiB`."""
    unit, name = next(one for one in _BINARY if size >= one[0])
    return f"bus_gbs_{size // unit}{name}"


def job_on(
    partition: Partition,
    name: str,
    program: tuple[str, ...],
    *,
    nodes: int = 1,
    ranks: int = 1,
    minutes: int = MINUTES,
) -> JobSpec:
    """A job of `ranks` per node, as a user would ask for it on this partition."""
    count = ranks_on(partition, ranks)
    per_node = {"gpus_per_node": count} if partition.gpu else {"tasks_per_node": count}
    return JobSpec(
        partition=partition.name,
        nodes=nodes,
        minutes=min(minutes, partition.max_minutes),
        name=name,
        program=program,
        gpu_model=partition.gpu_asked_for,
        **per_node,  # type: ignore[arg-type]
    )
