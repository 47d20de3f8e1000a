"""How long one GPU takes for a step: what the model starts from, and how certain it is.

Best first: a result.json of this site; a published row of the same GPU, network and precision,
carried over to other sizes and batches by the roofline; what effects of GPU, precision and network
in all published rows tell. These add up in logarithms: what a row reaches of its roofline is the
product of effects, each drawn toward 1 by how many rows speak for it (a ridge, solved by
backfitting). A GPU and network that no row joins get the product of what others tell of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache

from hpcdl import facts
from hpcdl.predict.hardware import CPU, Machine, gpu_of, of_host
from hpcdl.predict.network import names, network, roofline
from hpcdl.predict.parallel import Plan, learned
from hpcdl.predict.records import Record, read_records
from hpcdl.predict.results import LONGEST_STEP, ONE_RUN, Result, alike
from hpcdl.predict.step import PRECISIONS, Training, peak_of, work_of
from hpcdl.system.errors import BadInput

_ROUNDS = 20
_USUAL_BATCH = 64


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


def from_result(result: Result, batch: int) -> Calibration:
    """The calibration that a run of this site gives, for steps of another batch: the surest one."""
    rate = f"{result.images_per_second:g} images/s on {result.ranks} rank(s)"
    return Calibration(
        result.seconds * batch / result.batch, result.batch, f"{result.origin.name}: {rate}", "run"
    )


def from_images_per_second(rate: float, training: Training, peak: float = math.inf) -> Calibration:
    """The calibration that a user states: images per second of one GPU, not measured here.

    `peak` is the operations per second of the GPU, where they are known. An absurd rate is a
    `BadInput`.
    """
    step = training.batch / rate if rate > 0 else math.inf
    if not 1e-6 < step < LONGEST_STEP:
        raise BadInput(f"{rate:g} images/s of one GPU is not possible")
    said, needed = f"{rate:g} images/s as given", 6 * training.net.macs * rate
    if needed > peak:
        said += f", {needed / peak:.1f} times what the GPU can compute at its peak"
    return Calibration(step, training.batch, said, "doubtful")


def from_plan(machine: Machine, training: Training) -> Calibration:
    """One GPU's micro-batch of a split transformer, by the part of its peak that GPUs reach."""
    _refuse_unknown(machine, training)
    plan = training.plan or Plan()
    work, known = work_of(machine, training), learned(machine.gpu, plan)
    return Calibration(
        work.alone(plan),
        training.batch,
        f"matrices at {work.efficiency:.0%} of the GPU's peak, as in published transformers",
        "doubtful",
        known["low"],
        known["high"],
    )


def from_records(machine: Machine, training: Training, records: tuple[Record, ...]) -> Calibration:
    """The calibration of published single-GPU rows; where none helps, as on CPUs, a `BadInput`."""
    spreads = facts.load("links")["uncertainty"]
    same = [
        row
        for row in records
        if row.gpus == 1
        and row.rate
        and row.model == training.net.name
        and alike(row.precision, training.precision)
        and gpu_of(row.gpu) == machine.gpu
    ]
    if not same:
        _refuse_unknown(machine, training)
        known = any(row.model == training.net.name for row in records)
        return Calibration(
            seconds(machine, training),
            training.batch,
            "effects of GPU, precision and network in published rows (none joins these)",
            "doubtful",
            **spreads["borrowed" if known else "unseen"],
        )
    size, batch = training.net.height, training.batch
    best = min(
        [row for row in same if not row.xla] or same,
        key=lambda r: (
            abs(math.log((r.size or network(r.model).height) / size)),
            abs((r.batch or batch) - batch),
            r.data != "synthetic",
        ),
    )
    rate = best.rate or 1.0
    theirs = replace(training, net=network(best.model, best.size), batch=best.batch or batch)
    ratio = (roof(machine, training) / batch) / (roof(machine, theirs) / theirs.batch)
    of_size = f" of {theirs.net.height}" if theirs.net.height != size else ""
    return Calibration(
        batch / rate * ratio,
        theirs.batch,
        f"{best.id}: {rate:g} images/s{of_size} at batch {best.batch or 'unknown'}"
        f"{' with XLA' if best.xla else ''}",
        "published",
        **spreads["foreign"],
    )


def _refuse_unknown(machine: Machine, training: Training) -> None:
    net, lacking = training.net.name, machine.lacks(training.precision)
    if lacking:
        raise BadInput(
            f"{' and '.join(lacking)} of the {machine.gpu} are not known, so nothing says how "
            f"fast '{net}' is there",
            hint=f"give them in the site file under `gpus: {machine.gpu}:`, or measure a short "
            "run: --calibrate RESULT.JSON, or --one IMAGES/S",
        )
    if machine.gpu == CPU:
        measure = "measure it: give --calibrate RESULT.JSON of a short run, or --one IMAGES/S"
        raise BadInput(
            f"nothing says how fast '{net}' runs on one rank of '{machine.name}'", hint=measure
        )


# ---- effects ----


