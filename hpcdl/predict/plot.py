"""A forecast as a figure: speed-up and efficiency over GPUs, with what is likely around them."""

from __future__ import annotations

from io import BytesIO
from pathlib import Path
from typing import Any

from hpcdl.predict.forecast import Forecast
from hpcdl.system.errors import BadInput, MachineLacks
from hpcdl.system.files import write_atomic

_SUFFIXES = (".png", ".svg", ".pdf")
_SIZE_INCHES = (6.4, 6.0)
_DPI = 150


def write_plot(found: Forecast, path: Path) -> None:
    """Write the figure; the suffix of `path` is its format.

    Raises:
        BadInput: another suffix than .png, .svg or .pdf.
        MachineLacks: matplotlib is not installed, or no room.
    """
    if path.suffix.lower() not in _SUFFIXES:
        raise BadInput(f"a figure cannot be a '{path.suffix or path.name}'",
                       hint=f"end the name in {', '.join(_SUFFIXES)}")  # fmt: skip
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as fault:
        raise MachineLacks(
            "figures need matplotlib, which is not installed",
            hint="install it: pip install 'hpcdl[plots]'",
        ) from fault
    figure = Figure(figsize=_SIZE_INCHES, dpi=_DPI, layout="constrained")
    FigureCanvasAgg(figure)
    _draw(figure, found)
    data = BytesIO()
    figure.savefig(data, format=path.suffix.lower().lstrip("."))
    write_atomic(path, data.getvalue())


def _draw(figure: Any, found: Forecast) -> None:
    gpus = [point.gpus for point in found.points]
    upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=[2, 1])
    alone = found.points[0].images_per_second / found.points[0].speedup
    bounds = ([p.low / alone for p in found.points], [p.high / alone for p in found.points])
    upper.plot(gpus, gpus, linestyle=":", color="0.5", label="ideal")
    upper.plot(gpus, [p.speedup for p in found.points], marker="o", label="predicted")
    upper.fill_between(gpus, *bounds, alpha=0.2, label="likely (8 of 10)")
    upper.set(xscale="log", yscale="log", ylabel="speed-up over one GPU")
    upper.set_title(
        f"{found.training.net.name}, batch {found.training.batch} per GPU, "
        f"{found.training.precision}, on {found.machine.name} ({found.machine.gpu})",
        fontsize="medium",
    )
    upper.legend()
    lower.plot(gpus, [100 * p.efficiency for p in found.points], marker="o")
    lower.set(xlabel="GPUs", ylabel="efficiency (%)", ylim=(0, 105))
    for axes in (upper, lower):
        axes.grid(alpha=0.3)
    lower.set_xticks(gpus, [str(count) for count in gpus])
    lower.minorticks_off()
    figure.text(0.01, 0.002, f"one GPU: {found.calibration.source}", fontsize=6, color="0.4")
