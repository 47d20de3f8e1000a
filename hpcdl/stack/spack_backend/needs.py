"""What the module of a release built by Spack asks of a machine, from the facts.

Pure: the driver's both ends from CUDA and the GPUs, the models that have device code, the CPU's
flags from the target it was compiled for.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from hpcdl import facts
from hpcdl.site import Gpu
from hpcdl.stack.gpu_needs import driver_needs, models


def needs_of(
    archs: tuple[str, ...], cuda: str, target: str, gpus: Iterable[Gpu] = (), *, wheels: bool
) -> dict[str, Any]:
    """The guard's table: `cpu_flags`, and for GPUs `driver`, `gpus` and `compute`.

    Args:
        archs: Spack's cuda_arch values, such as `60`; none for CPUs.
        cuda: the release of CUDA.
        target: the microarchitecture that it is compiled for.
        gpus: of the partitions that it serves; a site may have models of its own.
        wheels: whether TensorFlow comes from wheels.
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
