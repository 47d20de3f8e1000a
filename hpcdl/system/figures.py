"""Figures as files, drawn by matplotlib (the extra `plots`) without a display."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from io import BytesIO
from pathlib import Path
from typing import Any

from hpcdl.system.errors import BadInput, MissingPrerequisite
from hpcdl.system.files import write_atomic
from hpcdl.system.resources import to_install

_SUFFIXES = (".png", ".svg", ".pdf")
_DPI = 150
_NARROW = 32


def check_figure(path: Path) -> None:
    """BadInput for a path at which no figure can be written, before anything is worked out."""
    if path.suffix.lower() not in _SUFFIXES:
        raise BadInput(
            f"a figure cannot be a '{path.suffix or path.name}'",
            hint=f"end the name in {', '.join(_SUFFIXES)}",
        )
    if not path.parent.is_dir():
        raise BadInput(f"there is no directory {path.parent}", hint="make it, or correct the path")


def write_figure(path: Path, inches: tuple[float, float], draw: Callable[[Any], None]) -> None:
    """Write what `draw` makes of an empty figure; the suffix of `path` is its format."""
    check_figure(path)
    suffix = path.suffix.lower().lstrip(".")
    write_atomic(path, drawn(inches, draw, suffix)[suffix])


def require_matplotlib() -> None:
    """Raise MissingPrerequisite without matplotlib: also before long work that ends in a figure."""
    if find_spec("matplotlib") is None:
        raise MissingPrerequisite(
            "figures need matplotlib, which is not installed",
            hint=to_install("plots"),
        )


def drawn(
    inches: tuple[float, float], draw: Callable[[Any], None], *suffixes: str, settings: Any = None
) -> dict[str, bytes]:
    """What `draw` makes of an empty figure as files, by suffix; `settings` are matplotlib's."""
    require_matplotlib()
    from matplotlib import rc_context
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    rows = {}
    with rc_context(settings):
        figure = Figure(figsize=inches, dpi=_DPI, layout="constrained")
        FigureCanvasAgg(figure)
        draw(figure)
        for suffix in suffixes:
            data = BytesIO()
            figure.savefig(data, format=suffix, metadata={"Date": None} if suffix == "svg" else {})
            rows[suffix] = data.getvalue()
    return rows


def plain_log(axes: Any) -> None:
    """Numbers as people write them on a logarithmic axis, some between the powers."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    base = axes.yaxis.get_transform().base
    axes.yaxis.set_major_locator(LogLocator(base, subs=(1, 2, 5) if base == 10 else (1,)))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.yaxis.set_minor_formatter(NullFormatter())


def legend_below(axes: Any, *entries: Any) -> None:
    """A legend under the axis' name, where it hides nothing; no wider than the axes."""
    names = [str(name) for name in (entries[1] if entries else axes.get_legend_handles_labels()[1])]
    narrow = max(map(len, names), default=0) <= _NARROW
    axes.legend(
        *entries,
        fontsize=7,
        frameon=False,
        loc="upper center",
        bbox_to_anchor=(0.5, -0.14),
        ncols=2 if narrow else 1,
    )
