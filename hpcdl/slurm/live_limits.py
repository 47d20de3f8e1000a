"""The limits of the Slurm on PATH, for the check of requests (hpcdl.slurm.fits)."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

from hpcdl.slurm import client, parse
from hpcdl.slurm.fits import Cluster, NodeKind, PartitionLimits
from hpcdl.slurm.time_limit import slurm_minutes
from hpcdl.system.errors import HpcdlError


def live_cluster() -> Cluster:
    """Return the partitions, names and settings of the Slurm on PATH.

    Raises MissingPrerequisite: there is none, or it does not answer.
    """
    config, nodes, partitions = client.config(), client.nodes(), client.partitions()
    mpi = _mpi()
    return Cluster(
        where=f"'{config['ClusterName'].split()[0]}'",
        partitions=frozenset(partition.name for partition in partitions),
        plugin_options=frozenset(client.plugin_options()),
        settings=config,
        limits={
            partition.name: _limits(partition, nodes, config, mpi)
            for partition in partitions
            if partition.node_count
        },
        default=next((partition.name for partition in partitions if partition.default), ""),
    )


def _limits(
    partition: parse.PartitionRecord,
    nodes: Sequence[parse.NodeRecord],
    config: dict[str, str],
    mpi: tuple[str, ...] | None,
) -> PartitionLimits:
    own = Counter(map(_kind, (node for node in nodes if partition.name in node.partitions)))
    size = re.match(r"\d+", config.get("MaxArraySize", ""))
    return PartitionLimits(
        partition.name,
        tuple(
            NodeKind(count, cpus, memory, dict(gpus), features)
            for (cpus, memory, gpus, features), count in own.items()
        ),
        None if partition.max_time == "UNLIMITED" else slurm_minutes(partition.max_time),
        arrays=int(size[0]) if size else None,
        mpi=mpi,
    )


def _kind(node: parse.NodeRecord) -> tuple[int, int, tuple[tuple[str, int], ...], frozenset[str]]:
    """Return the key by which nodes are equal for a job: CPUs and MB for jobs, GPUs, features."""
    gpus = tuple((kind or "", count) for kind, count in node.gpus)
    return node.cpus, node.memory_mb, gpus, frozenset(node.features)


def _mpi() -> tuple[str, ...] | None:
    """The plug-ins of `srun --mpi=`; None where srun does not list them."""
    try:
        return client.mpi_plugins()
    except HpcdlError:
        return None
