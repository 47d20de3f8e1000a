"""The part of docs/studies.md that comes from the studies' files: their originals, item by item."""

from __future__ import annotations

from pathlib import Path

from hpcdl.workflows.study.load import load_study, shipped
from hpcdl.workflows.study.model import Original

PAGE = Path(__file__).resolve().parents[1] / "docs" / "studies.md"
BEGIN, END = (
    "<!-- Made by `make docs` from hpcdl/facts/studies. -->\n",
    "<!-- Made up to here. -->\n",
)


def studies() -> str:
    """The page, with its tables made anew."""
    before, _, rest = PAGE.read_text().partition(BEGIN)
    after = rest.partition(END)[2]
    return "".join([before, BEGIN, *map(_table, shipped()), "\n", END, after])


def _table(name: str) -> str:
    rows = "".join(map(_row, load_study(name).original))
    head = "| | original | by | note |\n|---|---|---|---|\n"
    return f"\n### `{name}`: the original's tables and figures\n\n{head}{rows}"


def _row(one: Original) -> str:
    tick = "✓" if one.by else "no"
    return f"| {tick} | {one.item} | {', '.join(map(_link, one.by))} | {one.note} |\n"


def _link(text: str) -> str:
    kind, _, name = text.partition(": ")
    if kind == "page":
        return f"[{name}]({name})"
    return f"`{name}`" if kind == "command" else f"{kind} *{name}*"
