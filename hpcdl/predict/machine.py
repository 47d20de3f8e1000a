"""Machines and networks as the model sees them.

A machine comes from a partition of the site file: a GPU's peaks, the links of a node, the network,
the cores. Figures are rows of facts/gpus.yaml and facts/links.yaml. Bandwidths are bytes per second
each way, latencies seconds. Of the algorithms of an all-reduce the fastest one for a size is taken,
as NCCL and MPI do.

A network is sums of work, memory traffic and parameters: of facts/networks.yaml, which
`tools.networks` writes from real Keras models; transformers are laid out from their published
widths. Images and sequences of other sizes scale the sums. The roofline of a step is arithmetic at
the GPU's peak plus traffic at its memory's bandwidth; what a GPU reaches of it is measured or
learned (start.py).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

from hpcdl import facts
from hpcdl.results.gpus import Gpu, gpu_named
from hpcdl.system.errors import BadInput
from hpcdl.system.text import did_you_mean

if TYPE_CHECKING:
    from hpcdl.site import Partition

GIGA = 1e9
TERA = 1e12
NETWORK_HINT = (
    "say it in the site file, `interconnect: {fabric: infiniband, bandwidth_gbps: 100}`, or "
    "`measured_gbs: 9.8` as measured"
)
CPU = "CPU"
"""The `gpu` of a machine without any: its ranks are sockets."""
_BITS = 8.0
# The peaks of a GPU, and from which compute capability on it has units of their own for each.
_PEAKS = {"fp32": 0.0, "tf32": 8.0, "half": 7.0}


class Link(NamedTuple):
    """A link: seconds of a step and bytes per second each way that an all-reduce reaches."""

    name: str
    latency: float
    bandwidth: float


_CPU_LINK = Link("memory", 20e-6, 12.5e9)


@dataclass(frozen=True)
class Machine:
    """Equal nodes of equal GPUs.

    `flops` by precision (fp32, tf32, half), `memory_rate` in bytes per second, `memory` in bytes;
    0 is unknown. `inside` links the GPUs of a node; `network` is None where it is not known.
    """

    name: str
    gpu: str
    memory: float
    inside: Link
    network: Link | None
    cores: int
    flops: tuple[float, float, float] = (0.0, 0.0, 0.0)
    memory_rate: float = 0.0
    per_node: int = 1
    nodes: int = 0
    compute: str = ""

    def peak(self, precision: str) -> float:
        """Peak operations per second of a GPU in a precision."""
        return self.flops[{"fp32": 0, "tf32": 1}.get(precision, 2)]

    def lacks(self, precision: str) -> tuple[str, ...]:
        """Return the missing figures that a speed in this precision needs."""
        peak = f"{precision if precision in _PEAKS else 'half'}_tflops"
        figures = {peak: self.peak(precision), "memory_gbs": self.memory_rate}
        return tuple(name for name, figure in figures.items() if not figure)

    @property
    def between(self) -> Link:
        """Return the network; if it is unknown, a `BadInput` says how to give it."""
        if self.network is None:
            message = f"the network between the nodes of '{self.name}' is not known"
            raise BadInput(message, hint=NETWORK_HINT)
        return self.network


def of_partition(partition: Partition) -> Machine:
    """The machine that a partition of the site file describes.

    A partition without GPUs is a machine whose ranks are its sockets: it needs a measured step.
    """
    wires, gpu, network = partition.interconnect, partition.gpu, None
    if wires.bandwidth_gbps is not None and wires.fabric in facts.load("links")["fabrics"]:
        network = network_link(wires.fabric, wires.bandwidth_gbps)
    if wires.measured_gbs is not None:
        network = measured(network, wires.measured_gbs * GIGA)
    cores, name, nodes = partition.usable_cores, partition.name, partition.nodes
    if gpu is not None:
        machine = of_gpu(gpu, usual_link(gpu), cores, network)
        return replace(machine, name=name, per_node=gpu.per_node, nodes=nodes)
    memory, sockets = partition.memory_gb * GIGA, partition.sockets
    return Machine(name, CPU, memory, _CPU_LINK, network, cores, per_node=sockets, nodes=nodes)


def usual_link(gpu: Gpu) -> str:
    """Return the link between GPUs of a kind in a node: as given, else NVLink if they have it."""
    capability = float(gpu.compute)
    pcie = "pcie3" if capability < 8 else "pcie4" if capability < 9 else "pcie5"
    return gpu.figures.fabric or ("nvlink" if gpu.nvlink else pcie)


def of_gpu(gpu: Gpu | str, link: str, cores: int, network: Link | None) -> Machine:
    """A machine of one GPU per node: its figures as they are known, the rest as given.

    `link` joins the GPUs of a node (a row of facts/links.yaml); a node has `cores` physical cores.
    Where a GPU has no units for a precision, fp32's is its peak.
    """
    kind = gpu_named(gpu) if isinstance(gpu, str) else gpu
    fp32 = kind.figures.fp32_tflops or 0.0
    fp32, tf32, half = (
        getattr(kind.figures, f"{name}_tflops") or (0.0 if float(kind.compute) >= since else fp32)
        for name, since in _PEAKS.items()
    )
    return Machine(
        name=kind.model,
        gpu=kind.model,
        flops=(fp32 * TERA, tf32 * TERA, half * TERA),
        memory_rate=(kind.figures.memory_gbs or 0.0) * GIGA,
        memory=kind.memory_gb * GIGA,
        inside=_link(link, kind),
        network=network,
        cores=cores,
        compute=kind.compute,
    )


# ---- links, and an all-reduce over them ----


def _link(kind: str, gpu: Gpu) -> Link:
    """A kind of link between the GPUs of a node; NVLink without a given rate is refused."""
    row = facts.load("links")["links"][kind]
    if row["gbs"] is None and gpu.figures.nvlink_gbs is None:
        give = f"give it in the site file: `gpus: {{{gpu.model}: {{nvlink_gbs: N}}}}`"
        raise BadInput(f"the NVLink rate of '{gpu.model}' is not known", hint=give)
    rate = row["gbs"] or (gpu.figures.nvlink_gbs or 0.0) / 2
    return Link(kind, row["latency_us"] * 1e-6, rate * row["efficiency"] * GIGA)


def network_link(fabric: str, gbps: float) -> Link:
    """The network of a fabric of the site file, at a line rate in Gbit/s per node.

    An all-reduce reaches a part of it, of TCP less of a faster network: that part is interpolated
    between rates, over their logarithm.
    """
    row = facts.load("links")["fabrics"][fabric]
    parts = row["efficiency"]
    if isinstance(parts, dict):
        low = max((rate for rate in parts if rate <= gbps), default=min(parts))
        high = min((rate for rate in parts if rate >= gbps), default=max(parts))
        far = math.log(gbps / low) / math.log(high / low) if low < high else 0.0
        parts = parts[low] + far * (parts[high] - parts[low])
    return Link(f"{fabric} {gbps:g} Gb/s", row["latency_us"] * 1e-6, gbps / _BITS * parts * GIGA)


def measured(link: Link | None, rate: float) -> Link:
    """A link with the bandwidth that was measured of it, in bytes per second.

    A network of which nothing else is known (None) has the largest known latency.
    """
    if link is None:
        rows = facts.load("links")["fabrics"].values()
        link = Link("network", max(row["latency_us"] for row in rows) * 1e-6, 0.0)
    return link._replace(name=f"{link.name}, measured {rate / GIGA:.3g} GB/s", bandwidth=rate)


def allreduce(machine: Machine, local: int, nodes: int, size: float) -> float:
    """Seconds of an all-reduce of `size` bytes over `nodes` nodes of `local` GPUs.

    A ring has 2(N-1) steps of S/N bytes (Patarasuk, Yuan 2009); rings within nodes that a double
    binary tree joins, two passes of 2 log2(N) steps at full bandwidth (NCCL 2.4). The faster one.
    """
    link, ranks = machine.inside, local * nodes
    inside = 2 * (local - 1) * (link.latency + size / local / link.bandwidth)
    if nodes < 2:
        return inside
    # NCCL's ring goes into and out of every node once. Every step waits for the slowest link;
    # those inside a node hide behind those between.
    outside = machine.between
    slowest = max(1 / link.bandwidth if local > 1 else 0.0, 1 / outside.bandwidth)
    ring = 2 * (ranks - 1) * (outside.latency + size / ranks * slowest)
    passes = 4 * math.ceil(math.log2(nodes)) * outside.latency
    return min(ring, inside + passes + 2 * size / outside.bandwidth)


# ---- networks ----


FLOAT_BYTES = 4
HALF_BYTES = 2
_USUAL_TOKENS = 512
# Part of the elements a network moves that a training step keeps in memory: ResNet-50 at its
# documented batches (128 in float32, 256 mixed, on 16 GB; NVIDIA DeepLearningExamples; 496 in TF32
# on 48 GB; Lambda).
_KEPT = 0.295


@dataclass(frozen=True)
class TransformerShape:
    """The widths of a transformer, see facts/transformers.yaml; `keys` is 0 where as wide."""

    hidden: int
    inner: int
    blocks: int
    heads: int
    vocabulary: int
    gated: bool = False
    keys: int = 0
    untied: bool = False

    @property
    def block_parameters(self) -> int:
        """Parameters of attention and the feed-forward part of a block."""
        keys = self.keys or self.hidden
        dense = (3 if self.gated else 2) * self.hidden * self.inner
        return 2 * self.hidden * (self.hidden + keys) + dense

    def block_macs(self, tokens: int) -> float:
        """Multiply-adds of a block's forward pass of one sequence.

        A token costs every weight one, and attention two of the width per other token.
        """
        return tokens * (self.block_parameters + 2.0 * self.hidden * tokens)

    @property
    def table(self) -> int:
        """Parameters of the embedding, and of the output."""
        return self.hidden * self.vocabulary


NO_SHAPE = TransformerShape(0, 0, 0, 0, 0)


@dataclass(frozen=True)
class NetworkSums:
    """A network: its input and the sums over its layers, of one image's or sequence's forward pass.

    `macs` are multiply-adds, `moved` elements; `first_macs` those of the first layer. The input of
    a transformer is a sequence: `height` tokens, no channel, and it has a `shape`.
    """

    name: str
    height: int
    width: int
    channels: int
    parameters: int
    tensors: int
    macs: float
    moved: float
    first_macs: float
    shape: TransformerShape = NO_SHAPE


def names() -> tuple[str, ...]:
    """The networks that are known."""
    return (*facts.load("networks")["networks"], *facts.load("transformers")["models"])


@cache
def network(name: str, size: int | None = None) -> NetworkSums:
    """The network `name` for images of `size` x `size`, or sequences of `size` tokens.

    Raises BadInput: the network is unknown; the hint names the nearest.
    """
    shapes: dict[str, dict[str, Any]] = facts.load("transformers")["models"]
    if name in shapes:
        return transformer(name, TransformerShape(**shapes[name]), size or _USUAL_TOKENS)
    row = facts.load("networks")["networks"].get(name)
    if row is None:
        hint = "name one: a forecast is of one network" if "," in name else ""
        raise BadInput(
            f"the layers of model '{name}' are not known", hint=hint or did_you_mean(name, names())
        )
    height, width, channels = row["input"]
    area = (size / height) * (size / width) if size else 1.0
    dense, dense_moved = row.get("dense", 0), row.get("dense_moved", 0)
    return NetworkSums(
        name,
        size or height,
        size or width,
        channels,
        row["parameters"],
        row["tensors"],
        dense + area * (row["macs"] - dense),
        dense_moved + area * (row["moved"] - dense_moved),
        area * row["first"],
    )


def transformer(name: str, shape: TransformerShape, tokens: int) -> NetworkSums:
    """A transformer laid out from its widths: embedding, blocks and output."""
    # One table where input and output share it.
    tables = shape.table * (2 if shape.untied else 1)
    ends_moved = tokens * (2.0 * shape.hidden + shape.vocabulary)
    block_moved = tokens * (12.0 * shape.hidden + 2 * shape.inner + 2 * shape.heads * tokens)
    return NetworkSums(
        name,
        tokens,
        1,
        0,
        shape.blocks * shape.block_parameters + tables,
        14 * shape.blocks + 2,
        shape.blocks * shape.block_macs(tokens) + float(tokens * shape.table),
        shape.blocks * block_moved + ends_moved,
        0.0,
        shape,
    )


def roofline(
    net: NetworkSums, batch: int, flops: float, bandwidth: float, element_bytes: int = FLOAT_BYTES
) -> float:
    """Seconds of a training step at a GPU's peaks: `flops` per second, memory bytes per second.

    Backward costs two forward passes. The update reads and writes weights, gradients and momenta
    once (5 passes over the parameters). `batch` is images per GPU, `element_bytes` an activation's.
    """
    work = 2 * 3 * net.macs * batch / flops
    traffic = 3 * net.moved * batch * element_bytes / bandwidth
    return work + traffic + 5 * FLOAT_BYTES * net.parameters / bandwidth


def kept_bytes(net: NetworkSums, batch: int, element_bytes: int = FLOAT_BYTES) -> float:
    """About what a step keeps of its activations in a GPU's memory."""
    return _KEPT * element_bytes * batch * net.moved
