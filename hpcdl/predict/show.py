"""Forecasts and validations as text, tables, JSON and a figure."""

from __future__ import annotations

from operator import attrgetter
from pathlib import Path
from typing import Any

from hpcdl.predict.forecast import Forecast, Point, memory_bytes
from hpcdl.predict.step import Training, peak_of
from hpcdl.predict.validate import CONSTANTS, Errors, Judged, Validation, coverage, errors, grouped
from hpcdl.system.figures import write_figure
from hpcdl.system.text import table

_HOUR = 3600.0
_WORST = 10
_POWER = "kWh/epoch: GPUs alone, at their largest power"
_MOST_TICKS = 14


# ---- a forecast ----


def forecast_text(found: Forecast) -> str:
    """A table of counts, what to take, and what it rests on."""
    training, machine, choices = found.training, found.machine, found.choices
    network = machine.network.name if machine.network else "network unknown"
    head = (
        f"{training.net.name}, {_how(training)}, on {machine.name} ({machine.gpu}, "
        f"{machine.per_node} per node, {network})"
    )
    rows = [_cells(found, point) for point in found.points]
    shown = [name for name in rows[0] if any(row[name] != "-" for row in rows)]
    timely = f" within {choices.deadline_hours:g} h" if choices.deadline_hours else ""
    chosen = table(
        [
            ("fastest", _choice(choices.fastest)),
            (f"cheapest{timely}", _choice(choices.cheapest)),
            (f"best below {choices.loss:.0%} loss", _choice(choices.efficient)),
        ]
    )
    counts = table([[row[name] for name in shown] for row in rows], shown)
    return "\n".join([head, "", counts, "", chosen, "", *_grounds(found)])


def _how(training: Training) -> str:
    """The batch, precision and form; of a split transformer, how it is split."""
    plan, batch = training.plan, f"batch {training.batch} per"
    if plan is None:
        return f"{batch} GPU, {training.precision}, {training.form}"
    return (
        f"{batch} replica x {plan.micro_batches} micro-batches, {training.precision}, tensor "
        f"{plan.tensor}, stages {plan.stages}, checkpointing {plan.checkpointing}, ZeRO {plan.zero}"
    )


def compared_text(found: list[Forecast]) -> str:
    """The forecasts of several partitions in one table, what each rests on below."""
    rows = [
        {
            "partition": one.machine.name,
            "GPU": one.machine.gpu,
            **_cells(one, point),
            "GPUs": str(point.gpus),
        }
        for one in found
        for point in one.points
    ]
    header = (
        "partition",
        "GPU",
        "GPUs",
        _unit(found[0].training),
        "likely",
        "efficiency",
        "epoch",
        "GPU-h/epoch",
        "kWh/epoch",
        "cost/epoch",
        "limited by",
    )
    grounds = [
        f"{one.machine.name}, one GPU: {one.calibration.source} [{one.calibration.proof}]"
        for one in found
    ]
    notes = [f"note: {one.machine.name}: {note}" for one in found for note in one.notes]
    shown = table([[row[name] for name in header] for row in rows], header)
    return "\n".join([shown, "", *grounds, *notes, _POWER])


def _unit(training: Training) -> str:
    return "sequences/s" if training.net.shape.hidden else "images/s"


def _rate(value: float) -> str:
    """Images or sequences per second: whole ones, and two figures below 10."""
    return f"{value:.0f}" if value >= 9.95 else f"{value:.2g}"


def _cells(found: Forecast, point: Point) -> dict[str, str]:
    """What a count of GPUs has in each column; `-` is unknown."""
    training, energy, cost = found.training, found.kilowatt_hours(point), found.cost(point)
    cells = {
        "GPUs": f"{point.gpus} *" if point.beyond else str(point.gpus),
        "nodes": str(point.step.nodes),
        "step ms": f"{1000 * point.step.seconds:.1f}",
        _unit(training): _rate(point.images_per_second),
        "likely": f"{_rate(point.low)}-{_rate(point.high)}",
        "speed-up": f"{point.speedup:.2f}",
        "efficiency": f"{point.efficiency:.1%}",
    }
    if training.plan:
        memory, rate = memory_bytes(training, point.gpus), found.operations(point)
        part = rate / peak_of(found.machine, training.precision)
        fits = "" if memory <= found.machine.memory else " too much"
        tokens = point.images_per_second * training.net.height / point.gpus
        cells |= {
            "tokens/s/GPU": _rate(tokens),
            "TFLOP/s/GPU": f"{rate / 1e12:.0f} ({part:.0%})",
            "GB/GPU": f"{memory / 1e9:.0f}{fits}",
        }
    return {
        **cells,
        "epoch": _hours(point.epoch_seconds),
        "GPU-h/epoch": f"{point.gpu_hours:.2f}",
        "kWh/epoch": "-" if energy is None else f"{energy:.2f}",
        "cost/epoch": "-" if cost is None else f"{cost:.2f}",
        "limited by": point.step.limit,
    }


