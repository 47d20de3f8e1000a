"""From a file to a `Site`: read, validated by `check`, then frozen values.

The values of a valid file are kept in the disk cache: every command reads the site, and YAML alone
takes longer than the rest of most commands.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from hpcdl.results.gpus import Gpu, gres_type, of_row
from hpcdl.site.model import Partition, Site, SpackSettings, StackRequest
from hpcdl.site.sections import OLD_BACKENDS
from hpcdl.slurm.options import slurm_minutes
from hpcdl.system.declare import build, values_of
from hpcdl.system.errors import BadInput
from hpcdl.system.files import read_regular
from hpcdl.system.resources import cached, folder, home
from hpcdl.system.text import did_you_mean
from hpcdl.system.trust import require_known_owner

_PACKAGE = Path(__file__).parents[1]
# What decides whether a file is valid: values kept for other versions of these are not used.
DECIDING = tuple(
    _PACKAGE / name
    for name in (
        "site/check.py",
        "results/gpus.py",
        "slurm/options.py",
        "slurm/rules.py",
        "system/resources.py",
        "system/document.py",
        "site/model.py",
        "site/sections.py",
        "system/declare.py",
        "facts/gpus.yaml",
        "facts/slurm_rules.yaml",
    )
)


def find_site_file(given: str | None = None) -> Path:
    """The site file to use: `--site`, else HPCDL_SITE, else the installed prefix's.

    A name such as `pi` means a shipped example, whatever is in the current directory: a path has a
    slash or a suffix. A file named `pi` in /tmp was once read as the site, by root as well.
    """
    chosen = given or os.environ.get("HPCDL_SITE")
    if not chosen:
        if installed := installed_site_file():
            return installed
        raise BadInput(
            "no site file is named",
            hint="on a cluster `hpcdl site init` writes one, for --site FILE or HPCDL_SITE; "
            "without a cluster --site pi is an example",
        )
    shipped = {one.stem: one for one in sorted((folder("templates") / "sites").glob("*.yaml"))}
    if chosen in shipped:
        return shipped[chosen]
    try:
        path = Path(chosen).expanduser()
        there = os.path.lexists(path)
    except (OSError, RuntimeError, ValueError) as fault:  # too long, no such user
        raise BadInput(f"cannot read {chosen[:100]}: {fault}"[:300], hint="name a file") from fault
    if "/" not in chosen and not path.suffix:
        hint = f"a file is named with a slash: --site ./{chosen}" if there else ""
        raise BadInput(f"there is no site '{chosen}'", hint=hint or did_you_mean(chosen, shipped))
    if there:
        return path  # a directory is refused where it is read
    if chosen.removesuffix(".yaml") in shipped:
        return shipped[chosen.removesuffix(".yaml")]
    raise BadInput(f"there is no site file {chosen}", hint=did_you_mean(chosen, shipped))


def installed_site_file() -> Path | None:
    """The site file of this installation, None where there is none."""
    places = (home() / "site.yaml", _PACKAGE / "site.yaml")
    return next((place for place in places if place.is_file()), None)


def load_site(path: Path) -> Site:
    """Read and validate a site file; one BadInput has every fault, with its line and a caret."""
    data = read_regular(path, require=require_known_owner)

    def checked() -> dict[str, Any]:
        from hpcdl.site import check

        return check.checked(data, str(path))

    values = cached("sites", [data, *DECIDING], checked)
    slurm = values["slurm"]
    partitions = {
        name: _partition(name, part, slurm) for name, part in values["partitions"].items()
    }
    stacks = {name: _stack(name, stack) for name, stack in values["stacks"].items()}
    spack = values.get("spack") or {}
    # The values of these need more than their own text.
    worked_out = ("gpus", "partitions", "stacks", "default_partition", "spack")
    rest = {key: value for key, value in values.items() if key not in worked_out}
    return Site(
        source=path.absolute(),
        partitions=MappingProxyType(partitions),
        stacks=MappingProxyType(stacks),
        default_partition=values.get("default_partition") or next(iter(partitions)),
        # An existing tree keeps its padding: none by default.
        spack=build(SpackSettings, {**({"padded_length": 0} if "store" in spack else {}), **spack}),
        gpus=MappingProxyType({name: of_row(row) for name, row in values["gpus"].items()}),
        **values_of(Site, rest),
    )


def _stack(name: str, values: dict[str, Any]) -> StackRequest:
    backend = values["backend"]
    values = {**values, "backend": OLD_BACKENDS.get(backend, backend)}
    renamed = backend if backend in OLD_BACKENDS else ""
    return StackRequest(name, renamed=renamed, **values_of(StackRequest, values))


def _partition(name: str, values: dict[str, Any], slurm: dict[str, Any]) -> Partition:
    """A partition; where its nodes differ, what each with GPUs has at least, and its groups."""
    whole = _nodes(name, values, slurm)
    if not values["groups"]:
        return whole
    inherited = {key: value for key, value in values.items() if key not in {"groups", "hostlist"}}
    groups = [_nodes(name, {**inherited, **group}, slurm) for group in values["groups"]]
    with_gpus = [(_rank(group.gpu), group.gpu, group) for group in groups if group.gpu]
    weakest = min(with_gpus, key=lambda row: (row[0], row[1].memory_gb))[1]
    common = weakest._replace(
        gres_type=None,
        nvlink=all(gpu.nvlink for _, gpu, _ in with_gpus),
        **_least((gpu for _, gpu, _ in with_gpus), "per_node", "memory_gb"),
    )
    sizes = ("sockets", "cores_per_socket", "threads_per_core", "memory_gb")
    return replace(
        whole,
        **_least((group for _, _, group in with_gpus), *sizes),
        usable_cpus=min(group.cpus for _, _, group in with_gpus),
        gpu=common,
        reference_set=min(with_gpus, key=lambda row: row[0])[2].reference_set,
        groups=tuple(
            replace(row, fellows=tuple(other for other in groups if other is not row))
            for row in groups
        ),
    )


def _least(some: Iterable[object], *keys: str) -> dict[str, Any]:
    values = [[getattr(one, key) for key in keys] for one in some]
    return dict(zip(keys, map(min, zip(*values, strict=True)), strict=True))


def _rank(gpu: Gpu) -> tuple[int, ...]:
    """Compute capabilities in their order: 8.9 before 10.0."""
    return tuple(int(part) for part in gpu.compute.split("."))


def _nodes(name: str, values: dict[str, Any], slurm: dict[str, Any]) -> Partition:
    gpu, own = None, values.get("gpu")
    if own:
        gpu = of_row(own["row"], gres_type(name, own, slurm), own["per_node"])
        gpu = gpu._replace(memory_gb=own.get("memory_gb") or gpu.memory_gb)
    rest = {key: value for key, value in values.items() if key not in {"gpu", "groups"}}
    part = Partition(
        name=name,
        gpu=gpu,
        max_minutes=slurm_minutes(values["max_time"]),
        **values_of(Partition, rest),
    )
    default = gpu.model.lower() if gpu else "cpu"
    return part if part.reference_set else replace(part, reference_set=default)
