"""The overlay's recipes that install wheels: what they have, and when a stack is built from them.

A stack of partitions with GPUs gets the wheels where they have code for all its GPUs and what it
pins, because they are known to load; the other recipes compile, which nobody has seen to the
end. `choose` decides, with the reason. Pure: the recipes' lists, the facts and the site.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hpcdl import facts
from hpcdl.site import Site, StackRequest
from hpcdl.stack.resolve_facts import driver_needs, serves
from hpcdl.stack.resolve_solver import Range, sort_key
from hpcdl.system.errors import BadInput
from hpcdl.system.resources import folder


@dataclass(frozen=True)
class Choice:
    """Whether Spack takes wheels for a stack: `archs` are its cuda_arch, none where it compiles."""

    archs: tuple[str, ...]
    why: str


@dataclass(frozen=True)
class GpuWheels:
    """The newest list of wheels for GPUs: its versions, and the cuda_arch values it is for."""

    versions: Mapping[str, str]
    archs: tuple[str, ...]


def wheel_sets(package: str, *, cuda: bool = False) -> dict[str, Any]:
    """The lists of wheels of a recipe, by version: for CPUs or for GPUs."""
    path = folder("spack") / "spack_repo" / "hpcdl" / "packages" / package.replace("-", "_")
    # A recipe with both has them beside each other.
    name = "wheels-cuda.json" if cuda and (path / "wheels-cuda.json").is_file() else "wheels.json"
    sets: dict[str, Any] = json.loads((path / name).read_text(encoding="utf-8"))
    return sets


def gpu_wheels() -> GpuWheels:
    """What the recipes for GPUs install."""
    recipes = facts.load("spack")["cuda_wheels"]
    (tensorflow, found), *_ = wheel_sets(recipes["tensorflow"]).items()
    horovod, *_ = wheel_sets(recipes["horovod"], cuda=True)
    versions = {"tensorflow": tensorflow, "horovod": horovod, "python": found["python"]}
    return GpuWheels({**versions, **found["versions"]}, tuple(found["cuda_arch"]))


def choose(site: Site, request: StackRequest, partitions: Sequence[str]) -> Choice:
    """Whether a stack's GPUs, which are in these partitions, get wheels, and why."""
    wheels = gpu_wheels()
    has = wheels.versions
    what = f"TensorFlow {has['tensorflow']} from wheels"
    computes = [f"{arch[:-1]}.{arch[-1]}" for arch in wheels.archs]
    groups = [one for name in partitions for one in site.partition(name).gpu_groups if one.gpu]
    found = {one.gpu.compute: _arch(one.gpu.compute, wheels) for one in groups if one.gpu}
    lacking = ", ".join(sorted(compute for compute, arch in found.items() if not arch))
    if lacking:
        return Choice((), f"{what} has code for {', '.join(computes)}, and none for {lacking}")
    foreign = [name for name, pin in request.pins.items()
               if name not in has or not _pinned(has[name], pin)]  # fmt: skip
    if foreign:
        pins = ", ".join(f"{name} {request.pins[name]}" for name in foreign)
        return Choice((), f"{what} is not what stack '{request.name}' pins: {pins}")
    least = driver_needs(has["cuda"], computes).get("from", "")
    old = [one.driver for one in groups if one.driver and sort_key(one.driver) < sort_key(least)]
    if old:
        return Choice((), f"{what} needs driver {least}, and the site has {old[0]}")
    codes = tuple(sorted({arch for arch in found.values() if arch}))
    return Choice(codes, f"{what}: they load and have code for these GPUs; the recipes that "
                         "compile TensorFlow are only solved")  # fmt: skip


def cpu_versions(request: StackRequest) -> dict[str, str]:
    """The newest wheels for CPUs that fit the pins of a stack.

    Raises:
        BadInput: no list has what is pinned, or something else is pinned.
    """
    sets = {name: wheel_sets(package)
            for name, package in facts.load("spack")["wheels"].items()}  # fmt: skip
    sets["python"] = {facts.load("spack")["wheels_python"]: None}
    foreign = [name for name in request.pins if name not in sets]
    if foreign:
        raise BadInput(
            f"stack '{request.name}' pins {', '.join(foreign)}, but its partitions have no GPUs: "
            "TensorFlow and Horovod come from wheels then",
            hint=f"pins that can be kept here: {', '.join(sets)}; what the machine has is named "
            "among spack.externals",
        )
    offered = {name: [v for v in versions if _pinned(v, request.pins.get(name))]
               for name, versions in sets.items()}  # fmt: skip
    for name, versions in offered.items():
        if not versions:
            raise BadInput(
                f"stack '{request.name}' pins {name} to {request.pins[name]}, which the overlay "
                f"has no wheels for (it has {', '.join(sets[name])})",
                hint="change the pin, or set `backend: venv`",
            )
    return {name: max(versions, key=sort_key) for name, versions in offered.items()}


def _arch(compute: str, wheels: GpuWheels) -> str | None:
    """The newest code of the wheels that runs on a GPU; code for 6.0 does on 6.1."""
    fits = [arch for arch in wheels.archs if serves([f"sm_{arch}"], compute)]
    return max(fits, default=None)


def _pinned(version: str, pin: str | None) -> bool:
    return pin is None or Range(pin).allows(version)
