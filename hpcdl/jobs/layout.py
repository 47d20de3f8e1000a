"""From what is asked and the partition to nodes, tasks, CPUs and memory. Pure.

One rank per GPU. CPUs and memory follow from a rank's share of its node. What does not fit is
refused with what would. Where nodes differ a job names a GPU model, or takes any where each of them
could hold it alone.
"""

from __future__ import annotations

from dataclasses import replace

from hpcdl.jobs.spec import DEFAULT_MINUTES, LAUNCHERS, JobSpec, is_train
from hpcdl.results.gpus import ask_for, groups_for
from hpcdl.site import Partition, Site
from hpcdl.slurm.fits import Cluster, NodeKind, PartitionLimits, ResourceRequest, misfits
from hpcdl.slurm.hostlist import expand_hostlist
from hpcdl.slurm.options import walltime
from hpcdl.system.errors import BadInput
from hpcdl.system.frozen import dataclass
from hpcdl.system.text import count_of, one_of, sbatch_value


@dataclass(frozen=True)
class Layout:
    """The layout of a job on its nodes. Memory in MB per node; 0 means the whole node's.

    `by_socket` is whether the ranks fill one socket after another, as GPUs are numbered:
    each rank's CPUs and memory are then near its GPU.
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


def plan_on(site: Site, spec: JobSpec) -> tuple[Partition, Layout]:
    """The nodes that a job is for, and its layout on them.

    The nodes are the partition, or a group of equal nodes of it; the whole of a partition of
    several GPU models means that any of them may run the job.

    Raises BadInput: the site does not have it, or no node can hold it.
    """
    partition = site.partition(spec.partition)
    groups = groups_for(partition, spec.gpu_model)
    layouts: list[tuple[Partition, Layout]] = []
    refused = BadInput("")
    for group in groups:
        try:
            layouts.append((group, _lay_out(site, group, spec)))
        except BadInput as fault:
            refused = fault
    if spec.gpu_model is not None or len(partition.gpu_models) < 2:
        if not layouts:
            raise refused
        return layouts[0]
    fitting = [group for group, _ in layouts]
    if {group.gpu and group.gpu.model for group in fitting} != set(partition.gpu_models):
        which = "not every" if fitting else "no"
        message = f"{which} GPU model of '{partition.name}' can hold this job: {refused.message}"
        raise BadInput(message, hint=ask_for(fitting or groups))
    layout = _lay_out(site, partition, spec)
    selection(partition, layout.nodes)
    return partition, layout


def selection(nodes: Partition, count: int) -> tuple[str, ...]:
    """The directives that keep a job of `count` nodes on these, beside its request for GPUs.

    The type of the GPUs is enough where they have one of their own, else a feature of the nodes
    tells, else the others are named. `nodes` is a whole partition where any of its models will
    do: all of a job's nodes are then to be of one.

    Raises BadInput: no option of Slurm asks for nodes of one model only.
    """
    if nodes.groups:
        return _all_alike(nodes) if count > 1 and len(nodes.gpu_models) > 1 else ()
    others = [(fellow, fellow.gpu.gres_type) for fellow in nodes.fellows if fellow.gpu]
    kind = nodes.gpu.gres_type if nodes.gpu else None
    if nodes.gpu is None or not others or (kind and kind not in [one for _, one in others]):
        return ()
    if feature := _own_feature(nodes):
        return (f"--constraint={feature}",)
    own = set(expand_hostlist(nodes.hostlist or ""))
    lists = [fellow.hostlist for fellow, _ in others if fellow.hostlist]
    apart = ",".join(hosts for hosts in lists if not own & set(expand_hostlist(hosts)))
    return (f"--exclude={sbatch_value(apart)}",) if apart else ()


def _all_alike(partition: Partition) -> tuple[str, ...]:
    features = [_own_feature(group) for group in partition.gpu_groups]
    if not all(features):
        message = f"nodes of different GPUs of '{partition.name}' would train together"
        raise BadInput(message, hint=ask_for(partition.gpu_groups))
    return (f"--constraint={sbatch_value('[' + '|'.join(filter(None, features)) + ']')}",)


def _own_feature(nodes: Partition) -> str | None:
    """A feature that these nodes have and the partition's others lack."""
    elsewhere = {feature for other in nodes.fellows for feature in other.features}
    return next((name for name in nodes.features if name not in elsewhere), None)


