"""The live cluster in the terms of a site file: what both `init` and `check` compare with.

Nodes of a partition whose GPUs differ are groups of it. Within a group the shape that most nodes
share counts, and the others are named. GPUs of other vendors count as none, and are named too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from hpcdl.site.gpu_models import out_of_scope
from hpcdl.slurm import client
from hpcdl.slurm.hostlist import expand_hostlist, fold_hostlist
from hpcdl.slurm.parse import NodeRecord, PartitionRecord
from hpcdl.system.errors import MissingPrerequisite


@dataclass(frozen=True)
class LivePartition:
    """A partition as Slurm shows it. `gpu_type` is None where GRES is untyped or absent.

    `groups` are its nodes by their GPUs, where those differ; the rest then tells of the first.
    `foreign` are types of GPUs that hpcdl does not serve.
    """

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
    foreign: tuple[str, ...] = ()
    groups: tuple[LivePartition, ...] = ()

    @property
    def node_groups(self) -> tuple[LivePartition, ...]:
        """Its groups: itself where all its nodes have the same GPUs."""
        return self.groups or (self,)


@dataclass(frozen=True)
class LiveCluster:
    """A cluster as its Slurm shows it. The last three are keys of `slurm` in a site file."""

    name: str
    version: str
    mpi_plugins: tuple[str, ...]
    mpi_default: str
    accounting: bool
    partitions: tuple[LivePartition, ...]
    select: str | None = None
    task_plugins: tuple[str, ...] = ()
    plugin_options: tuple[str, ...] = ()


def look() -> LiveCluster:
    """Ask the Slurm on PATH.

    Raises:
        MissingPrerequisite: no Slurm, it does not answer, or shows no partition.
    """
    config = client.config()
    nodes = client.nodes()
    plugins = client.mpi_plugins()
    partitions = client.partitions()
    if not partitions:
        raise MissingPrerequisite(
            "Slurm shows no partition here",
            hint="some are hidden from those who may not use them (slurm.conf(5), Hidden, "
            "AllowGroups): ask as another user, or as root",
        )
    return LiveCluster(
        name=(config.get("ClusterName", "").split() or ["cluster"])[0],
        version=client.version(),
        mpi_plugins=plugins,
        mpi_default=_mpi(config.get("MpiDefault", "none"), plugins),
        accounting="slurmdbd" in config.get("AccountingStorageType", ""),
        partitions=tuple(describe(part, nodes) for part in partitions),
        select=next(iter(plugins_of(config, "SelectType")), None),
        task_plugins=plugins_of(config, "TaskPlugin"),
        plugin_options=client.plugin_options(),
    )


def plugins_of(config: Mapping[str, str], key: str) -> tuple[str, ...]:
    """`task/cgroup,task/affinity` behind the slashes, as far as a site file can say it. Pure."""
    found = (one.strip().rpartition("/")[2] for one in config.get(key, "").split(","))
    return tuple(one for one in found if one in _PLUGINS[key])


def describe(partition: PartitionRecord, nodes: Sequence[NodeRecord]) -> LivePartition:
    """A partition in the terms of a site file. Pure."""
    names = set(expand_hostlist(partition.nodes))
    own = [node for node in nodes if node.name in names or partition.name in node.partitions]
    by_gpus: dict[_Gpus, list[NodeRecord]] = {}
    for node in own:
        for kind in _served(node) or ((None, 0),):
            by_gpus.setdefault(kind, []).append(node)
    groups = tuple(_alike(partition, some, kind) for kind, some in by_gpus.items())
    whole = groups[0] if groups else _alike(partition, [], (None, 0))
    return replace(
        whole,
        nodes=partition.node_count or len(own),
        hostlist=partition.nodes,
        foreign=tuple(dict.fromkeys(kind for node in own for kind in _foreign(node))),
        groups=groups if len(groups) > 1 else (),
    )


def _alike(partition: PartitionRecord, nodes: Sequence[NodeRecord], gpus: _Gpus) -> LivePartition:
    """Nodes that have the same GPUs; the shape that most of them have."""
    shapes = Counter(_shape(node) for node in nodes)
    usual = shapes.most_common(1)[0][0] if shapes else (1, 1, 1, 1, ())
    sockets, cores, threads, memory, features = usual
    return LivePartition(
        name=partition.name,
        default=partition.default,
        nodes=len(nodes),
        hostlist=fold_hostlist(node.name for node in nodes),
        sockets=sockets,
        cores_per_socket=cores,
        threads_per_core=threads,
        memory_gb=memory,
        gpu_type=gpus[0],
        gpus_per_node=gpus[1],
        features=features,
        max_time=partition.max_time,
        odd_nodes=tuple(node.name for node in nodes if _shape(node) != usual),
    )


_PLUGINS = {
    "SelectType": {"cons_res", "cons_tres", "linear"},
    "TaskPlugin": {"affinity", "cgroup", "none"},
}
_Gpus = tuple[str | None, int]
_Shape = tuple[int, int, int, int, tuple[str, ...]]


def _served(node: NodeRecord) -> tuple[_Gpus, ...]:
    return tuple((kind, count) for kind, count in node.gpus if not out_of_scope(kind or ""))


def _foreign(node: NodeRecord) -> Iterator[str]:
    return (kind for kind, _ in node.gpus if kind and out_of_scope(kind))


def _shape(node: NodeRecord) -> _Shape:
    return (
        node.sockets,
        node.cores_per_socket,
        node.threads_per_core,
        max(1, node.memory_mb // 1000),
        node.features,
    )


def _mpi(default: str, plugins: Sequence[str]) -> str:
    """The plug-in jobs should use: PMIx where there is one, else Slurm's default."""
    if "pmix" in plugins:
        return "pmix"
    return next((name for name in plugins if name.startswith("pmix")), default or "none")
