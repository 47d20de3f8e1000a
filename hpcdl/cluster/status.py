"""A cluster's status as text and as JSON values: daemons, nodes, and whether all is well."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hpcdl.cluster import cpu_throttle, processes
from hpcdl.cluster.model import ClusterRequest, ClusterState
from hpcdl.cluster.query import of_nodes, takes_jobs
from hpcdl.system.text import duration, table


def as_data(current: ClusterState) -> dict[str, Any]:
    """Everything about the cluster as plain values, asked now."""
    states = of_nodes(current, "%T") if processes.runs(current, "slurmctld") else {}
    slow = cpu_throttle.throttled(current.directory)
    broken = dict.fromkeys(current.cut, "cut") | dict.fromkeys(current.killed, "killed")
    data: dict[str, Any] = {
        "schema": 1,
        "site": current.site,
        "site_file": str(current.site_file),
        "directory": str(current.directory),
        "configuration": str(current.configuration),
        "phase": current.phase,
        "mode": current.mode,
        "accounting": current.accounting,
        "slurm_version": current.slurm_version,
        "port_base": current.port_base,
        "network": f"{current.network}.0/24",
        "seconds": current.seconds,
        "daemons": [_daemon(current, name)
                    for name in ("munged", "mariadbd", "slurmdbd", "slurmctld")
                    if name in current.processes],
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
    }  # fmt: skip
    if current.phase == "ready" and not _whole(data):
        data["phase"] = "degraded"
    return data


def _whole(data: Mapping[str, Any]) -> bool:
    """Whether every daemon runs and every node takes jobs."""
    daemons = all(daemon["alive"] for daemon in data["daemons"])
    return daemons and all(one["alive"] and takes_jobs(one["state"]) for one in data["nodes"])


def summary(current: ClusterState) -> str:
    """What `up` says when it is done: it starts no node that was killed on purpose."""
    count, killed = len(current.nodes), current.killed
    ready = f"{count - len(killed)} of {count}" if killed else str(count)
    gone = "".join(f"{one} was killed: `hpcdl cluster node up {one}` starts it\n" for one in killed)
    return (
        f"{current.site}: {ready} nodes ready in mode {current.mode}, "
        f"Slurm {current.slurm_version}, started in {duration(current.seconds)}\n{gone}"
        'to use it: eval "$(hpcdl cluster env)"'
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
    """What `up --dry-run` says: a text and its data."""
    rows = [
        [group.partition, str(len(group.names)), str(group.cpus), f"{group.memory_mb} MB",
         f"{group.gpus} x {group.gpu_type or 'GPU'}" if group.gpus else "-"]
        for group in asked.groups
    ]  # fmt: skip
    header = ["partition", "nodes", "CPUs", "memory", "GPUs"]
    text = f"would start '{asked.site}' in mode {asked.mode} below {directory}\n\n"
    data = {
        "schema": 1,
        "site": asked.site,
        "mode": asked.mode,
        "accounting": asked.accounting,
        "directory": str(directory),
        "nodes": list(asked.node_names),
    }
    return text + table(rows, header), data


def _daemon(current: ClusterState, name: str) -> dict[str, Any]:
    process = current.processes.get(name)
    return {
        "name": name,
        "pid": process.pid if process else None,
        "alive": processes.runs(current, name),
        "log": str(current.log(name)),
    }
