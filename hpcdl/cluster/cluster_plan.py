"""Lays a cluster out on one machine and renders its configuration: nothing is written or started.

From a `ClusterRequest` to nodes, and from these to files by templates/slurm.
"""

from __future__ import annotations

import hashlib
import json
import os
import socket
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

from hpcdl import facts
from hpcdl.cluster import NAMESPACES
from hpcdl.cluster.shape import ClusterRequest, ClusterState, Node, NodeGroup, Ports
from hpcdl.slurm.hostlist import fold_hostlist
from hpcdl.slurm.rules import SlurmRelease, span
from hpcdl.system.errors import BadInput
from hpcdl.system.files import user_name
from hpcdl.system.resources import templates

TIMEOUTS = {"node": 10, "message": 10, "credential": 5}
"""How long Slurm waits, in seconds.

`node` (SlurmdTimeout) and `message` (MessageTimeout) together make a dead node be noticed after 15
to 30 s (Slurm's defaults: minutes), and tolerate a machine whose cores are all busy. `credential`
is munge's cred_expire: a requeued job starts again about a second after it.
"""
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


def fingerprint(asked: ClusterRequest) -> dict[str, str]:
    """Return the values by which two requests are compared; keys and values appear in messages."""
    data = asdict(asked)
    shape = json.dumps([data["groups"], data["queues"]], sort_keys=True)
    own = {"Slurm": asked.slurm} if asked.slurm else {}
    return own | {
        "site": asked.site,
        "mode": asked.mode,
        "accounting": "on" if asked.accounting else "off",
        "partitions": hashlib.sha256(shape.encode()).hexdigest()[:12],
    }


def lay_out(asked: ClusterRequest, network: str, ports: Ports) -> tuple[Node, ...]:
    """Give every node its port, and its address in a /24 network as `10.77.0`; .1 is the host's."""
    owners = [(name, group.partition) for group in asked.groups for name in group.names]
    apart = asked.mode == NAMESPACES
    return tuple(
        Node(
            name,
            partition,
            index,
            f"{network}.{index + 2}" if apart else "127.0.0.1",
            ports.node(asked.mode, index),
        )
        for index, (name, partition) in enumerate(owners)
    )


def check_directory(directory: Path, nodes: Iterable[str]) -> None:
    """Refuse a state directory that Slurm cannot use."""
    bad = sorted(one for one in set(str(directory)) if one in _SPECIAL or not one.isprintable())
    if bad:
        message = f"slurm.conf cannot hold the path {directory}: it has {' '.join(map(repr, bad))}"
        raise BadInput(
            message, hint="set HPCDL_CLUSTER_DIR to a plain path, such as ~/hpcdl-cluster"
        )
    node = max(nodes, key=len)
    longest_path = _MAX_SOCKET - max(len(name.format(node=node)) for name in _SOCKETS) - 1
    if len(str(directory).encode()) > longest_path:
        raise BadInput(
            f"the path {directory} is too long for unix sockets below it: "
            f"{len(str(directory))} characters, at most {longest_path}",
            hint="set HPCDL_CLUSTER_DIR to a shorter path, such as ~/hpcdl-cluster",
        )


class File(NamedTuple):
    """A file to write: its place below the state directory, its text and its mode."""

    path: str
    text: str
    mode: int = 0o644


