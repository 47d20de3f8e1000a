"""Breaks and repairs single nodes, to see how Slurm and the jobs respond."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from hpcdl.cluster import cpu_throttle, daemons, lifecycle, network, processes, state
from hpcdl.cluster.model import NAMESPACES, ClusterState, Node, link_name
from hpcdl.system.errors import BadInput, HpcdlError
from hpcdl.system.files import shared_lock


def kill(current: ClusterState, name: str) -> str:
    """Kill a node whole: slurmd and every process of every job on it. Slurm is not notified."""
    return _changed(current, name, _kill)


def cut(current: ClusterState, name: str) -> str:
    """Disconnect a node's network; its processes continue."""
    return _changed(current, name, _cut)


def slow(current: ClusterState, name: str) -> str:
    """Let a node's jobs run a part of the time only."""
    return _changed(current, name, _slow)


def heal(current: ClusterState, name: str) -> str:
    """Plug a node's network cable in again, and end its throttling."""
    return _changed(current, name, _heal)


def up(current: ClusterState, name: str) -> str:
    """Start a killed node again, and wait until it takes jobs."""
    return _changed(current, name, _up)


ACTIONS: dict[str, Callable[[ClusterState, str], str]] = {
    "kill": kill,
    "cut": cut,
    "slow": slow,
    "heal": heal,
    "up": up,
}
_Change = Callable[[ClusterState, Node], tuple[ClusterState, str]]


def _changed(current: ClusterState, name: str, change: _Change) -> str:
    """Apply a change to the state as it is now, under the cluster's lock."""
    with shared_lock(current.directory / "lock"):
        now = state.read_state(current.directory) or current
        after, said = change(now, now.node(name))
        state.write_state(after)
    return said


def _kill(now: ClusterState, node: Node) -> tuple[ClusterState, str]:
    # Slurm's own first: slurmstepd must not live to report that the job's processes were killed.
    found = processes.of_node(now, node)
    processes.end([process for process in found if processes.is_slurm(process)])
    processes.end(found)
    killed = (*now.killed, *([] if node.name in now.killed else [node.name]))
    cut_nodes = tuple(name for name in now.cut if name != node.name)
    return replace(now, killed=killed, cut=cut_nodes), f"{node.name} is dead"


def _cut(now: ClusterState, node: Node) -> tuple[ClusterState, str]:
    _set_link(now, node, up=False)
    cut_nodes = (*now.cut, *([] if node.name in now.cut else [node.name]))
    return replace(now, cut=cut_nodes), f"{node.name} is cut off the network"


def _slow(now: ClusterState, node: Node) -> tuple[ClusterState, str]:
    cpu_throttle.pull(now, node.name)
    return now, f"{node.name} runs a {cpu_throttle.FACTOR}th of the time"


def _heal(now: ClusterState, node: Node) -> tuple[ClusterState, str]:
    if cpu_throttle.lift(now, node.name) and node.name not in now.cut:
        return now, f"{node.name} runs at full speed"
    _set_link(now, node, up=True)
    cut_nodes = tuple(name for name in now.cut if name != node.name)
    return replace(now, cut=cut_nodes), f"{node.name} is back on the network"


def _set_link(now: ClusterState, node: Node, *, up: bool) -> None:
    if now.mode != NAMESPACES:
        raise BadInput(
            "in mode loopback the nodes share this machine's network: none can be cut off",
            hint="use `hpcdl cluster node kill`, or a cluster in mode namespaces (needs root)",
        )
    if not network.set_link(link_name(now.directory, node), up):
        raise HpcdlError(
            f"{node.name} has no network cable: it is dead",
            hint=f"`hpcdl cluster node up {node.name}` starts it again",
        )


def _up(now: ClusterState, node: Node) -> tuple[ClusterState, str]:
    process = now.processes.get(node.name)
    if process is not None and processes.alive(process):
        return now, f"{node.name} runs already"
    lifecycle.report_lost(now, [node.name])
    started = daemons.start_nodes(now, [node])
    after = replace(
        now,
        processes={**now.processes, **started},
        killed=tuple(name for name in now.killed if name != node.name),
        cut=tuple(name for name in now.cut if name != node.name),
    )
    state.write_state(after)
    lifecycle.wait_idle(after, [node.name])
    return after, f"{node.name} takes jobs"
