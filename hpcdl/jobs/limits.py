"""The limits of a site's partitions, for the check of requests (hpcdl.slurm.fits)."""

from __future__ import annotations

from hpcdl.site import Partition, Site
from hpcdl.slurm.fits import Cluster, NodeKind, PartitionLimits


def limits_of(partition: Partition) -> PartitionLimits:
    """Return the limits of a partition of the site file."""
    return PartitionLimits(
        partition.name, tuple(map(_kind, partition.node_groups)), partition.max_minutes
    )


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


def _kind(group: Partition) -> NodeKind:
    gpus = {group.gpu.gres_type or "": group.gpu.per_node} if group.gpu else {}
    features = frozenset(group.features) if group.features else None
    # Slurm counts a GB as 1024 MB; figures of site files are rounded.
    return NodeKind(group.nodes, group.cpus, int(group.memory_gb * 1024), gpus, features)
