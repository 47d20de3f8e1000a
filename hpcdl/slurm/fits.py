"""Checks if a partition can ever run a job's request: one check for all commands. Pure.

`PartitionLimits` is what a partition allows, from a site file or from the live Slurm;
`ResourceRequest` what a job asks for, from directives or from a layout. A number that is unknown
is None and judges nothing.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import NamedTuple

from hpcdl.slurm.options import walltime
from hpcdl.system.frozen import dataclass
from hpcdl.system.text import count_of, one_of

_FEATURE = re.compile(r"[\w.:=+@/-]+", re.A)


class NodeKind(NamedTuple):
    """Equal nodes of a partition: how many, usable CPUs and MB each, GPUs by type, features.

    The type of GPUs is '' where Slurm gives them none. `features` is None if unknown.
    """

    nodes: int
    cpus: int
    memory_mb: int
    gpus: Mapping[str, int]
    features: frozenset[str] | None = None


class PartitionLimits(NamedTuple):
    """The limits of a partition: its nodes, the longest time in minutes, its QOS.

    `qos`, `arrays` (MaxArraySize) and `mpi` (what `srun --mpi=` takes) are None where unknown.
    """

    name: str
    kinds: tuple[NodeKind, ...]
    minutes: int | None = None
    qos: frozenset[str] | None = None
    arrays: int | None = None
    mpi: tuple[str, ...] | None = None


class ResourceRequest(NamedTuple):
    """A job's request; None where the job leaves it to Slurm. Memory in MB, time in minutes.

    `gpus` and `gpus_per_node` are (type, count) pairs, with type '' for any.
    """

    nodes: int | None = None
    tasks: int | None = None
    tasks_per_node: int | None = None
    cpus_per_task: int | None = None
    gpus: tuple[tuple[str, int], ...] = ()
    gpus_per_node: tuple[tuple[str, int], ...] = ()
    gpus_per_task: int | None = None
    memory_mb: int | None = None
    memory_per_cpu: int | None = None
    memory_per_gpu: int | None = None
    minutes: int | None = None
    feature: str = ""
    qos: str = ""
    last_of_array: int | None = None


@dataclass(frozen=True)
class Cluster:
    """The names of a cluster's partitions, its settings, and what its partitions allow.

    `plugin_options` are the long options, without dashes, that plug-ins (SPANK) add, `settings`
    what is known of slurm.conf: all, little or none. `default` is the partition of jobs that name
    none. Names are None if unknown.
    """

    where: str = ""
    partitions: frozenset[str] | None = None
    plugin_options: frozenset[str] | None = None
    settings: Mapping[str, str] = field(default_factory=dict)
    limits: Mapping[str, PartitionLimits] = field(default_factory=dict)
    default: str = ""

    def sets(self, key: str, word: str) -> bool:
        """Whether a setting is known and holds a word: ("TaskPlugin", "affinity")."""
        return word in self.settings.get(key, "").lower()


class Misfit(NamedTuple):
    """A part of a request that does not fit: the fields of the request, and why."""

    fields: tuple[str, ...]
    why: str


def misfits(request: ResourceRequest, limits: PartitionLimits) -> tuple[Misfit, ...]:
    """Everything of a request that a partition cannot give; nothing where it fits."""
    has = f"'{limits.name}' has"
    reasons = [*_beyond_limits(request, limits)]
    total = sum(kind.nodes for kind in limits.kinds)
    if request.nodes is not None and request.nodes > total:
        reasons.append(Misfit(("nodes",), f"{has} {count_of(total, 'node')}"))
    per_kind = [_on_nodes(request, kind, limits.name) for kind in limits.kinds]
    if per_kind:  # the kind of nodes that comes nearest
        reasons += sorted(per_kind, key=len)[0]
    reasons += _in_all(request, limits) if not reasons else ()
    return tuple(reasons)


def _beyond_limits(request: ResourceRequest, limits: PartitionLimits) -> list[Misfit]:
    """Return what the partition itself refuses, whatever its nodes are."""
    reasons: list[Misfit] = []
    name = f"'{limits.name}'"
    endless = request.minutes == 0
    if limits.minutes and (endless or (request.minutes or 0) > limits.minutes):
        reasons.append(Misfit(("minutes",), f"{name} allows {walltime(limits.minutes)}"))
    if request.qos and limits.qos is not None and request.qos not in limits.qos:
        allowed = one_of(sorted(limits.qos)) if limits.qos else "none"
        reasons.append(Misfit(("qos",), f"{name} allows the QOS {allowed}"))
    if limits.arrays is not None and (request.last_of_array or 0) >= limits.arrays:
        why = f"the last index of an array is {limits.arrays - 1} here (MaxArraySize)"
        reasons.append(Misfit(("last_of_array",), why))
    return reasons


def _on_nodes(request: ResourceRequest, kind: NodeKind, name: str) -> list[Misfit]:
    """Return the parts of a request that do not fit one node of a kind."""
    has, reasons = f"'{name}' has", list[Misfit]()
    for wanted, count in request.gpus_per_node:
        most = gpus_of(kind, wanted)
        if count > most:
            named = f"{wanted} GPUs" if wanted else "GPUs"
            reasons.append(Misfit(("gpus_per_node",), f"{has} {most or 'no'} {named} per node"))
    cpus = (request.tasks_per_node or 1) * (request.cpus_per_task or 1)
    if cpus > kind.cpus:
        fields = ("cpus_per_task", "tasks_per_node", "tasks")
        reasons.append(Misfit(fields, f"{has} {kind.cpus} CPUs per node"))
    gpus = sum(count for _, count in request.gpus_per_node)
    per_node = (
        request.memory_mb,
        request.memory_per_cpu and request.memory_per_cpu * cpus,
        request.memory_per_gpu and request.memory_per_gpu * gpus,
    )
    if any(memory and memory > kind.memory_mb for memory in per_node):
        fields = ("memory_mb", "memory_per_cpu", "memory_per_gpu")
        reasons.append(Misfit(fields, f"{has} {kind.memory_mb:,} MB per node"))
    features = set(_FEATURE.findall(request.feature))
    plain = not re.search(r"[|*\[]", request.feature)
    if plain and kind.features is not None and not features <= kind.features:
        missing = one_of(sorted(features - kind.features))
        reasons.append(Misfit(("feature",), f"no node of '{name}' has the feature {missing}"))
    return reasons


def _in_all(request: ResourceRequest, limits: PartitionLimits) -> list[Misfit]:
    """Return the parts of a request that do not fit all nodes of the job together."""
    reasons: list[Misfit] = []
    total = sum(kind.nodes for kind in limits.kinds)
    nodes = total if request.nodes is None else min(total, request.nodes)
    where = f"{count_of(nodes, 'node')} of '{limits.name}'"
    have = "has" if nodes == 1 else "have"
    cpus = _most(limits.kinds, nodes, [kind.cpus for kind in limits.kinds])
    if request.tasks and request.tasks * (request.cpus_per_task or 1) > cpus:
        reasons.append(Misfit(("tasks", "cpus_per_task"), f"{where} {have} {cpus} CPUs"))
    asked: list[tuple[str, int]] = [*request.gpus]
    if request.gpus_per_task and request.tasks:
        asked.append(("", request.gpus_per_task * request.tasks))
    for wanted, count in asked:
        most = _most(limits.kinds, nodes, [gpus_of(kind, wanted) for kind in limits.kinds])
        if count > most:
            gpus = f"{wanted} GPUs" if wanted else "GPUs"
            why = f"{where} {have} {most or 'no'} {gpus}"
            reasons.append(Misfit(("gpus", "gpus_per_task"), why))
    return reasons


def gpus_of(kind: NodeKind, wanted: str) -> int:
    """GPUs of a type, or of any, on a node; one without types has GPUs of every type."""
    if not wanted or set(kind.gpus) == {""}:
        return sum(kind.gpus.values())
    return kind.gpus.get(wanted, 0)


def _most(kinds: Sequence[NodeKind], nodes: int, each: Sequence[int]) -> int:
    """The most of something that `nodes` nodes have together."""
    left, total = nodes, 0
    for count, kind in sorted(zip(each, kinds, strict=True), reverse=True, key=lambda one: one[0]):
        taken = min(left, kind.nodes)
        left, total = left - taken, total + taken * count
    return total
