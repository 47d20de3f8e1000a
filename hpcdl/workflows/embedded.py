"""The embedded cluster of a site, and which one a command means.

By --site, HPCDL_SITE or HPCDL_CLUSTER_DIR; without any it is the default one. `hpcdl.cluster`
itself knows no site, only a `ClusterRequest`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from hpcdl.cluster import state
from hpcdl.cluster.rootfs import original_site
from hpcdl.cluster.shape import ClusterRequest, ClusterState, NodeGroup, Queue
from hpcdl.site import Site, find_site_file, load_site
from hpcdl.site.load import installed_site_file
from hpcdl.site.model import Partition
from hpcdl.slurm.hostlist import expand_hostlist
from hpcdl.system.errors import BadInput, CheckFailed

_DEFAULT_SITE = "embedded"
_MB_PER_GB = 1024
_MAX_HOSTNAME = 63


def site_of(given: str | None) -> Site:
    """The site to emulate; the shipped `embedded` one where none is named.

    A shell that used a cluster of another release names that cluster's own file: meant is the
    one it was written from.
    """
    return load_site(original_site(_site_file(given)))


def directory_of(given: str | None) -> Path:
    """The state directory that is meant.

    A cluster whose recorded site file is the one named is found first: so `down` works when
    that file was broken or removed since.
    """
    chosen = state.chosen_directory()
    if chosen is not None:
        return chosen
    try:
        file = _site_file(given).absolute()
    except BadInput:
        # Not Path.expanduser: it raises where `~nosuch` names no user.
        name = given or os.environ.get("HPCDL_SITE") or _DEFAULT_SITE
        file = Path(os.path.expanduser(name)).absolute()  # noqa: PTH111
    for other in state.all_states():
        if other.site_file == file:
            return other.directory
    return state.state_directory(load_site(_site_file(given)).name)


def running(given: str | None) -> ClusterState:
    """The cluster that is meant, up or broken; CheckFailed without one names others that are up."""
    directory = directory_of(given)
    current = state.read_state(directory)
    if current is None:
        others = [f"{other.site} ({other.directory})" for other in state.all_states()]
        raise CheckFailed(
            f"no cluster is up below {directory}",
            details=[f"up: {other}" for other in others],
            hint="`hpcdl cluster up` starts it"
            + ("; --site FILE chooses another" if others else ""),
        )
    return current


def _site_file(given: str | None) -> Path:
    if given or os.environ.get("HPCDL_SITE"):
        return find_site_file(given)
    return installed_site_file() or find_site_file(_DEFAULT_SITE)


def request(
    site: Site,
    mode: str = "auto",
    accounting: bool = False,
    max_nodes: int | None = None,
    slurm: str = "",
) -> ClusterRequest:
    """The hardware and the partitions of a site, of each at most `max_nodes`.

    `mode` is `namespaces`, `loopback` or `auto`; `accounting` adds a private MariaDB and slurmdbd.
    `slurm` is a release such as 24.11, from a rootfs of its own, empty for the machine's.
    """
    groups: list[NodeGroup] = []
    queues: list[Queue] = []
    group_of: dict[str, NodeGroup] = {}
    for partition in site.partitions.values():
        offered: list[str] = []
        for part, names in _parts(partition, max_nodes):
            offered += names
            group = _group(part, tuple(name for name in names if name not in group_of))
            for name in names:
                if name in group_of and group_of[name].hardware != group.hardware:
                    raise BadInput(
                        f"the partitions '{group_of[name].partition}' and '{partition.name}' "
                        f"describe the node {name} in different ways"
                    )
            if group.names:
                groups.append(group)
                group_of.update(dict.fromkeys(group.names, group))
        queues.append(_queue(partition, tuple(offered), site.default_partition))
    return ClusterRequest(
        site=site.name,
        site_file=site.source,
        prefix=site.paths.prefix,
        lmod_init=site.paths.lmod_init,
        written_for=(site.slurm.version, site.slurm.mpi),
        mode=mode,
        accounting=accounting,
        groups=tuple(groups),
        queues=tuple(queues),
        slurm=slurm,
    )


def _parts(partition: Partition, max_nodes: int | None) -> Iterator[tuple[Partition, list[str]]]:
    """The partition's groups of equal nodes with their names, at most so many of each.

    Groups without a host list of their own share out the partition's names in turn.
    """
    if not partition.groups:
        yield partition, _names(partition)[:max_nodes]
        return
    own = [list(expand_hostlist(group.hostlist or "")) for group in partition.groups]
    named = {name for names in own for name in names}
    left = [name for name in _names(partition) if name not in named]
    for group, names in zip(partition.groups, own, strict=True):
        if not group.hostlist:
            names, left = left[: group.nodes], left[group.nodes :]
        yield group, names[:max_nodes]


def _names(partition: Partition) -> list[str]:
    if partition.hostlist is None:
        width = max(2, len(str(partition.nodes)))
        names = [f"{partition.name}-{i:0{width}d}" for i in range(1, partition.nodes + 1)]
    else:
        names = list(expand_hostlist(partition.hostlist))
    if len(max(names, key=len)) > _MAX_HOSTNAME:
        raise BadInput(f"the node name '{max(names, key=len)}' is too long for a host name")
    return names


def _group(partition: Partition, names: tuple[str, ...]) -> NodeGroup:
    return NodeGroup(
        partition=partition.name,
        names=names,
        sockets=partition.sockets,
        cores_per_socket=partition.cores_per_socket,
        threads_per_core=partition.threads_per_core,
        memory_mb=int(partition.memory_gb * _MB_PER_GB),
        gpu_type=partition.gpu.gres_type if partition.gpu else None,
        gpus=partition.gpus_per_node,
        features=partition.features,
    )


def _queue(partition: Partition, names: tuple[str, ...], default: str) -> Queue:
    return Queue(
        name=partition.name,
        nodes=names,
        default=partition.name == default,
        max_time=partition.max_time,
        default_time=partition.max_time if partition.max_minutes < 60 else "01:00:00",
        memory_per_cpu_mb=max(1, int(partition.memory_gb * _MB_PER_GB) // partition.cpus),
    )
