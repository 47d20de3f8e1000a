"""Forecasts and validations as text, tables and JSON."""

from __future__ import annotations

from operator import attrgetter
from typing import Any

from hpcdl.predict.forecast import Forecast, Point, memory_bytes
from hpcdl.predict.step import Training, peak_of
from hpcdl.predict.validate import Errors, Judged, Validation, coverage, errors, grouped
from hpcdl.system.text import table

_HOUR = 3600.0
_WORST = 10
_POWER = "kWh/epoch: GPUs alone, at their largest power"


# ---- a forecast ----


def forecast_text(found: Forecast) -> str:
    """A table of counts, what to take, and what it rests on."""
    training, machine = found.training, found.machine
    network = machine.network.name if machine.network else "network unknown"
    head = (
        f"{training.net.name}, {_how(training)}, on {machine.name} ({machine.gpu}, "
        f"{machine.per_node} per node, {network})"
    )
    rows = [_point_row(found, point) for point in found.points]
    header = ("GPUs", "nodes", "step ms", _unit(training), "likely", "speed-up", "efficiency",
              *(["tokens/s/GPU", "TFLOP/s/GPU", "GB/GPU"] if training.plan else []),
              "epoch", "GPU-h/epoch", *(["kWh/epoch"] if found.watts else []),
              *(["cost/epoch"] if found.price is not None else []), "limited by")  # fmt: skip
    parts = [head, "", table(rows, header), "", _choices(found), "", *_grounds(found)]
    return "\n".join(parts)


def _how(training: Training) -> str:
    """The batch, precision and form; of a split transformer, how it is split."""
    plan, batch = training.plan, f"batch {training.batch} per"
    if plan is None:
        return f"{batch} GPU, {training.precision}, {training.form}"
    return (
        f"{batch} replica x {plan.micro_batches} micro-batches, {training.precision}, tensor "
        f"{plan.tensor}, stages {plan.stages}, checkpointing {plan.checkpointing}, ZeRO {plan.zero}"
    )


def _unit(training: Training) -> str:
    return "sequences/s" if training.net.shape.hidden else "images/s"


def compared_text(found: list[Forecast]) -> str:
    """The forecasts of several partitions in one table, what each rests on below."""
    rows = [
        (
            one.machine.name, one.machine.gpu, str(point.gpus), _rate(point.images_per_second),
            f"{_rate(point.low)}-{_rate(point.high)}", f"{point.efficiency:.1%}",
            hours(point.epoch_seconds), f"{point.gpu_hours:.2f}",
            _or_dash(one.kilowatt_hours(point)), _or_dash(one.cost(point)), point.step.limit,
        )
        for one in found
        for point in one.points
    ]  # fmt: skip
    header = ("partition", "GPU", "GPUs", _unit(found[0].training), "likely", "efficiency", "epoch",
              "GPU-h/epoch", "kWh/epoch", "cost/epoch", "limited by")  # fmt: skip
    grounds = [
        f"{one.machine.name}, one GPU: {one.calibration.source} [{one.calibration.proof}]"
        for one in found
    ]
    notes = [f"note: {one.machine.name}: {note}" for one in found for note in one.notes]
    return "\n".join([table(rows, header), "", *grounds, *notes, _POWER])


def _rate(value: float) -> str:
    """Images or sequences per second: whole ones, and two figures below 10."""
    return f"{value:.0f}" if value >= 9.95 else f"{value:.2g}"


