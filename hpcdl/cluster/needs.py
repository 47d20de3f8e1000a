"""What an embedded cluster needs of the machine: checked before anything is started."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

from hpcdl import facts
from hpcdl.cluster import LOOPBACK, MODES, NAMESPACES, rootfs
from hpcdl.cluster.shape import ClusterRequest, ClusterState
from hpcdl.system.errors import BadInput, MissingPrerequisite
from hpcdl.system.packages import apt_line, find_program, look, missing_names
from hpcdl.system.run import run
from hpcdl.system.text import did_you_mean

_MOST_NODES = {NAMESPACES: 250, LOOPBACK: 2000}
"""One /24 network holds 250; a node of loopback takes about 3 MB of memory."""
_FREE_MB, _FREE_DATABASE_MB = 64, 400


def choose_mode(asked: str, slurm: str = "") -> str:
    """`auto` as what this machine allows; a requested mode as it is.

    Another release of Slurm than the machine's own runs in loopback mode.
    """
    if asked not in MODES:
        raise BadInput(f"unknown mode '{asked}'", hint=did_you_mean(asked, MODES))
    if slurm and asked == NAMESPACES:
        raise BadInput("with --slurm the cluster runs in mode loopback", hint="leave --mode out")
    if slurm or asked == LOOPBACK:
        return LOOPBACK
    lack = lack_of_namespaces()
    if lack and asked == NAMESPACES:
        hint = "use --mode loopback: all nodes share this machine's network and processes"
        raise MissingPrerequisite(f"mode namespaces does not work here: {lack}", hint=hint)
    return LOOPBACK if lack else NAMESPACES


def check_packages(accounting: bool, slurm: str = "") -> None:
    """Refuse to start without the programs, or without what another release needs."""
    if slurm and accounting:
        raise BadInput("--slurm cannot be combined with --accounting: a rootfs holds no database")
    if slurm:
        rootfs.check(slurm)
        return
    purposes = ["cluster", "accounting"] if accounting else ["cluster"]
    packages = look(facts.load("packages")["packages"], purposes)
    missing = missing_names(packages)
    if missing:
        count = "a package" if len(missing) == 1 else "packages"
        message = f"the embedded cluster needs {count}: {', '.join(missing)}"
        raise MissingPrerequisite(message, hint=f"install with: {apt_line(packages)}")


def check_size(asked: ClusterRequest) -> None:
    """Raise MissingPrerequisite if the mode cannot hold the nodes; the hint says what fits."""
    nodes, fits = len(asked.node_names), _MOST_NODES[asked.mode]
    if nodes <= fits:
        return
    # The largest cap per partition with which all partitions fit.
    sizes = [len(group.names) for group in asked.groups]
    caps = range(max(sizes), 1, -1)
    most = next((cap for cap in caps if sum(min(size, cap) for size in sizes) <= fits), 1)
    message = f"the site '{asked.site}' has {nodes} nodes, and mode {asked.mode} holds {fits}"
    more = ", or use --mode loopback" * (nodes <= _MOST_NODES[LOOPBACK])
    raise MissingPrerequisite(
        message, hint=f"emulate fewer: --max-nodes-per-partition {most}{more}"
    )


def check_space(directory: Path, accounting: bool) -> None:
    """MissingPrerequisite where the disk has less space than the first minutes need."""
    parent = next(path for path in (directory, *directory.parents) if path.exists())
    if not os.access(parent, os.W_OK):
        hint = "set HPCDL_HOME or HPCDL_CLUSTER_DIR to a directory of yours"
        raise MissingPrerequisite(f"no permission to write in {parent}", hint=hint)
    need = _FREE_MB + (_FREE_DATABASE_MB if accounting else 0)
    free = shutil.disk_usage(parent).free // 2**20
    if free < need:
        raise MissingPrerequisite(
            f"not enough disk space: {parent} has {free} MB free, the cluster needs {need} MB",
            hint="free some, or set HPCDL_CLUSTER_DIR to a directory on another disk",
        )


def slurm_version() -> str:
    """Return the release of the slurmctld that will run, whatever the site file has."""
    answer = run([program("slurmctld"), "-V"], timeout=10).stdout
    found = re.search(r"\d+\.\d+\.\d+", answer)
    if not found:
        raise MissingPrerequisite(f"slurmctld gives no version: {answer.strip()[:80]!r}")
    return found.group()


def program(name: str) -> str:
    """The path of a program. Raises `MissingPrerequisite`: it is not here."""
    found = find_program(name)
    if found is None:
        raise MissingPrerequisite(
            f"'{name}' is not installed", hint="`hpcdl doctor` lists what is missing"
        )
    return str(found)


def command(current: ClusterState, name: str) -> tuple[str, ...]:
    """The command that starts a program of a cluster's own Slurm."""
    if current.root is None:
        return (program(name),)
    enter = str(current.directory / "etc/enter.sh")
    return (*rootfs.ALONE, enter, rootfs.program(current.root, name))


def lack_of_namespaces() -> str:
    """Why namespaces do not work here, briefly; empty where they do."""
    if os.geteuid() != 0:
        return "namespaces need root"
    for name in ("ip", "unshare"):
        if find_program(name) is None:
            return f"'{name}' is not installed"
    if not Path("/etc/hosts").exists():
        return "there is no /etc/hosts, in whose place a node sees its own"
    kinds = ("--net", "--uts", "--mount", "--ipc", "--pid", "--fork", "--mount-proc")
    argv = [program("unshare"), *kinds, "sh", "-c", "mount -t tmpfs tmpfs /dev/shm"]
    made = run(argv, check=False, timeout=10)
    return "" if made.ok else (made.last_lines(1) or ["unshare failed"])[0]