@dataclass(frozen=True)
class Trait:
    """What a row is as far as effects go; `reached` is the log of its part of the roofline."""

    family: str
    card: str
    precision: str
    model: str
    kind: str
    framework: str
    source: str
    intensity: float = 0.0
    reached: float = 0.0


# Each effect: what it belongs to, and as how many rows without effect the ridge counts. The last
# one is a slope over the network's intensity, arithmetic per element moved: where the roofline is
# wrong about a kind of GPU, it is so more for networks of one end.
_EFFECTS: tuple[tuple[Callable[[Trait], tuple[str, ...]], float], ...] = (
    (lambda t: (t.family,), 0.3),
    (lambda t: (t.family, t.precision), 0.5),
    (lambda t: (t.card, t.precision), 3.0),
    (lambda t: (t.model,), 0.3),
    (lambda t: (t.model, t.precision), 2.0),
    (lambda t: (t.kind, t.precision), 2.0),
    (lambda t: (t.framework,), 2.0),
    (lambda t: (t.source,), 2.0),
    (lambda t: (t.card, t.kind), 2.0),
    (lambda t: (t.family, t.precision, t.model), 1.0),
    (lambda t: (t.source, t.precision, t.model), 1.0),
    (lambda t: (t.family, t.precision), 2.0),
)


class Effects:
    """The effects that rows tell of: told in turn, each from what the others leave unexplained."""

    def __init__(self, rows: Sequence[Trait]) -> None:
        count = max(1, len(rows))
        self._middle = sum(row.reached for row in rows) / count
        self._usual = sum(row.intensity for row in rows) / count
        keys: list[dict[tuple[str, ...], int]] = [{} for _ in _EFFECTS]
        columns, weights = [], []
        for at, (key, ridge) in enumerate(_EFFECTS):
            column = [
                (keys[at].setdefault(key(row), len(keys[at])), self._by(at, row)) for row in rows
            ]
            counts = [0.0] * len(keys[at])
            for number, by in column:
                counts[number] += by * by
            columns.append(column)
            weights.append([count + ridge for count in counts])
        values = [[0.0] * len(own) for own in keys]
        rest = [row.reached - self._middle for row in rows]
        for _ in range(_ROUNDS):
            for at, column in enumerate(columns):
                old, sums = values[at], [0.0] * len(keys[at])
                for (number, by), value in zip(column, rest, strict=True):
                    sums[number] += by * (value + by * old[number])
                new = [total / weight for total, weight in zip(sums, weights[at], strict=True)]
                less = [before - now for before, now in zip(old, new, strict=True)]
                rest = [v + by * less[number] for (number, by), v in zip(column, rest, strict=True)]
                values[at] = new
        self._found = [dict(zip(*one, strict=True)) for one in zip(keys, values, strict=True)]

    def _by(self, at: int, row: Trait) -> float:
        return row.intensity - self._usual if at == len(_EFFECTS) - 1 else 1.0

    def expected(self, trait: Trait) -> float:
        """The log of the part of the roofline that is reached."""
        return self._middle + sum(
            self._by(at, trait) * self._found[at].get(key(trait), 0.0)
            for at, (key, _) in enumerate(_EFFECTS)
        )


def trait_of(machine: Machine, training: Training, framework: str, source: str) -> Trait:
    """What a training on a machine is; nothing is known of what it reached."""
    precision = "amp" if training.precision == "fp16" else training.precision
    return Trait(
        machine.gpu.partition("-")[0],
        machine.gpu,
        precision,
        training.net.name,
        "images" if training.net.channels else "text",
        framework,
        source,
        math.log(training.net.macs / sum(layer.moved for layer in training.net.layers)),
    )


def roof(machine: Machine, training: Training) -> float:
    """Seconds of a step at the hardware's peaks."""
    peak, element = peak_of(machine, training.precision), training.activation_bytes
    return roofline(training.net, training.batch, peak, machine.memory_rate, element).total


def traits(records: Iterable[Record]) -> list[Trait]:
    """The single-GPU rows that effects can be told from."""
    found = []
    for row in records:
        machine = of_host(row.gpu, row.hardware, 1) if row.gpus == 1 and row.rate else None
        known = row.model in names() and row.precision in PRECISIONS
        if machine is None or not known or machine.lacks(row.precision):
            continue
        net = network(row.model, row.size)
        training = Training(net, row.batch or _USUAL_BATCH, row.precision)
        reached = math.log((row.rate or 1.0) * roof(machine, training) / training.batch)
        framework = f"{row.framework.partition(' ')[0]}{' with XLA' if row.xla else ''}"
        trait = trait_of(machine, training, framework, row.source)
        found.append(replace(trait, reached=reached))
    return found


@cache
def _ours() -> Effects:
    return Effects(traits(read_records()))


def seconds(machine: Machine, training: Training) -> float:
    """Seconds of a step of one GPU, as effects of published rows tell."""
    trait = trait_of(machine, training, "TensorFlow", "")
    return roof(machine, training) / math.exp(_ours().expected(trait))
