"""From a file to a `Site`: read, validated by `check`, then frozen values.

The values of a valid file are kept in the disk cache: every command reads the site, and YAML alone
takes longer than the rest of most commands.
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from hpcdl.site.gpu_models import gres_type, of_row
from hpcdl.site.model import (
    UNKNOWN_FABRIC,
    External,
    Gpu,
    Interconnect,
    Limits,
    Partition,
    Paths,
    Scratch,
    Site,
    SlurmDialect,
    SpackSettings,
    StackRequest,
)
from hpcdl.site.paths import expand
from hpcdl.slurm.time_limit import slurm_minutes
from hpcdl.system.disk_cache import cached
from hpcdl.system.errors import BadInput
from hpcdl.system.resources import folder, home
from hpcdl.system.safe_read import read_regular
from hpcdl.system.text import did_you_mean

_LAYER = Path(__file__).parent
# What decides whether a file is valid: values kept for other versions of these are not used.
_DECIDING = (
    _LAYER / "check.py", _LAYER / "check_nodes.py", _LAYER / "gpu_models.py",
    _LAYER / "schema.py", _LAYER.parent / "system" / "schema.py",
    _LAYER.parent / "facts" / "gpus.yaml", _LAYER.parent / "facts" / "slurm_rules.yaml",
    _LAYER.parent / "slurm" / "rules.py",
)  # fmt: skip


_AS_WRITTEN = ("nodes", "hostlist", "sockets", "cores_per_socket", "threads_per_core", "memory_gb",
               "max_time", "target", "driver", "stack", "account", "qos")  # fmt: skip
"""Keys of a partition that are attributes of the same name."""


def find_site_file(given: str | None = None) -> Path:
    """The site file to use: `--site`, else HPCDL_SITE, else the installed prefix's.

    A name without a slash that is no file here, such as `pi`, means a shipped example.

    Raises:
        BadInput: none is named, or the named one does not exist.
    """
    chosen = given or os.environ.get("HPCDL_SITE")
    if not chosen:
        installed = installed_site_file()
        if installed is not None:
            return installed
        raise BadInput(
            "no site file is named",
            hint="on a cluster `hpcdl site init` writes one, for --site FILE or HPCDL_SITE; "
            "without a cluster --site pi is an example",
        )
    try:
        path = Path(chosen).expanduser()
        if path.exists() and not path.is_dir():
            return path
    except (OSError, RuntimeError) as fault:  # too long a name, no such user, a loop of links
        raise BadInput(f"cannot read {chosen[:100]}: {fault}"[:300], hint="name a file") from fault
    shipped = {
        entry.stem: entry for entry in sorted((folder("templates") / "sites").glob("*.yaml"))
    }
    if "/" not in chosen and chosen.removesuffix(".yaml") in shipped:
        return shipped[chosen.removesuffix(".yaml")]
    if path.is_dir():
        return path  # refused where it is read
    raise BadInput(f"there is no site file {chosen}", hint=did_you_mean(chosen, shipped))


def installed_site_file() -> Path | None:
    """The site file of this installation, None where there is none."""
    for candidate in (home() / "site.yaml", _LAYER.parent / "site.yaml"):
        if candidate.is_file():
            return candidate
    return None


def load_site(path: Path) -> Site:
    """Read and validate a site file.

    Raises:
        BadInput: every fault of the file at once, each with its line and a caret.
    """
    data = read_regular(path)
    values = cached("sites", [data, *_DECIDING], lambda: _checked(data, path))
    return _site(values, path.absolute())


def _checked(data: bytes, path: Path) -> dict[str, Any]:
    from hpcdl.site.check import checked

    return checked(data, str(path))


def _site(values: dict[str, Any], source: Path) -> Site:
    slurm, paths = values["slurm"], values["paths"]
    stacks = {name: _stack(name, stack) for name, stack in values["stacks"].items()}
    partitions = {
        name: _partition(name, part, slurm) for name, part in values["partitions"].items()
    }
    dialect: dict[str, Any] = {
        key: tuple(one) if isinstance(one, list) else one for key, one in slurm.items()
    }
    return Site(
        name=values["name"],
        source=source,
        slurm=SlurmDialect(**dialect),
        paths=Paths(**{key: Path(expand(text)) for key, text in paths.items()}),
        partitions=MappingProxyType(partitions),
        stacks=MappingProxyType(stacks),
        default_partition=values.get("default_partition") or next(iter(partitions)),
        container=values.get("container"),
        spack=_spack(values.get("spack") or {}),
        gpus=MappingProxyType({name: of_row(row) for name, row in values["gpus"].items()}),
        private=values["private"],
        trusted_network=values["trusted_network"],
        clean=MappingProxyType({kind: Limits(**given) for kind, given in values["clean"].items()}),
    )


def _spack(values: dict[str, Any]) -> SpackSettings:
    found = ((*item["spec"].split("@", 1), item["prefix"]) for item in values.get("externals", ()))
    return SpackSettings(
        externals=tuple(External(name, version, Path(prefix)) for name, version, prefix in found),
        mirrors=MappingProxyType(dict(values.get("mirrors", {}))),
        build_jobs=values.get("build_jobs"),
        # The padding of a tree that is there already is what it was made with.
        padded_length=values.get("padded_length", 0 if "store" in values else 128),
        signing_key=values.get("signing_key"),
        store=Path(values["store"]) if "store" in values else None,
    )


def _stack(name: str, values: dict[str, Any]) -> StackRequest:
    return StackRequest(
        name=name,
        backend=values["backend"],
        partitions=tuple(values["partitions"]),
        pins=MappingProxyType(dict(values["pins"])),
        packages=tuple(values["packages"]),
        variant=values.get("variant"),
        horovod=values.get("horovod") != "none",
        cuda_home=Path(values["cuda_home"]) if "cuda_home" in values else None,
    )


def _partition(name: str, values: dict[str, Any], slurm: dict[str, Any]) -> Partition:
    """A partition, and its groups of equal nodes where it has some."""
    whole = _nodes(name, values, slurm)
    if not values["groups"]:
        return whole
    inherited = {key: value for key, value in values.items() if key not in {"groups", "hostlist"}}
    groups = [_nodes(name, {**inherited, **group}, slurm) for group in values["groups"]]
    return _mixed(whole, groups)


def _mixed(whole: Partition, groups: list[Partition]) -> Partition:
    """A partition whose nodes differ: what each node with GPUs has at least, and its groups."""
    with_gpus = [(group, group.gpu) for group in groups if group.gpu]
    weakest = min((gpu for _, gpu in with_gpus), key=lambda gpu: (_rank(gpu), gpu.memory_gb))
    least = {
        key: min(getattr(group, key) for group, _ in with_gpus)
        for key in ("sockets", "cores_per_socket", "threads_per_core", "memory_gb")
    }
    gpus = [gpu for _, gpu in with_gpus]
    common = weakest._replace(
        gres_type=None,
        per_node=min(gpu.per_node for gpu in gpus),
        memory_gb=min(gpu.memory_gb for gpu in gpus),
        nvlink=all(gpu.nvlink for gpu in gpus),
    )
    return replace(
        whole,
        **least,
        gpu=common,
        reference_set=min(with_gpus, key=lambda pair: _rank(pair[1]))[0].reference_set,
        groups=tuple(replace(one, fellows=tuple(other for other in groups if other is not one))
                     for one in groups),
    )  # fmt: skip


def _rank(gpu: Gpu) -> tuple[int, ...]:
    """Compute capabilities in their order: 8.9 before 10.0."""
    return tuple(int(part) for part in gpu.compute.split("."))


def _nodes(name: str, values: dict[str, Any], slurm: dict[str, Any]) -> Partition:
    """Equal nodes."""
    gpu = _gpu(name, values["gpu"], slurm) if "gpu" in values else None
    network, scratch = values.get("interconnect", {}), values.get("scratch")
    as_written: dict[str, Any] = {key: values.get(key) for key in _AS_WRITTEN}
    return Partition(
        name=name,
        gpu=gpu,
        **as_written,
        interconnect=Interconnect(
            network.get("fabric", UNKNOWN_FABRIC),
            network.get("bandwidth_gbps"),
            network.get("interface"),
        ),
        scratch=Scratch(scratch["path"], scratch["size_gb"]) if scratch else None,
        max_minutes=slurm_minutes(values["max_time"]),
        features=tuple(values["features"]),
        reference_set=values.get("reference_set") or (gpu.model.lower() if gpu else "cpu"),
        environment=MappingProxyType(dict(values["environment"])),
    )


def _gpu(partition: str, values: dict[str, Any], slurm: dict[str, Any]) -> Gpu:
    gpu = of_row(values["row"], gres_type(partition, values, slurm), values["per_node"])
    return gpu._replace(memory_gb=values.get("memory_gb") or gpu.memory_gb)
