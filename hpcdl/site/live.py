"""The live cluster in the terms of a site file: `site init` drafts one, `site check` compares.

Nodes of a partition whose GPUs differ are groups of it. Within a group the shape that most nodes
share counts, and the others are named. GPUs of other vendors count as none, and are named too.
What Slurm does not know (paths, network, scratch, driver) is drafted as a comment to fill in; what
it leaves open about a GPU is named, so that no guess is published.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import NamedTuple

from hpcdl import facts
from hpcdl.results.gpus import is_slice, may_be, model_of_type, out_of_scope
from hpcdl.site.model import Partition, Site
from hpcdl.site.sections import NAME
from hpcdl.slurm import client
from hpcdl.slurm.hostlist import expand_hostlist, fold_hostlist
from hpcdl.slurm.options import slurm_minutes
from hpcdl.slurm.parse import NodeRecord, PartitionRecord, QosLimits, Reservation
from hpcdl.system.errors import MissingPrerequisite
from hpcdl.system.resources import templates
from hpcdl.system.text import count_of, nearest, one_of

_SEAL = "# Not edited since `hpcdl site init` wrote it, while the rest has the digest "
_PLUGINS = {
    "SelectType": {"cons_res", "cons_tres", "linear"},
    "TaskPlugin": {"affinity", "cgroup", "none"},
}
_Gpus = tuple[str | None, int]


@dataclass(frozen=True)
class LivePartition:
    """A partition as Slurm shows it. `gpu_type` is None where GRES is untyped or absent.

    `groups` are its nodes by their GPUs, where those differ; other fields describe the first then.
    `foreign` are types of GPUs that hpcdl does not serve. `usable_cpus` and `memory_gb` are what
    jobs may have of a node; `limits` are those of the partition's QOS, `asks` what jobs must name.
    """

    name: str
    default: bool
    nodes: int
    hostlist: str
    sockets: int
    cores_per_socket: int
    threads_per_core: int
    memory_gb: int
    gpu_type: str | None
    gpus_per_node: int
    features: tuple[str, ...]
    max_time: str
    odd_nodes: tuple[str, ...]
    foreign: tuple[str, ...] = ()
    groups: tuple[LivePartition, ...] = ()
    usable_cpus: int = 1
    limits: str = ""
    asks: tuple[str, ...] = ()

    @property
    def node_groups(self) -> tuple[LivePartition, ...]:
        """Its groups: itself where all its nodes have the same GPUs."""
        return self.groups or (self,)

    @property
    def cpus(self) -> int:
        """CPUs of a node, usable or not."""
        return self.sockets * self.cores_per_socket * self.threads_per_core

    @property
    def main_groups(self) -> tuple[LivePartition, ...]:
        """Its groups without slices (MIG) on nodes that have whole GPUs, too."""
        whole = [one for one in self.groups if not is_slice(one.gpu_type or "")]
        hosts = set().union(*(_hosts(one.hostlist) for one in whole if one.gpus_per_node))
        return tuple(one for one in self.groups if one in whole or not _hosts(one.hostlist) & hosts)


@dataclass(frozen=True)
class LiveCluster:
    """A cluster as its Slurm shows it. `notes` are for the administrator."""

    name: str
    version: str
    mpi_plugins: tuple[str, ...]
    mpi_default: str
    accounting: bool
    partitions: tuple[LivePartition, ...]
    select: str | None = None
    task_plugins: tuple[str, ...] = ()
    plugin_options: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def look() -> LiveCluster:
    """Ask the Slurm on PATH; MissingPrerequisite: none, no answer, or it shows no partition."""
    config = client.config()
    nodes = client.nodes()
    plugins = client.mpi_plugins()
    partitions = client.partitions()
    if not partitions:
        raise MissingPrerequisite(
            "Slurm shows no partition here",
            hint="some are hidden from those who may not use them (slurm.conf(5), Hidden, "
            "AllowGroups): ask as another user, or as root",
        )
    names = sorted({part.qos for part in partitions if part.qos})
    limits = {one.name: one for one in client.qos_limits(names)}
    described = tuple(describe(part, nodes, limits.get(part.qos)) for part in partitions)
    return LiveCluster(
        name=(config.get("ClusterName", "").split() or ["cluster"])[0],
        version=client.version(),
        mpi_plugins=plugins,
        mpi_default=_mpi(config.get("MpiDefault", "none"), plugins),
        accounting="slurmdbd" in config.get("AccountingStorageType", ""),
        partitions=described,
        select=next(iter(plugins_of(config, "SelectType")), None),
        task_plugins=plugins_of(config, "TaskPlugin"),
        plugin_options=client.plugin_options(),
        notes=(*closed(partitions), *reserved(described, client.reservations())),
    )


def closed(parts: Sequence[PartitionRecord]) -> Iterator[str]:
    """A line per partition that starts no job until its administrator opens it. Pure."""
    for part in parts:
        if part.state != "UP":
            yield f"partition '{part.name}' is {part.state}: Slurm starts no jobs there now"


def reserved(parts: Sequence[LivePartition], held: Sequence[Reservation]) -> Iterator[str]:
    """A line per reservation that leaves a partition no node. Pure."""
    for part in parts:
        for one in held:
            if part.nodes and _hosts(part.hostlist) <= _hosts(one.nodes):
                yield (
                    f"all nodes of '{part.name}' are reserved by '{one.name}' from {one.start} to "
                    f"{one.end}: other jobs wait"
                )


def plugins_of(config: Mapping[str, str], key: str) -> tuple[str, ...]:
    """Return the plug-ins of `task/cgroup,task/affinity` that a site file can have. Pure."""
    found = (one.strip().rpartition("/")[2] for one in config.get(key, "").split(","))
    return tuple(one for one in found if one in _PLUGINS[key])


def describe(
    partition: PartitionRecord, nodes: Sequence[NodeRecord], limits: QosLimits | None = None
) -> LivePartition:
    """A partition in the terms of a site file, with what its QOS limits. Pure."""
    names = set(expand_hostlist(partition.nodes))
    own = [node for node in nodes if node.name in names or partition.name in node.partitions]
    by_gpus: dict[_Gpus, list[NodeRecord]] = {}
    foreign: dict[str, None] = {}
    for node in own:
        served = [gpus for gpus in node.gpus if not out_of_scope(gpus[0] or "")]
        foreign |= {kind: None for kind, count in node.gpus if kind and (kind, count) not in served}
        for gpus in served or [(None, 0)]:
            by_gpus.setdefault(gpus, []).append(node)
    groups = tuple(_alike(partition, some, gpus) for gpus, some in by_gpus.items())
    whole = groups[0] if groups else _alike(partition, [], (None, 0))
    words = {"qos": partition.allowed_qos, "account": partition.allowed_accounts}
    wall = limits.max_wall if limits else ""
    shorter = wall and slurm_minutes(wall) < slurm_minutes(partition.max_time)
    return replace(
        whole,
        asks=tuple(f"{key}: {text.replace(',', ' or ')}" for key, text in words.items() if text),
        limits=f"its QOS {limits.name} has {limits.shown}" if limits and limits.shown else "",
        max_time=wall if shorter else partition.max_time,
        nodes=partition.node_count or len(own),
        hostlist=partition.nodes,
        foreign=tuple(foreign),
        groups=groups if len(groups) > 1 else (),
    )


def _alike(partition: PartitionRecord, nodes: Sequence[NodeRecord], gpus: _Gpus) -> LivePartition:
    """Nodes that have the same GPUs; the shape that most of them have."""
    shapes = Counter(map(_shape, nodes)) or {(1, 1, 1, 1, (), 1): 1}
    usual = max(shapes, key=lambda shape: shapes[shape])
    sockets, cores, threads, memory, features, usable = usual
    return LivePartition(
        name=partition.name,
        default=partition.default,
        nodes=len(nodes),
        hostlist=fold_hostlist(node.name for node in nodes),
        sockets=sockets,
        cores_per_socket=cores,
        threads_per_core=threads,
        memory_gb=memory,
        gpu_type=gpus[0],
        gpus_per_node=gpus[1],
        features=features,
        max_time=partition.max_time,
        odd_nodes=tuple(node.name for node in nodes if _shape(node) != usual),
        usable_cpus=usable,
    )


def _shape(node: NodeRecord) -> tuple[int, int, int, int, tuple[str, ...], int]:
    memory = max(1, node.memory_mb // 1000)
    cores = node.sockets, node.cores_per_socket, node.threads_per_core
    return (*cores, memory, node.features, node.usable_cpus or node.cpus)


def _mpi(default: str, plugins: Sequence[str]) -> str:
    """The plug-in jobs should use: PMIx where there is one, else Slurm's default."""
    if "pmix" in plugins:
        return "pmix"
    return next((name for name in plugins if name.startswith("pmix")), default or "none")