def _lay_out(site: Site, partition: Partition, spec: JobSpec) -> Layout:
    """The layout on equal nodes, or on what all nodes of a partition have at least."""
    spec = _spread(partition, spec)
    nodes, gpus = _nodes_and_gpus(site, partition, spec)
    tasks = _tasks_per_node(spec, gpus)
    cpus = _cpus_per_task(partition, spec, tasks, gpus)
    row = LAUNCHERS[spec.launcher]
    if row.agent:  # one on each node, with the CPUs of all its workers
        tasks, cpus = 1, tasks * cpus
    # What a rank has one of decides: GPUs, or CPUs where there are none.
    taken, there = tasks * cpus, partition.cpus
    if partition.gpu:
        taken, there = gpus, partition.gpus_per_node
    # Where nodes differ, all of one may be half of another.
    whole = taken == there and not partition.groups
    # Its servers would serve everybody who runs on its nodes.
    alone = spec.trusted_network or row.server
    if alone and not site.slurm.exclusive:
        message = (
            f"'{site.name}' cannot give a job exclusive nodes, which TensorFlow's server needs"
        )
        raise BadInput(message, hint="use --launcher horovod")
    if row.one_process and nodes > 1:
        message = f"the launcher '{row.name}' runs one process, not one on each of {nodes} nodes"
        raise BadInput(message, hint="leave --nodes out, or use another --launcher")
    share = 0 if whole else max(1, int(partition.memory_gb * 1000 * taken / there))
    if spec.mem_per_gpu and not gpus:
        raise BadInput("mem_per_gpu without GPUs", hint="use --mem, or mem_per_cpu")
    # MB of each node that the job asks for; 0 where it leaves that open.
    per_task = (spec.mem_per_cpu or 0) * tasks * cpus + (spec.mem_per_gpu or 0) * gpus
    memory = spec.mem or per_task
    layout = Layout(
        nodes=nodes,
        tasks_per_node=tasks,
        cpus_per_task=cpus,
        gpus_per_node=gpus,
        memory_mb=memory or share,
        exclusive=site.slurm.exclusive and (whole or alone),
        minutes=spec.minutes or min(DEFAULT_MINUTES, partition.max_minutes),
        by_socket=whole and _fills_sockets(partition, tasks, cpus),
    )
    _check_fits(site, partition, layout, memory)
    return layout


def _check_fits(site: Site, partition: Partition, layout: Layout, memory: int) -> None:
    """Raise BadInput for all that the nodes cannot give, with what they can."""
    tasks, cpus, gpus = layout.tasks_per_node, layout.cpus_per_task, layout.gpus_per_node
    kind = (partition.gpu.gres_type or "") if partition.gpu else ""
    request = ResourceRequest(
        nodes=layout.nodes,
        tasks_per_node=tasks,
        cpus_per_task=cpus,
        gpus_per_node=((kind, gpus),) if gpus else (),
        memory_mb=memory,
        minutes=layout.minutes,
    )
    total = layout.nodes * gpus
    fewer = f"ask for at most --cpus-per-task {partition.cpus // tasks}"
    most = int(partition.memory_gb * 1000)
    others = [p.name for p in site.partitions.values() if p.nodes >= layout.nodes and not p.gpu]
    more = f"; with {layout.nodes} nodes: {', '.join(others)}" if others else ""
    fewer_nodes = f"ask for at most --nodes {partition.nodes}{more}"
    asked = {
        "minutes": (
            f"--time {walltime(layout.minutes)}",
            "ask for less; submitted again, a job resumes from its last checkpoint",
        ),
        "nodes": (
            f"{layout.nodes} with {total} GPUs" if gpus else str(layout.nodes),
            _what_fits(site, partition, total) if gpus else fewer_nodes,
        ),
        "gpus_per_node": (str(gpus), _what_fits(site, partition, gpus) if gpus else ""),
        "cpus_per_task": (
            f"{tasks * cpus} ({tasks} x {cpus})",
            fewer if tasks <= partition.cpus else "ask for fewer tasks per node, on more nodes",
        ),
        "memory_mb": (f"{memory:,}", f"ask for at most --mem {most}M"),
    }
    found = {misfit.fields[0]: misfit.why for misfit in misfits(request, limits_of(partition))}
    if "gpus_per_node" in found:  # a rank's CPUs follow from its GPU
        found.pop("cpus_per_task", None)
    refused = [(f"{why}, not {asked[field][0]}", asked[field][1]) for field, why in found.items()]
    if len(refused) == 1:
        raise BadInput(refused[0][0], hint=refused[0][1])
    if refused:
        details = ["; ".join(filter(None, pair)) for pair in refused]
        message, hint = f"the job does not fit '{partition.name}'", "correct all of these"
        raise BadInput(message, details=details, hint=hint)


