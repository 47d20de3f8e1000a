"""The model's predictions of cells that are too large here, and of those that ran.

Predictions start from the study's own one-rank measurement of the same series. Where all ranks
share the cores of one machine, one rank's step is taken as longer by as much as there are more
busy CPUs than cores, and nothing hides: exchanging gradients needs the cores that compute. What
that costs per byte is taken from cells that the study names; more ranks copy as many more bytes.
The time that ranks wait for images not made ahead (the old pipeline) comes on top: one rank's own
measurement says how long. What storage gives to all ranks is shared by them; decoding takes the
cores' time as computing does.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from statistics import median

from hpcdl import facts
from hpcdl.predict.forecast import expand
from hpcdl.predict.network import network
from hpcdl.predict.request import ScalingRequest, answer
from hpcdl.predict.results import trained_precision
from hpcdl.predict.step import IMAGENET, PIPELINES
from hpcdl.system.errors import BadInput
from hpcdl.workflows.study.collect import CellMeasured, Findings, alone, but
from hpcdl.workflows.study.model import SYNTHETIC, Run, Values, matches
from hpcdl.workflows.study.study_plan import Cell, Plan

_MEGA, _GIGA = 1e6, 1e9
_GRADIENT_BYTES = 4.0
_LEAST = 1e-6
_LEAST_WORK = 0.01
"""The least part of a step that is work, so that no rate is without end."""
NEW, OLD = PIPELINES


@dataclass(frozen=True)
class Predicted:
    """A predicted cell: images per second; `measured` where it also ran.

    `low` and `high` are its likely bounds; None where the model's error is unknown.
    """

    run: Run
    values: Values
    gpus: int
    rate: float
    low: float | None
    high: float | None
    measured: float | None = None
    from_itself: bool = False

    @property
    def error(self) -> float | None:
        """Predicted over measured, less one; None where the prediction starts from the latter."""
        return None if self.measured is None or self.from_itself else self.rate / self.measured - 1


def predict(findings: Findings) -> tuple[tuple[Predicted, ...], tuple[str, ...]]:
    """Predictions for every series that has a one-rank measurement, and what has no prediction."""
    predicted: list[Predicted] = []
    gaps: list[str] = []
    if findings.shared:
        quiet = tuple(replace(result, rates=(result.quiet,)) for result in findings.measured)
        findings = replace(findings, measured=quiet)
    for base in findings.measured:
        if base.ranks == 1 and base.cell.run.predict:
            try:
                predicted += _series(findings, base)
            except BadInput as fault:
                gaps.append(f"{base.cell.label}: {fault.message}")
    if findings.shared:
        # The model's bounds are those of GPUs; these are as far off as the worst that also ran.
        factors = [1 + prediction.error for prediction in predicted if prediction.error is not None]
        worst = max((max(factor, 1 / factor) for factor in factors), default=None)
        predicted = [
            replace(
                prediction,
                low=worst and prediction.rate / worst,
                high=worst and prediction.rate * worst,
            )
            for prediction in predicted
        ]
    return tuple(predicted), tuple(gaps)


def _series(findings: Findings, base: CellMeasured) -> Iterator[Predicted]:
    """All counts of a series: those that ran or should have, and those only to be predicted."""

    def alike(values: Values) -> bool:
        return but(values, "gpus", "nodes") == but(base.values, "gpus", "nodes")

    measured = {one.ranks: one.rate for one in findings.measured if alike(one.values)}
    known = {one.ranks for one in _teachers(findings) if alike(one.values)}
    asked = {cell.gpus for cell in findings.plan.possible if alike(cell.named)}
    for gpus in sorted({*asked, *measured, *base.cell.run.predict} - {1}):
        found = _one(findings, base, gpus, measured.get(gpus))
        yield replace(found, from_itself=gpus in known)


def _one(findings: Findings, base: CellMeasured, gpus: int, measured: float | None) -> Predicted:
    partition = findings.plan.site.partition(base.cell.point.spec.partition)
    shared = _sharing(findings, base, gpus)
    exchange = _exchange(findings, base, gpus)
    if partition.gpus_per_node:
        expand(str(gpus), partition.gpus_per_node)  # refused where it fills no whole nodes
    request = ScalingRequest(
        partition,
        model=str(base.result["model"]),
        gpus=str(gpus),
        batch=int(base.result["batch_per_rank"]),
        precision=trained_precision(
            str(base.result["precision"]), partition.gpu and partition.gpu.compute
        ),
        # What one rank makes while it does not wait for images that are not made ahead.
        images_per_second=base.rate / (1 - _waiting(base)) / shared,
        form="no_overlap" if exchange else "horovod",
        link_gbs=exchange,
        network_gbs=exchange,
    )
    if _pipeline(base.cell) == NEW:
        request = _fed(request, findings.plan, base.cell)
    point = answer(request).points[0]
    kept = point.step.seconds / (point.step.seconds + _wait(base, gpus, shared))
    # What the series' own one-rank run is unsure by, its steps' spread, is not the model's.
    return Predicted(
        base.cell.run,
        {**base.values, "gpus": str(gpus)},
        gpus,
        point.images_per_second * kept,
        point.low * kept,
        point.high * kept,
        measured,
    )


def _sharing(findings: Findings, base: CellMeasured, gpus: int) -> float:
    """How much longer a rank computes among `gpus` on shared cores than alone."""
    if not findings.shared:
        return 1.0
    cpus = int(base.result["layout"]["cpus_per_rank"])
    return max(1.0, gpus * cpus / findings.cores) / max(1.0, cpus / findings.cores)


def _exchange(findings: Findings, base: CellMeasured, gpus: int) -> float | None:
    """Bus bandwidth in GB/s between `gpus` ranks on shared cores; None if it is unknown."""
    teachers = _teachers(findings)
    if not teachers or gpus < 2:
        return None
    nearest = min(teachers, key=lambda one: (abs(one.ranks - gpus), one.ranks))
    base_there = alone(findings.measured, nearest) or nearest
    there, here = (float(one.result["global_batch"]) / one.rate for one in (base_there, nearest))
    computing = there * _sharing(findings, base_there, nearest.ranks)
    sent, ours = (_GRADIENT_BYTES * float(one.result["parameters"]) for one in (nearest, base))
    # All ranks' copies go through the same cores: their time grows with their bytes.
    per_byte = max(_LEAST, here - computing) / sent
    seconds = per_byte * ours * (gpus - 1) / (nearest.ranks - 1)
    weights = _GRADIENT_BYTES * network(str(base.result["model"])).parameters
    return weights / seconds * 2 * (gpus - 1) / gpus / _GIGA


def _teachers(findings: Findings) -> tuple[CellMeasured, ...]:
    """The cells of several ranks that say what exchanging gradients costs here."""
    scale = findings.plan.scale
    if scale.exchange_from is None or not scale.execution.shared_cores:
        return ()
    several = [one for one in findings.measured if one.ranks > 1 and alone(findings.measured, one)]
    return tuple(one for one in several if matches(one.values, scale.exchange_from))


def _fed(request: ScalingRequest, plan: Plan, cell: Cell) -> ScalingRequest:
    """The request with a cell's input: that images are real, and how fast they are read.

    It counts images of ImageNet's size: storage gives fewer of larger ones. Where cores are
    shared, one rank's step already holds what making images costs.
    """
    if cell.data == SYNTHETIC or plan.scale.execution.shared_cores:
        return request
    request = replace(request, data=IMAGENET, pipeline=_pipeline(cell))
    reads, data = cell.run.reads, plan.scale.data[cell.data]
    if reads is None or not reads.megabytes_per_second:
        return request
    usual = float(facts.load("links")["input"]["bytes_per_image"])
    own = data.gigabytes * _GIGA / data.images if data.gigabytes and data.images else usual
    return replace(request, storage_gbs=reads.megabytes_per_second * _MEGA / _GIGA * usual / own)


def median_error(predicted: tuple[Predicted, ...]) -> float | None:
    """The median error, without its sign, of predictions that also ran; None without any."""
    errors = [abs(one.error) for one in predicted if one.error is not None]
    return median(errors) if errors else None


def _pipeline(cell: Cell) -> str:
    chosen = {**cell.run.options, **cell.values}.get("pipeline", NEW)
    return NEW if cell.data == SYNTHETIC else chosen


def _wait(base: CellMeasured, gpus: int, sharing: float) -> float:
    """Seconds of a step that each of `gpus` ranks waits, by the series' one rank.

    They read from one storage; `sharing` is how much longer a rank computes among them.
    """
    batch, reads = float(base.result["batch_per_rank"]), base.cell.run.reads
    whole = _waiting(base) * batch / base.rate
    held = reads and reads.megabytes_per_second * _MEGA
    an_image = base.size / base.images / held if held and base.size and base.images else 0.0
    reading = min(whole, batch * an_image)
    return reading * gpus + (whole - reading) * sharing


def _waiting(base: CellMeasured) -> float:
    """The part of one rank's step that it waits; none where images are made ahead."""
    if _pipeline(base.cell) == NEW:
        return 0.0
    return min(1 - _LEAST_WORK, base.shares.get("input", 0.0))