class Draft(NamedTuple):
    """A site file and what a person must still look at."""

    text: str
    questions: tuple[str, ...]


def draft(cluster: LiveCluster) -> Draft:
    """The commented site file of a cluster. Pure but for reading the template.

    Partitions without nodes are left out: no job could run there. So are names that no file takes.
    """
    parts = tuple(_drafted(part) for part in cluster.partitions if _is_usable(part))
    left_out = [
        (part.name.encode("ascii", "backslashreplace").decode(), part.nodes > 0)
        for part in cluster.partitions
        if not _is_usable(part)
    ]
    if not parts:
        raise MissingPrerequisite(
            "no partition of this Slurm has nodes", hint="ask again when nodes are configured"
        )
    cluster = replace(cluster, partitions=parts)
    groups = [
        (f"partitions.{part.name}" + (f".groups.{number}" if part.groups else ""), group)
        for part in cluster.partitions
        for number, group in enumerate(part.node_groups, 1)
    ]
    environment = templates("sites", trim_blocks=True, lstrip_blocks=True)
    text = environment.get_template("site.yaml.j2").render(
        cluster=cluster,
        left_out=left_out,
        model_of=model_of_type,
        may_be=may_be,
        typed=any(group.gpu_type for _, group in groups),
        known=sorted(facts.load("gpus")["gpus"]),
    )
    questions = [question for place, group in groups for question in _questions(place, group)]
    questions += [
        f"partitions.{part.name}: {out_of_scope(kind)}; it is drafted for CPU jobs"
        for part in cluster.partitions
        for kind in part.foreign
    ]
    return Draft(_sealed(text), tuple(questions))


