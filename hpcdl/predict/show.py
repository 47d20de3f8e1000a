"""Forecasts of one partition or several as text, JSON and a figure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from hpcdl.predict.machine import CPU, GIGA
from hpcdl.predict.request import Forecast, ScalingPoint, choose, smallest_that_fits
from hpcdl.predict.step import Workload, split_texts
from hpcdl.system.errors import BadInput
from hpcdl.system.files import write_atomic
from hpcdl.system.text import count_of, duration, table

_SCHEMA = 2
_LEFT_OUT = {"nodes", "step ms", "speed-up", "tokens/s/GPU", "TFLOP/s/GPU"}
"""Columns that a table of several partitions has no room for."""


def forecast_text(forecasts: Sequence[Forecast]) -> str:
    """The answer in its first lines, a table of counts, and what it rests on."""
    several = len(forecasts) > 1
    rows = [
        {"partition": forecast.machine.name, "GPU": forecast.machine.gpu, **_cells(forecast, point)}
        for forecast in forecasts
        for point in forecast.points
    ]
    hidden = _LEFT_OUT if several else {"partition", "GPU"}
    known = dict.fromkeys(name for row in rows for name, cell in row.items() if cell != "-")
    header = [name for name in known if name not in hidden]
    counts = table([[row.get(name, "-") for name in header] for row in rows], header)
    grounds = [line for forecast in forecasts for line in _grounds(forecast, several)]
    grounds.append("likely: eight of ten published rows were within these bounds (docs/predict.md)")
    head = [] if several else [_head(forecasts[0]), ""]
    return "\n".join([table(_verdict(forecasts)), "", *head, counts, "", *grounds])


def _verdict(forecasts: Sequence[Forecast]) -> list[tuple[str, str]]:
    """Each recommended count by its name; of several partitions, the fastest and the cheapest."""
    hours, chosen = forecasts[0].request.deadline_hours, choose(forecasts)
    within, by = f" within {hours:g} h" if hours else "", ""
    if several := len(forecasts) > 1:
        priced = all(forecast.price is not None for forecast in forecasts)
        by = " by money" if priced else " by GPU-hours"
        del chosen["efficient"]
    names = {"cheapest": f"cheapest{by}{within}", "efficient": "largest below 10% loss"}
    lines = []
    for choice, one in chosen.items():
        on = f"{one[0].machine.name}, " if one and several else ""
        text = on + _choice(*one) if one else _why_none(forecasts)
        lines.append((names.get(choice, choice), text))
    return lines


def _choice(forecast: Forecast, point: ScalingPoint) -> str:
    cost = forecast.cost(point)
    price = "" if cost is None else f", costs {cost:.2f}"
    return (
        f"{count_of(point.gpus, 'GPU')}: {_span(forecast)} in {duration(point.seconds)}, "
        f"{point.gpu_hours:.2f} GPU-hours{price}, {point.efficiency:.1%}, "
        f"limited by {point.step.limit}"
    )


def _why_none(forecasts: Sequence[Forecast]) -> str:
    forecast, *others = forecasts
    if others:
        return "none of these partitions and counts"
    if not any(point.fits for point in forecast.points):
        return f"nothing fits: {smallest_that_fits(forecast.machine, forecast.work)}"
    if all(point.beyond or not point.fits for point in forecast.points):
        return f"none: the partition has {count_of(forecast.machine.nodes, 'node')}"
    return "none of these counts"


def _head(forecast: Forecast) -> str:
    machine, work = forecast.machine, forecast.work
    network = machine.network.name if machine.network else "network unknown"
    return (
        f"{work.net.name}, {_how(work)}, on {machine.name} ({machine.gpu}, "
        f"{machine.per_node} per node, {network})"
    )


def _how(work: Workload) -> str:
    """The batch and precision; of a split transformer, how it is split."""
    if work.plan is None:
        return f"batch {work.batch} per GPU, {work.precision}"
    return f"batch {work.batch} per replica, {work.precision}, {', '.join(split_texts(work.plan))}"


def _span(one: Forecast) -> str:
    return "epoch" if one.request.epochs == 1 else f"{one.request.epochs} epochs"


def _unit(work: Workload) -> str:
    return "sequences/s" if work.net.shape.hidden else "images/s"


def _rate(value: float) -> str:
    """Images or sequences per second: whole ones, and two figures below 10."""
    return f"{value:.0f}" if value >= 9.95 else f"{value:.2g}"


def _cells(forecast: Forecast, point: ScalingPoint) -> dict[str, str]:
    """Return the cells of a count of GPUs by column; `-` is unknown."""
    work, span = forecast.work, _span(forecast)
    cost = forecast.cost(point)
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
        each = point.images_per_second / point.gpus
        operations = 6 * work.net.macs * each
        part = operations / forecast.machine.peak(work.precision)
        cells["tokens/s/GPU"] = _rate(each * work.net.height)
        cells["TFLOP/s/GPU"] = f"{operations / 1e12:.0f} ({part:.0%})"
    memory = work.memory_bytes(point.gpus) / GIGA
    cells["GB/GPU"] = "-" if forecast.machine.gpu == CPU else f"{memory:.0f}"
    cells["GB/GPU"] += "" if point.fits else " too much"
    return {
        **cells,
        span: duration(point.seconds),
        f"GPU-h/{span}": f"{point.gpu_hours:.2f}",
        f"cost/{span}": "-" if cost is None else f"{cost:.2f}",
        "limited by": point.step.limit,
    }


def _grounds(forecast: Forecast, several: bool) -> list[str]:
    """What a forecast rests on, each line with its partition where there are several."""
    base, images, net = forecast.calibration, forecast.images, forecast.work.net
    tokens = f"sequences ({images * net.height:.3g} tokens)"
    lines = [
        f"one GPU: {base.source} [{base.proof}]",
        *(f"links: {link.describe} [run]" for link in forecast.request.exchanges),
        *(f"used: {used}" for used in forecast.found),
        f"epoch: {images:,.0f} {tokens if net.shape.hidden else 'images'}",
        *(f"note: {note}" for note in forecast.notes),
    ]
    if any(point.beyond for point in forecast.points):
        lines.append(f"*: beyond the {forecast.machine.nodes} nodes of the partition")
    return [f"{forecast.machine.name}, {line}" for line in lines] if several else lines


# ---- JSON ----


def forecast_data(forecasts: Sequence[Forecast]) -> dict[str, Any]:
    """A forecast as JSON values; of several partitions, with the verdict."""
    if len(forecasts) == 1:
        return _data(forecasts[0])
    verdict = {
        name: one and {"partition": one[0].machine.name, "gpus": one[1].gpus}
        for name, one in choose(forecasts).items()
    }
    return {"schema": _SCHEMA, "verdict": verdict, "partitions": [_data(one) for one in forecasts]}


def _data(forecast: Forecast) -> dict[str, Any]:
    work = forecast.work
    return {
        "schema": _SCHEMA,
        "partition": forecast.machine.name,
        "gpu": forecast.machine.gpu,
        "model": work.net.name,
        "batch_per_gpu": work.batch,
        "precision": work.precision,
        "plan": work.plan and asdict(work.plan),
        "images_per_epoch": forecast.images,
        "epochs": forecast.request.epochs,
        "calibration": asdict(forecast.calibration),
        "links": [link.describe for link in forecast.request.exchanges],
        "used": list(forecast.found),
        "notes": list(forecast.notes),
        "points": [_point_data(forecast, point) for point in forecast.points],
        "choices": {name: one and one[1].gpus for name, one in choose([forecast]).items()},
    }


def _point_data(forecast: Forecast, point: ScalingPoint) -> dict[str, Any]:
    step = point.step
    return {
        "gpus": step.gpus,
        "nodes": step.nodes,
        "step_seconds": step.seconds,
        "parts_seconds": {"compute": step.compute, **step.losses},
        **{name: value for name, value in point._asdict().items() if name != "step"},
        "memory_gb": forecast.work.memory_bytes(step.gpus) / GIGA,
        "speedup": point.speedup,
        "gpu_hours": point.gpu_hours,
        "limit": step.limit,
        "cost": forecast.cost(point),
    }


# ---- figure ----


def write_plot(forecasts: Sequence[Forecast], path: Path) -> None:
    """Write the rate over GPUs as SVG."""
    from hpcdl.system.chart import Curve, Panel, svg

    if path.suffix.lower() != ".svg":
        raise BadInput(f"{path} is no figure that can be written", hint="name it *.svg")
    curves = [
        Curve(
            f"{forecast.machine.name} ({forecast.machine.gpu})",
            [(point.gpus, point.images_per_second) for point in forecast.points],
            "predicted",
            number,
            [point.low for point in forecast.points],
            [point.high for point in forecast.points],
        )
        for number, forecast in enumerate(forecasts)
    ]
    work, source = forecasts[0].work, forecasts[0].calibration.source
    title = f"{work.net.name}, {_how(work)}"
    panel = Panel(title, "GPUs", _unit(work), curves, log_x=2, log_y=10)
    write_atomic(path, svg([panel], f"Bars: eight of ten lie within them. One GPU: {source}"))
