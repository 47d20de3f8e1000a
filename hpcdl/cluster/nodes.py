"""Breaks and repairs single nodes, to see how Slurm and the jobs respond."""

from __future__ import annotations

from dataclasses import replace

from hpcdl.cluster import cpu_throttle, daemons, lifecycle, network, processes, state
from hpcdl.cluster.model import NAMESPACES, ClusterState, Node, link_name
from hpcdl.system.errors import BadInput, CheckFailed, HpcdlError
from hpcdl.system.files import shared_lock


def change(current: ClusterState, name: str, action: str) -> str:
    """Apply an action to a node, under the cluster's lock and to the state as it is now.

    `kill` ends slurmd and every process of its jobs, without telling Slurm; `cut` takes it off the
    network, and its processes continue; `slow` lets its jobs run a part of the time only; `heal`
    ends the last two; `up` starts a killed one, and waits until it takes jobs.

    Returns:
        What came of it, for people.
    """
    with shared_lock(current.directory / "lock"):
        now = state.read_state(current.directory)
        if now is None:
            raise CheckFailed(f"the cluster '{current.site}' was stopped meanwhile",
                              hint="`hpcdl cluster up` starts it")  # fmt: skip
        after, said = _ACTIONS[action](now, now.node(name))
        state.write_state(after)
    return f"{name} {said}"


def _kill(now: ClusterState, node: Node) -> tuple[ClusterState, str]:
    # Slurm's own first: slurmstepd must not live to report that the job's processes were killed.
    found = processes.of_node(now, node)
    processes.end([process for process in found if processes.is_slurm(process)])
    processes.end(found)
    whole = _mended(now, node)
    return replace(whole, killed=(*whole.killed, node.name)), "is dead"


def _cut(now: ClusterState, node: Node) -> tuple[ClusterState, str]:
    _set_link(now, node, up=False)
    return replace(now, cut=tuple(dict.fromkeys((*now.cut, node.name)))), "is cut off the network"


def _slow(now: ClusterState, node: Node) -> tuple[ClusterState, str]:
    cpu_throttle.pull(now, node.name)
    return now, f"runs a {cpu_throttle.FACTOR}th of the time"


def _heal(now: ClusterState, node: Node) -> tuple[ClusterState, str]:
    if cpu_throttle.lift(now, node.name) and node.name not in now.cut:
        return now, "runs at full speed"
    _set_link(now, node, up=True)
    return replace(now, cut=_mended(now, node).cut), "is back on the network"


def _up(now: ClusterState, node: Node) -> tuple[ClusterState, str]:
    if processes.runs(now, node.name):
        return now, "runs already"
    lifecycle.report_lost(now, [node.name])
    started = daemons.start_nodes(now, [node])
    after = replace(_mended(now, node), processes={**now.processes, **started})
    state.write_state(after)
    lifecycle.wait_idle(after, [node.name])
    return after, "takes jobs"


def _mended(now: ClusterState, node: Node) -> ClusterState:
    """The state with this node neither killed nor cut."""
    killed, cut = (tuple(name for name in names if name != node.name)
                   for names in (now.killed, now.cut))  # fmt: skip
    return replace(now, killed=killed, cut=cut)


def _set_link(now: ClusterState, node: Node, *, up: bool) -> None:
    if node.name not in now.killed:
        if now.mode != NAMESPACES:
            raise BadInput(
                "in mode loopback the nodes share this machine's network: none can be cut off",
                hint="use `hpcdl cluster node kill`, or a cluster in mode namespaces (needs root)",
            )
        if network.set_link(link_name(now.directory, node), up):
            return
    said = f"{node.name} has no network cable: it is dead"
    raise HpcdlError(said, hint=f"`hpcdl cluster node up {node.name}` starts it again")


_ACTIONS = {"kill": _kill, "cut": _cut, "slow": _slow, "heal": _heal, "up": _up}
