"""How long one GPU takes for a step: the measurement that the model starts from.

Best first: a result.json of this site; a published row of the same GPU, network and precision,
carried over to other sizes and batches by the roofline; what effects of GPU, precision and network
in all published rows tell (single.py). What was used, and how certain it is, is kept with it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from hpcdl import facts
from hpcdl.predict.hardware import CPU, Machine, gpu_of
from hpcdl.predict.measured import ONE_RUN
from hpcdl.predict.memory import Plan
from hpcdl.predict.network import network
from hpcdl.predict.parallel import learned
from hpcdl.predict.records import Record
from hpcdl.predict.results import LONGEST_STEP, Result, alike
from hpcdl.predict.single import roof, seconds
from hpcdl.predict.step import Training, work_of
from hpcdl.system.errors import BadInput


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


def from_result(result: Result, path: Path) -> Calibration:
    """The calibration that a run of this site gives: the most certain one."""
    return Calibration(
        result.seconds, result.batch,
        f"{path.name}: {result.images_per_second:g} images/s on {result.ranks} rank(s)", "run",
    )  # fmt: skip


def from_images_per_second(rate: float, training: Training, peak: float = math.inf) -> Calibration:
    """The calibration that a user states: images per second of one GPU, not measured here.

    `peak` is the operations per second of the GPU, where they are known.

    Raises:
        BadInput: the step it means is absurd.
    """
    step = training.batch / rate if rate > 0 else float("inf")
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
        work.alone(plan), training.batch,
        f"matrices at {work.efficiency:.0%} of the GPU's peak, as in published transformers",
        "doubtful", known["low"], known["high"],
    )  # fmt: skip


def from_records(machine: Machine, training: Training, records: tuple[Record, ...]) -> Calibration:
    """The calibration of published single-GPU rows.

    Raises:
        BadInput: no row helps, as on CPUs.
    """
    spreads = facts.load("links")["uncertainty"]
    same = [
        row
        for row in records
        if row.gpus == 1 and row.rate and row.model == training.net.name
        and alike(row.precision, training.precision) and gpu_of(row.gpu) == machine.gpu
    ]  # fmt: skip
    if same:
        plain = [row for row in same if not row.xla]
        return _published(machine, training, plain or same, spreads["foreign"])
    _refuse_unknown(machine, training)
    known = any(row.model == training.net.name for row in records)
    return Calibration(
        seconds(machine, training), training.batch,
        "effects of GPU, precision and network in published rows (none joins these)", "doubtful",
        **spreads["borrowed" if known else "unseen"],
    )  # fmt: skip


def _published(
    machine: Machine, training: Training, rows: list[Record], spread: Mapping[str, float]
) -> Calibration:
    """The row nearest in size and batch (real data last), carried over by the roofline.

    How far another publisher's row lies from a machine of one's own is its uncertainty.
    """
    size, batch = training.net.height, training.batch
    best = min(
        rows,
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
        batch / rate * ratio, theirs.batch,
        f"{best.id}: {rate:g} images/s{of_size} at batch {best.batch or 'unknown'}"
        f"{' with XLA' if best.xla else ''}", "published", **spread,
    )  # fmt: skip


def _refuse_unknown(machine: Machine, training: Training) -> None:
    lacking = machine.lacks(training.precision)
    if lacking:
        raise BadInput(
            f"{' and '.join(lacking)} of the {machine.gpu} are not known, so nothing says how "
            f"fast '{training.net.name}' is there",
            hint=f"give them in the site file under `gpus: {machine.gpu}:`, or measure a short "
            "run: --calibrate RESULT.JSON, or --one IMAGES/S",
        )
    if machine.gpu == CPU:
        measure = "measure it: give --calibrate RESULT.JSON of a short run, or --one IMAGES/S"
        said = f"nothing says how fast '{training.net.name}' runs on one rank of '{machine.name}'"
        raise BadInput(said, hint=measure)
