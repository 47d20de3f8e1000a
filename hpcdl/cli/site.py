"""`hpcdl site`: describe the cluster."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpcdl.cli.framework import Group, command, option, print_json, show, the_site
from hpcdl.system.amounts import at_least
from hpcdl.system.errors import BadInput, ExitCode
from hpcdl.system.text import count_of, table

if TYPE_CHECKING:
    from hpcdl.site import Gpu, Site


@command("hpcdl site show --site pi", option("--yaml", "print the site file itself"))
def _show(args: argparse.Namespace) -> ExitCode:
    """Summarise the site: Slurm, paths, partitions, stacks; --yaml prints its file."""
    site = the_site(args)
    if args.yaml:
        print(site.source.read_text(encoding="utf-8-sig"), end="")
        return ExitCode.OK
    return show(args, as_data(site), as_text(site))


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
    """A model that the site describes, and the figures that it lacks."""
    figures = gpu.figures
    lacking = [name for name in ("memory_gbs", "fp32_tflops") if getattr(figures, name) is None]
    more = f"; {' and '.join(lacking)} not given: predictions need a run" if lacking else ""
    link = "NVLink" if gpu.nvlink else figures.fabric or "PCIe"
    return f"sm_{gpu.compute.replace('.', '')}, {gpu.memory_gb:g} GB, {link}{more}"


def as_data(value: Any) -> Any:
    """A site, or a part of it, as plain values for JSON, defaults filled in."""
    if is_dataclass(value) and not isinstance(value, type):
        # A group's fellows are the other groups beside it.
        names = [part.name for part in fields(value) if part.name != "fellows"]
        return {name: as_data(getattr(value, name)) for name in names}
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        value = value._asdict()
    if isinstance(value, Mapping):
        return {key: as_data(item) for key, item in value.items()}
    if isinstance(value, tuple):
        return [as_data(item) for item in value]
    return value if isinstance(value, (str, int, float, bool, type(None))) else str(value)


@command(
    "hpcdl site init --output site.yaml",
    option("--output", "FILE", "write to FILE instead of the screen", type=Path),
    changes=True,
    site=False,
)
def _init(args: argparse.Namespace) -> ExitCode:
    """Draft a commented site file from the live Slurm; exit 6 if values are missing."""
    from hpcdl.site.live import draft, is_unedited, look
    from hpcdl.system.files import read_regular, write_atomic

    if args.output and args.output.is_dir():
        raise BadInput(f"{args.output} is a directory", hint="name a file in it")
    if args.output and not args.output.parent.is_dir():
        raise BadInput(f"there is no directory {args.output.parent}", hint="make it: mkdir -p")
    kept = args.output and args.output.exists()  # a draft that nobody edited may go
    if kept and not is_unedited(read_regular(args.output).decode(errors="replace")):
        raise BadInput(f"{args.output} already exists", hint="move it away, or name another file")
    cluster = look()
    drafted = draft(cluster)
    if args.json:
        print_json({"text": drafted.text, "questions": drafted.questions})
    elif args.output and not args.dry_run:
        write_atomic(args.output, drafted.text)
        print(f"wrote {args.output}; next: hpcdl site check --site {args.output}")
    else:
        print(drafted.text, end="")
    for note in cluster.notes:
        print(f"note: {note}", file=sys.stderr)
    for question in drafted.questions:
        print(f"to fill in: {question}", file=sys.stderr)
    return ExitCode.PARTLY if drafted.questions else ExitCode.OK


@command("hpcdl site check --site site.yaml")
def _check(args: argparse.Namespace) -> ExitCode:
    """Compare the site file with the live Slurm; exit 1 when they differ."""
    from hpcdl.site.live import compare, look

    site = the_site(args)
    cluster = look()
    drift = compare(site, cluster)
    rows = [(one.key, one.file, one.cluster) for one in drift]
    text = table(rows, ("key", "site file", "cluster"))
    text = text if drift else f"{site.source} and the cluster agree"
    text = "\n".join([text, *(f"note: {note}" for note in cluster.notes)])
    drifts = [one._asdict() for one in drift]
    data = {"site": site.name, "drift": drifts, "notes": list(cluster.notes)}
    return show(args, data, text, ok=not drift)


@command(
    "hpcdl site gpus --gpus 4",
    option("--gpus", "N", "ask when a job of N would start", type=at_least(1), default=0),
    option("--time", "TIME", "walltime of that job (1:00:00)", default="1:00:00"),
    site=False,
)
def _gpus(args: argparse.Namespace) -> ExitCode:
    """Show free and busy GPUs by partition, and when a job would start."""
    from hpcdl.jobs.spec import minutes_of
    from hpcdl.site.free_gpus import look

    try:
        minutes = minutes_of(args.time)
    except BadInput as fault:  # which begins with what is wrong: in a file, its place comes first
        raise BadInput(f"--time {fault.message}", hint=fault.hint) from fault
    rows = look(args.gpus, minutes)
    header = ["partition", "GPU", "free", "in use", "no CPUs", "down", "all", "free on one node"]
    if args.gpus:
        header.append(f"{count_of(args.gpus, 'GPU')} for {args.time} would start")
    shown = [
        [
            row.partition,
            row.model or row.kind or "not typed",
            *map(str, (row.free, row.used, row.blocked, row.down, row.total, row.largest)),
            *([row.starts.replace("T", " ")] if args.gpus else []),
        ]
        for row in rows
    ]
    text = table(shown, header) if rows else "Slurm shows no GPUs here"
    return show(args, {"gpus": [row._asdict() for row in rows]}, text)


GROUP = Group("site", (_init, _gpus, _check, _show))
