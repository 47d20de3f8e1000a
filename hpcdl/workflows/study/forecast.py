"""Predicts, by hpcdl.predict, the cells that are too large here, and those that ran.

Predictions start from the study's own one-rank result of the same series. Ranks that share the
cores of one machine exchange by these cores, too, at a rate that no site file knows: there they
start from the result of two ranks.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from hpcdl.jobs.spec import is_train
from hpcdl.predict.request import ScalingRequest, answer
from hpcdl.results.records import RESULT
from hpcdl.system.errors import BadInput
from hpcdl.workflows.study.declared import SYNTHETIC
from hpcdl.workflows.study.findings import Results
from hpcdl.workflows.study.measurements import CellMeasured, Predicted, but


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
    return replace(results, predicted=tuple(predicted), not_predicted=tuple(gaps))


def _series(results: Results, base: CellMeasured) -> Iterator[Predicted]:
    """All counts of a series but those that it starts from."""
    spec = base.cell.point.spec
    if not is_train(spec.program):
        raise BadInput("the model is of `hpcdl train`, not of another program")
    alike = but(base.values, "gpus", "nodes")
    own = {ran.ranks: ran for ran in results.measured if but(ran.values, "gpus", "nodes") == alike}
    cells = [cell for cell in results.plan.possible if but(cell.named, "gpus", "nodes") == alike]
    start = own.get(2, base) if results.shared else base
    counts = {*(cell.gpus for cell in cells), *own, *base.cell.jobs.predict}
    request = ScalingRequest(
        results.plan.site.partition(spec.partition),
        gpus=",".join(map(str, sorted(counts - {1, start.ranks}))),
        real=base.cell.data != SYNTHETIC and not results.shared,
        result=start.cell.results / RESULT.name,
        cores=results.cores if results.shared else None,
    )
    for point in answer(request).points:
        rates = (point.images_per_second, point.low, point.high)
        ran = own[point.gpus].rate if point.gpus in own else None
        yield Predicted(base.cell, point.gpus, *rates, ran)
