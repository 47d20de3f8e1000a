"""Free and busy GPUs, as Slurm shows them now: by partition and type.

A free GPU may be of no use: on a node that is down or drained, or whose CPUs other jobs have taken
to the last. Both are counted apart, so that "free" is what a job can get. When a request would
start is Slurm's own answer (`sbatch --test-only`), which knows priorities, limits and reservations.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from hpcdl.results.gpus import model_of_type
from hpcdl.slurm import client, parse
from hpcdl.system.errors import HpcdlError

_START = re.compile(r"to start at (\S+)")
_PREFIX = re.compile(r"^(sbatch: |error: |allocation failure: )*")
_AT_ONCE = 4


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
    a free CPU; `largest` is the most free GPUs on one node; `starts` is when a request would start,
    or why not, '' where none was asked about.
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
    starts: str = ""


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
                    # Those in use may have a type where those that are there have none, and
                    # the other way round (AutoDetect in gres.conf).
                    used=min(total, sum(used.values()) if len(there) == 1 else used.get(kind, 0)),
                    usable=parse.takes_jobs(fields.get("State", "")),
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


def look(gpus: int = 0, minutes: int = 60) -> list[GpuRow]:
    """Ask Slurm what is free; with `gpus`, also when a job of so many would start."""
    nodes = gpus_of_nodes(client.node_details())
    rows = gpu_rows(nodes)
    if not gpus:
        return rows
    per_node = {
        (partition, node.kind): node.total for node in nodes for partition in node.partitions
    }

    def asked(row: GpuRow) -> GpuRow:
        each = per_node[row.partition, row.kind]
        return row._replace(starts=_starts(row, gpus, minutes, each))

    with ThreadPoolExecutor(_AT_ONCE) as pool:
        return list(pool.map(asked, rows))


def _starts(row: GpuRow, gpus: int, minutes: int, per_node: int) -> str:
    """When a job of so many GPUs would start, or Slurm's reason why it never would."""
    each = min(gpus, per_node)
    kind = f"{row.kind}:" if row.kind else ""
    options = [
        f"--partition={row.partition}",
        f"--nodes={-(-gpus // each)}",
        f"--gres=gpu:{kind}{each}",
        f"--time={minutes}",
    ]
    try:
        tried = client.dry_run(*options, "--wrap=true")
    except HpcdlError as fault:
        return fault.message
    answer = tried.stderr.strip() or tried.stdout.strip()
    found = _START.search(answer)
    reason = (answer or "Slurm did not say").splitlines()[0]
    return found[1] if found else _PREFIX.sub("", reason)
