"""Machines as the model sees them: a GPU's peaks, the links of a node, the network, the cores.

A machine comes from a partition of the site file (`of_partition`) or from the text of a
published row (`of_host`). Figures are rows of facts/gpus.yaml and facts/links.yaml. Bandwidths
are bytes per second each way, latencies seconds.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from hpcdl import facts
from hpcdl.system.errors import BadInput
from hpcdl.system.text import did_you_mean

if TYPE_CHECKING:
    from hpcdl.site import Partition

GIGA = 1e9
ASSUMED = "assumed host"
"""The `name` of a machine whose host is not in the facts."""
CPU = "CPU"
"""The `gpu` of a machine without any: its ranks are sockets."""
_BITS = 8.0
_LEAST_GBPS = 0.01
_GENERATIONS = {"qdr": 40.0, "fdr": 56.0, "edr": 100.0, "hdr": 200.0, "ndr": 400.0}
# `GB` is not a rate of a network: the case of letters counts, but not in the generations' names.
_RATE = re.compile(
    r"(?:\b([0-9]{1,2}) ?x ?)?\b("
    r"[0-9]{1,4}(?:\.[0-9]+)?[ -]?(?:Gb/s|Gbit/s|Gbps|GbE|GigE|Gb|Gigabit)(?![A-Za-z])"
    r"|(?i:qdr|fdr|edr|hdr|ndr)\b)"
)
_VENDOR = re.compile(r"(?:(?:nvidia|tesla|geforce)[ -]+)+")
# Peaks of a CPU core for the shares of layers alone; a measured step gives the scale.
_CPU_CORE_FLOPS, _CPU_MEMORY, _CPU_LATENCY = 50e9, 50e9, 20e-6


@dataclass(frozen=True)
class Link:
    """A link: seconds of a step and bytes per second each way that an all-reduce reaches."""

    name: str
    latency: float
    bandwidth: float


@dataclass(frozen=True)
class Machine:
    """Equal nodes of equal GPUs.

    `flops` by precision (fp32, tf32, half), `memory_rate` in bytes per second, `memory` in
    bytes. `pair` links two GPUs, `ring` more of them, `wide` more than `clique`. `roots` are
    the PCIe root ports that the GPUs of a node share, each of `root` bytes per second.
    """

    name: str
    gpu: str
    flops: tuple[float, float, float]
    memory_rate: float
    memory: float
    per_node: int
    pair: Link
    ring: Link
    network: Link
    cores: int
    roots: int
    root: float
    nodes: int = 0
    clique: int = 0
    wide: Link | None = None

    def link(self, local: int) -> Link:
        """The link that limits a ring of `local` GPUs of one node."""
        if local <= 2:
            return self.pair
        return self.wide if self.wide and local > self.clique else self.ring

    @property
    def host_rate(self) -> float:
        """Bytes per second each way between all GPUs of a node and its memory."""
        return self.roots * self.root


def gpu_row(name: str) -> tuple[str, dict[str, Any]]:
    """The facts' name and row of a GPU, by its name or an alias, whatever its case.

    Raises:
        BadInput: unknown; the hint names the nearest.
    """
    known = facts.load("gpus")
    folded = {key.casefold(): key for key in known["gpus"]}
    aliases = {key.casefold(): value for key, value in known["aliases"].items()}
    key = folded.get(aliases.get(name.casefold(), name).casefold())
    if key is None:
        names = [*known["gpus"], *known["aliases"]]
        raise BadInput(f"unknown GPU model '{name}'", hint=did_you_mean(name, names))
    return key, known["gpus"][key]


def of_partition(partition: Partition) -> Machine:
    """The machine that a partition of the site file describes.

    A partition without GPUs is a machine whose ranks are its sockets: only shares of layers
    come from it, so it needs a measured step.
    """
    fabric = partition.interconnect.fabric
    network = network_link(fabric, partition.interconnect.bandwidth_gbps)
    if partition.gpu is None:
        return _cpu_machine(partition, network)
    name, _ = gpu_row(partition.gpu.model)
    machine = of_gpu(name, usual_link(name), partition.cores, partition.sockets, network)
    return replace(
        machine,
        name=partition.name,
        per_node=partition.gpu.per_node,
        nodes=partition.nodes,
        memory=partition.gpu.memory_gb * GIGA,
    )


def of_host(gpu: str, hardware: str, per_node: int, interconnect: str = "") -> Machine | None:
    """The machine of a published row, or None where its GPU is not in the facts.

    A host that is not in the facts is a common node with the links that the row's own text
    names; the machine's name is then ASSUMED.

    Args:
        gpu: the row's name of the GPU, such as `K80 (one GK210 die)`.
        hardware: the row's text for the machine.
        per_node: GPUs used per node.
        interconnect: the row's text for its links, such as `PCIe, 25 GbE`.
    """
    known = facts.load("links")
    name = gpu_of(gpu)
    if name is None:
        return None
    host = next(row for row in known["hosts"] if row["match"] in hardware)
    if not host["match"]:
        host = {**host, **_named_links(f"{hardware}, {interconnect}", name)}
    network = network_link(host["fabric"], host["network_gbps"])
    link = host["link"]
    if link is None or (link == "nvlink" and usual_link(name) != "nvlink"):
        link = usual_link(name)  # a host's usual GPUs may have what these lack
    machine = of_gpu(name, link, host["cores"], host["roots"], network)
    if "beyond" in host:
        clique, link = host["beyond"]
        machine = replace(machine, clique=clique, wide=_links(link, name)[1])
    memory = machine.memory * (2 if "32GB" in gpu or "32GB" in hardware else 1)
    return replace(machine, name=host["match"] or ASSUMED, per_node=per_node, memory=memory)


def _named_links(text: str, gpu: str) -> dict[str, Any]:
    """The links of a host that a text such as `NVLink`, `PCIe`, `2x EDR` or `25 GbE` names."""
    found: dict[str, Any] = {}
    folded = text.casefold()
    if "pcie" in folded.replace("-", "").replace(" ", "") and "nvlink" not in folded:
        capability = float(facts.load("gpus")["gpus"][gpu]["compute"])
        found["link"] = f"pcie{_pcie(capability)}"
    said = [float(match[1] or 1) * _rate(match[2]) for match in _RATE.finditer(text)]
    rates = [rate for rate in said if rate >= _LEAST_GBPS]  # `0 GbE` says that nothing is known
    if rates:
        found["network_gbps"] = max(rates)
        names = ("ethernet", "gbe", "roce", "tcp", "gige")
        found["fabric"] = "ethernet" if any(name in folded for name in names) else "infiniband"
    return found


def _rate(text: str) -> float:
    """Gb/s of `25 GbE`, `100Gb/s` or of an InfiniBand generation."""
    return _GENERATIONS.get(text.casefold()) or float(re.match(r"[0-9.]+", text)[0])  # type: ignore[index]


def _pcie(capability: float) -> int:
    """The generation of PCI Express that GPUs of a compute capability have."""
    return 3 if capability < 8 else 4 if capability < 9 else 5


def gpu_of(text: str) -> str | None:
    """The facts' name of the GPU that a row means: `Tesla V100-SXM2-32GB`, `K80 (one die)`."""
    folded = _VENDOR.sub("", text.strip().casefold())
    known = facts.load("gpus")
    starts = [
        *facts.load("links")["gpu_names"],
        *((name, name) for name in sorted(known["gpus"], key=len, reverse=True)),
        *known["aliases"].items(),
    ]
    for start, name in starts:
        rest = folded.removeprefix(start.casefold())
        if rest != folded and not rest[:1].isalnum():
            return str(name)
    return None


