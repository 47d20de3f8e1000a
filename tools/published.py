"""Published throughput: rows of tools/data/throughput.csv, and how each is compared with its base.

A row is one measurement. The row of the fewest GPUs of the same source, hardware and settings is
the base of the others. What a row does not state is taken from its source's scripts or assumed.
"""

from __future__ import annotations

import csv
import re
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from hpcdl.predict.machine import (
    Machine,
    kept_bytes,
    names,
    network,
    network_link,
    of_gpu,
    usual_link,
)
from hpcdl.predict.step import ENDLESS, PRECISIONS, ModelSplit, Workload, feed
from hpcdl.results.gpus import gpu_named, may_be, model_of_type
from hpcdl.system.errors import BadInput
from hpcdl.system.text import one_of

DATA = Path(__file__).parent / "data"
_MOST_ASSUMED = 256
_SUPERLINEAR = 1.1
_NOT_A_REFERENCE = "do not use as scaling reference"
# `GB` is not a rate of a network: the case of letters counts, but not in the generations' names.
_RATE = re.compile(
    r"(?:\b([0-9]{1,2}) ?x ?)?\b("
    r"[0-9]{1,4}(?:\.[0-9]+)?[ -]?(?:Gb/s|Gbit/s|Gbps|GbE|GigE|Gb|Gigabit)(?![A-Za-z])"
    r"|(?i:qdr|fdr|edr|hdr|ndr)\b)"
)
_CORES = re.compile(r"(?:\b([0-9]) ?x ?)?\b([0-9]{1,3})[ -]cores?\b", re.IGNORECASE)


@dataclass(frozen=True)
class PublishedRow:
    """A published measurement; `rate` in images (sequences) per second of all GPUs.

    `size` is the edge of an image in pixels, or the length of a sequence in tokens; `batch` is of
    one GPU and one pass, `accumulation` passes an exchange.
    """

    id: str
    source: str
    hardware: str
    gpu: str
    gpus: int | None
    nodes: int
    cores: int | None
    interconnect: str
    framework: str
    software: str
    model: str
    size: int | None
    batch: int | None
    accumulation: int
    precision: str
    xla: bool
    data: str
    update: str
    rate: float | None
    speedup: float | None
    notes: str

    @property
    def setting(self) -> tuple[object, ...]:
        """What a row shares with its base, the batch left out."""
        return (
            self.source,
            self.hardware.partition(",")[0].lstrip("0123456789x "),
            self.gpu,
            self.framework,
            self.software,
            self.model,
            self.size,
            self.precision,
            self.xla,
            self.data,
            self.update,
        )


def records(path: Path = DATA / "throughput.csv") -> list[dict[str, Any]]:
    """The rows of a file as plain values; empty cells are left out."""
    numbers = set(yaml.safe_load((DATA / "throughput.yaml").read_text())["numbers"])
    with path.open(encoding="utf-8", newline="") as file:
        return [
            {key: float(value) if key in numbers else value for key, value in row.items() if value}
            for row in csv.DictReader(file)
        ]


def rows(path: Path = DATA / "throughput.csv") -> list[PublishedRow]:
    """The rows of a file."""
    return [_row(record) for record in records(path)]


def _row(value: dict[str, Any]) -> PublishedRow:
    def whole(*keys: str) -> int | None:
        given = next((value[key] for key in keys if key in value), None)
        return round(given) if given else None

    texts = {
        key: value.get(key, "")
        for key in ("hardware", "interconnect", "framework", "data", "notes")
    }
    return PublishedRow(
        id=value["id"],
        source=value["source"],
        gpu=value["gpu"],
        gpus=whole("gpus"),
        nodes=whole("nodes") or 1,
        cores=whole("cores"),
        software=f"{value.get('version', '')} {value.get('implementation', '')}",
        model=model_of(value["model"]),
        size=whole("sequence_length", "image_size"),
        batch=whole("batch_per_gpu"),
        accumulation=whole("accumulation") or 1,
        precision=precision_of(value.get("precision", "fp32")),
        xla=value.get("xla") == "true",
        update=value.get("variable_update", ""),
        rate=value.get("images_per_sec"),
        speedup=value.get("speedup"),
        **texts,
    )


