"""The live cluster in the terms of a site file: what both `init` and `check` compare with.

A partition's nodes may differ; the shape most of them share counts, and the others are named.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from hpcdl.slurm import client
from hpcdl.slurm.hostlist import expand_hostlist
from hpcdl.slurm.parse import NodeRecord, PartitionRecord


@dataclass(frozen=True)
class LivePartition:
    """A partition as Slurm shows it. `gpu_type` is None where GRES is untyped or absent."""

    name: str
    default: bool
    nodes: int
    hostlist: str
    sockets: int
    cores_per_socket: int
    threads_per_core: int
    memory_gb: int
    gpu_type: str | None
    gpus_per_node: int
    features: tuple[str, ...]
    max_time: str
    odd_nodes: tuple[str, ...]


@dataclass(frozen=True)
class LiveCluster:
    """A cluster as its Slurm shows it."""

    name: str
    version: str
    mpi_plugins: tuple[str, ...]
    mpi_default: str
    accounting: bool
    partitions: tuple[LivePartition, ...]


def look() -> LiveCluster:
    """Ask the Slurm on PATH.

    Raises:
        MissingPrerequisite: no Slurm, or it does not answer.
    """
    config = client.config()
    nodes = client.nodes()
    plugins = client.mpi_plugins()
    return LiveCluster(
        name=(config.get("ClusterName", "").split() or ["cluster"])[0],
        version=client.version(),
        mpi_plugins=plugins,
        mpi_default=_mpi(config.get("MpiDefault", "none"), plugins),
        accounting="slurmdbd" in config.get("AccountingStorageType", ""),
        partitions=tuple(describe(part, nodes) for part in client.partitions()),
    )


def describe(partition: PartitionRecord, nodes: Sequence[NodeRecord]) -> LivePartition:
    """A partition in the terms of a site file. Pure."""
    names = set(expand_hostlist(partition.nodes))
    own = [node for node in nodes if node.name in names or partition.name in node.partitions]
    shapes = Counter(_shape(node) for node in own)
    usual = shapes.most_common(1)[0][0] if shapes else (1, 1, 1, 1, None, 0, ())
    sockets, cores, threads, memory, gpu_type, gpus, features = usual
    return LivePartition(
        name=partition.name,
        default=partition.default,
        nodes=partition.node_count or len(own),
        hostlist=partition.nodes,
        sockets=sockets,
        cores_per_socket=cores,
        threads_per_core=threads,
        memory_gb=memory,
        gpu_type=gpu_type,
        gpus_per_node=gpus,
        features=features,
        max_time=partition.max_time,
        odd_nodes=tuple(node.name for node in own if _shape(node) != usual),
    )


_Shape = tuple[int, int, int, int, str | None, int, tuple[str, ...]]


def _shape(node: NodeRecord) -> _Shape:
    gpu_type, gpus = node.gpus
    return (
        node.sockets,
        node.cores_per_socket,
        node.threads_per_core,
        max(1, node.memory_mb // 1000),
        gpu_type,
        gpus,
        node.features,
    )


def _mpi(default: str, plugins: Sequence[str]) -> str:
    """The plug-in jobs should use: PMIx where there is one, else Slurm's default."""
    if "pmix" in plugins:
        return "pmix"
    return next((name for name in plugins if name.startswith("pmix")), default or "none")
