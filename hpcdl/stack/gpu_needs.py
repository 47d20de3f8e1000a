"""What a build asks of a machine: its driver, GPUs that run its code, CPU flags. Pure facts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from hpcdl import facts
from hpcdl.site import Gpu, Site
from hpcdl.site.gpu_models import gpu_named
from hpcdl.stack.resolve_facts import serves
from hpcdl.stack.resolve_versions import Range, sort_key


def driver_needs(cuda: str, computes: list[str]) -> dict[str, Any]:
    """The oldest driver for this CUDA, and the last branch that drives any of these GPUs.

    There is no last branch where current drivers still drive one of them.
    """
    oldest: list[str] = []
    last: dict[str, int] = {}
    for row in facts.load("cuda")["rules"]:
        limit = str(row["needs"].get("driver", ""))
        when = row["when"]
        low, _, high = limit.partition(":")
        if low and "cuda" in when and Range(str(when["cuda"])).allows(cuda):
            oldest.append(low)
        if high and "gpu" in when:
            own = [one for one in computes if Range(str(when["gpu"])).allows(one)]
            last |= {one: int(high) for one in own}
    needs: dict[str, Any] = {"from": max(oldest, key=sort_key)} if oldest else {}
    limited = last and all(one in last for one in computes)
    return {**needs, **({"branch": max(last.values())} if limited else {})}


def gpus_of(site: Site, names: Sequence[str]) -> list[Gpu]:
    """The GPUs of these partitions, of all where none is named."""
    groups = (one for name in names or site.partitions for one in site.partition(name).node_groups)
    return [group.gpu for group in groups if group.gpu]


def models(archs: tuple[str, ...], own: Iterable[Gpu] = ()) -> list[str]:
    """The GPUs, as the driver calls them, that machine code for these runs on.

    `archs` is what was compiled for, such as `60`; `own` GPUs of the site may be none of the
    facts'.
    """
    code = [f"sm_{arch}" for arch in archs]
    known = (gpu_named(name) for name in facts.load("gpus")["gpus"])
    named = [gpu.driver_name for gpu in (*known, *own) if serves(code, gpu.compute)]
    return list(dict.fromkeys(named))


def needs_of(
    archs: tuple[str, ...], cuda: str, target: str, gpus: Iterable[Gpu] = (), *, wheels: bool
) -> dict[str, Any]:
    """The guard's table: `cpu_flags`, and for GPUs `driver`, `gpus` and `compute`.

    `archs` are Spack's cuda_arch values, such as `60`, none for CPUs; `target` is the
    microarchitecture that it is compiled for; `gpus` are those of the partitions that it serves.
    """
    flags = cpu_flags(target, wheels=wheels)
    if not archs:
        return {"cpu_flags": flags}
    digits = [arch.rstrip("af") for arch in archs]  # 90a is code for 9.0 alone
    computes = [f"{one[:-1]}.{one[-1]}" for one in digits]
    return {
        "cpu_flags": flags,
        "driver": driver_needs(cuda, computes),
        "gpus": models(tuple(digits), gpus),
        "compute": computes,
    }


def cpu_flags(target: str, *, wheels: bool) -> list[str]:
    """Flags of /proc/cpuinfo that code for this target uses; wheels use AVX whatever it is."""
    of_wheels = facts.load("wheels")["needs"]["cpu"]["cpu_flags"] if wheels else ()
    return sorted({*of_wheels, *facts.load("spack")["targets"].get(target, ())})
