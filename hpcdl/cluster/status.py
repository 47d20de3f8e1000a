"""A cluster's status as text and as JSON values: daemons, nodes, and whether all is well."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hpcdl.cluster import cpu_throttle, processes
from hpcdl.cluster.model import ClusterRequest, ClusterState
from hpcdl.cluster.query import node_states
from hpcdl.system.text import duration, table

_DAEMONS = ("munged", "mariadbd", "slurmdbd", "slurmctld")
_WELL = {"idle", "mixed", "allocated", "completing", "reserved", "planned"}


def as_data(current: ClusterState) -> dict[str, Any]:
    """Everything about the cluster as plain values, asked now."""
    states = node_states(current) if _alive(current, "slurmctld") else {}
    slow = cpu_throttle.throttled(current.directory)
    return {
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
        "daemons": [_daemon(current, name) for name in _DAEMONS if name in current.processes],
        "nodes": [
            {
                "name": node.name,
                "partition": node.partition,
                "state": states.get(node.name, "unknown"),
                "address": node.address,
                "broken": _broken(current, node.name),
                "slow": node.name in slow,
                **_daemon(current, node.name),
            }
            for node in current.nodes
        ],
    }


def healthy(current: ClusterState) -> bool:
    """Whether every daemon runs and every node takes jobs."""
    data = as_data(current)
    return (
        current.phase == "ready"
        and all(daemon["alive"] for daemon in data["daemons"])
        and all(node["alive"] and node["state"] in _WELL for node in data["nodes"])
    )


def summary(current: ClusterState) -> str:
    """What `up` says when it is done."""
    return (
        f"{current.site}: {len(current.nodes)} nodes ready in mode {current.mode}, "
        f"Slurm {current.slurm_version}, started in {duration(current.seconds)}\n"
        'to use it: eval "$(hpcdl cluster env)"'
    )


def as_text(current: ClusterState) -> str:
    """The status as text: one line per daemon and per node."""
    data = as_data(current)
    head = (
        f"{current.site}: {current.phase}, mode {current.mode}, Slurm {current.slurm_version}, "
        f"port {current.port_base}\n{current.directory}"
    )
    daemons = [
        [row["name"], str(row["pid"]), "runs" if row["alive"] else "dead", row["log"]]
        for row in data["daemons"]
    ]
    nodes = [
        [row["name"], row["partition"], row["state"], row["address"], str(row["pid"]), _note(row)]
        for row in data["nodes"]
    ]
    return "\n\n".join(
        [
            head,
            table(daemons, ["daemon", "process", "state", "log"]),
            table(nodes, ["node", "partition", "state", "address", "process", "note"]),
        ]
    )


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
        "alive": _alive(current, name),
        "log": str(current.log(name)),
    }


def _alive(current: ClusterState, name: str) -> bool:
    process = current.processes.get(name)
    return process is not None and processes.alive(process)


def _note(row: Mapping[str, Any]) -> str:
    broken = row["broken"] or ("" if row["alive"] else "dead")
    return ", ".join(filter(None, [broken, "slow" if row["slow"] else ""]))


def _broken(current: ClusterState, name: str) -> str:
    if name in current.killed:
        return "killed"
    return "cut" if name in current.cut else ""
