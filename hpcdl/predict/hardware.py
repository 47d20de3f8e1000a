"""Machines as the model sees them: a GPU's peaks, the links of a node, the network, the cores.

A machine comes from a partition of the site file. Figures are rows of facts/gpus.yaml and
facts/links.yaml. Bandwidths are bytes per second each way, latencies seconds.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise
from typing import TYPE_CHECKING

from hpcdl import facts
from hpcdl.site.gpu_models import gpu_named
from hpcdl.site.model import UNKNOWN_FABRIC
from hpcdl.system.errors import BadInput
from hpcdl.system.text import one_of

if TYPE_CHECKING:
    from hpcdl.site import Gpu, Partition

GIGA = 1e9
TERA = 1e12
NETWORK_HINT = (
    "say it in the site file, `interconnect: {fabric: infiniband, bandwidth_gbps: 100}`, or give "
    "--network GB/S as measured"
)
CPU = "CPU"
"""The `gpu` of a machine without any: its ranks are sockets."""
_BITS = 8.0
_VENDOR = frozenset(("nvidia", "tesla", "geforce"))
_SXM = re.compile(r"SXM[0-9]")
# From which compute capability on a GPU has units of their own for a precision.
_UNITS = (("fp32_tflops", 0.0), ("tf32_tflops", 8.0), ("half_tflops", 7.0))
# Peaks of a CPU core for the shares of layers alone; a measured step gives the scale.
_CPU_CORE_FLOPS, _CPU_MEMORY, _CPU_LATENCY = 50e9, 50e9, 20e-6


@dataclass(frozen=True)
class Link:
    """A link: seconds of a step and bytes per second each way that an all-reduce reaches.

    `measured` is whether that was measured on this machine, not published.
    """

    name: str
    latency: float
    bandwidth: float
    measured: bool = False


@dataclass(frozen=True)
class Machine:
    """Equal nodes of equal GPUs.

    `flops` by precision (fp32, tf32, half), `memory_rate` in bytes per second, `memory` in bytes.
    `inside` links the GPUs of a node, `roots` PCIe root ports have `root` bytes per second each.
    `network` is None where nobody knows it; `unknown` are figures of the GPU that a kindred one
    stands in for: shares of layers may come of them, never a speed.
    """

    name: str
    gpu: str
    flops: tuple[float, float, float]
    memory_rate: float
    memory: float
    per_node: int
    inside: Link
    network: Link | None
    cores: int
    roots: int
    root: float
    nodes: int = 0
    compute: str = ""
    unknown: tuple[str, ...] = ()

    def lacks(self, precision: str) -> tuple[str, ...]:
        """Return the missing figures that a speed in this precision needs."""
        peak = {"fp32": "fp32_tflops", "tf32": "tf32_tflops"}.get(precision, "half_tflops")
        return tuple(name for name in self.unknown if name in {"memory_gbs", peak})

    @property
    def between(self) -> Link:
        """Return the network; if it is unknown, a `BadInput` says how to give it."""
        if self.network is None:
            message = f"the network between the nodes of '{self.name}' is not known"
            raise BadInput(message, hint=NETWORK_HINT)
        return self.network


def of_partition(partition: Partition) -> Machine:
    """The machine that a partition of the site file describes.

    A partition without GPUs is a machine whose ranks are its sockets: only shares of layers
    come from it, so it needs a measured step.
    """
    fabric, rate = partition.interconnect.fabric, partition.interconnect.bandwidth_gbps
    network = None
    if rate is not None and fabric != UNKNOWN_FABRIC:
        network = network_link(fabric, rate)
    if partition.interconnect.measured_gbs is not None:
        network = replace(
            network or slowest(),
            name=f"{fabric}, measured {partition.interconnect.measured_gbs:g} GB/s",
            bandwidth=partition.interconnect.measured_gbs * GIGA,
            measured=True,
        )
    nodes, gpu = partition.nodes, partition.gpu
    if gpu is None:
        flops = _CPU_CORE_FLOPS * partition.cores_per_socket
        inside = Link("memory", _CPU_LATENCY, _CPU_MEMORY / 4)
        return Machine(
            partition.name,
            CPU,
            (flops, flops, flops),
            _CPU_MEMORY,
            partition.memory_gb * GIGA,
            partition.sockets,
            inside,
            network,
            partition.cores,
            1,
            _CPU_MEMORY,
            nodes,
        )
    machine = of_gpu(gpu, usual_link(gpu), partition.cores, partition.sockets, network)
    return replace(
        machine,
        name=partition.name,
        per_node=gpu.per_node,
        nodes=nodes,
        memory=gpu.memory_gb * GIGA,
    )


@cache
def gpu_of(text: str) -> str | None:
    """The facts' name of the GPU that a driver, Slurm or a table means; None for an unknown one.

    Words count, not their order: `A100 80GB PCIe` is A100-PCIe-80GB. What names a whole row goes
    before what names a part of one.

    Raises:
        BadInput: the text fits several rows, such as `H100`.
    """
    wanted, table = _words(text), facts.load("gpus")
    bare = "sxm" in wanted  # without its number: any of them
    rows = {name: _words(_SXM.sub("sxm", name) if bare else name) for name in table["gpus"]}
    exact = [name for name, words in rows.items() if words == wanted]
    if exact:
        return str(exact[0])
    partly = [name for name, words in rows.items() if wanted and wanted <= words]
    if len(partly) > 1:
        raise BadInput(
            f"the GPU '{text[:60]}' may be {one_of(sorted(partly))}", hint="write one of them"
        )
    aliases = [name for alias, name in table["aliases"].items() if _words(alias) == wanted]
    whole = sorted(
        (name for name, words in rows.items() if words <= wanted), key=lambda name: -len(rows[name])
    )
    return next(map(str, (*partly, *aliases, *whole)), None)


def _words(text: str) -> frozenset[str]:
    """The words of a GPU's name."""
    return frozenset(re.findall(r"[a-z0-9]+", text.casefold())) - _VENDOR


