"""Free and busy GPUs, as Slurm shows them now: by partition and type.

A free GPU may be of no use: on a node that is down or drained, or whose CPUs other jobs have taken
to the last. Both are counted apart, so that "free" is what a job can get. When a job would start is
Slurm's to say (`sbatch --test-only`), which knows priorities, limits and reservations.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from hpcdl.site.gpu_models import model_of_type
from hpcdl.slurm import client, parse

# A node that Slurm powered down to save energy is started for the next job: it is free.
_NO_JOBS = re.compile(
    r"(?<!POWERED_)DOWN|DRAIN|FAIL|ERROR|MAINT|NOT_RESPONDING|REBOOT|UNKNOWN|FUTURE|\*"
)


class NodeGpus(NamedTuple):
    """The GPUs of one type on one node. `usable`: the node takes jobs; `cpus_free` of its CPUs."""

    node: str
    partitions: tuple[str, ...]
    kind: str
    total: int
    used: int
    usable: bool
    cpus_free: int


class GpuRow(NamedTuple):
    """The GPUs of one type in a partition.

    `model` is '' where the type names none that is known; `blocked` are idle GPUs on nodes without
    a free CPU; `largest` is the most free GPUs on one node.
    """

    partition: str
    kind: str
    model: str
    total: int
    free: int
    used: int
    blocked: int
    down: int
    largest: int


def gpus_of_nodes(lines: Iterable[str]) -> list[NodeGpus]:
    """The GPUs in the lines of `scontrol show node -d -o`. Pure."""
    gpus = []
    for line in lines:
        if "Gres=gpu" not in line and ",gpu:" not in line:  # most nodes of most sites
            continue
        fields = parse.pairs(line)
        there = parse.gpu_counts(fields.get("Gres", ""))
        used = parse.gpu_counts(fields.get("GresUsed", ""))
        cpus = int(fields.get("CPUEfctv", fields.get("CPUTot", "0")))
        for kind, total in there.items():
            gpus.append(
                NodeGpus(
                    node=fields["NodeName"],
                    partitions=tuple(filter(None, fields.get("Partitions", "").split(","))),
                    kind=kind or "",
                    total=total,
                    used=min(total, used.get(kind, 0)),
                    usable=not _NO_JOBS.search(fields.get("State", "")),
                    cpus_free=max(0, cpus - int(fields.get("CPUAlloc", "0"))),
                )
            )
    return gpus


def gpu_rows(nodes: Sequence[NodeGpus]) -> list[GpuRow]:
    """A row per partition and type, in the order of partitions. Pure."""
    grouped: dict[tuple[str, str], list[NodeGpus]] = {}
    for node in nodes:
        for partition in node.partitions:
            grouped.setdefault((partition, node.kind), []).append(node)
    rows = []
    for (partition, kind), members in sorted(grouped.items()):
        idle = [(node, node.total - node.used) for node in members if node.usable]
        free = [count for node, count in idle if node.cpus_free]
        rows.append(
            GpuRow(
                partition=partition,
                kind=kind,
                model=model_of_type(kind) or "",
                total=sum(node.total for node in members),
                free=sum(free),
                used=sum(node.used for node in members),
                blocked=sum(count for node, count in idle if not node.cpus_free),
                down=sum(node.total - node.used for node in members if not node.usable),
                largest=max(free, default=0),
            )
        )
    return rows


def look() -> list[GpuRow]:
    """Ask Slurm what is free; MissingPrerequisite: there is no Slurm, or it does not answer."""
    return gpu_rows(gpus_of_nodes(client.node_details()))
