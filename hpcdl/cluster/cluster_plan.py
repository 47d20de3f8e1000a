"""Lays a site out on one machine: pure functions from `Site` to `ClusterRequest` and nodes."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from pathlib import Path

from hpcdl.cluster.model import NAMESPACES, ClusterRequest, Group, Node, Ports, Queue
from hpcdl.site import Partition, Site
from hpcdl.slurm.hostlist import expand_hostlist
from hpcdl.system.errors import BadInput
from hpcdl.system.text import count_of

_MB_PER_GB = 1024
_MAX_HOSTNAME = 63
# Linux: sun_path of unix(7) has 108 bytes, its ending zero included.
_MAX_SOCKET = 107
# The longest socket below the state directory, for the largest job and step numbers:
# slurmd's own for each step, and the PMIx plug-in's.
_SOCKETS = (
    "spool/{node}/{node}_67108863.4294967295",
    "spool/{node}/stepd.slurm.pmix.67108863.4294967295",
    "run/munge.sock.lock",
    "database/mariadb.sock",
)
_SPECIAL = frozenset(" \"'\\#%,;=[](){}$&|<>!*?~^`")


def request(
    site: Site, mode: str, accounting: bool, max_nodes: int | None = None, slurm: str = ""
) -> ClusterRequest:
    """The hardware and the partitions that a site asks for.

    At most `max_nodes` of each partition; `slurm` is a release, empty for the machine's own.

    Raises:
        BadInput: host list and number of nodes differ, or two partitions describe the same
            node in different ways.
    """
    if max_nodes is not None and max_nodes < 1:
        raise BadInput(f"a partition needs at least one node, not {max_nodes}")
    groups: list[Group] = []
    queues: list[Queue] = []
    known: dict[str, Group] = {}
    for partition in site.partitions.values():
        offered: list[str] = []
        for part, names in _parts(partition, max_nodes):
            offered += names
            group = _group(part, tuple(name for name in names if name not in known))
            for name in names:
                if name in known and known[name].hardware != group.hardware:
                    raise BadInput(
                        f"the partitions '{known[name].partition}' and '{partition.name}' "
                        f"describe the node {name} in different ways"
                    )
            if group.names:
                groups.append(group)
                known.update(dict.fromkeys(group.names, group))
        queues.append(_queue(partition, tuple(offered), site.default_partition))
    return ClusterRequest(site.name, mode, accounting, tuple(groups), tuple(queues), slurm)


def fingerprint(asked: ClusterRequest) -> dict[str, str]:
    """What two requests are compared by; keys and values appear in messages."""
    data = asdict(asked)
    shape = json.dumps([data["groups"], data["queues"]], sort_keys=True)
    own = {"Slurm": asked.slurm} if asked.slurm else {}
    return own | {
        "mode": asked.mode,
        "accounting": "on" if asked.accounting else "off",
        "partitions": hashlib.sha256(shape.encode()).hexdigest()[:12],
    }


def lay_out(asked: ClusterRequest, network: str, ports: Ports) -> tuple[Node, ...]:
    """Give every node its port, and its address in a /24 network as `10.77.0`; .1 is the host's."""
    owners = [(name, group.partition) for group in asked.groups for name in group.names]
    apart = asked.mode == NAMESPACES
    return tuple(
        Node(name, partition, index, f"{network}.{index + 2}" if apart else "127.0.0.1",
             ports.node(asked.mode, index))
        for index, (name, partition) in enumerate(owners)
    )  # fmt: skip


def check_directory(directory: Path, nodes: Iterable[str]) -> None:
    """Refuse a state directory that Slurm cannot use.

    Raises:
        BadInput: it has characters that slurm.conf gives a meaning or cannot show, or is too
            long for the sockets below it.
    """
    bad = sorted(one for one in set(str(directory)) if one in _SPECIAL or not one.isprintable())
    if bad:
        said = f"slurm.conf cannot hold the path {directory}: it has {' '.join(map(repr, bad))}"
        raise BadInput(said, hint="set HPCDL_CLUSTER_DIR to a plain path, such as ~/hpcdl-cluster")
    node = max(nodes, key=len)
    longest_path = _MAX_SOCKET - max(len(name.format(node=node)) for name in _SOCKETS) - 1
    if len(str(directory).encode()) > longest_path:
        raise BadInput(
            f"the path {directory} is too long for unix sockets below it: "
            f"{len(str(directory))} characters, at most {longest_path}",
            hint="set HPCDL_CLUSTER_DIR to a shorter path, such as ~/hpcdl-cluster",
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
    if len(names) != partition.nodes:
        raise BadInput(
            f"the partition '{partition.name}' has {count_of(partition.nodes, 'node')}, but its "
            f"host list '{partition.hostlist}' names {len(names)}"
        )
    if len(max(names, key=len)) > _MAX_HOSTNAME:
        raise BadInput(f"the node name '{max(names, key=len)}' is too long for a host name")
    return names


def _group(partition: Partition, names: tuple[str, ...]) -> Group:
    return Group(
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
