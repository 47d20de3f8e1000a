"""A site for people (a table) and for machines (plain data)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any

from hpcdl.site.model import Partition, Site
from hpcdl.system.text import table


def as_data(site: Site) -> dict[str, Any]:
    """The site as plain values for JSON, defaults filled in."""
    data = _plain(site)
    assert isinstance(data, dict)
    return data


def as_text(site: Site) -> str:
    """The site as a short page: Slurm, paths, a row per partition, the stacks."""
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
    rows = [_row(part, part.name == site.default_partition) for part in site.partitions.values()]
    stacks = [
        f"stack {stack.name}: {stack.backend}"
        + "".join(f", {name} {version}" for name, version in stack.pins.items())
        for stack in site.stacks.values()
    ]
    return "\n".join([*lines, table(rows, header), "", *stacks]).rstrip()


def _row(partition: Partition, is_default: bool) -> list[str]:
    network = partition.interconnect
    gpus = f"{partition.gpu.per_node} x {partition.gpu.model}" if partition.gpu else "-"
    return [
        partition.name + ("*" if is_default else ""),
        str(partition.nodes),
        gpus,
        str(partition.cpus),
        f"{partition.memory_gb:g} GB",
        f"{network.fabric} {network.bandwidth_gbps:g} Gb/s",
        partition.max_time,
        partition.stack or "-",
    ]


def _plain(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        return {part.name: _plain(getattr(value, part.name)) for part in fields(value)}
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        value = value._asdict()
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    return value if isinstance(value, (str, int, float, bool, type(None))) else str(value)
