"""Questions to a cluster's own slurmctld while it starts and stops: short, quiet, in time."""

from __future__ import annotations

import os
import re
import socket
from pathlib import Path

from hpcdl.cluster import rootfs
from hpcdl.cluster.model import ClusterState
from hpcdl.cluster.needs import command, program
from hpcdl.slurm.client import query_environment
from hpcdl.slurm.parse import mpi_plugins
from hpcdl.system.errors import Stopped
from hpcdl.system.files import write_atomic
from hpcdl.system.run import CommandResult, run

_SECONDS = 10.0


def ask(current: ClusterState, *argv: str, seconds: float = _SECONDS) -> CommandResult | None:
    """Run one of Slurm's commands against this cluster; None where it gave no answer in time."""
    try:
        return run(
            [*command(current, argv[0]), *argv[1:]],
            base_env=query_environment(),
            env={"SLURM_CONF": str(current.configuration)},
            check=False,
            timeout=seconds,
        )
    except Stopped:
        return None


def of_nodes(current: ClusterState, field: str) -> dict[str, str]:
    """What sinfo says of each node, nothing without answer.

    `%T` is its state (`idle`, `down*`), `%E` why it is not in service (`none` where it is).
    """
    answer = ask(current, "sinfo", "-h", "-N", "-o", f"%N {field}")
    if answer is None or not answer.ok:
        return {}
    lines = (line.split(None, 1) for line in answer.stdout.splitlines())
    return {line[0]: line[1].strip() for line in lines if len(line) == 2}


def has_jobs(current: ClusterState) -> bool:
    """Whether jobs wait, run or end just now."""
    answer = ask(current, "squeue", "-h", "-o", "%i")
    return answer is not None and bool(answer.stdout.strip())


def next_job(current: ClusterState) -> int | None:
    """The number slurmctld will give to the next job; None where it does not say."""
    answer = ask(current, "scontrol", "show", "config", seconds=3)
    found = re.search(r"NEXT_JOB_ID\s*=\s*(\d+)", answer.stdout) if answer else None
    return int(found.group(1)) if found else None


def responding(where: tuple[str, int] | Path) -> bool:
    """Whether something accepts connections at an address and port, or on a socket's file."""
    address = str(where) if isinstance(where, Path) else where
    kind = socket.AF_UNIX if isinstance(where, Path) else socket.AF_INET
    with socket.socket(kind, socket.SOCK_STREAM) as probe:
        probe.settimeout(1)
        return probe.connect_ex(address) == 0


def mpi_plugin(wanted: str, directory: Path, root: Path | None = None) -> str:
    """The site's MPI plug-in where this Slurm has it, else `none`.

    `srun --mpi=list` asks no controller, but insists on a slurm.conf: a stub is written where
    the cluster's own will be.
    """
    stub = directory / "etc/slurm.conf"
    write_atomic(stub, "ClusterName=probe\nSlurmctldHost=localhost\n")
    if root is not None:
        said = rootfs.ask(root, "srun", "--mpi=list", configuration=stub)
    else:
        base, env = {"PATH": os.environ.get("PATH", os.defpath)}, {"SLURM_CONF": str(stub)}
        listing = [program("srun"), "--mpi=list"]
        answer = run(listing, base_env=base, env=env, check=False, timeout=_SECONDS)
        said = answer.stdout + answer.stderr
    return wanted if wanted in mpi_plugins(said) else "none"


def takes_jobs(shown: str) -> bool:
    """Whether a node of this state is well; `-` is of one that a job is planned for."""
    well = {"idle", "mixed", "allocated", "completing", "reserved", "planned"}
    return shown.rstrip("-") in well
