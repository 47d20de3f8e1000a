"""Starts a cluster, breaks and repairs its nodes; `teardown` ends it.

`up` lays the cluster out, writes every file, starts the daemons and waits until all nodes are
idle; on a cluster that lost daemons it restarts just those. `cluster.json` is written before
the first process starts, and every process carries a mark, so that `down` finds all of it
whenever `up` was killed. `change` shows how Slurm and the jobs respond to a node that is lost.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

from hpcdl.cluster import (
    LOOPBACK,
    NAMESPACES,
    cluster_plan,
    daemons,
    identity,
    needs,
    network,
    processes,
    rootfs,
    state,
)
from hpcdl.cluster.cpu_throttle import FACTOR, throttle, unthrottle
from hpcdl.cluster.shape import ClusterRequest, ClusterState, Node, Ports
from hpcdl.cluster.status import ask, mpi_plugin, of_nodes, responding, takes_jobs
from hpcdl.cluster.teardown import LOCK, Say, clear, first_job, recorded, silent
from hpcdl.system.errors import BadInput, CheckFailed, HpcdlError
from hpcdl.system.files import explain_os_errors, locked, shared_lock, umask, write_atomic
from hpcdl.system.trust import make_private

_READY_SECONDS = 60.0


def prepare(asked: ClusterRequest, directory: Path) -> tuple[ClusterRequest, Path]:
    """Return the request with its mode chosen, after all checks that change nothing."""
    where, slurm = directory.absolute(), asked.slurm
    current = recorded(where)
    kept = current.mode if current and asked.mode == "auto" else ""
    asked = replace(asked, mode=kept or needs.choose_mode(asked.mode, slurm))
    cluster_plan.check_directory(where, asked.node_names)
    if not state.is_ours_or_empty(where):
        hint = "set HPCDL_CLUSTER_DIR to a directory that is empty or does not exist yet"
        raise BadInput(f"{where} holds other files, not an embedded cluster", hint=hint)
    if current is None or current.root is None or slurm:
        needs.check_packages(asked.accounting, slurm)
    needs.check_size(asked)
    needs.check_space(where, asked.accounting)
    return asked, where


def up(wished: ClusterRequest, directory: Path, say: Say = silent) -> ClusterState:
    """Start a cluster below a directory, or what of it is missing.

    The `seconds` of the state are what the start took.

    Raises:
        CheckFailed: it runs already, and was asked for in another shape.
        BadInput, MissingPrerequisite: see `prepare`.
        DaemonDied: a daemon did not start; its log's end is shown.
    """
    asked, where = prepare(wished, directory)
    if asked.slurm:  # may take minutes, and needs nothing of the cluster's
        rootfs.get(asked.slurm, say)
    elif wished.mode == "auto" and asked.mode == LOOPBACK:
        say(f"the nodes share this machine's network and processes: {needs.lack_of_namespaces()}")
    begin = time.monotonic()
    with umask(cluster_plan.mask()):  # the daemons', too
        make_private(where, 0o777 & ~cluster_plan.mask())
        where.chmod(where.stat().st_mode & 0o777 & ~cluster_plan.mask())  # of an older one
        with locked(where / LOCK, wait_seconds=150):
            current = recorded(where)
            token = state.claim(where)
            if current is not None and _usable(current):
                _refuse_change(current, asked)
                return _repair(current, say)
            clear(where, say if current else silent)
            fresh = _start(asked, where, token, say)
            took = round(time.monotonic() - begin, 2)
            return state.write_state(replace(fresh, phase="ready", seconds=took))


def _usable(current: ClusterState) -> bool:
    """Whether a cluster can be kept: it was ready once, in this boot, and has its network."""
    if current.phase != "ready" or current.place != identity.place():
        return False
    return current.mode != NAMESPACES or network.exists(current.bridge)


def _refuse_change(current: ClusterState, asked: ClusterRequest) -> None:
    wanted = cluster_plan.fingerprint(asked)
    if current.accounting and not asked.accounting:  # more than was asked for is fine
        wanted["accounting"] = "on"
    own = {"Slurm": current.slurm_version, **current.fingerprint}
    if changed := [key for key, value in wanted.items() if own.get(key) != value]:
        names = {"partitions": "other partitions"}
        changes = [names.get(key, f"{key} {own.get(key)}") for key in changed]
        raise CheckFailed(
            f"the cluster '{current.site}' is up already, with {' and '.join(changes)}",
            hint="stop it first: `hpcdl cluster down`, then `hpcdl cluster up` again",
        )


def _start(asked: ClusterRequest, directory: Path, token: str, say: Say) -> ClusterState:
    """Start everything; what was started is stopped again when that fails."""
    try:
        count = len(asked.node_names)
        with network.allocating(), network.reserved_ports(asked.mode, count) as ports:
            begun = _lay_down(asked, _record(asked, directory, token, ports), ports)
            say(f"starting {len(begun.nodes)} nodes in mode {asked.mode} below {directory}")
            begun = _start_controller(begun, fresh=True)
            begun = _start_nodes(begun, asked.node_names)
            wait_idle(begun, asked.node_names)
        return begun
    except BaseException:
        clear(directory, silent)
        raise


def _record(asked: ClusterRequest, directory: Path, token: str, ports: Ports) -> ClusterState:
    """Write the state before anything is started, so that `down` finds it after any kill."""
    root = rootfs.find(asked.slurm) if asked.slurm else None
    return state.write_state(
        ClusterState(
            directory=directory,
            site=asked.site,
            site_file=asked.site_file,
            prefix=asked.prefix,
            lmod_init=asked.lmod_init,
            mode=asked.mode,
            accounting=asked.accounting,
            fingerprint=cluster_plan.fingerprint(asked),
            slurm_version=root.version if root else needs.slurm_version(),
            network="127.0.0",
            port_base=ports.base,
            nodes=(),
            place=identity.place(),
            token=token,
            bridge=network.new_bridge_name() if asked.mode == NAMESPACES else "",
            root=root.usr if root else None,
        )
    )


def _lay_down(asked: ClusterRequest, begun: ClusterState, ports: Ports) -> ClusterState:
    """Make the network of what was recorded, and write every file."""
    directory = begun.directory
    net = network.make_bridge(directory, begun.bridge) if begun.bridge else begun.network
    nodes = cluster_plan.lay_out(asked, net, ports)
    begun = state.write_state(replace(begun, network=net, nodes=nodes))
    for old in (directory / "log").glob("*.*"):  # of the start before; ended jobs' record stays
        if old.suffix in {".log", ".out"}:
            old.unlink(missing_ok=True)
    mpi = mpi_plugin(asked.written_for[1], directory, begun.root)
    _write_files(asked, begun, mpi)
    if begun.root:
        rootfs.link_commands(begun)
    # Scripts and lint follow the release: Debian 13 has 24.11, whatever the site file says.
    if begun.root or (begun.slurm_version, mpi) != asked.written_for:
        begun = state.write_state(
            replace(begun, site_file=rootfs.write_own(asked.site_file, begun, mpi))
        )
    return begun


def _write_files(asked: ClusterRequest, begun: ClusterState, mpi: str) -> None:
    where = begun.directory
    slurmd = "/usr/sbin/slurmd" if begun.root else needs.program("slurmd")
    own = cluster_plan.files(asked, begun, mpi=mpi, first_job=first_job(where), slurmd=slurmd)
    for file in own:
        write_atomic(where / file.path, file.text, mode=file.mode)
    write_atomic(where / "etc/munge.key", os.urandom(128), mode=0o400)
    names = [f"{kind}/{node.name}" for node in begun.nodes for kind in ("spool", "tmp")]
    with explain_os_errors(where):
        for name in ("run", "log", "state", "dev", *names):
            (where / name).mkdir(parents=True, exist_ok=True)
        # Slurm wants a character device per GPU, and reads the GPU's number off the end of its
        # name: links to /dev/null need no root.
        for group in asked.groups:
            for index in range(group.gpus):
                path = where / "dev" / f"{group.gpu_type or 'gpu'}.{index}"
                if not path.is_symlink():
                    path.symlink_to("/dev/null")


def _start_controller(begun: ClusterState, *, fresh: bool) -> ClusterState:
    socket = begun.directory / "run/munge.sock"
    if not processes.runs(begun, "munged"):
        socket.unlink(missing_ok=True)
        begun = _started(begun, daemons.munged(begun), socket.is_socket)
    address, ports = begun.controller_address, begun.ports
    if begun.accounting and not processes.runs(begun, "mariadbd"):
        daemons.prepare_database(begun)
        database = daemons.database_socket(begun)
        begun = _started(begun, daemons.mariadbd(begun), lambda: responding(database))
    if begun.accounting and not processes.runs(begun, "slurmdbd"):
        serves = (address, ports.database)
        begun = _started(begun, daemons.slurmdbd(begun), lambda: responding(serves))
        daemons.register(begun)
    if not processes.runs(begun, "slurmctld"):
        controller = daemons.slurmctld(begun, fresh=fresh)
        begun = _started(begun, controller, lambda: responding((address, ports.base)))
    return begun


def _started(begun: ClusterState, one: daemons.Daemon, serves: Callable[[], bool]) -> ClusterState:
    process = daemons.start(begun, one)
    begun = state.write_state(replace(begun, processes={**begun.processes, one.name: process}))
    daemons.wait_until(serves, process, one.name, begun.log(one.name))
    return begun


def _start_nodes(begun: ClusterState, names: Iterable[str]) -> ClusterState:
    nodes = [begun.node(name) for name in names]
    started = daemons.start_nodes(begun, nodes)
    return state.write_state(replace(begun, processes={**begun.processes, **started}))


def wait_idle(begun: ClusterState, names: Iterable[str]) -> None:
    """Wait until nodes take jobs."""
    wanted = set(names)
    deadline = time.monotonic() + _READY_SECONDS
    while True:
        seen = of_nodes(begun, "%T")
        waiting = sorted(name for name in wanted if not takes_jobs(seen.get(name, "")))
        if not waiting:
            return
        for name in ("slurmctld", *waiting):
            if not processes.runs(begun, name):
                raise daemons.DaemonDied(name, daemons.output(begun, name))
        refused = any(seen.get(name, "").startswith("inval") for name in waiting)
        if refused or time.monotonic() > deadline:
            reasons = of_nodes(begun, "%E")
            raise HpcdlError(
                f"{len(waiting)} of {len(wanted)} nodes did not come up",
                details=[
                    f"{name}: {seen.get(name, 'unknown')}, {reasons.get(name, 'no reason given')}"
                    for name in waiting[:10]
                ],
                hint=f"look at {begun.log(waiting[0])} and {begun.log('slurmctld')}",
            )
        time.sleep(0.03)


def report_lost(current: ClusterState, names: Iterable[str]) -> None:
    """Tell Slurm that nodes were dead, before they start again: their jobs end as lost.

    Real machines show it by the time of their boot. This one's kernel never stopped, and a job
    of a node that is back before Slurm missed it would wait for its lost processes for ever.
    In mode loopback a job outlives the slurmd of its node, unless the node was killed whole.
    """
    lost = [name for name in names if current.mode == NAMESPACES or name in current.killed]
    if lost:
        down = ("State=DOWN", "Reason=its processes had ended")
        ask(current, "scontrol", "update", f"NodeName={','.join(lost)}", *down)


def _repair(current: ClusterState, say: Say) -> ClusterState:
    """Restart what died; a whole cluster is left as it is."""
    names = [node.name for node in current.nodes if node.name not in current.killed]
    own = ("mariadbd", "slurmdbd") if current.accounting else ()
    dead_nodes = [name for name in names if not processes.runs(current, name)]
    dead = [one for one in ("munged", *own, "slurmctld") if not processes.runs(current, one)]
    if not dead and not dead_nodes:
        return current
    say(f"restarting {', '.join([*dead, *dead_nodes])}")
    begin = time.monotonic()
    current = _start_controller(current, fresh=False)
    if dead_nodes:
        report_lost(current, dead_nodes)
        current = _start_nodes(current, dead_nodes)
    wait_idle(current, [name for name in names if name not in current.cut])
    return state.write_state(replace(current, seconds=round(time.monotonic() - begin, 2)))


def change(current: ClusterState, name: str, action: str) -> str:
    """Apply an action to a node as it is now, under the cluster's lock; return the outcome.

    `kill` ends slurmd and every process of its jobs, without telling Slurm; `cut` takes it off the
    network, and its processes continue; `slow` lets its jobs run a part of the time only; `heal`
    ends the last two; `up` starts a killed one, and waits until it takes jobs.
    """
    with shared_lock(current.directory / LOCK):
        now = state.read_state(current.directory)
        if now is None:
            raise CheckFailed(
                f"the cluster '{current.site}' was stopped meanwhile",
                hint="`hpcdl cluster up` starts it",
            )
        after, outcome = _ACTIONS[action](now, now.node(name))
        state.write_state(after)
    return f"{name} {outcome}"


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
    throttle(now, node.name)
    return now, f"runs a {FACTOR}th of the time"


def _heal(now: ClusterState, node: Node) -> tuple[ClusterState, str]:
    if unthrottle(now, node.name) and node.name not in now.cut:
        return now, "runs at full speed"
    _set_link(now, node, up=True)
    return replace(now, cut=_mended(now, node).cut), "is back on the network"


def _up(now: ClusterState, node: Node) -> tuple[ClusterState, str]:
    if processes.runs(now, node.name):
        return now, "runs already"
    report_lost(now, [node.name])
    after = _start_nodes(_mended(now, node), [node.name])
    wait_idle(after, [node.name])
    return after, "takes jobs"


def _mended(now: ClusterState, node: Node) -> ClusterState:
    """The state with this node neither killed nor cut."""
    killed, cut = (
        tuple(name for name in names if name != node.name) for names in (now.killed, now.cut)
    )
    return replace(now, killed=killed, cut=cut)


def _set_link(now: ClusterState, node: Node, *, up: bool) -> None:
    if node.name not in now.killed:
        if now.mode != NAMESPACES:
            raise BadInput(
                "in mode loopback the nodes share this machine's network: none can be cut off",
                hint="use `hpcdl cluster node kill`, or a cluster in mode namespaces (needs root)",
            )
        if network.set_link(now.bridge, node, up):
            return
    message = f"{node.name} has no network cable: it is dead"
    raise HpcdlError(message, hint=f"`hpcdl cluster node up {node.name}` starts it again")


_ACTIONS = {"kill": _kill, "cut": _cut, "slow": _slow, "heal": _heal, "up": _up}
