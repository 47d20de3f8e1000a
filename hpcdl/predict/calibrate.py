"""How long one GPU takes for a step: the measurement that the model starts from.

Best first: a result.json of this site; a published row of the same GPU, network and precision;
a row of another network on that GPU, carried over by the roofline; a row of another GPU. What
was used, and how certain it is, is kept with the number.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from hpcdl.predict.hardware import CPU, Machine, of_host
from hpcdl.predict.network import names, network, roofline
from hpcdl.predict.precision import alike
from hpcdl.predict.records import Record
from hpcdl.predict.results import LONGEST_STEP, Result
from hpcdl.predict.step import Training, peak_of
from hpcdl.system.errors import BadInput

# Names that mean nearly the same network: its strides differ, not its parameters.
_TWINS = {"resnet50": "resnet50_v1.5", "resnet50_v1.5": "resnet50"}


@dataclass(frozen=True)
class Calibration:
    """Seconds of one GPU's step without waiting for input, what says so, and how certain it is.

    `low` and `high` are factors on images per second between which the truth likely lies;
    `proof` is an evidence level.
    """

    seconds: float
    batch: int
    precision: str
    source: str
    proof: str
    low: float = 1.0
    high: float = 1.0


def from_result(result: Result, path: Path, precision: str) -> Calibration:
    """The calibration that a run of this site gives: the most certain one."""
    return Calibration(
        result.seconds, result.batch, precision,
        f"{path.name}: {result.images_per_second:g} images/s on {result.ranks} rank(s)", "run",
    )  # fmt: skip


def from_images_per_second(rate: float, training: Training) -> Calibration:
    """The calibration that a user states: images per second of one GPU, not measured here.

    Raises:
        BadInput: the step it means is absurd.
    """
    seconds = training.batch / rate if rate > 0 else float("inf")
    if not 1e-6 < seconds < LONGEST_STEP:
        raise BadInput(f"{rate:g} images/s of one GPU is not possible")
    return Calibration(
        seconds, training.batch, training.precision, f"{rate:g} images/s as given", "doubtful"
    )


def from_records(machine: Machine, training: Training, records: tuple[Record, ...]) -> Calibration:
    """The calibration of published single-GPU rows.

    Raises:
        BadInput: no row helps, as on CPUs.
    """
    ones = [
        record
        for record in records
        if record.gpus == 1 and record.rate and alike(record.precision, training.precision)
    ]
    here = [record for record in ones if _same_gpu(record, machine)]
    for xla in (False, True):
        for model in _models(training):
            same = [record for record in here if record.model == model and record.xla == xla]
            if same:
                return _published(same, training)
    ones = [record for record in ones if not record.xla]
    twins = [record for record in ones if record.model in _models(training)]
    return _carried(machine, training, (twins, [r for r in here if not r.xla], ones))


def _models(training: Training) -> tuple[str, ...]:
    """The network's name in rows, and its twin's."""
    name = training.net.name
    return (name, _TWINS[name]) if name in _TWINS else (name,)


def _published(rows: list[Record], training: Training) -> Calibration:
    """The row nearest in batch (real data last), and the spread of all as uncertainty."""
    batch = training.batch
    best = min(rows, key=lambda r: (abs((r.batch or batch) - batch), r.data != "synthetic"))
    rates = [row.rate or 0.0 for row in rows]
    rate = best.rate or 1.0
    return Calibration(
        training.batch / rate, best.batch or training.batch, best.precision,
        f"{best.id}: {rate:g} images/s at batch {best.batch or 'unknown'}"
        f"{' with XLA' if best.xla else ''}", "published",
        min(rates) / rate, max(rates) / rate,
    )  # fmt: skip


def _carried(machine: Machine, training: Training, groups: Iterable[list[Record]]) -> Calibration:
    """The first group with rows that can be carried over by the ratio of the rooflines; median."""
    from hpcdl import facts

    lacking = machine.lacks(training.precision)
    if lacking:
        raise BadInput(
            f"{' and '.join(lacking)} of the {machine.gpu} are not known, so nothing says how "
            f"fast '{training.net.name}' is there",
            hint=f"give them in the site file under `gpus: {machine.gpu}:`, or measure a short "
            "run: --calibrate RESULT.JSON, or --one IMAGES/S",
        )
    estimates = (sorted(_estimates(machine, training, rows)) for rows in groups)
    found = next((some for some in estimates if some), [])
    if machine.gpu == CPU or not found:
        raise BadInput(
            f"nothing says how fast '{training.net.name}' runs on one rank of '{machine.name}'",
            hint="measure it: give --calibrate RESULT.JSON of a short run, or --one IMAGES/S",
        )
    spread = facts.load("links")["uncertainty"]["borrowed"]
    middle = statistics.median(found)
    return Calibration(
        middle, training.batch, training.precision,
        f"carried over from {len(found)} published row(s) of other networks or GPUs", "doubtful",
        spread["low"], spread["high"],
    )  # fmt: skip


def _estimates(machine: Machine, training: Training, rows: list[Record]) -> list[float]:
    """Seconds of the step by every row: its measured step times the ratio of rooflines."""
    goal = _roof(machine, training)
    found = []
    for row in rows:
        there = of_host(row.gpu, row.hardware, 1)
        if there is None or row.model not in names() or not row.rate or not row.batch:
            continue
        if there.lacks(row.precision):
            continue
        done = Training(network(row.model), row.batch, row.precision)
        found.append(row.batch / row.rate * goal / _roof(there, done))
    return found


def _roof(machine: Machine, training: Training) -> float:
    return roofline(
        training.net, training.batch, peak_of(machine, training.precision),
        machine.memory_rate, training.activation_bytes,
    ).total  # fmt: skip


def _same_gpu(record: Record, machine: Machine) -> bool:
    there = of_host(record.gpu, record.hardware, 1)
    return there is not None and there.gpu == machine.gpu
