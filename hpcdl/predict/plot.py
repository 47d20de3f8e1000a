"""A forecast as a figure: speed-up and efficiency over GPUs, with what is likely around them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hpcdl.predict.forecast import Forecast
from hpcdl.system.figures import write_figure

_SIZE_INCHES = (6.4, 6.0)
_MOST_TICKS = 14


def write_plot(found: Forecast, path: Path) -> None:
    """Write the figure; the suffix of `path` is its format.

    Raises:
        BadInput: another suffix than .png, .svg or .pdf.
        MissingPrerequisite: matplotlib is not installed, or no space left.
    """
    write_figure(path, _SIZE_INCHES, lambda figure: _draw(figure, found))


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
    share = [[100 * value / p.gpus for value, p in zip(side, found.points, strict=True)]
             for side in (lows, highs)]  # fmt: skip
    lower.fill_between(gpus, *share, alpha=0.2)
    lower.set(xlabel="GPUs", ylabel="efficiency (%)", ylim=(0, 105))
    for axes in (upper, lower):
        axes.grid(alpha=0.3)
    lower.set_xticks(shown, [str(count) for count in shown])
    lower.minorticks_off()
    figure.supxlabel(f"one GPU: {found.calibration.source}", fontsize=6, color="0.4", x=0.01,
                     ha="left")  # fmt: skip
