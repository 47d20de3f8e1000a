"""The values of an embedded cluster: what is requested, where it is, what runs.

`ClusterState` is what `cluster.json` holds: enough to find, check, restart and stop everything
without the site file.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import field
from pathlib import Path

from hpcdl.cluster import NAMESPACES
from hpcdl.system.errors import BadInput
from hpcdl.system.frozen import dataclass
from hpcdl.system.text import did_you_mean


@dataclass(frozen=True)
class Ports:
    """The TCP ports of a cluster, all derived from one base, which is slurmctld's.

    In loopback mode each slurmd has its own port, from `base + FIRST_NODE` on; in namespaces
    mode each has its own network, and they share one.
    """

    base: int
    FIRST_NODE = 8

    @property
    def database(self) -> int:
        """Slurmdbd's port."""
        return self.base + 1

    def node(self, mode: str, index: int) -> int:
        """The port of the slurmd of node `index` (counted from 0)."""
        return self.base + (2 if mode == NAMESPACES else self.FIRST_NODE + index)

    def on_host(self, mode: str, nodes: int) -> tuple[int, ...]:
        """Every port that is listened on in the machine's own network."""
        own = () if mode == NAMESPACES else tuple(self.node(mode, i) for i in range(nodes))
        return (self.base, self.database, *own)


@dataclass(frozen=True)
class Node:
    """An emulated node; `index` counts from 0 over the whole cluster."""

    name: str
    partition: str
    index: int
    address: str
    port: int


@dataclass(frozen=True)
class NodeGroup:
    """Nodes that slurm.conf describes in one line: those of a partition that are alike.

    Memory is in MB, as Slurm counts it.
    """

    partition: str
    names: tuple[str, ...]
    sockets: int
    cores_per_socket: int
    threads_per_core: int
    memory_mb: int
    gpu_type: str | None
    gpus: int
    features: tuple[str, ...]

    @property
    def cpus(self) -> int:
        """Hardware threads of a node."""
        return self.sockets * self.cores_per_socket * self.threads_per_core

    @property
    def hardware(self) -> tuple[object, ...]:
        """Return the values in which two descriptions of one node must agree."""
        return (
            self.cpus,
            self.sockets,
            self.cores_per_socket,
            self.memory_mb,
            self.gpu_type,
            self.gpus,
        )


@dataclass(frozen=True)
class Queue:
    """A partition as Slurm offers it; times in Slurm's format."""

    name: str
    nodes: tuple[str, ...]
    default: bool
    max_time: str
    default_time: str
    memory_per_cpu_mb: int


@dataclass(frozen=True)
class ClusterRequest:
    """The request of `up`; a running cluster is compared with it.

    `mode` may be `auto` until it is chosen. `slurm` is the release that was asked for, empty for
    the machine's own; `written_for` the release and the MPI plug-in that the site file names.
    """

    site: str
    site_file: Path
    prefix: Path
    lmod_init: Path
    written_for: tuple[str, str]
    mode: str
    accounting: bool
    groups: tuple[NodeGroup, ...]
    queues: tuple[Queue, ...]
    slurm: str = ""

    @property
    def node_names(self) -> tuple[str, ...]:
        """All nodes in order."""
        return tuple(name for group in self.groups for name in group.names)


@dataclass(frozen=True)
class ProcessId:
    """A process for certain: its id and when it started, in clock ticks since boot.

    The kernel gives ids again; the pair is unique until the next boot.
    """

    pid: int
    start: int


@dataclass(frozen=True)
class ClusterState:
    """The processes and settings of the cluster below `directory`. Written to `cluster.json`.

    `phase` is `starting` until every node was idle once, then `ready`. `processes` has a row
    per daemon: `munged`, `slurmctld`, `mariadbd`, `slurmdbd`, and each node by its name.
    `killed` and `cut` are the nodes that a user broke on purpose. `seconds` is how long the
    start took. `root` is the /usr of another Slurm release, None for the machine's own. `place` is
    where it was started (`identity.place`), `token` the random part of its name, `bridge` the
    nodes' network interface on this machine.
    """

    directory: Path
    site: str
    site_file: Path
    prefix: Path
    lmod_init: Path
    mode: str
    accounting: bool
    fingerprint: Mapping[str, str]
    slurm_version: str
    network: str
    port_base: int
    nodes: tuple[Node, ...]
    phase: str = "starting"
    seconds: float = 0.0
    processes: Mapping[str, ProcessId] = field(default_factory=dict)
    killed: tuple[str, ...] = ()
    cut: tuple[str, ...] = ()
    root: Path | None = None
    place: Mapping[str, str] = field(default_factory=dict)
    token: str = ""
    bridge: str = ""

    @property
    def ports(self) -> Ports:
        """Its TCP ports."""
        return Ports(self.port_base)

    @property
    def cluster_name(self) -> str:
        """The cluster's name in Slurm, which allows lower-case letters and digits only.

        No two clusters have one name, on whatever machine: it is a part of what jobs' directories
        are called. It stays the same over `down` and `up`: accounting knows old jobs by it.
        """
        own = (self.token or hashlib.sha256(bytes(self.directory)).hexdigest())[:6]
        return (re.sub(r"[^a-z0-9]", "", self.site.lower())[:30] or "embedded") + own

    @property
    def configuration(self) -> Path:
        """The cluster's slurm.conf."""
        return self.directory / "etc/slurm.conf"

    def log(self, daemon: str) -> Path:
        """The log of a daemon or of a node's slurmd."""
        return self.directory / "log" / f"{daemon}.log"

    def node(self, name: str) -> Node:
        """The node `name`; of an unknown one, `BadInput` names the nearest."""
        found = {node.name: node for node in self.nodes}
        if name not in found:
            raise BadInput(f"the cluster has no node '{name}'", hint=did_you_mean(name, found))
        return found[name]

    @property
    def controller_address(self) -> str:
        """The address of slurmctld: the machine's own on the nodes' network."""
        return f"{self.network}.1" if self.mode == NAMESPACES else "127.0.0.1"


def link_name(bridge: str, node: Node) -> str:
    """The host's end of a node's network cable; Linux gives interface names 15 characters."""
    return f"{bridge}n{node.index + 1}"