def _hours(seconds: float) -> str:
    """Seconds as `41 s`, `12.3 min` or `4.56 h`."""
    if seconds < 100:
        return f"{seconds:.3g} s"
    return f"{seconds / 60:.1f} min" if seconds < _HOUR else f"{seconds / _HOUR:.2f} h"


def _choice(point: Point | None) -> str:
    if point is None:
        return "none of these counts"
    gpus = "1 GPU" if point.gpus == 1 else f"{point.gpus} GPUs"
    return (
        f"{gpus}: epoch in {_hours(point.epoch_seconds)}, {point.gpu_hours:.2f} GPU-hours, "
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
        "partition": found.machine.name,
        "gpu": found.machine.gpu,
        "model": training.net.name,
        "batch_per_gpu": training.batch,
        "precision": training.precision,
        "form": training.form,
        "plan": training.plan and vars(training.plan),
        "images_per_epoch": found.images,
        "calibration": {
            "step_seconds": base.seconds,
            "batch": base.batch,
            "source": base.source,
            "proof": base.proof,
            "low": base.low,
            "high": base.high,
        },
        "links": list(found.links),
        "notes": list(found.notes),
        "memory_gb_per_gpu": memory_bytes(training, found.points[0].gpus) / 1e9,
        "points": [_point_data(found, point) for point in found.points],
        "choices": {
            "fastest": choices.fastest and choices.fastest.gpus,
            "cheapest": choices.cheapest and choices.cheapest.gpus,
            "best_below_loss": choices.efficient and choices.efficient.gpus,
            "loss": choices.loss,
            "deadline_hours": choices.deadline_hours,
        },
    }


def _point_data(found: Forecast, point: Point) -> dict[str, Any]:
    step = point.step
    return {
        "gpus": step.gpus,
        "nodes": step.nodes,
        "step_seconds": step.seconds,
        "parts_seconds": {
            "compute": step.compute,
            "stragglers": step.straggler,
            "communication": step.exposed,
            "contention": step.contention,
            "input": step.input_wait,
            **step.losses,
        },
        "tflops_per_gpu": found.operations(point) / 1e12,
        "memory_gb_per_gpu": memory_bytes(found.training, point.gpus) / 1e9,
        "images_per_second": point.images_per_second,
        "images_per_second_low": point.low,
        "images_per_second_high": point.high,
        "speedup": point.speedup,
        "efficiency": point.efficiency,
        "epoch_hours": point.epoch_seconds / _HOUR,
        "gpu_hours_per_epoch": point.gpu_hours,
        "limit": step.limit,
        "beyond_partition": point.beyond,
        "energy_kwh_per_epoch": found.kilowatt_hours(point),
        "cost_per_epoch": found.cost(point),
    }


def write_plot(found: Forecast, path: Path) -> None:
    """Write speed-up and efficiency over GPUs; the suffix of `path` is the format."""
    write_figure(path, (6.4, 6.0), lambda figure: _draw(figure, found))


def _draw(figure: Any, found: Forecast) -> None:
    gpus = [point.gpus for point in found.points]
    shown: list[int] = []  # counts that label the axis: all of a few, else those apart
    for count in gpus:
        if not shown or len(gpus) <= _MOST_TICKS or count >= 2 * shown[-1]:
            shown.append(count)
    style: dict[str, Any] = {"marker": "o", "markevery": [gpus.index(count) for count in shown]}
    upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=[2, 1])
    # Speed-up is relative: the uncertainty of one GPU's own rate does not enter it.
    base = found.calibration
    lows = [p.speedup * p.low / p.images_per_second / base.low for p in found.points]
    highs = [p.speedup * p.high / p.images_per_second / base.high for p in found.points]
    upper.plot(gpus, gpus, linestyle=":", color="0.5", label="ideal")
    upper.plot(gpus, [p.speedup for p in found.points], **style, label="predicted")
    upper.fill_between(gpus, lows, highs, alpha=0.2, label="likely (8 of 10)")
    upper.set(xscale="log", yscale="log", ylabel="speed-up over one GPU")
    upper.set_title(
        f"{found.training.net.name}, batch {found.training.batch} per GPU, "
        f"{found.training.precision}, on {found.machine.name} ({found.machine.gpu})",
        fontsize="medium",
    )
    upper.legend()
    lower.plot(gpus, [100 * p.efficiency for p in found.points], **style)
    share = [
        [100 * value / p.gpus for value, p in zip(side, found.points, strict=True)]
        for side in (lows, highs)
    ]
    lower.fill_between(gpus, *share, alpha=0.2)
    lower.set(xlabel="GPUs", ylabel="efficiency (%)", ylim=(0, 105))
    for axes in (upper, lower):
        axes.grid(alpha=0.3)
    lower.set_xticks(shown, [str(count) for count in shown])
    lower.minorticks_off()
    figure.supxlabel(f"one GPU: {base.source}", fontsize=6, color="0.4", x=0.01, ha="left")


