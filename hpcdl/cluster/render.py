"""From a `Plan` to the text of every configuration file: templates/slurm, and nothing else."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hpcdl import facts
from hpcdl.cluster.cluster_plan import cluster_name
from hpcdl.cluster.model import NAMESPACES, Group, Plan
from hpcdl.slurm.hostlist import fold_hostlist
from hpcdl.slurm.rules import Release, span
from hpcdl.system.resources import templates

TIMEOUTS = {"node": 10, "message": 10, "credential": 5}
"""How long Slurm waits, in seconds.

`node` (SlurmdTimeout) and `message` (MessageTimeout) together make a dead node be noticed after 15
to 30 s (Slurm's defaults: minutes), and tolerate a machine whose cores are all busy. `credential`
is munge's cred_expire: a requeued job starts again about a second after it.
"""


@dataclass(frozen=True)
class File:
    """A file to write: its place below the state directory, its text and its mode."""

    path: str
    text: str
    mode: int = 0o644


def files(plan: Plan, slurmd: str) -> tuple[File, ...]:
    """Every configuration file of the cluster."""
    values: dict[str, Any] = {
        "plan": plan,
        "slurmd": slurmd,
        "cluster_name": cluster_name(plan.request.site, plan.directory),
        "timeouts": TIMEOUTS,
        "listening": listening(plan),
        "node_lines": node_lines(plan),
        "has_gpus": any(group.gpus for group in plan.request.groups),
        "gpu_types": sorted({group.gpu_type for group in plan.request.groups if group.gpu_type}),
        "oversubscribed": _cpus(plan) > (os.cpu_count() or 1),
    }
    own = [(row["name"], row["value"]) for row in release_options(plan.slurm_version)]
    found = [
        File("etc/slurm.conf", _render("slurm.conf.j2", values)),
        File("etc/gres.conf", _render("gres.conf.j2", values)),
        File("etc/cgroup.conf", "".join(f"{name}={value}\n" for name, value in own)),
        File("etc/hosts", _render("hosts.j2", values)),
        File("etc/task-prolog.sh", _render("task-prolog.sh.j2", values), 0o755),
    ]
    if plan.request.mode == NAMESPACES:
        found.append(File("etc/node.sh", _render("node.sh.j2", values), 0o755))
    if plan.root is not None:
        values["root"] = plan.root.parent
        found += [
            File("etc/enter.sh", _render("enter.sh.j2", values), 0o755),
            File("etc/client.sh", _render("client.sh.j2", values), 0o755),
        ]
    if plan.request.accounting:
        found.append(File("etc/slurmdbd.conf", _render("slurmdbd.conf.j2", values), 0o600))
    return tuple(found)


def listening(plan: Plan) -> str:
    """CommunicationParameters that keep the daemons off the machine's other addresses.

    A daemon then binds to what its machine's name resolves to: in namespaces and in the rootfs of
    another release by the cluster's own hosts file, elsewhere by the machine's, where the name may
    be unknown or mean another address (slurm.conf(5)). There they listen as Slurm does by default.
    """
    if plan.request.mode == NAMESPACES:
        return "NoCtldInAddrAny"  # slurmd has a network of its own
    try:
        own = plan.root is not None or socket.gethostbyname(plan.host) == plan.controller_address
    except OSError:
        own = False
    return "NoCtldInAddrAny,NoInAddrAny" if own else ""


def node_lines(plan: Plan) -> list[str]:
    """The `NodeName=` lines of slurm.conf, one per group of equal nodes."""
    by_name = {node.name: node for node in plan.nodes}
    lines = []
    for group in plan.request.groups:
        nodes = [by_name[name] for name in group.names]
        fields = {"NodeName": fold_hostlist(group.names)}
        if plan.request.mode == NAMESPACES:
            fields["NodeHostname"] = fields["NodeName"]
            fields["NodeAddr"] = _fold(nodes[0].address, len(nodes))
            fields["Port"] = str(nodes[0].port)
        else:
            last = nodes[-1].port
            fields |= {"NodeHostname": plan.host, "NodeAddr": "127.0.0.1"}
            fields["Port"] = f"[{nodes[0].port}-{last}]" if len(nodes) > 1 else str(last)
        lines.append(
            " ".join(f"{key}={value}" for key, value in (fields | _hardware(group)).items())
        )
    return lines


def release_options(version: str) -> list[Mapping[str, Any]]:
    """Options of cgroup.conf for a release of Slurm (facts/slurm_conf.yaml)."""
    release = Release.parse(version)
    rows: list[Mapping[str, Any]] = facts.load("slurm_conf")["options"]
    return [row for row in rows if span(row).holds(release)]


def _fold(first: str, count: int) -> str:
    """Consecutive addresses as Slurm folds them: `10.77.0.[2-5]`."""
    head, _, last = first.rpartition(".")
    return first if count == 1 else f"{head}.[{last}-{int(last) + count - 1}]"


def _hardware(group: Group) -> dict[str, str]:
    fields = {
        "CPUs": str(group.cpus),
        "Sockets": str(group.sockets),
        "CoresPerSocket": str(group.cores_per_socket),
        "ThreadsPerCore": str(group.threads_per_core),
        "RealMemory": str(group.memory_mb),
    }
    if group.gpus:
        kind = f"{group.gpu_type}:" if group.gpu_type else ""
        fields["Gres"] = f"gpu:{kind}{group.gpus}"
    if group.features:
        fields["Feature"] = ",".join(group.features)
    return {**fields, "State": "UNKNOWN"}


def _cpus(plan: Plan) -> int:
    return sum(group.cpus * len(group.names) for group in plan.request.groups)


def _render(name: str, values: Mapping[str, Any]) -> str:
    environment = templates("slurm", trim_blocks=True)
    environment.filters["host_ranges"] = fold_hostlist
    return environment.get_template(name).render(values)
