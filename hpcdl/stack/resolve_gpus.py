"""What the GPUs of a partition ask of a stack beside their compute capability. Pure."""

from __future__ import annotations

from hpcdl import facts
from hpcdl.site import Gpu, Partition
from hpcdl.stack.resolve_solver import Condition, Rule
from hpcdl.stack.resolve_versions import Range, sort_key

_USUAL = "x86_64"


def by_model(partition: Partition) -> tuple[Partition, ...]:
    """A group of nodes for each GPU model of a partition, the oldest GPU first: it limits most."""
    models = {group.gpu and group.gpu.model: group for group in reversed(partition.gpu_groups)}
    return tuple(
        sorted(models.values(), key=lambda one: sort_key(one.gpu.compute if one.gpu else ""))
    )


def no_wheels(gpu: Gpu, backend: str) -> tuple[tuple[Rule, ...], ...]:
    """The chain of rules against wheels for a GPU whose CPUs have none; empty as a rule."""
    if gpu.figures.machine == _USUAL or backend != "venv":
        return ()
    row = facts.load("gpus")["machines"][gpu.figures.machine]
    wheel = next(one for one in row["wheels"] if one["package"] == "tensorflow")
    why = f"{gpu.model} stands beside {gpu.figures.machine} CPUs: {row['venv']}"
    need = Condition("tensorflow", Range(wheel["newest"]))
    return ((Rule((), need, why, wheel["source"], wheel["proof"], origin="offer"),),)


def notes(gpu: Gpu, backend: str) -> tuple[str, ...]:
    """What to know of a stack for a GPU beside other CPUs than usual."""
    if gpu.figures.machine == _USUAL or backend == "venv":
        return ()
    return (f"{facts.load('gpus')['machines'][gpu.figures.machine][backend]} [doubtful]",)
