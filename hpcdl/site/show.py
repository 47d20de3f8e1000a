"""A site for people (a table) and for machines (plain data)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any

from hpcdl.site.model import Gpu, Site
from hpcdl.system.text import table


def as_data(site: Site) -> dict[str, Any]:
    """The site as plain values for JSON, defaults filled in."""
    data: dict[str, Any] = _plain(site)
    return data


def as_text(site: Site) -> str:
    """The site as a short page: Slurm, paths, a row per group of equal nodes, the stacks."""
    slurm = site.slurm
    gpu_form = f"{slurm.gpu_request}, {'typed' if slurm.gpu_typed else 'untyped'}"
    lines = [
        f"{site.name}  ({site.source})",
        f"  Slurm {slurm.version}, GPUs by {gpu_form}, MPI by {slurm.mpi}, "
        f"accounting {'on' if slurm.accounting else 'off'}",
        f"  software {site.paths.prefix}",
        f"  work     {site.paths.work}",
        f"  data     {site.paths.datasets}",
        "",
    ]
    header = ["partition", "nodes", "GPUs per node", "CPUs", "memory", "network", "limit", "stack"]
    rows = [
        [
            part.name + ("*" if part.name == site.default_partition else ""),
            str(group.nodes),
            f"{group.gpu.per_node} x {group.gpu.model}" if group.gpu else "-",
            str(group.cpus),
            f"{group.memory_gb:g} GB",
            group.interconnect.description,
            group.max_time,
            group.stack or "-",
        ]
        for part in site.partitions.values()
        for group in part.node_groups
    ]
    stacks = [
        f"stack {stack.name}: {stack.backend}"
        + "".join(f", {name} {version}" for name, version in stack.pins.items())
        for stack in site.stacks.values()
    ]
    own = [f"GPU {name}: {_described(gpu)}" for name, gpu in site.gpus.items()]
    return "\n".join([*lines, table(rows, header), "", *own, *stacks]).rstrip()


def _described(gpu: Gpu) -> str:
    """A model that the site describes, and what of it nobody gave."""
    figures = gpu.figures
    lacking = [name for name in ("memory_gbs", "fp32_tflops") if getattr(figures, name) is None]
    more = f"; {' and '.join(lacking)} not given: no prediction without --one" if lacking else ""
    link = "NVLink" if gpu.nvlink else figures.fabric or "PCIe"
    return f"sm_{gpu.compute.replace('.', '')}, {gpu.memory_gb:g} GB, {link}{more}"


def _plain(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        # A group's fellows are the other groups beside it.
        names = [part.name for part in fields(value) if part.name != "fellows"]
        return {name: _plain(getattr(value, name)) for name in names}
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        value = value._asdict()
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    return value if isinstance(value, (str, int, float, bool, type(None))) else str(value)
