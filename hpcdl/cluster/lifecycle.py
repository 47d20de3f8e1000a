"""Up: the one place of this package that starts a cluster; `teardown` ends it.

`up` lays the site out, writes every file, starts the daemons and waits until all nodes are
idle; on a cluster that lost daemons it restarts just those. `cluster.json` is written before
the first process starts, and every process carries a mark, so that `down` finds all of it
whenever `up` was killed.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

from hpcdl.cluster import accounting as books
from hpcdl.cluster import cluster_plan, daemons, network, processes, render, rootfs, state
from hpcdl.cluster.model import LOOPBACK, NAMESPACES, ClusterRequest, ClusterState, Plan, Ports
from hpcdl.cluster.needs import (
    check_packages,
    check_size,
    check_space,
    choose_mode,
    lack_of_namespaces,
    program,
    slurm_version,
)
from hpcdl.cluster.query import (
    ask,
    mpi_plugin,
    node_reasons,
    node_states,
    responding,
    takes_jobs,
)
from hpcdl.cluster.teardown import LOCK, Say, clear, first_job, recorded, silent
from hpcdl.site import Site
from hpcdl.system.errors import BadInput, CheckFailed, HpcdlError
from hpcdl.system.files import explain_os_errors, locked, umask, user_name, write_atomic
from hpcdl.system.trust import make_private

_READY_SECONDS = 60.0


def prepare(
    site: Site,
    *,
    mode: str = "auto",
    accounting: bool = False,
    max_nodes: int | None = None,
    directory: Path | None = None,
    slurm: str = "",
) -> tuple[ClusterRequest, Path]:
    """Everything that can be checked before anything changes.

    Raises:
        BadInput: the site or the path cannot be emulated.
        MissingPrerequisite: packages, root, memory or disk are missing.
    """  # fmt: skip
    where = (directory or state.state_directory(site)).absolute()
    current = recorded(where)
    chosen = current.mode if current and mode == "auto" else choose_mode(mode, slurm)
    asked = cluster_plan.request(site, chosen, accounting, max_nodes, slurm)
    cluster_plan.check_directory(where, asked.node_names)
    if not state.is_ours_or_empty(where):
        raise BadInput(
            f"{where} holds other files, not an embedded cluster",
            hint="set HPCDL_CLUSTER_DIR to a directory that is empty or does not exist yet",
        )
    if current is None or current.root is None or slurm:
        check_packages(accounting, slurm)
    check_size(asked)
    check_space(where, accounting)
    return asked, where


def up(
    site: Site,
    *,
    mode: str = "auto",
    accounting: bool = False,
    port_base: int | None = None,
    max_nodes: int | None = None,
    directory: Path | None = None,
    slurm: str = "",
    say: Say = silent,
) -> ClusterState:
    """Start the embedded cluster of a site, or what of it is missing.

    Args:
        site: the site whose partitions are emulated.
        mode: `namespaces`, `loopback` or `auto`.
        accounting: with a private MariaDB and slurmdbd, so that `sacct` answers.
        port_base: the first TCP port; a free range is found where None.
        max_nodes: at most so many nodes of each partition.
        directory: the state directory; `state_directory(site)` by default.
        slurm: a release such as 24.11, from a rootfs of its own; empty for the machine's.
        say: called with a line for each step.

    Returns:
        The state of the running cluster; `seconds` is what its start took.

    Raises:
        CheckFailed: it runs already, and was asked for in another shape.
        BadInput, MissingPrerequisite: see `prepare`.
        DaemonDied: a daemon did not start; its log's end is shown.
    """
    asked, where = prepare(site, mode=mode, accounting=accounting, max_nodes=max_nodes,
                           directory=directory, slurm=slurm)  # fmt: skip
    if slurm:  # may take minutes, and needs nothing of the cluster's
        rootfs.get(slurm, say)
    elif mode == "auto" and asked.mode == LOOPBACK:
        say(f"the nodes share this machine's network and processes: {lack_of_namespaces()}")
    begin = time.monotonic()
    with umask(0o022):  # the daemons', too: what they write is for others to read at most
        make_private(where, 0o755)
        with locked(where / LOCK, wait_seconds=150):
            state.claim(where)
            current = recorded(where)
            if current is not None and _usable(current):
                _refuse_change(current, asked)
                return _repair(current, say)
            clear(where, say if current else silent)
            fresh = _start(site, asked, where, port_base, say)
            took = round(time.monotonic() - begin, 2)
            return state.write_state(replace(fresh, phase="ready", seconds=took))


def _usable(current: ClusterState) -> bool:
    """Whether a cluster can be kept: it was ready once, in this boot, and has its network."""
    if current.phase != "ready" or current.boot != processes.boot_id():
        return False
    return current.mode != NAMESPACES or network.bridge_exists(current.directory)


def _refuse_change(current: ClusterState, asked: ClusterRequest) -> None:
    wanted = cluster_plan.fingerprint(asked)
    if current.accounting and not asked.accounting:  # more than was asked for is fine
        wanted["accounting"] = "on"
    changed = [key for key, value in wanted.items() if current.fingerprint.get(key) != value]
    if not changed:
        return
    names = {"partitions": "other partitions"}
    names |= {"Slurm": f"Slurm {current.slurm_version}"}
    said = [names.get(key, f"{key} {current.fingerprint.get(key)}") for key in changed]
    raise CheckFailed(
        f"the cluster '{current.site}' is up already, with {' and '.join(said)}",
        hint="stop it first: `hpcdl cluster down`, then `hpcdl cluster up` again",
    )


def _start(
    site: Site, asked: ClusterRequest, directory: Path, port_base: int | None, say: Say
) -> ClusterState:
    """Start everything; what was started is stopped again when that fails."""
    try:
        count = len(asked.node_names)
        with network.allocating(), network.reserved_ports(asked.mode, count, port_base) as ports:
            begun = _lay_down(site, asked, directory, ports)
            say(f"starting {len(begun.nodes)} nodes in mode {asked.mode} below {directory}")
            begun = _start_controller(begun, fresh=True)
            begun = _start_nodes(begun, [node.name for node in begun.nodes])
            wait_idle(begun, [node.name for node in begun.nodes])
        return begun
    except BaseException:
        clear(directory, silent)
        raise


def _lay_down(site: Site, asked: ClusterRequest, directory: Path, ports: Ports) -> ClusterState:
    """Choose what is particular to this machine, record it, and write every file."""
    net = network.make_bridge(directory) if asked.mode == NAMESPACES else "127.0.0"
    root = rootfs.find(asked.slurm) if asked.slurm else None
    laid = Plan(
        request=asked,
        directory=directory,
        host=socket.gethostname().split(".")[0],
        user=user_name(),
        network=net,
        ports=ports,
        slurm_version=root.version if root else slurm_version(),
        mpi=mpi_plugin(site.slurm.mpi, directory, root.usr if root else None),
        first_job=first_job(directory),
        nodes=cluster_plan.lay_out(asked, net, ports),
        root=root.usr if root else None,
    )
    recorded = state.write_state(_state(site, laid))
    _forget_logs(directory)
    _write_files(laid)
    if root:
        rootfs.write_own(site, laid)
    return recorded


def _state(site: Site, laid: Plan) -> ClusterState:
    return ClusterState(
        directory=laid.directory,
        site=site.name,
        site_file=rootfs.own_site(laid.directory) if laid.root else site.source,
        prefix=site.paths.prefix,
        lmod_init=site.paths.lmod_init,
        mode=laid.request.mode,
        accounting=laid.request.accounting,
        fingerprint=cluster_plan.fingerprint(laid.request),
        slurm_version=laid.slurm_version,
        network=laid.network,
        port_base=laid.ports.base,
        nodes=laid.nodes,
        boot=processes.boot_id(),
        root=laid.root,
    )


def _write_files(laid: Plan) -> None:
    slurmd = "/usr/sbin/slurmd" if laid.root else program("slurmd")
    for file in render.files(laid, slurmd):
        write_atomic(laid.directory / file.path, file.text, mode=file.mode)
    write_atomic(laid.directory / "etc/munge.key", os.urandom(128), mode=0o400)
    with explain_os_errors(laid.directory):
        for name in ("run", "log", "state", "dev"):
            (laid.directory / name).mkdir(parents=True, exist_ok=True)
        for node in laid.nodes:
            for name in ("spool", "tmp"):
                (laid.directory / name / node.name).mkdir(parents=True, exist_ok=True)
        _make_devices(laid)


def _forget_logs(directory: Path) -> None:
    """Remove the logs of the start before; the record of ended jobs stays."""
    for old in (directory / "log").glob("*.*"):
        if old.suffix in {".log", ".out"}:
            old.unlink(missing_ok=True)


def _make_devices(laid: Plan) -> None:
    """Device files for the emulated GPUs: links to /dev/null, which need no root.

    Slurm wants a character device per GPU, and reads the GPU's number off the end of its name.
    """
    for group in laid.request.groups:
        for index in range(group.gpus):
            path = laid.directory / "dev" / f"{group.gpu_type or 'gpu'}.{index}"
            if not path.is_symlink():
                path.symlink_to("/dev/null")


def _start_controller(begun: ClusterState, *, fresh: bool) -> ClusterState:
    """Munge and slurmctld, each waited for."""
    if not processes.runs(begun, "munged"):
        (begun.directory / "run/munge.sock").unlink(missing_ok=True)
        begun = _started(begun, daemons.munged(begun))
        _serves(begun, "munged", (begun.directory / "run/munge.sock").is_socket)
    if begun.accounting:
        begun = _start_books(begun)
    if not processes.runs(begun, "slurmctld"):
        begun = _started(begun, daemons.slurmctld(begun, fresh=fresh))
        port = Ports(begun.port_base).controller
        _serves(begun, "slurmctld", lambda: responding((begun.controller_address, port)))
    return begun


def _start_books(begun: ClusterState) -> ClusterState:
    """MariaDB and slurmdbd, each waited for."""
    if not processes.runs(begun, "mariadbd"):
        books.prepare_database(begun)
        begun = _started(begun, books.mariadbd(begun))
        _serves(begun, "mariadbd", lambda: responding(books.database_socket(begun)))
    if not processes.runs(begun, "slurmdbd"):
        begun = _started(begun, books.slurmdbd(begun))
        port = Ports(begun.port_base).database
        _serves(begun, "slurmdbd", lambda: responding((begun.controller_address, port)))
        books.register(begun)
    return begun


def _start_nodes(begun: ClusterState, names: Iterable[str]) -> ClusterState:
    nodes = [begun.node(name) for name in names]
    started = daemons.start_nodes(begun, nodes)
    return state.write_state(replace(begun, processes={**begun.processes, **started}))


def _started(begun: ClusterState, daemon: daemons.Daemon) -> ClusterState:
    return state.write_state(begun.with_process(daemon.name, daemons.start(begun, daemon)))


def _serves(begun: ClusterState, name: str, serves: Callable[[], bool]) -> None:
    daemons.wait_until(serves, begun.processes[name], name, begun.log(name))


def wait_idle(begun: ClusterState, names: Iterable[str]) -> None:
    """Wait until nodes take jobs.

    Raises:
        DaemonDied: slurmctld or a node's slurmd ended meanwhile; its log's end is shown.
        HpcdlError: some did not come up in time; their state is shown.
    """
    wanted = set(names)
    deadline = time.monotonic() + _READY_SECONDS
    while True:
        seen = node_states(begun)
        waiting = sorted(name for name in wanted if not takes_jobs(seen.get(name, "")))
        if not waiting:
            return
        for name in ("slurmctld", *waiting):
            if not processes.runs(begun, name):
                raise daemons.DaemonDied(name, daemons.output(begun, name))
        refused = any(seen.get(name, "").startswith("inval") for name in waiting)
        if refused or time.monotonic() > deadline:
            reasons = node_reasons(begun)
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

    Real machines tell it by the time of their boot. This one's kernel never stopped, and a job
    of a node that is back before Slurm missed it would wait for its lost processes for ever.
    In mode loopback a job outlives the slurmd of its node, unless the node was killed whole.
    """
    lost = [name for name in names if current.mode == NAMESPACES or name in current.killed]
    if lost:
        change = ("State=DOWN", "Reason=its processes had ended")
        ask(current, "scontrol", "update", f"NodeName={','.join(lost)}", *change)


def _repair(current: ClusterState, say: Say) -> ClusterState:
    """Restart what died; a whole cluster is left as it is."""
    names = [node.name for node in current.nodes if node.name not in current.killed]
    dead_nodes = [name for name in names if not processes.runs(current, name)]
    dead = [name for name in _daemon_names(current) if not processes.runs(current, name)]
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


def _daemon_names(current: ClusterState) -> tuple[str, ...]:
    """The daemons that are no node, in the order of their start."""
    own = ("mariadbd", "slurmdbd") if current.accounting else ()
    return ("munged", *own, "slurmctld")
