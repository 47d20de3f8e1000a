"""GPU models by name: rows of facts/gpus.yaml, changed by a site's own rows. Pure.

A model is named as people write it: by its row, an alias, or Slurm's type for it, whatever the
case. A row of the site overrides that of the facts, key by key; a figure that neither has is
absent, and whoever needs it says so. A name that a user gives means groups of a partition's nodes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, Protocol, TypeVar

from hpcdl import facts
from hpcdl.system.errors import BadInput
from hpcdl.system.text import count_of, did_you_mean

Row = dict[str, Any]
_NONE: Mapping[str, Row] = {}
NVIDIA = "nvidia"
_MAKERS = ("nvidia", "tesla", "geforce", "gpu", "")
_VARIANT = re.compile(r"pcie|nvl|sxm\d*|\d+gb")
_MIG = re.compile(r"(^|[-_])(mig|\d+g\.\d+gb)")


class GpuFigures(NamedTuple):
    """Further figures of a GPU model; None: neither the facts nor the site has it.

    `memory_gbs` in GB/s; peaks in TFLOPS (dense, boost clock); `fabric` is the link between the
    GPUs of a node (`nvlink`, `pcie4`); `nvlink_gbs` counts both ways. `driver_name` is part of
    what the driver calls it, `machine` the architecture of the CPUs beside it.
    """

    memory_gbs: float | None = None
    fp32_tflops: float | None = None
    tf32_tflops: float | None = None
    half_tflops: float | None = None
    fabric: str | None = None
    nvlink_gbs: float | None = None
    tdp_w: float | None = None
    driver_name: str = ""
    machine: str = "x86_64"


class Gpu(NamedTuple):
    """The GPUs of one node of a partition.

    `model` is a row of facts/gpus.yaml or of the site's `gpus`; `gres_type` is what Slurm calls
    it, None where Slurm gives no type; `per_node` counts devices as Slurm does (a K80 board is
    two); `nvlink` is whether NVLink joins them.
    """

    model: str
    gres_type: str | None
    per_node: int
    compute: str
    memory_gb: float
    nvlink: bool = False
    figures: GpuFigures = GpuFigures()

    @property
    def driver_name(self) -> str:
        """The part of the driver's name that distinguishes this model from others."""
        return self.figures.driver_name or self.model.split("-")[0]


def find_row(model: str, own: Mapping[str, Row] = _NONE) -> Row | None:
    """The row of a model as plain values, its name under `model`; None where it is unknown.

    `own` are the site's rows by name.
    """
    known, name = facts.load("gpus")["gpus"], canonical(model)
    row: Row = known.get(name, {})
    for one, mine in own.items():
        if canonical(one).casefold() == name.casefold():
            return {**row, **(mine or {}), "model": name if row else one}
    return {**row, "model": name} if row else None


def known_names(own: Mapping[str, Row] = _NONE) -> list[str]:
    """Every name of a model that may be written."""
    return [*own, *facts.load("gpus")["gpus"], *facts.load("gpus")["aliases"]]


def of_row(row: Mapping[str, Any], gres_type: str | None = None, per_node: int = 1) -> Gpu:
    """The GPUs of a node, from a row as `find_row` gives it."""
    figures = {key: row[key] for key in GpuFigures._fields if row.get(key) is not None}
    return Gpu(
        model=row["model"],
        gres_type=gres_type,
        per_node=per_node,
        compute=str(row["compute"]),
        memory_gb=float(row["memory_gb"]),
        nvlink=(row.get("fabric") or ("nvlink" if row.get("nvlink_gbs") else "")) == "nvlink",
        figures=GpuFigures(**figures),
    )


def gpu_named(name: str) -> Gpu:
    """Return one device of a model in the facts; BadInput for an unknown model."""
    row = find_row(name)
    if row is None:
        raise BadInput(f"unknown GPU model '{name}'", hint=did_you_mean(name, known_names()))
    return of_row(row)


def model_of_type(gres_type: str | None) -> str | None:
    """The GPU model that a GRES type names, None where it names none, or where several would do.

    Sites write `p100`, `tesla_v100`, `nvidia_a100-sxm4-40gb` (NVML's own names). Every word must
    be one of the model: by its beginning alone, `tesla_v100-pcie-32gb` was drafted as a V100 with
    16 GB and NVLink. A slice of a GPU (MIG: `a100_1g.5gb`) has neither its memory nor its speed.
    """
    if not gres_type or is_slice(gres_type):
        return None
    exact = {_joined(name): name for name in known_names()}.get("".join(_words(gres_type)))
    if exact:
        return canonical(exact)
    fitting = _fitting(gres_type)
    usual = {canonical(name.split("-")[0]) for name in fitting}
    chosen = [name for name in fitting if name in usual] or fitting
    return chosen[0] if len(chosen) == 1 else None


