"""Identifies where a cluster runs: host, boot, network and process namespace, not only a path.

Two hosts with one home, two containers on one network, a chroot beside the machine: all see the
same path. A command that met another's cluster once took it for a crashed one and removed its
files, while its daemons still ran. So `cluster.json` records the place, and only there is a
cluster changed; what has no record (a bridge, a process) is matched by root file system, too.
"""

from __future__ import annotations

import hashlib
import os
import re
import socket
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from hpcdl.system.errors import CheckFailed

MARK = ".hpcdl-cluster"
_PROC = Path("/proc")
_TOKEN = re.compile(r"^identity: ([0-9a-f]{12})$", re.MULTILINE)
_KINDS = {"network": "net", "processes": "pid"}


def place() -> dict[str, str]:
    """This host, its boot, and the namespaces of network and processes that we are in."""
    namespaces = {kind: str((_PROC / "self/ns" / name).readlink()) for kind, name in _KINDS.items()}
    boot = (_PROC / "sys/kernel/random/boot_id").read_text().strip()
    return {"host": socket.gethostname(), "boot": boot, **namespaces}


def elsewhere(recorded: Mapping[str, str], here: Mapping[str, str]) -> str:
    """Return where else a cluster runs, for a message; '' if it runs here. Pure.

    A host that has booted since keeps its name. Namespaces have new numbers after a boot, and
    within one boot numbers are unique.
    """
    if not recorded:
        return ""
    if recorded["boot"] != here["boot"]:
        return "" if recorded["host"] == here["host"] else f"the host {recorded['host']}"
    other = [kind for kind in _KINDS if recorded[kind] != here[kind]]
    name = f"a container or namespace ({recorded['host']}, {' and '.join(other)} of its own)"
    return name if other else ""


def require_here(recorded: Mapping[str, str], site: str, directory: Path) -> None:
    """Raise CheckFailed for a cluster that another host or container started; it may run there."""
    if owner := elsewhere(recorded, place()):
        raise CheckFailed(
            f"the cluster '{site}' below {directory} belongs to {owner}, not to this place",
            hint=f"stop it there; for one here, set HPCDL_CLUSTER_DIR to another directory. If "
            f"that host or container is gone for good: rm -r {directory}",
        )


def token_of(directory: Path) -> str:
    """The random part of a cluster's name, which its mark keeps; '' where there is none."""
    with suppress(OSError, ValueError):
        if found := _TOKEN.search((directory / MARK).read_text(encoding="utf-8")):
            return found[1]
    return ""


def directory_key(directory: Path) -> str:
    """A text for this very directory: the same path in another root or mount has another.

    With the cluster's token, where there is one. It is the alias of the cluster's bridge.
    """
    root, namespace = Path("/").stat(), (_PROC / "self/ns/pid").readlink()
    above = next(path for path in (directory.parent, *directory.parents) if path.exists())
    text = f"{root.st_dev}:{root.st_ino}:{above.stat().st_dev}:{namespace}:".encode()
    key = hashlib.sha256(text + bytes(directory)).hexdigest()[:24]
    return f"hpcdl {key} {token_of(directory)}".strip()


def sees(pid: int, directory: Path) -> bool:
    """Whether a process means this directory by its path: not where it has another root.

    A process that sees nothing there may be a job in a container. OSError: the process is another
    user's, or gone.
    """
    there = here = None
    with suppress(FileNotFoundError, NotADirectoryError):
        there = (_PROC / str(pid) / "root" / str(directory).lstrip("/")).stat()
    if there is None:
        return (_PROC / str(pid)).exists()
    with suppress(OSError):
        here = directory.stat()
    return here is not None and os.path.samestat(there, here)
