"""Predicts, by hpcdl.predict, the cells that are too large here, and those that ran.

Predictions start from the study's own one-rank measurement of the same series. Where all ranks
share the cores of one machine, exchanging gradients needs the cores that compute: its cost per byte
is taken from cells that the study names, and more ranks copy as many more bytes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from hpcdl.jobs.spec import is_train
from hpcdl.predict.network import network
from hpcdl.predict.request import ScalingRequest, answer, expand
from hpcdl.predict.results import trained_precision
from hpcdl.predict.step import IMAGENET, SharedCores
from hpcdl.system.errors import BadInput
from hpcdl.workflows.study.declared import SYNTHETIC, values_of
from hpcdl.workflows.study.findings import Results
from hpcdl.workflows.study.measurements import CellMeasured, Predicted, alone, but

_MEGA, _GIGA = 1e6, 1e9
_GRADIENT_BYTES = 4.0
_LEAST = 1e-6


def predict(results: Results) -> Results:
    """The results with predictions for every series that has a one-rank measurement."""
    predicted: list[Predicted] = []
    gaps: list[str] = []
    for base in results.measured:
        if base.ranks == 1 and base.cell.jobs.predict:
            try:
                predicted += _series(results, base)
            except BadInput as fault:
                gaps.append(f"{base.cell.name}: {fault.message}")
    if results.shared:
        # The model's bounds are those of GPUs; these are as far off as the worst that also ran.
        factors = [1 + one.error for one in predicted if one.error is not None]
        worst = max((max(factor, 1 / factor) for factor in factors), default=None)
        predicted = [
            replace(one, low=worst and one.rate / worst, high=worst and one.rate * worst)
            for one in predicted
        ]
    return replace(results, predicted=tuple(predicted), not_predicted=tuple(gaps))


def _rate(results: Results, one: CellMeasured) -> float:
    """On shared cores the fastest round's: other work only slows jobs down."""
    return one.quiet if results.shared else one.rate


def _series(results: Results, base: CellMeasured) -> Iterator[Predicted]:
    """All counts of a series: those that ran or should have, and those only to be predicted."""
    alike = but(base.values, "gpus", "nodes")
    own = [one for one in results.measured if but(one.values, "gpus", "nodes") == alike]
    measured = {one.ranks: _rate(results, one) for one in own}
    teachers = {one.ranks for one in _teachers(results) if one in own}
    asked = {
        cell.gpus for cell in results.plan.possible if but(cell.named, "gpus", "nodes") == alike
    }
    for gpus in sorted({*asked, *measured, *base.cell.jobs.predict} - {1}):
        point = answer(_request(results, base, gpus)).points[0]
        rates = (point.images_per_second, point.low, point.high)
        yield Predicted(base.cell, gpus, *rates, measured.get(gpus), gpus in teachers)


def _request(results: Results, base: CellMeasured, gpus: int) -> ScalingRequest:
    spec = base.cell.point.spec
    if not is_train(spec.program):
        raise BadInput("the model is of `hpcdl train`, not of another program")
    partition = results.plan.site.partition(spec.partition)
    if partition.gpus_per_node:
        expand(str(gpus), partition.gpus_per_node)  # refused where it fills no whole nodes
    stretch = SharedCores(results.cores, base.cpus).stretch(gpus) if results.shared else 1.0
    exchange = _exchange(results, base, gpus)
    request = ScalingRequest(
        partition,
        model=str(base.result["model"]),
        gpus=str(gpus),
        batch=int(base.result["batch_per_rank"]),
        precision=trained_precision(
            str(base.result["precision"]), partition.gpu and partition.gpu.compute
        ),
        images_per_second=_rate(results, base) / stretch,
        form="no_overlap" if exchange else "horovod",
        link_gbs=exchange,
        network_gbs=exchange,
    )
    # On shared cores one rank's step already holds what making its images costs.
    if results.shared or base.cell.data == SYNTHETIC:
        return request
    reads = base.cell.jobs.reads
    return replace(
        request,
        data=IMAGENET,
        record_bytes=base.size / base.images if base.size and base.images else None,
        storage_gbs=reads.megabytes_per_second * _MEGA / _GIGA if reads else None,
    )


def _exchange(results: Results, base: CellMeasured, gpus: int) -> float | None:
    """Bus bandwidth in GB/s between `gpus` ranks on shared cores; None if it is unknown."""
    teachers = _teachers(results)
    if not teachers:
        return None
    nearest = min(teachers, key=lambda one: (abs(one.ranks - gpus), one.ranks))
    one = alone(results.measured, nearest) or nearest
    there, here = (
        float(each.result["global_batch"]) / _rate(results, each) for each in (one, nearest)
    )
    computing = there * SharedCores(results.cores, one.cpus).stretch(nearest.ranks)
    sent, ours = (_GRADIENT_BYTES * float(each.result["parameters"]) for each in (nearest, base))
    # All ranks' copies go through the same cores: their time grows with their bytes.
    per_byte = max(_LEAST, here - computing) / sent
    seconds = per_byte * ours * (gpus - 1) / (nearest.ranks - 1)
    weights = _GRADIENT_BYTES * network(str(base.result["model"])).parameters
    return weights / seconds * 2 * (gpus - 1) / gpus / _GIGA


def _teachers(results: Results) -> tuple[CellMeasured, ...]:
    """The cells of several ranks that say what exchanging gradients costs here."""
    chosen = results.plan.scale.exchange_from
    if not chosen or not results.shared:
        return ()
    several = results.where(**values_of(chosen)).measured
    return tuple(one for one in several if one.ranks > 1 and alone(results.measured, one))
