"""How long one GPU takes for a step: what the model starts from, and how certain it is.

Best first: a result.json of this site; published rows of the same GPU, network and precision; what
effects of GPU, precision and network in all published rows give. The last two are one smooth
function: the roofline of the step (network.py) times the part of it that is reached. That part is
the mean of the rows' own parts, near batches and sizes and the same framework counting most, drawn
towards the effects; so the rate has no jump from one batch to the next.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

from hpcdl import facts
from hpcdl.predict.hardware import CPU, Machine
from hpcdl.predict.network import NetworkSums, network, roofline
from hpcdl.predict.results import LONGEST_STEP, ONE_RUN, MeasuredRun
from hpcdl.predict.split import utilisation
from hpcdl.predict.step import Workload
from hpcdl.system.errors import BadInput

USUAL_BATCH = 64
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


def from_images_per_second(rate: float, work: Workload) -> Calibration:
    """The calibration that a user states: images per second of one GPU, not measured here.

    Raises:
        BadInput: the rate is absurd.
    """
    step = work.batch / rate if rate > 0 else math.inf
    if not 1e-6 < step < LONGEST_STEP:
        raise BadInput(f"{rate:g} images/s of one GPU is not possible")
    return Calibration(step, work.batch, f"{rate:g} images/s as given", "doubtful")


def from_facts(machine: Machine, work: Workload) -> Calibration:
    """The calibration of a machine where nothing was measured.

    Raises:
        BadInput: nothing says how fast the GPU is, as on CPUs.
    """
    _refuse_unknown(machine, work)
    if work.plan is None:
        return _from_rows(machine, work)
    split, bounds = work.split_on(machine), utilisation(machine.gpu, work.plan)
    source = f"matrices at {split.efficiency:.0%} of the GPU's peak, as in published transformers"
    seconds = split.alone(work.plan)
    return Calibration(seconds, work.batch, source, "doubtful", bounds["low"], bounds["high"])


def _from_rows(machine: Machine, work: Workload) -> Calibration:
    """One GPU's step by published single-GPU rows, and by effects where there are few."""
    framework = "PyTorch" if work.form == "ddp" else "TensorFlow"
    reach = reached(machine, work, framework, one_gpu_rows())
    row = reach.nearest
    if row is None:
        kind, proof = ("borrowed" if reach.known else "unseen"), "doubtful"
        source = "effects of GPU, precision and network in published rows (none joins these)"
    else:
        kind, proof = ("same" if row.framework.startswith(framework) else "foreign"), "published"
        batch = f"{row.batch or 'unknown'}{' with XLA' if row.xla else ''}"
        source = f"{row.source}: {row.rate:g} images/s at batch {batch}"
        source += f" ({row.framework})" if kind == "foreign" else ""
    seconds = roof(machine, work) / math.exp(reach.part)
    bounds = facts.load("predict")["one_gpu"][kind]
    return Calibration(seconds, work.batch, source, proof, **bounds)


def _refuse_unknown(machine: Machine, work: Workload) -> None:
    net, lacking = work.net.name, machine.lacks(work.precision)
    if machine.gpu == CPU:
        raise BadInput(
            f"the speed of '{net}' on one rank of '{machine.name}' is unknown",
            hint="measure it: give --calibrate RESULT.JSON of a short run, or --one IMAGES/S",
        )
    if lacking:
        raise BadInput(
            f"{' and '.join(lacking)} of the {machine.gpu} are not known, so the speed of "
            f"'{net}' cannot be predicted",
            hint=f"give them in the site file under `gpus: {machine.gpu}:`, or measure a short "
            "run: --calibrate RESULT.JSON, or --one IMAGES/S",
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


class ReachedPart(NamedTuple):
    """The log of the part of the roofline that is reached, and the row that counted most.

    `nearest` is None where no row joins GPU, network and precision; `known` is whether the network
    has rows at all.
    """

    part: float
    nearest: OneGpuRow | None
    known: bool


def reached(
    machine: Machine,
    work: Workload,
    framework: str,
    rows: Iterable[OneGpuRow],
    effects: Mapping[str, Any] | None = None,
) -> ReachedPart:
    """Estimate what a GPU reaches of the roofline of a step, from rows and effects.

    `framework` is its name, ` with XLA` behind it where XLA compiles.
    """
    of_network = [row for row in rows if row.model == work.net.name]
    joined = machine.gpu, units_of(work.precision)
    same = [row for row in of_network if (row.gpu, row.precision) == joined]
    weights = [_weight(row, work, framework) for row in same]
    effects = facts.load("predict")["effects"] if effects is None else effects
    usual = expected(effects, machine.gpu, work.net, work.precision, framework)
    mean = sum(weight * row.part for weight, row in zip(weights, same, strict=True))
    nearest = same[weights.index(max(weights))] if same else None
    part = (mean + _EFFECTS * usual) / (sum(weights) + _EFFECTS)
    return ReachedPart(part, nearest, bool(of_network))


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
