"""From what is asked and the partition to nodes, tasks, CPUs and memory. Pure.

One rank per GPU. CPUs and memory follow from a rank's share of its node. What does not fit is
refused with what would.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from hpcdl.jobs.node_groups import selection
from hpcdl.jobs.spec import DEFAULT_MINUTES, JobSpec
from hpcdl.site import Partition, Site
from hpcdl.site.gpu_models import ask_for, groups_for
from hpcdl.system.errors import BadInput
from hpcdl.system.text import count_of, one_of

# Whose ranks need no GPU each.
_TASKS_BESIDE_GPUS = frozenset({"plain", "mpi"})


@dataclass(frozen=True)
class Layout:
    """How a job lies on its nodes. Memory in MB per node; 0 means the whole node's.

    `by_socket` is whether the ranks fill the sockets one after the other, as GPUs are numbered:
    each rank's CPUs and memory then lie beside its GPU.
    """

    nodes: int
    tasks_per_node: int
    cpus_per_task: int
    gpus_per_node: int
    memory_mb: int
    exclusive: bool
    minutes: int
    by_socket: bool = False

    @property
    def world_size(self) -> int:
        """Ranks in all."""
        return self.nodes * self.tasks_per_node


def plan_layout(site: Site, spec: JobSpec) -> Layout:
    """The layout of a job.

    Raises:
        BadInput: unknown partition, or a request that its nodes cannot hold.
    """
    return plan_on(site, spec)[1]


def plan_on(site: Site, spec: JobSpec) -> tuple[Partition, Layout]:
    """The nodes that a job is for, and its layout on them.

    The nodes are the partition, or a group of equal nodes of it; the whole of a partition of
    several GPU models means that any of them may run the job.

    Raises:
        BadInput: unknown partition or GPU model, or a request that no node can hold.
    """
    partition = site.partition(spec.partition)
    groups = groups_for(partition, spec.gpu_model)
    found: list[tuple[Partition, Layout]] = []
    faults: list[BadInput] = []
    for group in groups:
        try:
            found.append((group, _lay_out(site, group, spec)))
        except BadInput as fault:
            faults.append(fault)
    models = {group.gpu.model for group in groups if group.gpu}
    if spec.gpu_model is None and len(models) > 1:
        return _on_any(site, partition, spec, [group for group, _ in found], faults)
    if not found:
        raise faults[-1]
    return found[0]


def _on_any(
    site: Site,
    partition: Partition,
    spec: JobSpec,
    fitting: list[Partition],
    faults: list[BadInput],
) -> tuple[Partition, Layout]:
    """A job that names none of several GPU models: each of them must be able to hold it."""
    if not fitting:
        raise BadInput(
            f"no GPU model of '{partition.name}' can hold this job: {faults[-1].message}",
            hint=ask_for(groups_for(partition, None)),
        )
    if {group.gpu and group.gpu.model for group in fitting} != set(partition.gpu_models):
        raise BadInput(
            f"not every GPU model of '{partition.name}' can hold this job: {faults[-1].message}",
            hint=ask_for(fitting),
        )
    layout = _lay_out(site, partition, spec)
    selection(partition, layout.nodes)
    return partition, layout


def _lay_out(site: Site, partition: Partition, spec: JobSpec) -> Layout:
    """The layout on equal nodes, or on what all nodes of a partition have at least."""
    spec = _spread(partition, spec)
    nodes, gpus = _nodes_and_gpus(site, partition, spec)
    tasks = _tasks_per_node(partition, spec, gpus)
    cpus = _cpus_per_task(partition, spec, tasks, gpus)
    if spec.launcher == "torchrun":  # one agent, with the CPUs of all its workers
        tasks, cpus = 1, tasks * cpus
    # What a rank has one of decides: GPUs, or CPUs where there are none.
    taken, there = (
        (gpus, partition.gpus_per_node) if partition.gpu else (tasks * cpus, partition.cpus)
    )
    # Where nodes differ, all of one may be half of another.
    whole = taken == there and not partition.groups
    _check_nodes(site, partition, nodes, gpus)
    if _needs_nodes_alone(spec) and not site.slurm.exclusive:
        raise BadInput(
            f"'{site.name}' gives no nodes for one job alone, which TensorFlow's server needs",
            hint="use --launcher horovod",
        )
    if spec.launcher == "single" and nodes > 1:
        raise BadInput(
            f"the launcher 'single' runs one process, not one on each of {nodes} nodes",
            hint="leave --nodes out, or use another --launcher",
        )
    return Layout(
        nodes=nodes,
        tasks_per_node=tasks,
        cpus_per_task=cpus,
        gpus_per_node=gpus,
        memory_mb=_memory(partition, spec, tasks * cpus, gpus)
        or (0 if whole else max(1, int(partition.memory_gb * 1000 * taken / there))),
        exclusive=site.slurm.exclusive and (whole or _needs_nodes_alone(spec)),
        minutes=_minutes(partition, spec),
        by_socket=whole and _fills_sockets(partition, tasks, cpus),
    )


def _spread(partition: Partition, spec: JobSpec) -> JobSpec:
    """The job with `--tasks` as nodes and ranks on each: as few nodes as hold them, all alike."""
    if spec.tasks is None:
        return spec
    if partition.gpu and spec.launcher not in _TASKS_BESIDE_GPUS:
        raise BadInput(
            f"--tasks on '{partition.name}': a rank has one GPU",
            hint="use --gpus N; or --launcher plain or mpi, whose processes need no GPU each",
        )
    most = spec.tasks_per_node or partition.cpus // (
        spec.cpus_per_task or partition.threads_per_core
    )
    least = -(-spec.tasks // max(1, most))
    counts = [n for n in range(least, partition.nodes + 1) if spec.tasks % n == 0]
    if spec.nodes:
        counts = [n for n in counts if n == spec.nodes]
    if spec.tasks_per_node:
        counts = [n for n in counts if n * spec.tasks_per_node == spec.tasks]
    if not counts:
        raise BadInput(
            f"{spec.tasks} tasks cannot lie evenly on "
            + (f"{spec.nodes} nodes" if spec.nodes else f"the nodes of '{partition.name}'"),
            hint=f"'{partition.name}' has {partition.nodes} nodes that hold {most} tasks each; "
            "every node gets as many",
        )
    nodes = counts[0]
    return replace(
        spec,
        nodes=nodes if nodes > 1 else spec.nodes,
        tasks_per_node=spec.tasks // nodes,
    )


def _memory(partition: Partition, spec: JobSpec, cpus: int, gpus: int) -> int:
    """MB of each node that the job asks for; 0 where it leaves that open."""
    if spec.memory is None:
        return 0
    if spec.memory.per == "gpu" and not gpus:
        raise BadInput("--mem-per-gpu without GPUs", hint="use --mem or --mem-per-cpu")
    total = spec.memory.mb * {"node": 1, "cpu": cpus, "gpu": gpus}[spec.memory.per]
    most = int(partition.memory_gb * 1000)
    if total > most:
        raise BadInput(
            f"{total:,} MB per node is more than the {most:,} MB of a node of '{partition.name}'",
            hint=f"ask for at most --mem {most}M",
        )
    return total


def _needs_nodes_alone(spec: JobSpec) -> bool:
    """Whether its servers would serve everybody who runs on its nodes."""
    return spec.trusted_network or spec.launcher == "multiworker"


def _fills_sockets(partition: Partition, tasks: int, cpus: int) -> bool:
    """Whether equal groups of ranks fill the sockets of a node that has several.

    Only then is it known which socket a rank should have: a step that leaves CPUs idle would
    crowd onto the first ones, and a rank across two sockets has no place of its own.
    """
    if partition.gpu is None or partition.sockets < 2 or tasks % partition.sockets:
        return False
    return tasks * cpus == partition.cpus and tasks == partition.gpus_per_node


def _nodes_and_gpus(site: Site, partition: Partition, spec: JobSpec) -> tuple[int, int]:
    """Nodes, and GPUs on each."""
    if partition.gpu is None:
        if spec.gpus or spec.gpus_per_node:
            raise BadInput(f"partition '{partition.name}' has no GPUs", hint=_gpu_partitions(site))
        return spec.nodes or 1, 0
    per_node = partition.gpus_per_node
    if spec.gpus is None:
        gpus = spec.gpus_per_node or (per_node if spec.nodes else 1)
        return spec.nodes or 1, _at_most(site, gpus, partition)
    if spec.gpus_per_node or spec.nodes:
        return _agreeing(site, partition, spec)
    if spec.gpus <= per_node:
        return 1, spec.gpus
    if spec.gpus % per_node:
        raise BadInput(
            f"{spec.gpus} GPUs do not fill whole nodes: '{partition.name}' has {per_node} per node",
            hint=_what_fits(site, partition, spec.gpus),
        )
    return spec.gpus // per_node, per_node


def _agreeing(site: Site, partition: Partition, spec: JobSpec) -> tuple[int, int]:
    """Nodes and GPUs per node where --gpus is given with one or both of the others."""
    assert spec.gpus is not None
    nodes = spec.nodes or max(1, spec.gpus // (spec.gpus_per_node or 1))
    per_node = spec.gpus_per_node or spec.gpus // nodes
    if nodes * per_node != spec.gpus:
        raise BadInput(
            f"--gpus {spec.gpus} is not {nodes} nodes x {per_node} GPUs",
            hint="give --gpus alone, or --nodes and --gpus-per-node",
        )
    return nodes, _at_most(site, per_node, partition)


def _at_most(site: Site, gpus: int, partition: Partition) -> int:
    if gpus > partition.gpus_per_node:
        raise BadInput(
            f"'{partition.name}' has {partition.gpus_per_node} GPUs per node, not {gpus}",
            hint=_what_fits(site, partition, gpus),
        )
    return gpus


def _what_fits(site: Site, partition: Partition, gpus: int) -> str:
    """The nearest layouts to `gpus` GPUs that the partition can hold, and partitions that do."""
    per_node = partition.gpus_per_node
    even = [n for n in range(2, partition.nodes + 1) if gpus % n == 0 and gpus // n <= per_node]
    up = -(-gpus // per_node) * per_node
    choices = [f"{even[0]} nodes x {gpus // even[0]} (--nodes {even[0]} "
               f"--gpus-per-node {gpus // even[0]})"] if even else []  # fmt: skip
    if up <= per_node * partition.nodes:
        choices.append(f"--gpus {up}")
    else:
        choices.append(f"at most --gpus {per_node * partition.nodes}, all of the partition")
    others = [
        p.name
        for p in site.partitions.values()
        if p.name != partition.name and any(_holds(group, gpus) for group in p.node_groups)
    ]
    if others:
        choices.append(f"--partition {one_of(others)}")
    choices += [
        f"--gpu-model {fellow.gpu.model}"
        for fellow in partition.fellows
        if fellow.gpu and _holds(fellow, gpus)
    ]
    return "ask for " + ", or ".join(choices)


def _holds(partition: Partition, gpus: int) -> bool:
    """Whether `--gpus` alone fits the partition."""
    per_node = partition.gpus_per_node
    if gpus <= per_node:
        return True
    return per_node > 0 and gpus % per_node == 0 and gpus <= per_node * partition.nodes


def _gpu_partitions(site: Site) -> str:
    names = [p.name for p in site.partitions.values() if p.gpu]
    return f"partitions with GPUs: {', '.join(names)}" if names else "this site has no GPUs"


def _tasks_per_node(partition: Partition, spec: JobSpec, gpus: int) -> int:
    if spec.launcher == "single":
        return 1
    tasks = spec.tasks_per_node or gpus or 1
    if gpus and tasks != gpus and spec.launcher not in _TASKS_BESIDE_GPUS:
        raise BadInput(
            f"--tasks-per-node {tasks} with {gpus} GPUs per node: a rank has one GPU",
            hint="leave --tasks-per-node out on a GPU partition",
        )
    if tasks > partition.cpus:
        said = f"'{partition.name}' has {partition.cpus} CPUs per node, not {tasks}"
        raise BadInput(said, hint="ask for fewer tasks per node, on more nodes")
    return tasks


def _cpus_per_task(partition: Partition, spec: JobSpec, tasks: int, gpus: int) -> int:
    """A rank's CPUs: what is asked for, else its share of the node, in whole cores."""
    if spec.cpus_per_task is None:
        taken, there = (gpus, partition.gpus_per_node) if partition.gpu else (1, 1)
        cores = partition.cores * taken // there // tasks
        share = max(1, partition.cpus * taken // there // tasks)
        return cores * partition.threads_per_core or share
    if spec.cpus_per_task * tasks > partition.cpus:
        raise BadInput(
            f"{tasks} ranks x {spec.cpus_per_task} CPUs is more than the {partition.cpus} CPUs "
            f"of a node of '{partition.name}'",
            hint=f"ask for at most --cpus-per-task {partition.cpus // tasks}",
        )
    return spec.cpus_per_task


def _check_nodes(site: Site, partition: Partition, nodes: int, gpus: int) -> None:
    if nodes <= partition.nodes:
        return
    if gpus:
        there = partition.nodes * partition.gpus_per_node
        raise BadInput(
            f"'{partition.name}' has {count_of(partition.nodes, 'node')} with {there} GPUs in all, "
            f"not {nodes} with {nodes * gpus}",
            hint=_what_fits(site, partition, nodes * gpus),
        )
    others = [p.name for p in site.partitions.values() if p.nodes >= nodes and not p.gpu]
    more = f"; with {nodes} nodes: {', '.join(others)}" if others else ""
    raise BadInput(
        f"'{partition.name}' has {count_of(partition.nodes, 'node')}, not {nodes}",
        hint=f"ask for at most --nodes {partition.nodes}{more}",
    )


def _minutes(partition: Partition, spec: JobSpec) -> int:
    if spec.minutes is None:
        return min(DEFAULT_MINUTES, partition.max_minutes)
    if spec.minutes > partition.max_minutes:
        raise BadInput(
            f"--time is beyond the limit of '{partition.name}', {partition.max_time}",
            hint="ask for less; submitted again, a job resumes from its last checkpoint",
        )
    return spec.minutes