def _or_dash(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def _point_row(found: Forecast, point: Point) -> tuple[str, ...]:
    mark = " *" if point.beyond else ""
    energy, cost = found.kilowatt_hours(point), found.cost(point)
    return (
        f"{point.gpus}{mark}", str(point.step.nodes), f"{1000 * point.step.seconds:.1f}",
        _rate(point.images_per_second), f"{_rate(point.low)}-{_rate(point.high)}",
        f"{point.speedup:.2f}", f"{point.efficiency:.1%}", *_planned(found, point),
        hours(point.epoch_seconds), f"{point.gpu_hours:.2f}",
        *([] if energy is None else [f"{energy:.2f}"]),
        *([] if cost is None else [f"{cost:.2f}"]), point.step.limit,
    )  # fmt: skip


def _planned(found: Forecast, point: Point) -> tuple[str, ...]:
    """Of a split transformer's GPUs: tokens, operations, also as part of the peak, and memory."""
    if found.training.plan is None:
        return ()
    memory, rate = memory_bytes(found.training, point.gpus), found.operations(point)
    part = rate / peak_of(found.machine, found.training.precision)
    fits = "" if memory <= found.machine.memory else " too much"
    tokens = point.images_per_second * found.training.net.height / point.gpus
    return _rate(tokens), f"{rate / 1e12:.0f} ({part:.0%})", f"{memory / 1e9:.0f}{fits}"


def hours(seconds: float) -> str:
    """Seconds as `41 s`, `12.3 min` or `4.56 h`."""
    if seconds < 100:
        return f"{seconds:.3g} s"
    return f"{seconds / 60:.1f} min" if seconds < _HOUR else f"{seconds / _HOUR:.2f} h"


def _choices(found: Forecast) -> str:
    choices = found.choices
    timely = f" within {choices.deadline_hours:g} h" if choices.deadline_hours else ""
    return table([
        ("fastest", _choice(choices.fastest)),
        (f"cheapest{timely}", _choice(choices.cheapest)),
        (f"best below {choices.loss:.0%} loss", _choice(choices.efficient)),
    ])  # fmt: skip


def _choice(point: Point | None) -> str:
    if point is None:
        return "none of these counts"
    gpus = "1 GPU" if point.gpus == 1 else f"{point.gpus} GPUs"
    return (
        f"{gpus}: epoch in {hours(point.epoch_seconds)}, {point.gpu_hours:.2f} GPU-hours, "
        f"{point.efficiency:.1%}"
    )


def _grounds(found: Forecast) -> list[str]:
    base = found.calibration
    lines = [f"one GPU: {base.source} [{base.proof}]"]
    lines += [f"links: {link} [run]" for link in found.links]
    lines += [f"note: {note}" for note in found.notes]
    if found.watts:
        lines.append(_POWER)
    told = "docs/predict.md" if found.training.plan else "hpcdl predict validate"
    lines.append(f"likely: eight of ten published rows lay so near ({told})")
    if any(point.beyond for point in found.points):
        lines.append(f"*: beyond the {found.machine.nodes} nodes of the partition")
    return lines


def forecast_data(found: Forecast) -> dict[str, Any]:
    """A forecast as JSON values."""
    base, choices, training = found.calibration, found.choices, found.training
    return {
        "schema": 1,
        "partition": found.machine.name, "gpu": found.machine.gpu, "model": training.net.name,
        "batch_per_gpu": training.batch, "precision": training.precision, "form": training.form,
        "plan": training.plan and vars(training.plan), "images_per_epoch": found.images,
        "calibration": {
            "step_seconds": base.seconds, "batch": base.batch, "source": base.source,
            "proof": base.proof, "low": base.low, "high": base.high,
        },
        "links": list(found.links),
        "notes": list(found.notes),
        "memory_gb_per_gpu": memory_bytes(training, found.points[0].gpus) / 1e9,
        "points": [_point_data(found, point) for point in found.points],
        "choices": {
            "fastest": choices.fastest and choices.fastest.gpus,
            "cheapest": choices.cheapest and choices.cheapest.gpus,
            "best_below_loss": choices.efficient and choices.efficient.gpus,
            "loss": choices.loss, "deadline_hours": choices.deadline_hours,
        },
    }  # fmt: skip


def _point_data(found: Forecast, point: Point) -> dict[str, Any]:
    step = point.step
    return {
        "gpus": step.gpus, "nodes": step.nodes, "step_seconds": step.seconds,
        "parts_seconds": {
            "compute": step.compute, "stragglers": step.straggler,
            "communication": step.exposed, "contention": step.contention,
            "input": step.input_wait, **step.losses,
        },
        "tflops_per_gpu": found.operations(point) / 1e12,
        "memory_gb_per_gpu": memory_bytes(found.training, point.gpus) / 1e9,
        "images_per_second": point.images_per_second,
        "images_per_second_low": point.low, "images_per_second_high": point.high,
        "speedup": point.speedup, "efficiency": point.efficiency,
        "epoch_hours": point.epoch_seconds / _HOUR, "gpu_hours_per_epoch": point.gpu_hours,
        "limit": step.limit, "beyond_partition": point.beyond,
        "energy_kwh_per_epoch": found.kilowatt_hours(point), "cost_per_epoch": found.cost(point),
    }  # fmt: skip


# ---- validation ----


def validation_text(found: Validation, *, verbose: bool) -> str:
    """The table of models and laws, ranges, errors by source and model, rows, the unfit."""
    if not found.judged:
        return "\n".join(["no row can be compared", "", *_unfit(found)])
    parts = [
        f"{len(found.judged)} rows of {len({row.case.record.source for row in found.judged})} "
        "sources, each from the row of the fewest GPUs of its source; laws with parameters are "
        "fitted without the row's source, too",
        "",
        table([(name, *_cells(row)) for name, row in found.table], _ERROR_HEADER),
    ]
    if found.warned:  # they are left out only for their uncertainty
        both = errors([row.error for row in (*found.judged, *found.warned)])
        parts.append(f"with the {len(found.warned)} uncertain rows below: median "
                     f"{both.median:.1%}, 90 % {both.ninetieth:.1%}")  # fmt: skip
    inside = [(name, f"{part:.0%}") for name, part in coverage(found.judged).items()]
    for block in (
        table(inside, ("rows inside the range of 80 %", "")),
        _group(found, "by source, left out", "source"),
        _group(found, "by model, source left out", "model"),
        _rows(found, verbose),
    ):
        parts += ["", block]
    return "\n".join([*parts, "", *_unfit(found)])


_ERROR_HEADER = ("", "rows", "median", "90 %", "bias")


def _cells(found: Errors) -> list[str]:
    parts = (f"{found.median:.1%}", f"{found.ninetieth:.1%}", f"{found.bias:+.1%}")
    return [str(found.rows), *parts]


def _group(found: Validation, title: str, name: str) -> str:
    groups = grouped(found.judged, attrgetter(f"case.record.{name}"))
    rows = [(key, *_cells(group)) for key, group in groups.items()]
    return table(rows, (title, *_ERROR_HEADER[1:]))


def _rows(found: Validation, verbose: bool) -> str:
    ordered = sorted(found.judged, key=lambda row: -abs(row.error))
    shown = ordered if verbose else ordered[:_WORST]
    title = "row" if verbose else f"the {len(shown)} worst rows (-v shows all)"
    rows = [(row.case.record.id, f"{row.case.measured:g}", f"{row.predicted:.4g}",
             f"{row.error:+.1%}", row.case.unit, row.step.limit, "; ".join(row.case.assumed))
            for row in shown]  # fmt: skip
    header = (title, "measured", "predicted", "error", "", "limited by", "assumed")
    return table(rows, header)


def _unfit(found: Validation) -> list[str]:
    if not found.unfit:
        return []
    rows = [(row.record.id, row.reason) for row in found.unfit]
    return [f"{len(rows)} rows that are not compared:", table(rows)]


def validation_data(found: Validation) -> dict[str, Any]:
    """A validation as JSON values; errors are relative, (predicted - measured) / measured."""
    return {
        "schema": 1,
        "rows": [_row_data(row) for row in found.judged],
        "unfit": [
            {"id": row.record.id, "source": row.record.source, "reason": row.reason,
             **(_numbers(row.predicted) if row.predicted else {})}
            for row in found.unfit
        ],
        "table": {name: _errors_data(row) for name, row in found.table},
        "inside_range": coverage(found.judged) if found.judged else {},
        "constants": dict(
            zip(("straggler", "exposed", "contention", "input"), found.constants, strict=False)
        ),
        **{
            f"by_{name}": {
                key: _errors_data(part)
                for key, part in grouped(found.judged, attrgetter(f"case.record.{name}")).items()
            }
            for name in ("source", "model")
        },
    }  # fmt: skip


def _row_data(row: Judged) -> dict[str, Any]:
    record, case = row.case.record, row.case
    return {
        "id": record.id, "source": record.source, "model": record.model,
        "gpu": case.row.machine.gpu, "gpus": record.gpus, "nodes": record.nodes,
        "form": case.row.training.form, "unit": case.unit, **_numbers(row),
        "low": row.low, "high": row.high, "limit": row.step.limit, "base": case.base.id,
        "assumed": list(case.assumed),
    }  # fmt: skip


def _numbers(row: Judged) -> dict[str, Any]:
    return {"measured": row.case.measured, "predicted": row.predicted, "relative_error": row.error}


def _errors_data(found: Errors) -> dict[str, Any]:
    return {
        "rows": found.rows, "median_abs_relative_error": found.median,
        "p90_abs_relative_error": found.ninetieth, "mean_relative_error": found.bias,
    }  # fmt: skip
