"""What the module of a release built by Spack asks of a machine, from the facts.

Pure: the driver's both ends from CUDA and the GPUs, the models that have device code, the CPU's
flags from the target it was compiled for.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from hpcdl import facts
from hpcdl.site import Gpu, Site, StackRequest
from hpcdl.site.gpu_models import gpu_named
from hpcdl.stack.resolve_facts import serves
from hpcdl.stack.resolve_versions import Range, sort_key
from hpcdl.stack.spack_backend.environment import Environment


def needs_of(site: Site, request: StackRequest, wanted: Environment) -> dict[str, Any]:
    """The guard's table: `cpu_flags`, and for GPUs `driver` and `gpus`."""
    names = request.partitions or tuple(site.partitions)
    flags = cpu_flags(site.partition(names[0]).target, wheels=wanted.wheels)
    if wanted.wheels:
        return {"cpu_flags": flags}
    gpus = [group.gpu for name in names for group in site.partition(name).node_groups if group.gpu]
    computes = sorted({gpu.compute for gpu in gpus})
    return {
        "cpu_flags": flags,
        "driver": driver_needs(wanted.versions["cuda"], computes),
        "gpus": models(wanted.archs, gpus),
    }


def cpu_flags(target: str, *, wheels: bool) -> list[str]:
    """Flags of /proc/cpuinfo that code for this target uses; wheels use AVX whatever it is."""
    of_wheels = facts.load("wheels")["needs"]["cpu"]["cpu_flags"] if wheels else ()
    return sorted({*of_wheels, *facts.load("spack")["targets"].get(target, ())})


def driver_needs(cuda: str, computes: list[str]) -> dict[str, Any]:
    """The oldest driver for this CUDA, and the last branch that drives these GPUs."""
    oldest, branches = [], []
    for row in facts.load("cuda")["rules"]:
        limit = str(row["needs"].get("driver", ""))
        when = row["when"]
        low, _, high = limit.partition(":")
        if low and "cuda" in when and Range(str(when["cuda"])).allows(cuda):
            oldest.append(low)
        if high and "gpu" in when and any(Range(str(when["gpu"])).allows(one) for one in computes):
            branches.append(int(high))
    needs: dict[str, Any] = {"from": max(oldest, key=sort_key)} if oldest else {}
    return {**needs, **({"branch": min(branches)} if branches else {})}


def models(archs: tuple[str, ...], own: Iterable[Gpu] = ()) -> list[str]:
    """The GPUs, as the driver calls them, that machine code for these runs on.

    Args:
        archs: what was compiled for, such as `60`.
        own: GPUs of the site, which may be none of the facts'.
    """
    code = [f"sm_{arch}" for arch in archs]
    known = (gpu_named(name) for name in facts.load("gpus")["gpus"])
    named = [gpu.driver_name for gpu in (*known, *own) if serves(code, gpu.compute)]
    return list(dict.fromkeys(named))
