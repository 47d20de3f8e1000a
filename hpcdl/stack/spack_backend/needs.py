"""What the module of a release built by Spack asks of a machine, from the facts.

Pure: the driver's both ends from CUDA and the GPUs, the models that have device code, the CPU's
flags from the target it was compiled for.
"""

from __future__ import annotations

from typing import Any

from hpcdl import facts
from hpcdl.site import Site, StackRequest
from hpcdl.stack.gpu_needs import driver_needs, models
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
