"""Questions to a cluster's own slurmctld, and its status as text and as JSON values.

Slurm is asked while it starts and stops, too: short, quiet, in time.
"""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hpcdl.cluster import cpu_throttle, processes, rootfs
from hpcdl.cluster.needs import command, program
from hpcdl.cluster.shape import ClusterRequest, ClusterState
from hpcdl.slurm.client import query_environment
from hpcdl.slurm.hostlist import fold_hostlist
from hpcdl.slurm.parse import mpi_plugins
from hpcdl.system.errors import Stopped
from hpcdl.system.files import write_atomic
from hpcdl.system.run import CommandResult, run
from hpcdl.system.text import bash_word, duration, table

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
    """Return a field of sinfo for each node; empty without an answer.

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
    """Return the id of slurmctld's next job; None if it does not show it."""
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
        output = rootfs.ask(root, "srun", "--mpi=list", configuration=stub)
    else:
        base, env = {"PATH": os.environ.get("PATH", os.defpath)}, {"SLURM_CONF": str(stub)}
        listing = [program("srun"), "--mpi=list"]
        answer = run(listing, base_env=base, env=env, check=False, timeout=_SECONDS)
        output = answer.stdout + answer.stderr
    return wanted if wanted in mpi_plugins(output) else "none"


def takes_jobs(shown: str) -> bool:
    """Whether a node of this state is well; `-` is of one that a job is planned for."""
    well = {"idle", "mixed", "allocated", "completing", "reserved", "planned"}
    return shown.rstrip("-") in well


def as_data(current: ClusterState) -> dict[str, Any]:
    """Everything about the cluster as plain values, asked now."""
    states = of_nodes(current, "%T") if processes.runs(current, "slurmctld") else {}
    slow = cpu_throttle.throttled(current.directory)
    broken = dict.fromkeys(current.cut, "cut") | dict.fromkeys(current.killed, "killed")
    names = "site site_file directory configuration phase mode accounting slurm_version port_base"
    data: dict[str, Any] = {
        "schema": 1,
        **{name: getattr(current, name) for name in (*names.split(), "seconds")},
        "network": f"{current.network}.0/24",
        "daemons": [
            _daemon(current, name)
            for name in ("munged", "mariadbd", "slurmdbd", "slurmctld")
            if name in current.processes
        ],
        "nodes": [
            {
                "name": node.name,
                "partition": node.partition,
                "state": states.get(node.name, "unknown"),
                "address": node.address,
                "broken": broken.get(node.name, ""),
                "slow": node.name in slow,
                **_daemon(current, node.name),
            }
            for node in current.nodes
        ],
    }
    if current.phase == "ready" and not _whole(data):
        data["phase"] = "degraded"
    return data


def _whole(data: Mapping[str, Any]) -> bool:
    """Whether every daemon runs and every node takes jobs."""
    daemons = all(daemon["alive"] for daemon in data["daemons"])
    return daemons and all(one["alive"] and takes_jobs(one["state"]) for one in data["nodes"])


def summary(current: ClusterState, site: str | None = None) -> str:
    """Return the message of `up --site SITE`, which starts no node that was killed on purpose."""
    named = f" --site {bash_word(site)}" if site else ""
    count, killed = len(current.nodes), current.killed
    ready = f"{count - len(killed)} of {count}" if killed else str(count)
    gone = "".join(f"{one} was killed: `hpcdl cluster node up {one}` starts it\n" for one in killed)
    return (
        f"{current.site}: {ready} nodes ready in mode {current.mode}, "
        f"Slurm {current.slurm_version}, started in {duration(current.seconds)}\n{gone}"
        f'to use it: eval "$(hpcdl cluster env{named})"'
    )


def as_text(data: Mapping[str, Any]) -> str:
    """The status as text: one line per daemon and per node."""
    head = "{site}: {phase}, mode {mode}, Slurm {slurm_version}, port {port_base}\n{directory}"
    daemons = [
        [row["name"], str(row["pid"]), "runs" if row["alive"] else "dead", row["log"]]
        for row in data["daemons"]
    ]
    nodes = []
    for row in data["nodes"]:
        broken = row["broken"] or ("" if row["alive"] else "dead")
        note = ", ".join(filter(None, [broken, "slow" if row["slow"] else ""]))
        own = [row[key] for key in ("name", "partition", "state", "address")]
        nodes.append([*own, str(row["pid"]), note])
    below = table(nodes, ["node", "partition", "state", "address", "process", "note"])
    above = table(daemons, ["daemon", "process", "state", "log"])
    return "\n\n".join([head.format(**data), above, below])


def intention(asked: ClusterRequest, directory: Path) -> tuple[str, dict[str, Any]]:
    """Return the message of `up --dry-run`, and its data."""
    nodes = fold_hostlist(asked.node_names)
    text = f"would start '{asked.site}' in mode {asked.mode} below {directory}: {nodes}"
    data = {
        "schema": 1,
        "site": asked.site,
        "mode": asked.mode,
        "accounting": asked.accounting,
        "directory": str(directory),
        "nodes": list(asked.node_names),
    }
    return text, data


def _daemon(current: ClusterState, name: str) -> dict[str, Any]:
    process = current.processes.get(name)
    return {
        "name": name,
        "pid": process.pid if process else None,
        "alive": processes.runs(current, name),
        "log": str(current.log(name)),
    }
