"""`hpcdl site check`: where the site file and the live cluster differ. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from hpcdl.site.live import LiveCluster, LivePartition
from hpcdl.site.model import Partition, Site
from hpcdl.slurm.hostlist import expand_hostlist
from hpcdl.slurm.time_limit import slurm_minutes


@dataclass(frozen=True)
class Drift:
    """One difference: the key of the site file, what it says, what the cluster shows."""

    key: str
    file: str
    cluster: str


def compare(site: Site, cluster: LiveCluster) -> tuple[Drift, ...]:
    """All differences, in the file's order."""
    live = {part.name: part for part in cluster.partitions}
    found = [*_slurm(site, cluster)]
    for name, partition in site.partitions.items():
        if name not in live:
            found.append(Drift(f"partitions.{name}", "described", "no such partition"))
        else:
            found += _partition(partition, live[name])
    found += [
        Drift(f"partitions.{name}", "not described", f"{part.nodes} nodes")
        for name, part in live.items()
        if name not in site.partitions
    ]
    return tuple(found)


def _slurm(site: Site, cluster: LiveCluster) -> Iterator[Drift]:
    if site.slurm.version != cluster.version:
        yield Drift("slurm.version", site.slurm.version, cluster.version)
    if site.slurm.mpi not in (*cluster.mpi_plugins, "none"):
        yield Drift("slurm.mpi", site.slurm.mpi, ", ".join(cluster.mpi_plugins))
    if site.slurm.accounting != cluster.accounting:
        on_off = ("off", "on")
        yield Drift("slurm.accounting", on_off[site.slurm.accounting], on_off[cluster.accounting])


def _partition(part: Partition, live: LivePartition) -> Iterator[Drift]:
    key = f"partitions.{part.name}"
    if part.groups or live.groups:
        yield from _groups(key, part, live)
    else:
        yield from _nodes(key, part, live)
    if part.max_minutes > slurm_minutes(live.max_time):
        yield Drift(f"{key}.max_time", part.max_time, live.max_time)


def _groups(key: str, part: Partition, live: LivePartition) -> Iterator[Drift]:
    """Groups of nodes, each beside the one that has the same GPUs, or else the same nodes."""
    left = list(live.node_groups)
    for index, group in enumerate(part.node_groups):
        where = f"{key}.groups.{index + 1}" if part.groups else key
        twin = next((one for one in left if _same(group, one)), None)
        if twin is None:
            yield Drift(where, _words(group.nodes, group.gpus_per_node, _type(group)), "none such")
        else:
            left.remove(twin)
            yield from _nodes(where, group, twin)
    for one in left:
        said = _words(one.nodes, one.gpus_per_node, one.gpu_type)
        yield Drift(f"{key}.groups", "not described", f"{said}: {one.hostlist}")


def _same(group: Partition, live: LivePartition) -> bool:
    if group.hostlist and live.hostlist:
        ours, theirs = (set(expand_hostlist(one.hostlist or "")) for one in (group, live))
        if not ours & theirs:
            return False
    return (_type(group), group.gpus_per_node) == (live.gpu_type, live.gpus_per_node)


def _type(group: Partition) -> str | None:
    return group.gpu.gres_type if group.gpu else None


def _words(nodes: int, gpus: int, kind: str | None) -> str:
    many = "1 node" if nodes == 1 else f"{nodes} nodes"
    return f"{many} x {gpus} {kind or 'untyped'}" if gpus else f"{many} without GPUs"


def _nodes(key: str, part: Partition, live: LivePartition) -> Iterator[Drift]:
    """Equal nodes."""
    for name in ("nodes", "sockets", "cores_per_socket", "threads_per_core"):
        file, cluster = getattr(part, name), getattr(live, name)
        if file != cluster:
            yield Drift(f"{key}.{name}", str(file), str(cluster))
    if part.memory_gb > live.memory_gb:
        # Less than the cluster has is the site's choice; more makes every job pend for ever.
        yield Drift(f"{key}.memory_gb", f"{part.memory_gb:g}", str(live.memory_gb))
    if part.hostlist and set(expand_hostlist(part.hostlist)) != set(expand_hostlist(live.hostlist)):
        yield Drift(f"{key}.hostlist", part.hostlist, live.hostlist)
    if part.gpus_per_node != live.gpus_per_node:
        yield Drift(f"{key}.gpu.per_node", str(part.gpus_per_node), str(live.gpus_per_node))
    kind = _type(part)
    if kind and kind != live.gpu_type:
        yield Drift(f"{key}.gpu.gres_type", kind, live.gpu_type or "untyped")
    missing = sorted(set(part.features) - set(live.features))
    if missing:
        yield Drift(f"{key}.features", ", ".join(missing), ", ".join(live.features) or "none")
    if live.odd_nodes:
        yield Drift(f"{key}.nodes", "equal nodes", f"differing: {', '.join(live.odd_nodes[:5])}")
