"""Where a prediction starts: how long one GPU takes for a step, and what this site measured.

Best first: a result.json of this site; published rows of the same GPU, network and precision; what
effects of GPU, precision and network in all published rows give. The last two are one smooth
function: the roofline of the step (machine.py) times the part of it that is reached. That part is
the mean of the rows' own parts, near batches and sizes and the same framework counting most, drawn
towards the effects; so the rate has no jump from one batch to the next.

`hpcdl.results` reads a result.json; here is what it means, and whether it is of this machine. The
fp16 and bf16 of `hpcdl train` are mixed ones: weights and gradients stay float32, and only
`--compress` sends half of the bytes. Its fp32 is multiplied as TF32 where a GPU can.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from statistics import NormalDist
from typing import Any, NamedTuple

from hpcdl import facts
from hpcdl.predict.machine import CPU, GIGA, Machine, NetworkSums, measured, network, roofline
from hpcdl.predict.step import Workload, utilisation, whole_on_one
from hpcdl.results.gpus import model_of_type
from hpcdl.results.records import RESULT, at
from hpcdl.system.errors import BadInput

_TF32_SINCE = 8.0  # compute capability from which TensorFlow multiplies fp32 as TF32
_MIXED = ("fp16", "bf16", "amp")
WORDS = ("fp32", "float32", "tf32", *_MIXED)
"""What a run may call its precision."""
LONGEST_STEP = 86_400.0
_LARGEST_SIZE = 1_000_000
_OWN_PHASES = ("compute", "update", "other")
_SPREAD = 0.03
"""What two runs of the same job usually differ by, as a part."""
ONE_RUN = math.exp(NormalDist().inv_cdf(0.9) * _SPREAD * math.sqrt(2))
"""The factor by which the next run may differ from a single one, eight times in ten."""


# ---- runs ----


@dataclass(frozen=True)
class MeasuredRun:
    """The values of a result.json that matter here; `seconds` of one rank's own work per step.

    `precision` is the trainer's word; `cpus` are those of a rank. `nodes` is 1, and `size`, of
    images, None where it says none. `partition` and `gpu` (as the driver calls it) are empty where
    the run knew none; `on_cpu` is whether it says that it used no GPU.
    """

    origin: Path
    model: str
    batch: int
    precision: str
    compress: bool
    seconds: float
    ranks: int
    nodes: int
    images_per_second: float
    partition: str
    gpu: str
    on_cpu: bool
    size: int | None = None
    cpus: int = 1

    @property
    def step(self) -> float:
        """Seconds of a step of all ranks, waiting and exchanging with it."""
        return self.ranks * self.batch / self.images_per_second


def read_result(path: Path) -> MeasuredRun:
    """Read a result.json of `hpcdl train`; one that measured nothing is a `BadInput`."""
    value = _sound(path)
    ranks, batch = value["layout"]["ranks"], value["batch_per_rank"]
    rate, phases = value["summary"]["images_per_second"], at(value, "summary", "phases") or {}
    own = sum(phases.get(name) or 0.0 for name in _OWN_PHASES) or 1.0
    seconds = ranks * batch / rate * own if rate > 0 else 0.0
    if not (rate < 1e12 and 0 < own <= 1.001 and 0 < seconds < LONGEST_STEP):
        raise BadInput(
            f"{path} holds no measured step: {rate:g} images/s",
            hint="the run must have made steps beyond its warm-up",
        )
    precision: str | None = value.get("precision")
    if precision not in WORDS:
        raise BadInput(f"{path} names no precision that a run can have: {', '.join(WORDS)}")
    size = at(value, "options", "image_size")
    return MeasuredRun(
        path,
        value.get("model") or "",
        batch,
        precision,
        at(value, "options", "compress") is True,
        seconds,
        ranks,
        len(at(value, "layout", "nodes") or [""]),
        rate,
        at(value, "job", "partition") or "",
        at(value, "layout", "gpu") or "",
        at(value, "layout", "gpu_per_rank") == 0,
        size if type(size) is int and 0 < size < _LARGEST_SIZE else None,
        at(value, "layout", "cpus_per_rank") or 1,
    )


def _sound(path: Path) -> dict[str, Any]:
    """The values of a result.json that is of our version, and of a training that was measured."""
    try:
        record = RESULT.read(path)
        if record.values.get("kind") == "allreduce":
            raise BadInput(
                f"{path} is of an all-reduce check, not of a training",
                hint="give its GB/s to the site file: `interconnect: {measured_gbs: N}`",
            )
        record.need("schema", "layout.ranks", "batch_per_rank", "summary.images_per_second")
    except BadInput as fault:
        hint = fault.hint or "`hpcdl train` writes a result.json for every run"
        raise BadInput(fault.message, hint=hint) from fault
    return record.values


def same_machine(run: MeasuredRun, machine: Machine) -> None:
    """A run of another machine says nothing of this one: a `BadInput`."""
    if run.partition and run.partition != machine.name:
        raise BadInput(
            f"{run.origin} measured the partition '{run.partition}', not '{machine.name}'",
            hint="leave --partition out, or calibrate by a run of that partition",
        )
    # A run on the very partition is of its GPUs where it used none: emulated ones are none.
    gpu = model_of_type(run.gpu) or run.gpu.removeprefix("NVIDIA ").removeprefix("Tesla ")
    if not (gpu or run.partition) and run.on_cpu:
        gpu = CPU
    names: tuple[str, ...] = (gpu, machine.gpu)
    # Within a partition drivers do not always tell the cards of a kind apart.
    if run.partition or "-" not in gpu:
        names = tuple(name.replace("-", " ").partition(" ")[0] for name in names)
    if gpu and names[0] != names[1]:
        raise BadInput(
            f"{run.origin} measured on {gpu}, but '{machine.name}' is of {machine.gpu}",
            hint="calibrate by a run of that partition",
        )


def trained_precision(name: str, compute: str | None, *, compress: bool = False) -> str:
    """The model's name for a run of `hpcdl train --precision NAME` on a GPU.

    `compute` is its compute capability, None of a CPU. A precision that no run has is a `BadInput`.
    """
    if name not in WORDS:
        raise BadInput(f"unknown precision '{name[:40]}'", hint=f"it is {', '.join(WORDS)}")
    if name in _MIXED:
        return "fp16" if compress else "amp"
    multiplied = bool(compute) and float(compute or 0) >= _TF32_SINCE
    return "tf32" if name == "tf32" or multiplied else "fp32"


# ---- all-reduce checks ----


class Exchange(NamedTuple):
    """The site's references of an all-reduce of nodes with `local` ranks each, and their file.

    `rate` is the bus bandwidth of large messages in bytes per second.
    """

    origin: str
    nodes: int
    local: int
    rate: float

    @property
    def describe(self) -> str:
        """The check as a line of text."""
        where = "a node" if self.nodes == 1 else f"{self.nodes} nodes"
        ranks = self.nodes * self.local
        return f"{self.origin}: {self.rate / GIGA:.3g} GB/s on the bus of {ranks} ranks on {where}"


def bus_rate(rates: Iterable[tuple[int, float]]) -> float | None:
    """The bus bandwidth in bytes per second by those of messages: bytes, and GB/s.

    It is that of what the largest message has more than the next: what every message costs, such
    as Horovod's cycle, cancels out. None where the largest took no longer.
    """
    times = [(0, 0.0), *((size, size / (gbs * GIGA)) for size, gbs in sorted(rates))]
    (small, short), (large, long) = times[-2:]
    return (large - small) / (long - short) if long > short else None


def with_exchange(machine: Machine, exchange: Exchange) -> Machine:
    """The machine with the link that a check measured."""
    if exchange.nodes == 1:
        return replace(machine, inside=measured(machine.inside, exchange.rate))
    # A ring between nodes passes within them, too, so those links are no slower.
    inside = machine.inside._replace(bandwidth=max(machine.inside.bandwidth, exchange.rate))
    return replace(machine, inside=inside, network=measured(machine.network, exchange.rate))


# ---- one GPU's step ----


USUAL_BATCH, _FRAMEWORK = 64, "TensorFlow"
# Weights of a row: of another framework, with XLA where the other has none, without a batch; of the
# effects all together.
_OTHER, _XLA, _NO_BATCH, _EFFECTS = 0.03, 0.3, 0.02, 0.05
_OCTAVES = 2.0
"""Of batches and areas that differ by so many doublings, a row weighs half."""


@dataclass(frozen=True)
class Calibration:
    """Seconds of one GPU's step without waiting for input, what says so, and how certain it is.

    `low` and `high` are factors on images per second between which the truth likely lies;
    `proof` is an evidence level.
    """

    seconds: float
    batch: int
    source: str
    proof: str
    low: float = 1 / ONE_RUN
    high: float = ONE_RUN


def from_result(result: MeasuredRun, batch: int) -> Calibration:
    """The calibration that a run of this site gives, for steps of another batch: the surest one."""
    rate = f"{result.images_per_second:g} images/s on {result.ranks} rank(s)"
    seconds = result.seconds * batch / result.batch
    return Calibration(seconds, result.batch, f"{result.origin.name}: {rate}", "run")


def from_facts(machine: Machine, work: Workload) -> Calibration:
    """The calibration of a machine where nothing was measured.

    Raises BadInput: nothing says how fast the GPU is, as on CPUs.
    """
    _refuse_unknown(machine, work)
    if work.plan is None:
        return _from_rows(machine, work)
    bounds, seconds = utilisation(machine.gpu, work.plan), whole_on_one(machine, work)
    source = f"matrices at {bounds['part']:.0%} of the GPU's peak, as in published transformers"
    return Calibration(seconds, work.batch, source, "doubtful", bounds["low"], bounds["high"])


def _from_rows(machine: Machine, work: Workload) -> Calibration:
    """One GPU's step by published single-GPU rows, and by effects where there are few."""
    part, row = reached(machine, work, _FRAMEWORK, one_gpu_rows())
    shipped = facts.load("predict")
    if row is None:
        known = work.net.name in shipped["effects"]["network"]
        kind, proof = ("borrowed" if known else "unseen"), "doubtful"
        source = "effects of GPU, precision and network in published rows (none joins these)"
    else:
        kind, proof = ("same" if row.framework.startswith(_FRAMEWORK) else "foreign"), "published"
        batch = f"{row.batch or 'unknown'}{' with XLA' if row.xla else ''}"
        source = f"{row.source}: {row.rate:g} images/s at batch {batch}"
        source += f" ({row.framework})" if kind == "foreign" else ""
    seconds = roof(machine, work) / math.exp(part)
    return Calibration(seconds, work.batch, source, proof, **shipped["one_gpu"][kind])