# ---- names ----


@cache
def gpu_of(text: str) -> str | None:
    """The facts' name of the GPU that a table means; None for an unknown one.

    Raises:
        BadInput: the text fits several rows, such as `H100`.
    """
    name = re.sub(r"\((SXM\d|PCIe|)[^)]*\)", r"\1", text)  # as in `K80 (one GK210 die)`
    if cards := may_be(name):
        raise BadInput(f"the GPU '{text}' may be {one_of(cards)}", hint="write one of them")
    return model_of_type(name)


def precision_of(text: str) -> str:
    """One of PRECISIONS: `tf32/fp32` is tf32, `mixed ...` is amp; an unknown one stays as it is."""
    known: dict[str, str] = _hosts()["precision_names"]
    return known.get(re.split(r"[/ _(]", text.strip().lower())[0], text)


def model_of(text: str) -> str:
    """The network's own name for `ResNet-50`, `inception3` or however a source writes it."""
    return _folded_names().get(_folded(text), text)


@cache
def _folded_names() -> dict[str, str]:
    aliases: dict[str, str] = _hosts()["model_names"]
    return {**{_folded(name): name for name in names()}, **aliases}


def _folded(text: str) -> str:
    return re.sub(r"[^a-z0-9]", "", text.lower())


# ---- machines ----


@cache
def _hosts() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((DATA / "hosts.yaml").read_text())
    return found