def _is_usable(part: LivePartition) -> bool:
    return part.nodes > 0 and re.match(NAME, part.name) is not None


def _sealed(text: str) -> str:
    """A draft that ends with its own digest."""
    body = text.rstrip()
    return f"{body}\n\n{_SEAL}{sha256(body.encode()).hexdigest()[:16]}\n"


def is_unedited(text: str) -> bool:
    """Whether a file is an unedited draft of hpcdl: `site init` may replace it."""
    body, seal, _ = text.rpartition(f"\n\n{_SEAL}")
    return bool(seal) and _sealed(f"{body}\n") == text


def _drafted(part: LivePartition) -> LivePartition:
    """The partition without the slices that nodes have beside whole GPUs."""
    groups = part.main_groups
    if len(groups) == len(part.groups):
        return part
    some = groups[0]
    one = replace(some, nodes=part.nodes, hostlist=part.hostlist, foreign=part.foreign)
    slices = sorted({str(two.gpu_type) for two in part.groups if two not in groups})
    note = f"its nodes have slices of GPUs, too ({', '.join(slices)}): to use them, describe one"
    note += " as a model under `gpus` and give the partition groups"
    limits = "; ".join(filter(None, [part.limits, note]))
    return replace(one, groups=groups if len(groups) > 1 else (), limits=limits, asks=part.asks)


def _questions(place: str, group: LivePartition) -> Iterator[str]:
    kind = group.gpu_type
    if group.gpus_per_node and model_of_type(kind) is None:
        hint = _perhaps(kind or "")
        if kind and is_slice(kind):
            hint = ", a slice of a GPU (MIG): describe it as a model under `gpus`"
        type_name = f"'{kind}'" if kind else "no type"
        yield f"{place}.gpu.model: Slurm says {type_name}{hint}"
    if group.odd_nodes:
        names = ", ".join(group.odd_nodes[:5]) + (" ..." if len(group.odd_nodes) > 5 else "")
        yield f"{place}: nodes that differ from the others: {names}"


def _perhaps(kind: str) -> str:
    """The models that a type may mean: those of which it has the first word, or the nearest."""
    rows, words = facts.load("gpus")["gpus"], re.split(r"[-_ ]+", kind.casefold())
    alike = [name for name in rows if name.casefold().split("-")[0] in words]
    close = alike or list(filter(None, [nearest(kind, rows)]))
    return f", {one_of(close)}?" if close else ""


class Drift(NamedTuple):
    """One difference: the key of the site file, its value there, and the cluster's value."""

    key: str
    file: str
    cluster: str