def _refuse_unknown(machine: Machine, work: Workload) -> None:
    net, lacking = work.net.name, machine.lacks(work.precision)
    if machine.gpu == CPU:
        raise BadInput(
            f"the speed of '{net}' on one rank of '{machine.name}' is unknown",
            hint="measure it: give --calibrate RESULT.JSON of a short run",
        )
    if lacking:
        raise BadInput(
            f"{' and '.join(lacking)} of the {machine.gpu} are not known, so the speed of "
            f"'{net}' cannot be predicted",
            hint=f"give them in the site file under `gpus: {machine.gpu}:`, or measure a short "
            "run: --calibrate RESULT.JSON",
        )


# ---- published rows ----


class OneGpuRow(NamedTuple):
    """A published rate of one GPU; `part` is the log of the part of the roofline it reached."""

    source: str
    gpu: str
    model: str
    size: int
    batch: int | None
    precision: str
    framework: str
    xla: bool
    rate: float
    part: float


@cache
def one_gpu_rows() -> tuple[OneGpuRow, ...]:
    """The single-GPU rows of facts/throughput.csv, those that have a `part`."""
    table = facts.load("throughput")
    return tuple(
        OneGpuRow(
            table["sources"][row["source"]],
            row["gpu"],
            row["model"],
            int(
                row.get("sequence_length") or row.get("image_size") or network(row["model"]).height
            ),
            int(row["batch_per_gpu"]) if "batch_per_gpu" in row else None,
            units_of(row.get("precision", "fp32")),
            row["framework"],
            "xla" in row,
            row["images_per_sec"],
            row["part"],
        )
        for row in table["records"]
        if "part" in row
    )