def may_be(name: str | None) -> list[str]:
    """The cards that a name leaves open, such as the three of `H100`; none where it means one."""
    rows = {row.casefold() for row in facts.load("gpus")["gpus"]}
    fitting = _fitting(name) if name and name.casefold() not in rows else []
    return fitting if len(fitting) > 1 else []


def _words(text: str) -> list[str]:
    """The words of a name but for its maker; `80g` is `80gb`."""
    words = re.split(r"[-_ ]+", text.casefold())
    return [re.sub(r"^(\d+)g$", r"\1gb", word) for word in words if word not in _MAKERS]


def _fitting(text: str) -> list[str]:
    """The models that have every word of a name."""
    words, rows = _words(text), facts.load("gpus")["gpus"]
    return [name for name, row in rows.items() if _explains(name, row, words)]


def _joined(name: str) -> str:
    """`RTX-3090`, `rtx3090` and `RTX_3090` are one name."""
    return re.sub(r"[-_ ]", "", name.casefold())


def _explains(model: str, row: Mapping[str, Any], words: list[str]) -> bool:
    """Whether each word is one of this model, and none of its own name lacks."""
    name = model.casefold().split("-")
    variants = {word for word in name if _VARIANT.fullmatch(word)}
    forms = {word.rstrip("0123456789") for word in variants if word.startswith("sxm")}
    known = {*name, *forms, f"{row['memory_gb']:g}gb"}
    return set(name) - variants <= set(words) <= known


def is_slice(gres_type: str) -> bool:
    """Whether a GRES type names a slice of a GPU, by NVIDIA's MIG: `1g.5gb`, `a100_3g.20gb`."""
    return _MIG.search(gres_type.casefold()) is not None


def out_of_scope(model: str, vendor: str = NVIDIA) -> str:
    """Why GPUs of another vendor cannot be served, in one line; '' for NVIDIA's."""
    folded = model.casefold().replace("_", "-")
    for row in facts.load("gpus")["out_of_scope"]:
        if vendor == row["vendor"].casefold() or re.match(row["pattern"], folded):
            served = "its stacks, checks and figures are for NVIDIA's CUDA"
            return f"'{model}' is a GPU of {row['vendor']}, which hpcdl does not serve: {served}"
    return ""


def canonical(model: str) -> str:
    """The name of the row that a name or an alias means; the name itself where none does."""
    table = facts.load("gpus")
    folded = model.casefold()
    names = {name.casefold(): name for name in table["gpus"]}
    aliases = {alias.casefold(): name for alias, name in table["aliases"].items()}
    return str(names.get(folded) or aliases.get(folded) or model)


class GpuGroups(Protocol):
    """What is read of a partition to find nodes by a GPU model; site.Partition has it."""

    @property
    def name(self) -> str:
        """Of the partition."""

    @property
    def gpu(self) -> Gpu | None:
        """Of each node; None where it has none, or the groups differ."""

    @property
    def gpu_groups(self) -> tuple[Any, ...]:
        """Its groups of equal nodes."""


P = TypeVar("P", bound=GpuGroups)


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


def groups_for(partition: P, model: str | None) -> tuple[P, ...]:
    """The groups of equal nodes that a job for this GPU model (None: any) may have."""
    groups: tuple[P, ...] = partition.gpu_groups
    if model is None:
        return groups
    if partition.gpu is None:
        raise BadInput(f"partition '{partition.name}' has no GPUs", hint="leave out --gpu-model")
    found = tuple(group for group in groups if group.gpu and matches(group.gpu, model))
    if not found:
        message = f"no node of '{partition.name}' has the GPU model '{model[:60]}'"
        raise BadInput(message, hint=ask_for(groups))
    return found


def one_group(partition: P, model: str | None) -> P:
    """The first group of a model; BadInput: no node has it, or the name leaves several open."""
    found = groups_for(partition, model)
    if len({group.gpu and group.gpu.model for group in found}) > 1:
        raise BadInput(f"'{partition.name}' has several GPU models", hint=ask_for(found))
    return found[0]


def ask_for(groups: Iterable[Any]) -> str:
    """Return the choices: `--gpu-model A100-PCIe-40GB (4 nodes x 4), or --gpu-model ...`."""
    return "ask for " + ", or ".join(
        f"--gpu-model {group.gpu.model} ({count_of(group.nodes, 'node')} x {group.gpu.per_node})"
        for group in groups
        if group.gpu
    )
