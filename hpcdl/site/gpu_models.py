"""The groups of a partition's nodes that a GPU model names. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from hpcdl.results.gpus import Gpu, canonical
from hpcdl.site.model import Partition
from hpcdl.system.errors import BadInput
from hpcdl.system.text import count_of


def gres_type(partition: str, gpu: Mapping[str, Any], slurm: Mapping[str, Any]) -> str | None:
    """Return Slurm's type of the GPUs; None if they have no type."""
    typed = gpu.get("typed")
    typed = slurm.get("gpu_typed", True) if typed is None else typed
    return (gpu.get("gres_type") or partition) if typed else None


def matches(gpu: Gpu, asked: str) -> bool:
    """Whether `model` is this GPU's name, an alias, or Slurm's type."""
    words = gpu.model.casefold().split("-")  # `a100` and `a100-sxm4` of A100-SXM4-40GB, too
    names = {"-".join(words[:end]) for end in range(1, len(words) + 1)}
    own = {gpu.model.casefold(), (gpu.gres_type or gpu.model).casefold()}
    return asked.casefold() in names | own or canonical(asked).casefold() in own


def groups_for(partition: Partition, model: str | None) -> tuple[Partition, ...]:
    """The groups of equal nodes that a job for this GPU model (None: any) may have."""
    groups = partition.gpu_groups
    if model is None:
        return groups
    if partition.gpu is None:
        raise BadInput(f"partition '{partition.name}' has no GPUs", hint="leave out --gpu-model")
    found = tuple(group for group in groups if group.gpu and matches(group.gpu, model))
    if not found:
        message = f"no node of '{partition.name}' has the GPU model '{model[:60]}'"
        raise BadInput(message, hint=ask_for(groups))
    return found


def one_group(partition: Partition, model: str | None) -> Partition:
    """The first group of a model; BadInput: no node has it, or none is named of several."""
    found = groups_for(partition, model)
    if model is None and len(partition.gpu_models) > 1:
        raise BadInput(f"'{partition.name}' has several GPU models", hint=ask_for(found))
    return found[0]


def ask_for(groups: Iterable[Partition]) -> str:
    """Return the choices: `--gpu-model A100-PCIe-40GB (4 nodes x 4), or --gpu-model ...`."""
    return "ask for " + ", or ".join(
        f"--gpu-model {group.gpu.model} ({count_of(group.nodes, 'node')} x {group.gpu.per_node})"
        for group in groups
        if group.gpu
    )
