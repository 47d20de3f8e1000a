"""Finds and ends the processes of a cluster, and never any other.

A process is known by its id and start time, so that an id given again is not taken for ours;
signals go through a pidfd where the kernel has it. What daemons left behind is found by a mark
in its environment, by the job's environment that slurmd sets, or by the files it holds open; and
with it all that it started, which may have an environment of its own.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Collection, Iterable
from contextlib import suppress
from pathlib import Path

from hpcdl.cluster import NAMESPACES
from hpcdl.cluster.identity import sees
from hpcdl.cluster.shape import ClusterState, Node, ProcessId
from hpcdl.system.files import process_fields

MARK = "HPCDL_CLUSTER_OWNER"
"""Set in the environment of every daemon: the cluster's state directory."""

_PROC = Path("/proc")


def identify(pid: int) -> ProcessId | None:
    """The process that has this id now; None where there is none, or only a zombie."""
    fields = process_fields(pid)
    return ProcessId(pid, int(fields[19])) if fields and fields[0] not in {"Z", "X"} else None


def _told(file: Path) -> str:
    """The text of a file in /proc; a process name may be any bytes, its user chooses it."""
    return file.read_bytes().decode(errors="replace")


def alive(process: ProcessId) -> bool:
    """Whether this very process runs."""
    return identify(process.pid) == process


def send(process: ProcessId, number: signal.Signals) -> None:
    """Send a signal to this very process; gone already is fine."""
    with suppress(ProcessLookupError, PermissionError):
        try:
            handle = os.pidfd_open(process.pid)
        except OSError:  # a kernel before 5.3: check, then send
            if alive(process):
                os.kill(process.pid, number)
            return
        try:
            if alive(process):
                signal.pidfd_send_signal(handle, number)
        finally:
            os.close(handle)


def wait_gone(processes: Iterable[ProcessId], seconds: float) -> list[ProcessId]:
    """Wait until the processes are gone; those still there after `seconds`."""
    left = [process for process in processes if alive(process)]
    deadline = time.monotonic() + seconds
    while left and time.monotonic() < deadline:
        time.sleep(0.01)
        left = [process for process in left if alive(process)]
    return left


def end(processes: Collection[ProcessId], *, grace: float = 0.0) -> None:
    """End processes: TERM and `grace` seconds first, where there is grace, then KILL."""
    left = list(processes)
    if grace > 0:
        for process in left:
            send(process, signal.SIGTERM)
        left = wait_gone(left, grace)
    for process in left:
        send(process, signal.SIGKILL)
    wait_gone(left, 5.0)


def runs(current: ClusterState, name: str) -> bool:
    """Whether a daemon that was recorded is alive."""
    process = current.processes.get(name)
    return process is not None and alive(process)


def of_cluster(directory: Path, *, by_files: bool = True) -> list[ProcessId]:
    """Every process of the cluster in `directory`, recorded or not.

    This process and its ancestors are left out: `down` may be called from a job. Without `by_files`
    only those that say so themselves: whose files are below a directory that is no cluster's, such
    as /var, may be anybody's.
    """
    own = _ancestry()
    found = (entry for entry in _PROC.glob("[0-9]*") if int(entry.name) not in own)
    return _with_descendants(int(one.name) for one in found if _belongs(one, directory, by_files))


def of_node(current: ClusterState, node: Node) -> list[ProcessId]:
    """Every process of one node: its slurmd, its steps, its jobs.

    In namespaces mode all of them descend from the recorded one; in loopback mode the node's name
    identifies them.
    """
    found = [current.processes[node.name].pid] if runs(current, node.name) else []
    if current.mode != NAMESPACES:
        found += [one.pid for one in of_cluster(current.directory) if _on_node(one, current, node)]
    return _with_descendants(found)


def is_slurm(process: ProcessId) -> bool:
    """Whether it is one of Slurm's daemons, not a job's program."""
    with suppress(OSError):
        return _told(_PROC / str(process.pid) / "comm").startswith("slurm")
    return False


def _on_node(process: ProcessId, current: ClusterState, node: Node) -> bool:
    entry = _PROC / str(process.pid)
    with suppress(OSError):
        if f"SLURMD_NODENAME={node.name}".encode() in (entry / "environ").read_bytes().split(b"\0"):
            return True
        return _holds(entry, str(current.log(node.name)))
    return False


def _belongs(entry: Path, directory: Path, by_files: bool) -> bool:
    try:
        environment = (entry / "environ").read_bytes().split(b"\0")
        if os.fsencode(f"{MARK}={directory}") in environment:
            return sees(int(entry.name), directory)
        # Slurmd of this cluster started it: a user's shell has no SLURMD_NODENAME.
        on_node = any(variable.startswith(b"SLURMD_NODENAME=") for variable in environment)
        if on_node and os.fsencode(f"SLURM_CONF={directory}/etc/slurm.conf") in environment:
            return sees(int(entry.name), directory)
        # These write their title over their environment: look at what they hold open.
        name = _told(entry / "comm").strip()
        looks = by_files and name in {"slurmstepd", "slurmscriptd"}
        return looks and _holds(entry, f"{directory}/") and sees(int(entry.name), directory)
    except OSError:  # gone meanwhile, or another user's
        return False


def _holds(entry: Path, start: str) -> bool:
    for link in (entry / "fd").iterdir():
        with suppress(OSError):
            if str(link.readlink()).startswith(start):
                return True
    return False


def _with_descendants(pids: Iterable[int]) -> list[ProcessId]:
    """These processes and all that they started, without this one and its ancestors."""
    own, todo = _ancestry(), list(pids)  # before their children: one that is new is found as theirs
    children: dict[int, list[int]] = {}
    for entry in _PROC.glob("[0-9]*"):
        children.setdefault(_parent(int(entry.name)), []).append(int(entry.name))
    by_pid: dict[int, ProcessId] = {}
    while todo:
        pid = todo.pop()
        process = identify(pid) if pid not in by_pid and pid not in own else None
        if process is not None:
            by_pid[pid] = process
            todo += children.get(pid, [])
    return list(by_pid.values())


def _parent(pid: int) -> int:
    return int((process_fields(pid) or ["", "0"])[1])


def _ancestry() -> set[int]:
    pids = set()
    pid = os.getpid()
    while pid > 0 and pid not in pids:
        pids.add(pid)
        pid = _parent(pid)
    return pids
