"""The figure of a study: panels drawn from findings, as SVG for papers and PNG for pages.

The study's file chooses and orders the panels (panels.py). matplotlib is an extra, imported only
when a figure is drawn.
"""

from __future__ import annotations

from textwrap import wrap
from typing import Any

from hpcdl.system.figures import drawn
from hpcdl.workflows.study.collect import Findings
from hpcdl.workflows.study.forecast import Predicted
from hpcdl.workflows.study.panels import PANELS, Scene

_GREY = "#767676"
_CHARACTERS = 100


def draw(findings: Findings, predicted: tuple[Predicted, ...]) -> dict[str, bytes]:
    """The figure by suffix: `svg` and `png`; without matplotlib a `MissingPrerequisite`."""
    study = findings.plan.study
    columns = min(3, len(study.figure))
    rows = -(-len(study.figure) // columns)

    def fill(figure: Any) -> None:
        grid = figure.subplots(rows, columns, squeeze=False).flatten()
        for index, (axes, panel) in enumerate(zip(grid, study.figure, strict=False)):
            PANELS[panel.panel](axes, Scene(findings, predicted, panel))
            letter = f"({'abcdefgh'[index]}) " if len(study.figure) > 1 else ""
            axes.set_title(letter + panel.title, loc="left", fontsize=10, fontweight="bold")
        for axes in grid[len(study.figure) :]:
            axes.set_axis_off()
        figure.supxlabel(_footnote(findings), fontsize=6.5, color=_GREY, x=0.01, ha="left")

    look = {"font.size": 9, "svg.fonttype": "none", "svg.hashsalt": study.name}
    return drawn((4.9 * columns, 4.5 * rows + 0.4), fill, "svg", "png", settings=look)


def caption(findings: Findings) -> str:
    """What the marks of the figure mean."""
    kinds = {panel.panel for panel in findings.plan.study.figure}
    if "time-by-size" in kinds:
        return (
            "Markers are the median of the epochs after the first, bars the fastest and slowest; "
            "lines go through the sizes below memory, and dashed where they only predict."
        )
    return (
        "Filled markers are the median step, bars the 5th to 95th percentile of the steps; "
        f"{_hollow(findings)}; grey ones published by others."
    )


def _hollow(findings: Findings) -> str:
    """What predictions start from, and what their bars are."""
    scale = findings.plan.scale
    source, bars = "the one-rank run", "the model's bounds, eight times in ten"
    if scale.execution.shared_cores:
        bars = "the model's largest error on cells that ran too"
        if scale.exchange_from is not None:
            cells = ", ".join(f"{key}={value}" for key, value in scale.exchange_from.items())
            source += f" and from what exchanging gradients costs on shared cores ({cells})"
    return f"hollow markers are predicted from {source}, their bars {bars}"


def _footnote(findings: Findings) -> str:
    """Where the figure's numbers come from, and what its marks mean."""
    plan = findings.plan
    cores = f", all ranks on {findings.cores} cores" if plan.scale.execution.shared_cores else ""
    first = f"{plan.study.name}, scale {plan.scale.name}, site {plan.site.name}{cores}. "
    drawn = any(panel.panel in {"speedup", "efficiency"} for panel in plan.study.figure)
    sources = [f"{one.label}: {one.source}" for one in plan.study.published if drawn]
    width = _CHARACTERS * min(3, len(plan.study.figure))
    short = [text if len(text) <= 170 else text[:167] + "..." for text in sources]
    return "\n".join([*wrap(first + caption(findings), width), *short])