def _spread(partition: Partition, spec: JobSpec) -> JobSpec:
    """The job with `--tasks` as nodes and ranks on each: as few nodes as hold them, all alike."""
    if spec.tasks is None:
        return spec
    if partition.gpu and LAUNCHERS[spec.launcher].gpu_each:
        hint = "use --gpus N; or --launcher plain or mpi, whose processes do not each need a GPU"
        raise BadInput(f"--tasks on '{partition.name}': a rank has one GPU", hint=hint)
    cpus = spec.cpus_per_task or partition.threads_per_core
    most = spec.tasks_per_node or partition.cpus // cpus
    least = -(-spec.tasks // max(1, most))
    for nodes in range(least, partition.nodes + 1):
        each, rest = divmod(spec.tasks, nodes)
        if not rest and spec.nodes in {None, nodes} and spec.tasks_per_node in {None, each}:
            return replace(spec, nodes=nodes if nodes > 1 else spec.nodes, tasks_per_node=each)
    where = count_of(spec.nodes, "node") if spec.nodes else f"the nodes of '{partition.name}'"
    raise BadInput(
        f"{spec.tasks} tasks cannot be spread evenly over {where}",
        hint=f"'{partition.name}' has {partition.nodes} nodes that hold {most} tasks each; "
        "every node gets as many",
    )


def _fills_sockets(partition: Partition, tasks: int, cpus: int) -> bool:
    """Whether equal groups of ranks fill the sockets of a node that has several.

    Only then is it known which socket a rank should have: a step that leaves CPUs idle would
    crowd onto the first ones, and a rank across two sockets has no place of its own.
    """
    if partition.gpu is None or partition.sockets < 2 or tasks % partition.sockets:
        return False
    return tasks * cpus == partition.cpus and tasks == partition.gpus_per_node


def _nodes_and_gpus(site: Site, partition: Partition, spec: JobSpec) -> tuple[int, int]:
    if partition.gpu is None:
        if spec.gpus or spec.gpus_per_node:
            names = [part.name for part in site.partitions.values() if part.gpu]
            hint = f"partitions with GPUs: {', '.join(names)}" if names else "this site has no GPUs"
            raise BadInput(f"partition '{partition.name}' has no GPUs", hint=hint)
        return spec.nodes or 1, 0
    there = partition.gpus_per_node
    if spec.gpus is None:
        nodes = spec.nodes or 1
        each = spec.gpus_per_node or (there if spec.nodes else 1)
    elif spec.gpus_per_node or spec.nodes:
        nodes = spec.nodes or max(1, spec.gpus // (spec.gpus_per_node or 1))
        each = spec.gpus_per_node or spec.gpus // nodes
        if nodes * each != spec.gpus:
            message = f"--gpus {spec.gpus} cannot be spread evenly over {count_of(nodes, 'node')}"
            if spec.gpus_per_node:
                message += f" of {spec.gpus_per_node} GPUs"
            raise BadInput(message, hint="give --gpus alone, or --nodes and --gpus-per-node")
    else:
        each = min(spec.gpus, there)
        nodes = spec.gpus // each
        if spec.gpus % each:
            raise BadInput(
                f"{spec.gpus} GPUs do not fill whole nodes: '{partition.name}' has {there} per "
                "node",
                hint=_what_fits(site, partition, spec.gpus),
            )
    return nodes, each


def _what_fits(site: Site, partition: Partition, gpus: int) -> str:
    """The nearest layouts to `gpus` GPUs that the partition can hold, and partitions that do."""
    per_node, choices = partition.gpus_per_node, []
    for nodes in range(2, partition.nodes + 1):
        if gpus % nodes == 0 and gpus // nodes <= per_node:
            each = gpus // nodes
            choices = [f"{nodes} nodes x {each} (--nodes {nodes} --gpus-per-node {each})"]
            break
    up, most = -(-gpus // per_node) * per_node, per_node * partition.nodes
    choices.append(f"--gpus {up}" if up <= most else f"at most --gpus {most}, all of the partition")
    others = [
        part.name
        for part in site.partitions.values()
        if part.name != partition.name and any(_holds(group, gpus) for group in part.node_groups)
    ]
    choices += [f"--partition {one_of(others)}"] if others else []
    fellows = [fellow for fellow in partition.fellows if _holds(fellow, gpus)]
    choices += [f"--gpu-model {fellow.gpu.model}" for fellow in fellows if fellow.gpu]
    return "ask for " + ", or ".join(choices)


def _holds(partition: Partition, gpus: int) -> bool:
    """Whether `--gpus` alone fits: a part of a node, or whole ones."""
    there = partition.gpus_per_node
    return gpus <= there or (gpus <= there * partition.nodes and gpus % there == 0)


def _tasks_per_node(spec: JobSpec, gpus: int) -> int:
    if LAUNCHERS[spec.launcher].one_process:
        return 1
    tasks = spec.tasks_per_node or gpus or 1
    if gpus and tasks != gpus and LAUNCHERS[spec.launcher].gpu_each:
        raise BadInput(
            f"`tasks_per_node` {tasks} with {gpus} GPUs per node: a rank has one GPU",
            hint="leave `tasks_per_node` out on a GPU partition",
        )
    return tasks


def _cpus_per_task(partition: Partition, spec: JobSpec, tasks: int, gpus: int) -> int:
    """A rank's CPUs: what is asked for, else its share of the node, in whole cores."""
    plain = partition.gpu is None and not is_train(spec.program)
    if spec.cpus_per_task is None and plain and not (spec.nodes or spec.tasks_per_node):
        return 1  # a program for CPUs that asks for nothing gets what plain sbatch would give it
    if spec.cpus_per_task is None:
        taken, there = (gpus, partition.gpus_per_node) if partition.gpu else (1, 1)
        cores = partition.usable_cores * taken // there // tasks
        share = max(1, partition.cpus * taken // there // tasks)
        return cores * partition.threads_per_core or share
    return spec.cpus_per_task


# ---- the limits of a site's partitions, for the check of requests (hpcdl.slurm.fits) ----


def limits_of(partition: Partition) -> PartitionLimits:
    """Return the limits of a partition of the site file."""
    kinds = []
    for group in partition.node_groups:
        gpus = {group.gpu.gres_type or "": group.gpu.per_node} if group.gpu else {}
        # Slurm counts a GB as 1024 MB; figures of site files are rounded.
        memory, features = int(group.memory_gb * 1024), frozenset(group.features) or None
        kinds.append(NodeKind(group.nodes, group.cpus, memory, gpus, features))
    return PartitionLimits(partition.name, tuple(kinds), partition.max_minutes)


def cluster_of(site: Site) -> Cluster:
    """Return the cluster that a site file describes."""
    return Cluster(
        where=f"'{site.name}'",
        partitions=frozenset(site.partitions),
        plugin_options=frozenset(site.slurm.plugin_options) or None,
        settings={
            "SelectType": f"select/{site.slurm.select or ''}",
            "TaskPlugin": ",".join(site.slurm.task_plugins),
        },
        limits={name: limits_of(partition) for name, partition in site.partitions.items()},
    )
