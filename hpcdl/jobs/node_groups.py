"""Which nodes of a partition a job may have, where they differ, and how Slurm is told. Pure.

A job names a GPU model, or takes any where each of them could hold it alone. Slurm is told by the
type of the GPUs where that is enough, else by a feature of the nodes, else by naming the others.
"""

from __future__ import annotations

from collections.abc import Sequence

from hpcdl.jobs import quote
from hpcdl.site import Partition
from hpcdl.site.gpu_models import ask_for
from hpcdl.slurm.hostlist import expand_hostlist
from hpcdl.system.errors import BadInput


def selection(nodes: Partition, count: int) -> tuple[str, ...]:
    """The directives that keep a job of `count` nodes on these, beside its request for GPUs.

    `nodes` is a whole partition where any of its models will do: all of a job's nodes are then
    to be of one.

    Raises:
        BadInput: Slurm cannot be told that all are to be of one model.
    """
    if nodes.groups:
        return _all_alike(nodes) if count > 1 and len(nodes.gpu_models) > 1 else ()
    fellows = [fellow for fellow in nodes.fellows if fellow.gpu]
    if nodes.gpu is None or not fellows:
        return ()
    if nodes.gpu.gres_type and nodes.gpu.gres_type not in {
        fellow.gpu.gres_type for fellow in fellows if fellow.gpu
    }:
        return ()
    feature = _own_feature(nodes, nodes.fellows)
    if feature:
        return (f"--constraint={feature}",)
    own = set(expand_hostlist(nodes.hostlist or ""))
    others = ",".join(
        host
        for fellow in fellows
        for host in ([fellow.hostlist] if fellow.hostlist else [])
        if not own & set(expand_hostlist(host))
    )
    return (f"--exclude={quote.directive(others)}",) if others else ()


def _all_alike(partition: Partition) -> tuple[str, ...]:
    groups = partition.gpu_groups
    features = [_own_feature(group, group.fellows) for group in groups]
    if not all(features):
        raise BadInput(
            f"nodes of different GPUs of '{partition.name}' would train together",
            hint=ask_for(groups),
        )
    return (f"--constraint={quote.directive('[' + '|'.join(filter(None, features)) + ']')}",)


def _own_feature(nodes: Partition, others: Sequence[Partition]) -> str | None:
    """A feature that these nodes have and the others lack."""
    elsewhere = {feature for other in others for feature in other.features}
    return next((name for name in nodes.features if name not in elsewhere), None)