# ---- validation ----


def validation_text(found: Validation, *, verbose: bool) -> str:
    """The table of models and laws, ranges, errors by source and model, rows, the unfit."""
    unfit = table([(row.record.id, row.reason) for row in found.unfit])
    left = [f"{len(found.unfit)} rows that are not compared:", unfit] if found.unfit else []
    if not found.judged:
        return "\n".join(["no row can be compared", "", *left])
    parts = [
        f"{len(found.judged)} rows of {len({row.case.record.source for row in found.judged})} "
        "sources, each from the row of the fewest GPUs of its source; laws with parameters are "
        "fitted without the row's source, too",
        "",
        _errors(dict(found.table), ""),
    ]
    warned = [row.predicted for row in found.unfit if row.predicted]
    if warned:  # they are left out only for their uncertainty
        both = errors([row.error for row in (*found.judged, *warned)])
        parts.append(
            f"with the {len(warned)} uncertain rows below: median "
            f"{both.median:.1%}, 90 % {both.ninetieth:.1%}"
        )
    inside = [(name, f"{part:.0%}") for name, part in coverage(found.judged).items()]
    for block in (
        table(inside, ("rows inside the range of 80 %", "")),
        _errors(_by(found, "source"), "by source, left out"),
        _errors(_by(found, "model"), "by model, source left out"),
        _rows(found, verbose),
    ):
        parts += ["", block]
    return "\n".join([*parts, "", *left])


def _by(found: Validation, name: str) -> dict[str, Errors]:
    return grouped(found.judged, attrgetter(f"case.record.{name}"))


def _errors(groups: dict[str, Errors], title: str) -> str:
    rows = [
        (name, str(one.rows), f"{one.median:.1%}", f"{one.ninetieth:.1%}", f"{one.bias:+.1%}")
        for name, one in groups.items()
    ]
    return table(rows, (title, "rows", "median", "90 %", "bias"))


def _rows(found: Validation, verbose: bool) -> str:
    ordered = sorted(found.judged, key=lambda row: -abs(row.error))
    shown = ordered if verbose else ordered[:_WORST]
    title = "row" if verbose else f"the {len(shown)} worst rows (-v shows all)"
    rows = [
        (
            row.case.record.id,
            f"{row.case.measured:g}",
            f"{row.predicted:.4g}",
            f"{row.error:+.1%}",
            row.case.unit,
            row.step.limit,
            "; ".join(row.case.assumed),
        )
        for row in shown
    ]
    return table(rows, (title, "measured", "predicted", "error", "", "limited by", "assumed"))


def validation_data(found: Validation) -> dict[str, Any]:
    """A validation as JSON values; errors are relative, (predicted - measured) / measured."""
    groups = {
        "table": dict(found.table),
        "by_source": _by(found, "source"),
        "by_model": _by(found, "model"),
    }
    return {
        "schema": 1,
        "rows": [_row_data(row) for row in found.judged],
        "unfit": [
            {
                "id": row.record.id,
                "source": row.record.source,
                "reason": row.reason,
                **(_numbers(row.predicted) if row.predicted else {}),
            }
            for row in found.unfit
        ],
        **{
            name: {
                key: {
                    "rows": one.rows,
                    "median_abs_relative_error": one.median,
                    "p90_abs_relative_error": one.ninetieth,
                    "mean_relative_error": one.bias,
                }
                for key, one in group.items()
            }
            for name, group in groups.items()
        },
        "inside_range": coverage(found.judged) if found.judged else {},
        "constants": dict(zip(CONSTANTS, found.constants, strict=False)),
    }


def _row_data(row: Judged) -> dict[str, Any]:
    record, case = row.case.record, row.case
    return {
        "id": record.id,
        "source": record.source,
        "model": record.model,
        "gpu": case.row.machine.gpu,
        "gpus": record.gpus,
        "nodes": record.nodes,
        "form": case.row.training.form,
        "unit": case.unit,
        **_numbers(row),
        "low": row.low,
        "high": row.high,
        "limit": row.step.limit,
        "base": case.base.id,
        "assumed": list(case.assumed),
    }


def _numbers(row: Judged) -> dict[str, Any]:
    return {"measured": row.case.measured, "predicted": row.predicted, "relative_error": row.error}
