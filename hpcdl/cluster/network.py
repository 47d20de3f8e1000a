"""The machine's side of the nodes' network: one bridge per cluster, one cable per node.

The nodes' network namespaces have no names: they live and die with the node's processes, and
take their cables with them, so that only the bridge needs taking down. Its name is random, and
its alias says whose it is, so that it is found without any record.
"""

from __future__ import annotations

import ipaddress
import os
import secrets
import socket
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from pathlib import Path

from hpcdl.cluster.identity import directory_key
from hpcdl.cluster.shape import Node, Ports, link_name
from hpcdl.system.errors import HpcdlError, MissingPrerequisite
from hpcdl.system.files import locked
from hpcdl.system.resources import home
from hpcdl.system.run import run

_PREFIXES = ("10.77", "172.29", "192.168")
_FIRST_PORT, _PORT_STEP = 21000, 8


def allocating() -> AbstractContextManager[None]:
    """Hold this user's one lock on choosing networks on this machine; only root makes bridges."""
    place = Path("/run") if os.getuid() == 0 else Path(f"/run/user/{os.getuid()}")
    if not place.is_dir():
        place = home()
    return locked(place / "hpcdl-cluster-start.lock", wait_seconds=120)


def new_bridge_name() -> str:
    """A name for a bridge that no other cluster has, on whatever root file system it is."""
    return f"hpc{secrets.token_hex(4)}"


def make_bridge(directory: Path, bridge: str) -> str:
    """Make a cluster's bridge on a network that this machine does not use: a /24 as `10.77.0`."""
    network = next(_free_networks(_routed(Path("/proc/net/route").read_text())))
    made = run(["ip", "link", "add", bridge, "type", "bridge"], check=False)
    if not made.ok:
        raise MissingPrerequisite(
            "this machine does not allow network bridges",
            details=made.last_lines(3),
            hint="use --mode loopback, which needs neither root nor network namespaces",
        )
    alias = f'link set {bridge} alias "{directory_key(directory)}"'
    _batch([alias, f"address add {network}.1/24 dev {bridge}", f"link set {bridge} up"])
    return network


def plug(bridge: str, nodes: Sequence[tuple[Node, int]]) -> None:
    """Lay a cable from the bridge into the network of each node's first process (a pid)."""
    lines = []
    for node, pid in nodes:
        link = link_name(bridge, node)
        if exists(link):  # a killed node's: the kernel takes its time to remove it
            run(["ip", "link", "delete", link], check=False)
        # A node's hardware address is the same after every restart, as a real node's is. With a new
        # one, peers would send to the old one until their ARP entry runs out: up to 30 s in which
        # the node takes jobs and no node reaches it.
        hardware = ":".join(f"{int(part):02x}" for part in ("2", "0", *node.address.split(".")))
        lines += [
            f"link add {link} type veth peer name eth0 address {hardware} netns {pid}",
            f"link set {link} master {bridge} up",
        ]
    _batch(lines)


def set_link(bridge: str, node: Node, up: bool) -> bool:
    """Pull a node's cable or plug it in again; False where there is no such cable."""
    link = link_name(bridge, node)
    return run(["ip", "link", "set", link, "up" if up else "down"], check=False).ok


def bridges(directory: Path) -> list[str]:
    """Return the bridges of a cluster, found by their aliases."""
    key, found = directory_key(directory), []
    for alias in Path("/sys/class/net").glob("hpc*/ifalias"):
        with suppress(OSError):  # gone meanwhile
            if f"{alias.read_text().strip()} ".startswith(f"{key} "):
                found.append(alias.parent.name)
    return found


def remove_bridge(directory: Path, recorded: str = "") -> None:
    """Take down a cluster's bridge and whatever cables still hang on it; absent is fine.

    A recorded one is removed, too, if a kill left it without an alias.
    """
    alias = Path(f"/sys/class/net/{recorded}/ifalias")
    unnamed = exists(recorded) and not alias.read_text().strip()
    for bridge in {*bridges(directory), *([recorded] if unnamed else [])}:
        ports = Path(f"/sys/class/net/{bridge}/brif")
        links = sorted(entry.name for entry in ports.iterdir()) if ports.is_dir() else []
        for link in (*links, bridge):
            run(["ip", "link", "delete", link], check=False)


def exists(link: str) -> bool:
    """Whether there is a link of this name: a cluster's bridge, or a node's cable."""
    return bool(link) and Path(f"/sys/class/net/{link}").exists()


@contextmanager
def reserved_ports(mode: str, nodes: int) -> Iterator[Ports]:
    """The first base from which all ports of a cluster are free; they are kept free until the end.

    Another user's cluster may choose at the same moment, and a lock that two users share any third
    could hold for ever. So each port is bound here, which the kernel lets one process do, and then
    marked for reuse: daemons, which ask for reuse, can listen on it, and another search cannot.
    """
    # Where the kernel starts to hand out ports by itself; ours stay below.
    text = Path("/proc/sys/net/ipv4/ip_local_port_range").read_text()
    last = max(int(text.split()[0]), _FIRST_PORT + 2000) - nodes - Ports.FIRST_NODE
    for candidate in range(_FIRST_PORT, last, _PORT_STEP):
        with ExitStack() as bound:
            if all(_bind(port, bound) for port in Ports(candidate).on_host(mode, nodes)):
                yield Ports(candidate)
                return
    message = f"no range of {nodes + Ports.FIRST_NODE} TCP ports is free above {_FIRST_PORT}"
    raise MissingPrerequisite(message, hint="stop other clusters: `hpcdl cluster down`")


def _bind(port: int, held: ExitStack) -> bool:
    """Bind a free TCP port of this machine, without listening; False where it is taken."""
    with ExitStack() as attempt:
        taken = attempt.enter_context(socket.socket(socket.AF_INET, socket.SOCK_STREAM))
        try:
            taken.bind(("", port))
        except OSError:
            return False
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.push(attempt.pop_all())
    return True


def _routed(table: str) -> list[ipaddress.IPv4Network]:
    """The networks of /proc/net/route, the default route left out."""
    routed = []
    for line in table.splitlines()[1:]:
        fields = line.split()
        destination, mask = (bytes.fromhex(fields[index])[::-1] for index in (1, 7))
        if any(mask):
            network = (int.from_bytes(destination, "big"), str(ipaddress.IPv4Address(mask)))
            routed.append(ipaddress.IPv4Network(network, strict=False))
    return routed


def _free_networks(routed: Iterable[ipaddress.IPv4Network]) -> Iterator[str]:
    """/24 networks that no route of this machine touches."""
    taken = list(routed)
    for prefix in _PREFIXES:
        for third in range(256):
            candidate = ipaddress.IPv4Network(f"{prefix}.{third}.0/24")
            if not any(candidate.overlaps(other) for other in taken):
                yield f"{prefix}.{third}"
    raise MissingPrerequisite(
        "every private network is routed somewhere else", hint="--mode loopback"
    )


def _batch(lines: Sequence[str]) -> None:
    done = run(["ip", "-batch", "-"], stdin="\n".join(lines) + "\n", check=False)
    if not done.ok:
        raise HpcdlError("the nodes' network could not be laid", details=done.last_lines())
