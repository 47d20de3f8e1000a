"""Figures as files, drawn by matplotlib (the extra `plots`) without a display."""

from __future__ import annotations

from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Any

from hpcdl.system.errors import BadInput, MissingPrerequisite
from hpcdl.system.files import write_atomic

_SUFFIXES = (".png", ".svg", ".pdf")
_DPI = 150


def check_figure(path: Path) -> None:
    """Refuse a name by which no figure can be written, before anything is worked out.

    Raises:
        BadInput: another suffix than .png, .svg or .pdf.
    """
    if path.suffix.lower() not in _SUFFIXES:
        raise BadInput(f"a figure cannot be a '{path.suffix or path.name}'",
                       hint=f"end the name in {', '.join(_SUFFIXES)}")  # fmt: skip


def write_figure(path: Path, inches: tuple[float, float], draw: Callable[[Any], None]) -> None:
    """Write what `draw` makes of an empty figure; the suffix of `path` is its format.

    Raises:
        BadInput: another suffix than .png, .svg or .pdf.
        MissingPrerequisite: matplotlib is not installed, or no space left.
    """
    check_figure(path)
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as fault:
        raise MissingPrerequisite(
            "figures need matplotlib, which is not installed",
            hint="install it: pip install 'hpcdl[plots]'",
        ) from fault
    figure = Figure(figsize=inches, dpi=_DPI, layout="constrained")
    FigureCanvasAgg(figure)
    draw(figure)
    data = BytesIO()
    figure.savefig(data, format=path.suffix.lower().lstrip("."))
    write_atomic(path, data.getvalue())
