"""Down: ends a cluster whole, whatever of it is left and however its start was cut short."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from hpcdl.cluster import identity, network, processes, state
from hpcdl.cluster.shape import ClusterState
from hpcdl.cluster.status import ask, has_jobs, next_job
from hpcdl.system.errors import BadInput, HpcdlError
from hpcdl.system.files import locked, user_name, write_atomic
from hpcdl.system.trust import require_private

LOCK = "lock"
_CLOSING_SECONDS = 10.0
_PASSING = ("bin", "etc", "run", "state", "spool", "tmp", "dev")
"""What `down` removes; logs, the accounting database and the next job's number stay."""

Say = Callable[[str], None]


def silent(_: str) -> None:
    """Say nothing."""


def down(directory: Path, *, purge: bool = False, say: Say = silent) -> bool:
    """Stop a cluster and whatever of it is left, after a crash too; whether there was anything.

    With `purge` the directory is removed, too, with its logs and its accounting database.
    """
    directory = directory.absolute()
    if not state.is_ours(directory):  # removed by hand, perhaps while it ran
        network.remove_bridge(directory)
        return _stop_processes(directory, by_files=not directory.exists()) > 0
    require_private(directory)
    recorded(directory)  # another host's is left alone, its lock too
    with locked(directory / LOCK, wait_seconds=150):
        found = clear(directory, say)
        if purge:
            _purge(directory)
    return found


def _purge(directory: Path) -> None:
    """Remove a cluster's directory, its lock last, so that no other `up` starts in between.

    Its mark stays as long as anything else does: `up` and `down` take no directory without one.
    """
    for entry in directory.iterdir():
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry, ignore_errors=True)
        elif entry.name not in {LOCK, identity.MARK}:
            entry.unlink(missing_ok=True)
    if {entry.name for entry in directory.iterdir()} <= {LOCK, identity.MARK}:
        (directory / identity.MARK).unlink(missing_ok=True)
    (directory / LOCK).unlink(missing_ok=True)
    with suppress(OSError):  # somebody waited, and begins
        directory.rmdir()


def recorded(directory: Path) -> ClusterState | None:
    """The recorded state, to be changed; a damaged record counts as none.

    CheckFailed: it belongs to another host or container, or to the machine around this node.
    """
    try:
        found = state.read_state(directory)
    except BadInput:
        return None
    if found is not None:
        identity.require_here(found.place, found.site, directory)
    return found


def clear(directory: Path, say: Say) -> bool:
    """Stop and remove what there is, recorded or not; logs and the database stay."""
    current = recorded(directory)
    if current is not None:
        say(f"stopping the cluster '{current.site}'")
        _note_jobs(current)
        if current.accounting:
            _close_books(current)
    stopped = _stop_processes(directory)
    network.remove_bridge(directory, current.bridge if current else "")
    if state.is_ours(directory):
        for name in _PASSING:
            shutil.rmtree(directory / name, ignore_errors=True)
        state.forget(directory)
    return bool(current) or stopped > 0


def _stop_processes(directory: Path, *, by_files: bool = True) -> int:
    count = 0
    # What is found may start others while we look: look again until nothing is left.
    for _ in range(20):
        found = processes.of_cluster(directory, by_files=by_files)
        if not found:
            break
        count += len(found)
        processes.end(found)
    return count


def _close_books(current: ClusterState) -> None:
    """End jobs and daemons in order, so that accounting records how every job ended."""
    if processes.runs(current, "slurmctld") and processes.runs(current, "slurmdbd"):
        ask(current, "scancel", "--user", user_name())
        deadline = time.monotonic() + _CLOSING_SECONDS
        while time.monotonic() < deadline and has_jobs(current):
            time.sleep(0.1)
    for name in ("slurmctld", "slurmdbd", "mariadbd"):
        if processes.runs(current, name):
            processes.end([current.processes[name]], grace=_CLOSING_SECONDS)


def _note_jobs(current: ClusterState) -> None:
    """Keep the id of the next job, so that no id is used twice."""
    following = next_job(current) if processes.runs(current, "slurmctld") else None
    known = following or first_job(current.directory) + 1000
    with suppress(HpcdlError):  # a full disk must not keep anything running
        write_atomic(current.directory / "jobs", f"{known}\n")


def first_job(directory: Path) -> int:
    """Return the id of the next cluster's first job: an unused one."""
    try:
        return int((directory / "jobs").read_text())
    except (OSError, ValueError):
        return 1