def usual_link(gpu: str) -> str:
    """The link between GPUs of a kind in a node: NVLink where they have it, else PCI Express."""
    row = facts.load("gpus")["gpus"][gpu]
    return "nvlink" if row["nvlink_gbs"] else f"pcie{_pcie(float(row['compute']))}"


def of_gpu(gpu: str, link: str, cores: int, roots: int, network: Link) -> Machine:
    """A machine of one GPU per node: its figures from the facts, the rest as given."""
    name, row = gpu_row(gpu)
    pair, ring = _links(link, name)
    pcie = "pcie3" if float(row["compute"]) < 8 else "pcie4"
    return Machine(
        name=name,
        gpu=name,
        flops=_peaks(name, row["fp32_tflops"] * 1e12),
        memory_rate=row["memory_gbs"] * GIGA,
        memory=row["memory_gb"] * GIGA,
        per_node=1,
        pair=pair,
        ring=ring,
        network=network,
        cores=cores,
        roots=max(1, roots),
        root=_links(pcie, name)[0].bandwidth,
    )


def _peaks(name: str, fp32: float) -> tuple[float, float, float]:
    """Peaks of fp32, tf32 and half precision; fp32's where there are no matrix units."""
    row = facts.load("links")["matrix_tflops"].get(name, {})
    tf32 = row.get("tf32", fp32 / 1e12) * 1e12
    return fp32, tf32, row.get("half", fp32 / 1e12) * 1e12


def _links(kind: str, gpu: str) -> tuple[Link, Link]:
    """A kind of link between two GPUs, and in a ring of more."""
    row = facts.load("links")["links"][kind]
    rate = row["gbs"] or facts.load("gpus")["gpus"][gpu]["nvlink_gbs"] / 2
    latency = row["latency_us"] * 1e-6
    return (
        Link(kind, latency, rate * row["pair"] * GIGA),
        Link(kind, latency, rate * row["efficiency"] * GIGA),
    )


def network_link(fabric: str, gbps: float) -> Link:
    """The network of a fabric of the site file, at a line rate in Gbit/s per node."""
    row = facts.load("links")["fabrics"][fabric]
    rate = gbps / _BITS * row["efficiency"] * GIGA
    return Link(f"{fabric} {gbps:g} Gb/s", row["latency_us"] * 1e-6, rate)


def _cpu_machine(partition: Partition, network: Link) -> Machine:
    flops = _CPU_CORE_FLOPS * partition.cores_per_socket
    memory = Link("memory", _CPU_LATENCY, _CPU_MEMORY / 4)
    return Machine(
        name=partition.name,
        gpu=CPU,
        flops=(flops, flops, flops),
        memory_rate=_CPU_MEMORY,
        memory=partition.memory_gb * GIGA,
        per_node=partition.sockets,
        pair=memory,
        ring=memory,
        network=network,
        cores=partition.cores,
        roots=1,
        root=_CPU_MEMORY,
        nodes=partition.nodes,
    )