def files(
    asked: ClusterRequest, cluster: ClusterState, *, mpi: str, first_job: int, slurmd: str
) -> tuple[File, ...]:
    """Every configuration file of the cluster."""
    release = SlurmRelease.parse(cluster.slurm_version)
    threads = sum(group.cpus * len(group.names) for group in asked.groups)
    values: dict[str, Any] = {
        "request": asked,
        "cluster": cluster,
        "host": host(),
        "user": user_name(),
        "owner_only": serves_owner_only(),
        "mpi": mpi,
        "first_job": first_job,
        "slurmd": slurmd,
        "timeouts": TIMEOUTS,
        "listening": listening(cluster),
        "node_lines": node_lines(asked, cluster),
        "has_gpus": any(group.gpus for group in asked.groups),
        "gpu_types": sorted({group.gpu_type for group in asked.groups if group.gpu_type}),
        "oversubscribed": threads > (os.cpu_count() or 1),
        "cgroup_options": release_options(release),
    }
    modes = {
        "slurm.conf": 0o644,
        "gres.conf": 0o644,
        "cgroup.conf": 0o644,
        "hosts": 0o644,
        "task-prolog.sh": 0o755,
    }
    if cluster.mode == NAMESPACES:
        modes["node.sh"] = 0o755
    if cluster.root is not None:
        modes |= {"enter.sh": 0o755, "client.sh": 0o755}
    if cluster.accounting:
        modes["slurmdbd.conf"] = 0o600
    environment = templates("slurm", trim_blocks=True)
    environment.filters["host_ranges"] = fold_hostlist
    return tuple(
        File(f"etc/{name}", environment.get_template(f"{name}.j2").render(values), mode)
        for name, mode in modes.items()
    )


def serves_owner_only() -> bool:
    """Whether only this user's jobs run: without root, slurmd runs all jobs as itself."""
    return os.geteuid() != 0


def mask() -> int:
    """The umask of everything below the state directory.

    As root others may use the cluster, and read its configuration.
    """
    return 0o077 if serves_owner_only() else 0o022


def host() -> str:
    """This machine's name, as Slurm takes it."""
    return socket.gethostname().split(".")[0]


def listening(cluster: ClusterState) -> str:
    """CommunicationParameters that keep the daemons off the machine's other addresses.

    A daemon then binds to what its machine's name resolves to: in namespaces and in the rootfs of
    another release by the cluster's own hosts file, elsewhere by the machine's, where the name may
    be unknown or mean another address (slurm.conf(5)). There they listen as Slurm does by default.
    """
    if cluster.mode == NAMESPACES:
        return "NoCtldInAddrAny"  # slurmd has a network of its own
    try:
        own = cluster.root is not None or socket.gethostbyname(host()) == cluster.controller_address
    except OSError:
        own = False
    return "NoCtldInAddrAny,NoInAddrAny" if own else ""


def node_lines(asked: ClusterRequest, cluster: ClusterState) -> list[str]:
    """The `NodeName=` lines of slurm.conf, one per group of equal nodes."""
    by_name = {node.name: node for node in cluster.nodes}
    lines = []
    for group in asked.groups:
        first, last = by_name[group.names[0]], by_name[group.names[-1]]
        fields = {"NodeName": fold_hostlist(group.names)}
        if cluster.mode == NAMESPACES:
            head, _, low = first.address.rpartition(".")
            fields["NodeHostname"] = fields["NodeName"]
            fields["NodeAddr"] = f"{head}.{_range(int(low), len(group.names))}"
            fields["Port"] = str(first.port)
        else:
            fields |= {"NodeHostname": host(), "NodeAddr": last.address}
            fields["Port"] = _range(first.port, len(group.names))
        fields |= _hardware(group)
        lines.append(" ".join(f"{key}={value}" for key, value in fields.items()))
    return lines


def release_options(release: SlurmRelease) -> list[Mapping[str, Any]]:
    """Options of cgroup.conf for a release of Slurm (facts/slurm_conf.yaml)."""
    return [row for row in facts.load("slurm_conf")["options"] if span(row).holds(release)]


def _range(first: int, count: int) -> str:
    """Consecutive numbers as Slurm folds them: `[2-5]`."""
    return str(first) if count == 1 else f"[{first}-{first + count - 1}]"


def _hardware(group: NodeGroup) -> dict[str, str]:
    fields = {
        "CPUs": str(group.cpus),
        "Sockets": str(group.sockets),
        "CoresPerSocket": str(group.cores_per_socket),
        "ThreadsPerCore": str(group.threads_per_core),
        "RealMemory": str(group.memory_mb),
    }
    if group.gpus:
        kind = f"{group.gpu_type}:" if group.gpu_type else ""
        fields["Gres"] = f"gpu:{kind}{group.gpus}"
    if group.features:
        fields["Feature"] = ",".join(group.features)
    return {**fields, "State": "UNKNOWN"}