def roof(machine: Machine, work: Workload) -> float:
    """Seconds of a step at the hardware's peaks."""
    peak = machine.peak(work.precision)
    return roofline(work.net, work.batch, peak, machine.memory_rate, work.activation_bytes)


def reached(
    machine: Machine,
    work: Workload,
    framework: str,
    rows: Iterable[OneGpuRow],
    effects: Mapping[str, Any] | None = None,
) -> tuple[float, OneGpuRow | None]:
    """The log of the part of a step's roofline that a GPU reaches, and the row that counted most.

    No row joins GPU, network and precision where that is None. `framework` is its name, ` with XLA`
    behind it where XLA compiles.
    """
    joined = work.net.name, machine.gpu, units_of(work.precision)
    same = [row for row in rows if (row.model, row.gpu, row.precision) == joined]
    weights = [_weight(row, work, framework) for row in same]
    effects = facts.load("predict")["effects"] if effects is None else effects
    usual = expected(effects, machine.gpu, work.net, work.precision, framework)
    mean = sum(weight * row.part for weight, row in zip(weights, same, strict=True))
    nearest = same[weights.index(max(weights))] if same else None
    return (mean + _EFFECTS * usual) / (sum(weights) + _EFFECTS), nearest


def _weight(row: OneGpuRow, work: Workload, framework: str) -> float:
    """How much a row counts: by framework first, then by how near its batch and size are."""
    name, _, compiled = framework.partition(" ")
    kind = 1.0 if row.framework.startswith(name) else _OTHER
    kind *= 1.0 if row.xla == bool(compiled) else _XLA
    far = (2 if work.net.channels else 1) * math.log2(row.size / work.net.height)
    if row.batch is None:
        return kind * _NO_BATCH * math.exp(-((far / _OCTAVES) ** 2) / 2)
    off = math.log2(row.batch / work.batch)
    # Tails fall off slowly, so that far rows still count more than effects.
    return kind / (1 + (off * off + far * far) / _OCTAVES**2)


