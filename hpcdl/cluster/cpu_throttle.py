"""Slows one emulated node down on purpose: its jobs run a part of the time, and rest the other.

A separate process stops and continues the node's programs every few milliseconds, ahead of
everything else where it may. Nothing of the programs changes: they are slow as on a node whose
clock has dropped, or whose GPU throttles. Lifting the throttle, or ending the cluster, ends it.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from hpcdl.cluster import processes, state
from hpcdl.cluster.shape import ClusterState, ProcessId
from hpcdl.system.run import module_argv

FACTOR = 4
"""A program runs one part of so many of the time; waking up again takes some of the effect."""
_SLICE = 0.001
_LOOK_SECONDS = 0.25
_PROC = Path("/proc")
_MODULE = "hpcdl.cluster.cpu_throttle"


def throttle(current: ClusterState, node: str) -> None:
    """Slow a node down; a throttle that runs already is replaced."""
    unthrottle(current, node)
    argv = [*module_argv(sys.executable, _MODULE), str(current.directory), node]
    with current.log(f"throttle-{node}").open("ab") as log:
        subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            env={**os.environ, processes.MARK: str(current.directory)},
        )


def unthrottle(current: ClusterState, node: str) -> bool:
    """Let a node run at full speed again; whether it was throttled."""
    slowed = [
        process
        for process in processes.of_cluster(current.directory)
        if _node_of(process.pid, current.directory) == node
    ]
    processes.end(slowed, grace=5.0)
    return bool(slowed)


def throttled(directory: Path) -> set[str]:
    """The throttled nodes; a throttle outlives a killed node and slows it again after `up`."""
    found = (_node_of(process.pid, directory) for process in processes.of_cluster(directory))
    return {node for node in found if node}


def _node_of(pid: int, directory: Path) -> str:
    with suppress(OSError, ValueError, IndexError):
        argv = (_PROC / str(pid) / "cmdline").read_bytes().decode(errors="replace").split("\0")
        where, node = argv[argv.index(_MODULE) + 1 :][:2]
        return node if where == str(directory) else ""
    return ""


def programs(directory: Path, node: str) -> list[ProcessId]:
    """The processes of a node's jobs, without Slurm's own."""
    current = state.recorded(directory)
    found = processes.of_node(current, current.node(node)) if current else []
    return [process for process in found if not processes.is_slurm(process)]


def hold(directory: Path, node: str) -> None:
    """Throttle until a signal ends it."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())
    with suppress(OSError):
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    slowed: list[ProcessId] = []
    looked = 0.0
    try:
        while True:
            _send(slowed, signal.SIGSTOP)
            if time.monotonic() - looked > _LOOK_SECONDS:
                # The search takes a while: the known programs stay stopped meanwhile.
                slowed, looked = programs(directory, node), time.monotonic()
                _send(slowed, signal.SIGSTOP)
            time.sleep(_SLICE * (FACTOR - 1))
            _send(slowed, signal.SIGCONT)
            time.sleep(_SLICE)
    finally:
        _send(slowed, signal.SIGCONT)


def _send(found: Iterable[ProcessId], number: signal.Signals) -> None:
    for process in found:
        processes.send(process, number)


if __name__ == "__main__":
    hold(Path(sys.argv[1]), sys.argv[2])
