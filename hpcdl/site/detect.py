"""`hpcdl site init`: a commented site.yaml from a live Slurm.

What Slurm cannot tell (paths, network, scratch, driver) is written as a comment to fill in;
what it leaves open about a GPU is named, so that no guess is published.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from hpcdl import facts
from hpcdl.site.gpu_models import is_slice, model_of_type, out_of_scope
from hpcdl.site.live import LiveCluster, LivePartition
from hpcdl.system.resources import templates
from hpcdl.system.text import nearest


@dataclass(frozen=True)
class Draft:
    """A site file and what a person must still look at."""

    text: str
    questions: tuple[str, ...]


def draft(cluster: LiveCluster) -> Draft:
    """The site file of a cluster. Pure but for reading the template."""
    typed = any(group.gpu_type for _, group in _all_groups(cluster))
    environment = templates("sites", trim_blocks=True, lstrip_blocks=True)
    text = environment.get_template("site.yaml.j2").render(
        cluster=cluster,
        model_of=model_of_type,
        typed=typed,
        known=sorted(facts.load("gpus")["gpus"]),
    )
    return Draft(text, tuple(_questions(cluster)))


def _all_groups(cluster: LiveCluster) -> Iterator[tuple[str, LivePartition]]:
    """Every group of equal nodes, and its place in the site file."""
    for part in cluster.partitions:
        for index, group in enumerate(part.node_groups):
            place = f"partitions.{part.name}"
            yield place + (f".groups.{index + 1}" if part.groups else ""), group


def _questions(cluster: LiveCluster) -> Iterator[str]:
    for place, group in _all_groups(cluster):
        if group.gpus_per_node and model_of_type(group.gpu_type) is None:
            said = f"'{group.gpu_type}'" if group.gpu_type else "no type"
            close = nearest(group.gpu_type or "", facts.load("gpus")["gpus"])
            hint = f", {close}?" if close else ""
            if group.gpu_type and is_slice(group.gpu_type):
                hint = ", a slice of a GPU (MIG): describe it as a model under `gpus`"
            yield f"{place}.gpu.model: Slurm says {said}{hint}"
        if group.odd_nodes:
            names = ", ".join(group.odd_nodes[:5]) + (" ..." if len(group.odd_nodes) > 5 else "")
            yield f"{place}: nodes that differ from the others: {names}"
    for part in cluster.partitions:
        for kind in part.foreign:
            yield f"partitions.{part.name}: {out_of_scope(kind)}; it is drafted for CPU jobs"