def compare(site: Site, cluster: LiveCluster) -> tuple[Drift, ...]:
    """Return the differences of the site file and the live cluster, in the file's order. Pure."""
    live = {part.name: part for part in cluster.partitions}
    drifts = [*_slurm(site, cluster)]
    for name, part in site.partitions.items():
        key = f"partitions.{name}"
        if name not in live:
            drifts.append(Drift(key, "described", "no such partition"))
            continue
        here = live[name] if part.groups else _drafted(live[name])
        drifts += (_groups if part.groups or here.groups else _nodes)(key, part, here)
        if part.max_minutes > slurm_minutes(live[name].max_time):
            drifts.append(Drift(f"{key}.max_time", part.max_time, live[name].max_time))
    drifts += [
        Drift(f"partitions.{name}", "not described", f"{part.nodes} nodes")
        for name, part in live.items()
        if name not in site.partitions and _is_usable(part)
    ]
    return tuple(drifts)


def _slurm(site: Site, cluster: LiveCluster) -> Iterator[Drift]:
    if site.slurm.version != cluster.version:
        yield Drift("slurm.version", site.slurm.version, cluster.version)
    if site.slurm.mpi not in (*cluster.mpi_plugins, "none"):
        yield Drift("slurm.mpi", site.slurm.mpi, ", ".join(cluster.mpi_plugins))
    if site.slurm.accounting != cluster.accounting:
        on_off = ("off", "on")
        yield Drift("slurm.accounting", on_off[site.slurm.accounting], on_off[cluster.accounting])


def _groups(key: str, part: Partition, live: LivePartition) -> Iterator[Drift]:
    """Groups of nodes, each beside the one that has the same GPUs, or else the same nodes."""
    left = list(live.node_groups)
    for index, group in enumerate(part.node_groups):
        where = f"{key}.groups.{index + 1}" if part.groups else key
        twin = next((other for other in left if _same(group, other)), None)
        if twin is None:
            yield Drift(where, _words(group.nodes, group.gpus_per_node, _type(group)), "none such")
        else:
            left.remove(twin)
            yield from _nodes(where, group, twin)
    main = live.main_groups or (live,)
    for other in (other for other in left if other in main):
        description = _words(other.nodes, other.gpus_per_node, other.gpu_type)
        yield Drift(f"{key}.groups", "not described", f"{description}: {other.hostlist}")


def _same(group: Partition, live: LivePartition) -> bool:
    if group.hostlist and live.hostlist and not _hosts(group.hostlist) & _hosts(live.hostlist):
        return False
    return (_type(group), group.gpus_per_node) == (live.gpu_type, live.gpus_per_node)


def _type(group: Partition) -> str | None:
    return group.gpu.gres_type if group.gpu else None


def _hosts(hostlist: str) -> set[str]:
    return set(expand_hostlist(hostlist))


def _words(nodes: int, gpus: int, kind: str | None) -> str:
    return count_of(nodes, "node") + (f" x {gpus} {kind or 'untyped'}" if gpus else " without GPUs")


def _nodes(key: str, part: Partition, live: LivePartition) -> Iterator[Drift]:
    for name in ("nodes", "sockets", "cores_per_socket", "threads_per_core"):
        file, cluster = getattr(part, name), getattr(live, name)
        if file != cluster:
            yield Drift(f"{key}.{name}", str(file), str(cluster))
    if part.cpus > live.usable_cpus:
        yield Drift(f"{key}.usable_cpus", str(part.cpus), str(live.usable_cpus))
    if part.memory_gb > live.memory_gb:
        # Less than the cluster has is the site's choice; more makes every job pend for ever.
        yield Drift(f"{key}.memory_gb", f"{part.memory_gb:g}", str(live.memory_gb))
    if part.hostlist and _hosts(part.hostlist) != _hosts(live.hostlist):
        yield Drift(f"{key}.hostlist", part.hostlist, live.hostlist)
    if part.gpus_per_node != live.gpus_per_node:
        yield Drift(f"{key}.gpu.per_node", str(part.gpus_per_node), str(live.gpus_per_node))
    kind = _type(part)
    if kind and kind != live.gpu_type:
        yield Drift(f"{key}.gpu.gres_type", kind, live.gpu_type or "untyped")
    missing = sorted(set(part.features) - set(live.features))
    if missing:
        yield Drift(f"{key}.features", ", ".join(missing), ", ".join(live.features) or "none")
    if live.odd_nodes:
        yield Drift(f"{key}.nodes", "equal nodes", f"differing: {', '.join(live.odd_nodes[:5])}")