def machine_of(row: PublishedRow, gpus: int) -> Machine | None:
    """The machine of a row, `gpus` of it in use; None where its GPU is not in the facts.

    A host that is not known is a common node with the links that the text names.
    """
    try:
        name = gpu_of(row.gpu)
    except BadInput:
        return None
    if name is None:
        return None
    kind = gpu_named(name)
    usual = usual_link(kind)
    host = next(one for one in _hosts()["hosts"] if one["match"] in row.hardware)
    if not host["match"]:
        board = _hosts()["board_gbps"].get(name.partition("-")[0]) if usual == "nvlink" else 0
        host = {
            **host,
            "network_gbps": board or host["network_gbps"],
            **_named_links(f"{row.hardware}, {row.interconnect}", kind),
        }
    # A host's usual GPUs may have what these lack.
    link = usual if host["link"] in (None, "nvlink") and usual != "nvlink" else host["link"]
    said = _CORES.search(row.hardware)  # such as `32 cores` or `2x 20 cores`
    cores = row.cores or (int(said[1] or 1) * int(said[2]) if said else 0) or host["cores"]
    between = network_link(host["fabric"], host["network_gbps"])
    machine = of_gpu(kind, link or usual, cores, between)
    return replace(machine, name=host["match"] or "assumed host", per_node=gpus // row.nodes)


def _named_links(text: str, gpu: Any) -> dict[str, Any]:
    """The links of a host that a text such as `NVLink`, `PCIe`, `2x EDR` or `25 GbE` names."""
    found: dict[str, Any] = {}
    folded = text.casefold()
    if "pcie" in folded.replace("-", "").replace(" ", "") and "nvlink" not in folded:
        found["link"] = usual_link(gpu._replace(nvlink=False))
    known = _hosts()["generations_gbps"]
    rates = [
        float(count or 1) * (known.get(rate.casefold()) or float(re.sub("[^0-9.].*", "", rate)))
        for count, rate in _RATE.findall(text)
    ]
    if any(rates):
        found["network_gbps"] = max(rates)
        found["fabric"] = _fabric(folded)
    return found


def _fabric(folded: str) -> str:
    if "roce" in folded or ("rdma" in folded and "gbe" in folded):
        return "roce"
    if any(word in folded for word in ("aws", "ec2", "gce", "azure", "cloud", "vpc", "alibaba")):
        return "cloud"
    ethernet = ("ethernet", "gbe", "tcp", "gige")
    return "ethernet" if any(word in folded for word in ethernet) else "infiniband"


# ---- pairs of a row and its base ----


@dataclass(frozen=True)
class Side:
    """One end of a comparison: so many GPUs on so many nodes of a machine.

    `images` are those of one GPU between exchanges, of all its passes. `server_rate` is bytes per
    second of one way between a GPU and parameter servers in host memory, one shard per node.
    `form` is how gradients are exchanged.
    """

    machine: Machine
    work: Workload
    gpus: int
    nodes: int
    images: int
    server_rate: float
    form: str


@dataclass(frozen=True)
class ComparedPair:
    """A row, its base, and how both are predicted; `measured` is a rate, or a speed-up."""

    row: PublishedRow
    base: PublishedRow
    here: Side
    there: Side
    measured: float

    @property
    def linear(self) -> float:
        """The value of scaling without any loss."""
        ratio = self.here.gpus / self.there.gpus
        return ratio * ((self.base.rate or 0.0) if self.row.rate else 1.0)


def pairs(found: Sequence[PublishedRow]) -> tuple[list[ComparedPair], dict[str, str]]:
    """The rows that can be compared with a base, and for each other id the reason."""
    known: dict[tuple[object, ...], list[PublishedRow]] = {}
    for row in found:
        if row.gpus and row.rate:
            known.setdefault(row.setting, []).append(row)
    compared, unfit = [], {}
    for row in found:
        if row.gpus == 1:
            continue
        pair = _pair(row, _base(row, known.get(row.setting, ())))
        if isinstance(pair, str):
            unfit[row.id] = pair
        else:
            compared.append(pair)
    return compared, unfit


def _base(row: PublishedRow, others: Iterable[PublishedRow]) -> PublishedRow | None:
    """The row of the fewest GPUs, of those with as few the nearest in batch, within a quarter."""
    batch = row.batch
    fewer = [
        one
        for one in others
        if (one.gpus or 0) < (row.gpus or 0)
        and (one.batch is None) == (batch is None)
        and (batch is None or abs((one.batch or 0) - batch) <= batch / 4)
    ]
    return min(fewer, key=lambda o: (o.gpus, abs((o.batch or 0) - (batch or 0))), default=None)


def _pair(row: PublishedRow, base: PublishedRow | None) -> ComparedPair | str:
    reason = _unusable(row)
    if reason:
        return reason
    gpus = row.gpus or 1
    if base is None or not base.rate or not base.gpus or base.gpus % base.nodes:
        return "no row of fewer GPUs of its source, hardware and settings"
    if row.rate is None and base.gpus > 1:
        return "a speed-up, but no single-GPU row"
    machine, other = machine_of(row, gpus), machine_of(base, base.gpus)
    if machine is None or other is None:
        return f"the GPU '{row.gpu}' is not in the facts, or may be several"
    if row.precision in PRECISIONS and machine.lacks(row.precision):
        return f"the peak of the {machine.gpu} in {row.precision} is not known"
    work = workload_of(row, base, machine)
    found = ComparedPair(
        row,
        base,
        _side(row, machine, work),
        _side(base, other, work),
        row.rate or row.speedup or 0.0,
    )
    if _NOT_A_REFERENCE in row.notes:
        return f"its source warns: {row.notes}"
    if found.measured > _SUPERLINEAR * found.linear:
        return "more than linear: its base was hindered"
    return found


def _side(row: PublishedRow, machine: Machine, work: Workload) -> Side:
    work = replace(work, plan=plan_of(row)) if row.update == "fsdp" else work
    gpus, nodes = row.gpus or 1, row.nodes
    rate = _server_rate(row, machine, gpus // nodes)
    return Side(machine, work, gpus, nodes, work.batch * row.accumulation, rate, form_of(row))


def _server_rate(row: PublishedRow, machine: Machine, local: int) -> float:
    """Bytes per second of a GPU: over the root ports that those of a node share, and the network.

    A GPU sends all its gradients, the other nodes' shards over the network.
    """
    host = next(one for one in _hosts()["hosts"] if one["match"] in row.hardware)
    root = of_gpu(machine.gpu, usual_link(gpu_named(machine.gpu)._replace(nvlink=False)), 1, None)
    seconds = max(1.0, local / host["roots"]) / root.inside.bandwidth
    if row.nodes > 1:
        seconds = max(seconds, local * ((row.nodes - 1) / row.nodes) / machine.between.bandwidth)
    return 1 / seconds


def plan_of(row: PublishedRow) -> ModelSplit:
    """How the sharded weights of a row are split."""
    zero = 3 if "FULL_SHARD" in row.software or row.update == "fsdp" else 2
    again = "full" if "checkpointing" in row.software else "none"
    return ModelSplit(micro_batches=row.accumulation, zero=zero, checkpointing=again)


def _unusable(row: PublishedRow) -> str:
    """Why a row alone rules itself out, or nothing."""
    reasons = (
        (row.gpus is None, "its number of GPUs is not stated"),
        (row.rate is None and row.speedup is None, "no number"),
        ((row.gpus or 0) % row.nodes, f"{row.gpus} GPUs do not spread over {row.nodes} nodes"),
        (row.model not in names(), f"the layers of model '{row.model}' are not known"),
        (row.precision not in PRECISIONS, f"the precision '{row.precision}' is not known"),
    )
    return next((reason for wrong, reason in reasons if wrong), "")


def workload_of(row: PublishedRow, base: PublishedRow, machine: Machine) -> Workload:
    """What a row trains; without a batch, the largest power of two that the GPU's memory holds."""
    net, data = network(row.model, row.size), row.data
    # Some frameworks' own scripts decode on a fixed number of threads.
    threads = _hosts()["decode_threads"]
    fixed = [one["threads"] for one in threads if row.framework.startswith(one["framework"])]
    # Synthetic images are made once, and DALI decodes on the GPU.
    endless = not data or data.startswith(("synthetic", "not stated")) or "DALI" in data
    batch, kept = 1, kept_bytes(net, 1, Workload(net, 1, row.precision).activation_bytes)
    while batch < _MOST_ASSUMED and 2 * batch * kept <= machine.memory:
        batch *= 2
    decoders = replace(machine, cores=min([machine.cores, *fixed]))
    return Workload(
        net,
        row.batch or base.batch or batch,
        row.precision,
        ENDLESS if endless or not net.channels else feed(decoders, net),
    )


def form_of(row: PublishedRow) -> str:
    """The form a row's `variable_update` names, else Horovod's.

    `horovod` and `ddp` are an all-reduce beside back-propagation, `no_overlap` one after it.
    TensorFlow's `replicated` without NCCL adds gradients on one device per variable and copies
    the sums back: a parameter server whose shards are the devices.
    """
    update = row.update.lower()
    named = next((form for word, form in _hosts()["forms"] if word in update), "")
    return named or "horovod"


# ---- errors ----


@dataclass(frozen=True)
class Errors:
    """Errors of a set of rows: median and 90th percentile of |error|, and the mean error."""

    rows: int
    median: float
    ninetieth: float
    bias: float

    @property
    def cells(self) -> tuple[str, ...]:
        """As cells of a table."""
        return (str(self.rows), f"{self.median:.1%}", f"{self.ninetieth:.1%}", f"{self.bias:+.1%}")


def errors(found: Sequence[float]) -> Errors:
    """Median, 90th percentile (nearest rank) and mean of relative errors."""
    sizes = sorted(map(abs, found))
    rank = min(len(sizes) - 1, max(0, -(-9 * len(sizes) // 10) - 1))
    return Errors(len(sizes), statistics.median(sizes), sizes[rank], statistics.fmean(found))
