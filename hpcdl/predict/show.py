"""Forecasts as text, tables, JSON and a figure."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hpcdl.predict.forecast import Forecast, ScalingPoint, memory_bytes, smallest_that_fits
from hpcdl.predict.hardware import CPU
from hpcdl.predict.step import Workload
from hpcdl.system.errors import BadInput
from hpcdl.system.figures import write_figure
from hpcdl.system.text import count_of, table

_HOUR = 3600.0
_POWER = "kWh: GPUs alone, at their largest power"
_MOST_TICKS = 14


def forecast_text(found: Forecast) -> str:
    """The answer in three lines, a table of counts, and what it rests on."""
    work, machine = found.work, found.machine
    network = machine.network.name if machine.network else "network unknown"
    head = (
        f"{work.net.name}, {_how(work)}, on {machine.name} ({machine.gpu}, "
        f"{machine.per_node} per node, {network})"
    )
    rows = [_cells(found, point) for point in found.points]
    shown = [name for name in rows[0] if any(row[name] != "-" for row in rows)]
    counts = table([[row[name] for name in shown] for row in rows], shown)
    return "\n".join([table(_answers(found)), "", head, "", counts, "", *_grounds(found)])


def _answers(found: Forecast) -> list[tuple[str, str]]:
    """Fastest, cheapest and the largest efficient count, each with what limits it."""
    limits, choices = found.limits, found.choices
    timely = f" within {limits.deadline_hours:g} h" if limits.deadline_hours else ""
    return [
        ("fastest", _choice(found, choices.fastest)),
        (f"cheapest{timely}", _choice(found, choices.cheapest)),
        (f"largest below {limits.loss:.0%} loss", _choice(found, choices.efficient)),
    ]


def _choice(found: Forecast, point: ScalingPoint | None) -> str:
    if point is not None:
        cost = found.cost(point)
        price = "" if cost is None else f", costs {cost:.2f}"
        return (
            f"{count_of(point.gpus, 'GPU')}: {_span(found)} in {_hours(point.seconds)}, "
            f"{point.gpu_hours:.2f} GPU-hours{price}, {point.efficiency:.1%}, "
            f"limited by {point.step.limit}"
        )
    if not any(one.fits for one in found.points):
        return f"nothing fits: {smallest_that_fits(found.machine, found.work)}"
    if all(one.beyond or not one.fits for one in found.points):
        return f"none: the partition has {count_of(found.machine.nodes, 'node')}"
    return "none of these counts"


def _span(found: Forecast) -> str:
    epochs = found.data.epochs
    return "epoch" if epochs == 1 else f"{epochs} epochs"


def _how(work: Workload) -> str:
    """The batch, precision and form; of a split transformer, how it is split."""
    plan, batch = work.plan, f"batch {work.batch} per"
    if plan is None:
        return f"{batch} GPU, {work.precision}, {work.form}"
    return (
        f"{batch} replica x {plan.micro_batches} micro-batches, {work.precision}, tensor "
        f"{plan.tensor}, stages {plan.stages}, checkpointing {plan.checkpointing}, ZeRO {plan.zero}"
    )


def compared_text(found: Sequence[Forecast]) -> str:
    """A verdict over several partitions, their counts in one table, what each rests on."""
    rows = [
        {
            "partition": forecast.machine.name,
            "GPU": forecast.machine.gpu,
            **_cells(forecast, point),
            "GPUs": str(point.gpus) + (" *" if point.beyond else ""),
        }
        for forecast in found
        for point in forecast.points
    ]
    left = {"nodes", "step ms", "speed-up", "tokens/s/GPU", "TFLOP/s/GPU"}
    header = [
        name
        for name in rows[0]
        if name not in left and any(row.get(name, "-") != "-" for row in rows)
    ]
    grounds = [
        f"{forecast.machine.name}, one GPU: {forecast.calibration.source} "
        f"[{forecast.calibration.proof}]"
        for forecast in found
    ]
    notes = [
        f"note: {forecast.machine.name}: {note}" for forecast in found for note in forecast.notes
    ]
    shown = table([[row.get(name, "-") for name in header] for row in rows], header)
    verdict = table([(name, f"{_on(forecast)}{text}") for name, forecast, text in _verdict(found)])
    return "\n".join([verdict, "", shown, "", *grounds, *notes, _POWER])


def _on(found: Forecast | None) -> str:
    return f"{found.machine.name}, " if found else ""


def _verdict(found: Sequence[Forecast]) -> list[tuple[str, Forecast | None, str]]:
    """Which partition is fastest, which cheapest: by money where all have a price."""
    priced = all(forecast.price is not None for forecast in found)

    def spent(pair: tuple[Forecast, ScalingPoint]) -> float:
        forecast, point = pair
        return (forecast.cost(point) if priced else None) or point.gpu_hours

    fast = [(forecast, forecast.choices.fastest) for forecast in found if forecast.choices.fastest]
    cheap = [
        (forecast, forecast.choices.cheapest) for forecast in found if forecast.choices.cheapest
    ]
    hours = found[0].limits.deadline_hours
    by = "money" if priced else "GPU-hours"
    lines: list[tuple[str, Forecast | None, str]] = []
    for name, pair in (
        ("fastest", min(fast, key=lambda pair: pair[1].seconds, default=None)),
        (
            f"cheapest by {by}" + (f" within {hours:g} h" if hours else ""),
            min(cheap, key=spent, default=None),
        ),
    ):
        none = (name, None, "none of these partitions and counts")
        lines.append((name, pair[0], _choice(*pair)) if pair else none)
    return lines


def _unit(work: Workload) -> str:
    return "sequences/s" if work.net.shape.hidden else "images/s"


def _rate(value: float) -> str:
    """Images or sequences per second: whole ones, and two figures below 10."""
    return f"{value:.0f}" if value >= 9.95 else f"{value:.2g}"


def _cells(found: Forecast, point: ScalingPoint) -> dict[str, str]:
    """Return the cells of a count of GPUs by column; `-` is unknown."""
    work, energy, cost = found.work, found.kilowatt_hours(point), found.cost(point)
    span = _span(found)
    cells = {
        "GPUs": f"{point.gpus} *" if point.beyond else str(point.gpus),
        "nodes": str(point.step.nodes),
        "step ms": f"{1000 * point.step.seconds:.1f}",
        _unit(work): _rate(point.images_per_second),
        "likely": f"{_rate(point.low)}-{_rate(point.high)}",
        "speed-up": f"{point.speedup:.2f}",
        "efficiency": f"{point.efficiency:.1%}",
    }
    if work.plan:
        tokens = point.images_per_second * work.net.height / point.gpus
        rate = found.operations(point) / 1e12
        cells["tokens/s/GPU"] = _rate(tokens)
        cells["TFLOP/s/GPU"] = f"{rate:.0f} ({found.peak_part(point):.0%})"
    memory = memory_bytes(work, point.gpus) / 1e9
    cells["GB/GPU"] = "-" if found.machine.gpu == CPU else f"{memory:.0f}"
    cells["GB/GPU"] += "" if point.fits else " too much"
    return {
        **cells,
        span: _hours(point.seconds),
        f"GPU-h/{span}": f"{point.gpu_hours:.2f}",
        f"kWh/{span}": "-" if energy is None else f"{energy:.2f}",
        f"cost/{span}": "-" if cost is None else f"{cost:.2f}",
        "limited by": point.step.limit,
    }


def _hours(seconds: float) -> str:
    """Seconds as `41 s`, `12.3 min` or `4.56 h`."""
    if seconds < 100:
        return f"{seconds:.3g} s"
    return f"{seconds / 60:.1f} min" if seconds < _HOUR else f"{seconds / _HOUR:.2f} h"


def _grounds(found: Forecast) -> list[str]:
    base, data, net = found.calibration, found.data, found.work.net
    lines = [f"one GPU: {base.source} [{base.proof}]"]
    lines += [f"links: {link} [run]" for link in found.links]
    lines += [f"used: {used}" for used in found.found]
    unit = "sequences" if net.shape.hidden else "images"
    tokens = f" ({data.images * net.height:.3g} tokens)" if net.shape.hidden else ""
    lines.append(f"epoch: {data.images:,.0f} {unit}{tokens}")
    lines += [f"note: {note}" for note in found.notes]
    if found.watts:
        lines.append(_POWER)
    lines.append("likely: eight of ten published rows were within these bounds (docs/predict.md)")
    if any(point.beyond for point in found.points):
        lines.append(f"*: beyond the {found.machine.nodes} nodes of the partition")
    return lines


def forecast_data(found: Forecast) -> dict[str, Any]:
    """A forecast as JSON values."""
    base, choices, work = found.calibration, found.choices, found.work
    return {
        "schema": 1,
        "partition": found.machine.name,
        "gpu": found.machine.gpu,
        "model": work.net.name,
        "batch_per_gpu": work.batch,
        "precision": work.precision,
        "form": work.form,
        "plan": work.plan and vars(work.plan),
        "images_per_epoch": found.data.images,
        "epochs": found.data.epochs,
        "calibration": {
            "step_seconds": base.seconds,
            "batch": base.batch,
            "source": base.source,
            "proof": base.proof,
            "low": base.low,
            "high": base.high,
        },
        "links": list(found.links),
        "used": list(found.found),
        "notes": list(found.notes),
        "memory_gb_per_gpu": memory_bytes(work, found.points[0].gpus) / 1e9,
        "points": [_point_data(found, point) for point in found.points],
        "choices": {
            "fastest": choices.fastest and choices.fastest.gpus,
            "cheapest": choices.cheapest and choices.cheapest.gpus,
            "best_below_loss": choices.efficient and choices.efficient.gpus,
            "loss": found.limits.loss,
            "deadline_hours": found.limits.deadline_hours,
        },
    }


def compared_data(found: Sequence[Forecast]) -> dict[str, Any]:
    """Several partitions as JSON values, with the verdict."""
    verdict = {
        name.partition(" ")[0]: one and {"partition": one.machine.name, "says": text}
        for name, one, text in _verdict(found)
    }
    return {"schema": 1, "verdict": verdict, "partitions": [forecast_data(one) for one in found]}


def _point_data(found: Forecast, point: ScalingPoint) -> dict[str, Any]:
    step = point.step
    return {
        "gpus": step.gpus,
        "nodes": step.nodes,
        "step_seconds": step.seconds,
        "parts_seconds": {
            "compute": step.compute,
            "stragglers": step.straggler,
            "communication": step.communication,
            "input": step.input_wait,
            **step.losses,
        },
        "tflops_per_gpu": found.operations(point) / 1e12,
        "memory_gb_per_gpu": memory_bytes(found.work, point.gpus) / 1e9,
        "fits": point.fits,
        "images_per_second": point.images_per_second,
        "images_per_second_low": point.low,
        "images_per_second_high": point.high,
        "speedup": point.speedup,
        "efficiency": point.efficiency,
        "hours": point.seconds / _HOUR,
        "epoch_hours": point.seconds / _HOUR / found.data.epochs,
        "gpu_hours": point.gpu_hours,
        "gpu_hours_per_epoch": point.gpu_hours / found.data.epochs,
        "limit": step.limit,
        "beyond_partition": point.beyond,
        "energy_kwh": found.kilowatt_hours(point),
        "cost": found.cost(point),
    }


def write_plot(found: Sequence[Forecast], path: Path) -> None:
    """Write speed-up and efficiency over GPUs; the suffix of `path` is the format.

    Of several partitions the upper part is images per second.
    """
    if not found:
        raise BadInput("there is nothing to plot")
    write_figure(path, (6.4, 6.0), lambda figure: _draw(figure, found))


def _draw(figure: Any, found: Sequence[Forecast]) -> None:
    upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=[2, 1])
    several, first = len(found) > 1, found[0]
    for forecast in found:
        _draw_one(upper, lower, forecast, absolute=several)
    if not several:
        gpus = [point.gpus for point in first.points]
        upper.plot(gpus, gpus, linestyle=":", color="0.5", label="ideal")
    unit = _unit(first.work) if several else "speed-up over one GPU"
    upper.set(xscale="log", yscale="log", ylabel=unit)
    place = "" if several else f", on {first.machine.name} ({first.machine.gpu})"
    upper.set_title(f"{first.work.net.name}, {_how(first.work)}{place}", fontsize="medium")
    upper.legend()
    lower.set(xlabel="GPUs", ylabel="efficiency (%)", ylim=(0, 105))
    for axes in (upper, lower):
        axes.grid(alpha=0.3)
    shown = _ticks(sorted({point.gpus for forecast in found for point in forecast.points}))
    lower.set_xticks(shown, [str(count) for count in shown])
    lower.minorticks_off()
    figure.supxlabel(
        f"one GPU: {first.calibration.source}", fontsize=6, color="0.4", x=0.01, ha="left"
    )


def _draw_one(upper: Any, lower: Any, found: Forecast, *, absolute: bool) -> None:
    """The curves of a partition: images per second where `absolute`, else speed-up."""
    points, base = found.points, found.calibration
    gpus = [point.gpus for point in points]
    # Speed-up is relative: the uncertainty of one GPU's own rate does not enter it.
    narrow = (1.0, 1.0) if absolute else (base.low, base.high)
    values = [p.images_per_second if absolute else p.speedup for p in points]
    lows = [
        value * p.low / p.images_per_second / narrow[0]
        for value, p in zip(values, points, strict=True)
    ]
    highs = [
        value * p.high / p.images_per_second / narrow[1]
        for value, p in zip(values, points, strict=True)
    ]
    upper.plot(gpus, values, marker="o", label=found.machine.name if absolute else "predicted")
    upper.fill_between(gpus, lows, highs, alpha=0.2, label=None if absolute else "likely (8 of 10)")
    lower.plot(gpus, [100 * p.efficiency for p in points], marker="o")


def _ticks(gpus: Sequence[int]) -> list[int]:
    """Counts that label the axis: all of a few, else those apart."""
    shown: list[int] = []
    for count in gpus:
        if not shown or len(gpus) <= _MOST_TICKS or count >= 2 * shown[-1]:
            shown.append(count)
    return shown