def _pcie(gpu: Gpu) -> str:
    """The generation of PCI Express that a GPU has."""
    capability = float(gpu.compute)
    return "pcie3" if capability < 8 else "pcie4" if capability < 9 else "pcie5"


def usual_link(gpu: Gpu) -> str:
    """Return the link between GPUs of a kind in a node: as given, else NVLink if they have it."""
    return gpu.figures.fabric or ("nvlink" if gpu.nvlink else _pcie(gpu))


def of_gpu(gpu: Gpu | str, link: str, cores: int, roots: int, network: Link | None) -> Machine:
    """A machine of one GPU per node: its figures as they are known, the rest as given.

    `link` joins the GPUs of a node (a row of facts/links.yaml); a node has `cores` physical cores
    and `roots` PCIe root ports; `network` is None where nobody knows it. Where a GPU has no units
    for a precision, fp32's is its peak; where it has some and their figure is missing, a kindred
    GPU's stands in, for shares of layers alone.
    """
    kind = gpu_named(gpu) if isinstance(gpu, str) else gpu
    own, other = kind.figures, _stand_in(kind).figures
    units = [name for name, since in _UNITS if float(kind.compute) >= since]
    fp32 = own.fp32_tflops or other.fp32_tflops or 1.0
    tf32, half = (
        getattr(own, name) or (getattr(other, name) if name in units else None) or fp32
        for name in ("tf32_tflops", "half_tflops")
    )
    return Machine(
        name=kind.model,
        gpu=kind.model,
        flops=(fp32 * TERA, tf32 * TERA, half * TERA),
        memory_rate=(own.memory_gbs or other.memory_gbs or 1.0) * GIGA,
        memory=kind.memory_gb * GIGA,
        per_node=1,
        inside=_link(link, kind),
        network=network,
        cores=cores,
        roots=max(1, roots),
        root=_link(_pcie(kind), kind).bandwidth,
        compute=kind.compute,
        unknown=tuple(name for name in (*units, "memory_gbs") if getattr(own, name) is None),
    )


def _stand_in(gpu: Gpu) -> Gpu:
    """The known GPU nearest below in compute capability: its shares of layers are the likeliest."""
    rows = sorted(
        (float(row["compute"]), row["memory_gb"], name)
        for name, row in facts.load("gpus")["gpus"].items()
        if "fp32_tflops" in row and "memory_gbs" in row
    )
    below = [name for compute, _, name in rows if compute <= float(gpu.compute)]
    return gpu_named(below[-1] if below else rows[0][2])


def _link(kind: str, gpu: Gpu) -> Link:
    """A kind of link between the GPUs of a node; NVLink without a given rate is refused."""
    row = facts.load("links")["links"][kind]
    if row["gbs"] is None and gpu.figures.nvlink_gbs is None:
        give = f"give it in the site file: `gpus: {{{gpu.model}: {{nvlink_gbs: N}}}}`"
        raise BadInput(f"the NVLink rate of '{gpu.model}' is not known", hint=give)
    rate = row["gbs"] or (gpu.figures.nvlink_gbs or 0.0) / 2
    return Link(kind, row["latency_us"] * 1e-6, rate * row["efficiency"] * GIGA)


def network_link(fabric: str, gbps: float) -> Link:
    """The network of a fabric of the site file, at a line rate in Gbit/s per node."""
    row = facts.load("links")["fabrics"][fabric]
    rate = gbps / _BITS * _part(row["efficiency"], gbps) * GIGA
    return Link(f"{fabric} {gbps:g} Gb/s", row["latency_us"] * 1e-6, rate)


def _part(efficiency: float | dict[int, float], gbps: float) -> float:
    """The part of a line rate that an all-reduce reaches: a number, or numbers by rate.

    Between two rates it is interpolated over the logarithm; TCP reaches less of a faster network.
    """
    if not isinstance(efficiency, dict):
        return efficiency
    points = sorted((math.log(rate), part) for rate, part in efficiency.items())
    x = min(max(math.log(gbps), points[0][0]), points[-1][0])
    for (left, low), (right, high) in pairwise(points):
        if x <= right:
            return low + (high - low) * (x - left) / (right - left)
    return points[-1][1]


def slowest() -> Link:
    """A network of which only a measured bandwidth is known: it has the largest known latency."""
    rows = facts.load("links")["fabrics"].values()
    return Link("measured network", max(row["latency_us"] for row in rows) * 1e-6, 0.0)
