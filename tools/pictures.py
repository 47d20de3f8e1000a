"""Draw the pictures of the README: `make pictures`, with Chromium for the page.

`terminal.svg` is a cast without motion: commands and what they print now, on the example site;
`report.png` is the page of `hpcdl check report` over simulated nights.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from html import escape
from pathlib import Path

from hpcdl.regress.history import open_history
from tests import nights

FIGURES = Path(__file__).resolve().parents[1] / "docs" / "figures"
COMMANDS = (
    ("job explain --site pi --partition p100 --gpus 4 --no-module -- hostname", 3, 15),
    ("predict scale --site pi --partition p100 --model resnet50", 2, 8),
)
"""Command, and the lines of its output that are shown."""
_WIDTH, _LINE, _ADVANCE = 104, 18, 7.8
_STYLE = (
    "text{font:13px ui-monospace,Menlo,Consolas,monospace;fill:#d8dee9;white-space:pre}"
    ".prompt{fill:#a3be8c}.reason{fill:#8fa1b8}"
)


def shown() -> list[str]:
    """The lines of the cast."""
    lines = []
    for command, first, last in COMMANDS:
        argv = [sys.executable, "-m", "hpcdl", *command.split()]
        said = subprocess.run(argv, capture_output=True, text=True, check=True).stdout
        lines += [f"$ hpcdl {command}", *said.splitlines()[first:last], ""]
    return lines[:-1]


def terminal(lines: list[str]) -> str:
    """Lines of a terminal as SVG, cut at its right edge."""
    rows = []
    for number, line in enumerate(lines, 1):
        kind = {"$": ' class="prompt"', "#  ": ' class="reason"'}
        mark = kind.get(line[:1], "") or kind.get(line[:3], "")
        cut = line if len(line) <= _WIDTH else line[: _WIDTH - 1] + "\N{HORIZONTAL ELLIPSIS}"
        rows.append(f'<text x="14" y="{number * _LINE + 10}"{mark}>{escape(cut)}</text>')
    width, height = round(_WIDTH * _ADVANCE + 28), len(lines) * _LINE + 24
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}">\n<style>{_STYLE}</style>\n'
        f'<rect width="100%" height="100%" rx="8" fill="#20252e"/>\n'
        + "\n".join(rows)
        + "\n</svg>\n"
    )


def page(directory: Path) -> Path:
    """The page of simulated nights."""
    with open_history(directory / "history.sqlite") as history:
        history.add(nights.simulated(120, seed=7))
    (directory / "verdicts.json").write_text(json.dumps(nights.verdicts(directory)))
    made = directory / "night.html"
    words = ["check", "report", directory, "--site", "embedded", "--html", made, "--history",
             directory / "history.sqlite", "--nights", "36500"]  # fmt: skip
    subprocess.run([sys.executable, "-m", "hpcdl", *map(str, words)], check=True)
    return made


def main() -> None:
    """Write both pictures."""
    (FIGURES / "terminal.svg").write_text(terminal(shown()))
    with tempfile.TemporaryDirectory() as directory:
        flags = ["--headless=new", "--no-sandbox", "--hide-scrollbars", "--window-size=1000,900"]
        target = f"--screenshot={FIGURES / 'report.png'}"
        address = page(Path(directory)).as_uri()
        subprocess.run(["chromium", *flags, target, address], check=True, capture_output=True)


if __name__ == "__main__":
    main()