def expected(
    effects: Mapping[str, Any], gpu: str, net: NetworkSums, precision: str, framework: str
) -> float:
    """The log of the part of the roofline by the effects of facts/predict.yaml."""
    total = float(effects["middle"])
    for name, key in effect_keys(gpu, net, units_of(precision), framework).items():
        total += effects[name].get(key, 0.0)
    slope = effects["slope"].get(f"{gpu.partition('-')[0]} {units_of(precision)}", 0.0)
    return total + float(slope) * (intensity(net) - float(effects["intensity"]))


def effect_keys(gpu: str, net: NetworkSums, units: str, framework: str) -> dict[str, str]:
    """The effects of a training, and the key of each in facts/predict.yaml."""
    generation = gpu.partition("-")[0]
    kind = "images" if net.channels else "text"
    return {
        "generation_units": f"{generation} {units}",
        "card_units": f"{gpu} {units}",
        "network": net.name,
        "network_units": f"{net.name} {units}",
        "kind_units": f"{kind} {units}",
        "framework": framework,
    }


def intensity(net: NetworkSums) -> float:
    """The log of arithmetic per element moved."""
    return math.log(net.macs / net.moved)


def units_of(precision: str) -> str:
    """The units that compute in a precision: amp and fp16 use the same."""
    return "amp" if precision == "fp16" else precision
