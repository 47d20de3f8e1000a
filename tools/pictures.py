"""Draw the pictures of the README: `make pictures`, with Chromium for the page.

`terminal.svg` is the first minute on the example site: commands and what they print now.
`report.png` is the page of `hpcdl check report` over simulated nights.
`python -m tools.pictures NAME` draws one of them.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from html import escape
from pathlib import Path
from textwrap import wrap

from tests.make import nights

FIGURES = Path(__file__).resolve().parents[1] / "docs" / "figures"
SCRIPT = "#!/bin/bash\n#SBATCH --ntaks=4\nsrun hostname\n"
COMMANDS = (
    ("job lint --site pi my_job.sh", 0, 3),
    ("job explain --site pi --partition p100 --gpus 4", 10, 14),
    ("predict scale --site pi --partition p100 --model resnet50", 0, 3),
    ("stack resolve --site pi --partition k80", 0, 2),
)
"""Of the first minute: a command, and the lines of its output that are shown."""
_COLUMNS, _LINE, _ADVANCE = 66, 20, 8.45
_STYLE = (
    "rect{fill:#f6f8fa}text{font:14px ui-monospace,Menlo,Consolas,monospace;fill:#24292f;"
    "white-space:pre}.prompt{font-weight:bold;fill:#116329}"
    "@media(prefers-color-scheme:dark){rect{fill:#20252e}text{fill:#d8dee9}.prompt{fill:#a3be8c}}"
)

_PROMPT = ' class="prompt"'


def minute() -> list[str]:
    """The lines of the first minute, as wide as a reader of a small picture can read."""
    lines = []
    with tempfile.TemporaryDirectory() as place:
        (Path(place) / "my_job.sh").write_text(SCRIPT)
        for command, first, last in COMMANDS:
            argv = [sys.executable, "-m", "hpcdl", *command.split()]
            done = subprocess.run(argv, capture_output=True, text=True, check=False, cwd=place)
            lines.append(f"$ hpcdl {command}")
            for line in done.stdout.splitlines()[first:last]:
                own = " " * (len(line) - len(line.lstrip()))
                lines += wrap(
                    line.strip(),
                    _COLUMNS,
                    initial_indent=own,
                    subsequent_indent=own + "  ",
                    break_on_hyphens=False,
                )
            lines.append("")
    return lines[:-1]


def terminal(lines: list[str]) -> str:
    """Lines of a terminal as SVG, in the reader's own light or dark."""
    rows = (
        f'<text x="14" y="{number * _LINE + 10}"'
        f"{_PROMPT if line.startswith('$ ') else ''}>{escape(line)}</text>"
        for number, line in enumerate(lines, 1)
    )
    width, height = round(_COLUMNS * _ADVANCE + 28), len(lines) * _LINE + 24
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}">\n<style>{_STYLE}</style>\n'
        f'<rect width="100%" height="100%" rx="8"/>\n' + "\n".join(rows) + "\n</svg>\n"
    )


def screenshot() -> None:
    """The page, as Chromium shows it."""
    with tempfile.TemporaryDirectory() as directory:
        flags = ["--headless=new", "--no-sandbox", "--hide-scrollbars", "--window-size=1000,900"]
        target = f"--screenshot={FIGURES / 'report.png'}"
        address = nights.page(Path(directory), 120, "embedded").as_uri()
        subprocess.run(["chromium", *flags, target, address], check=True, capture_output=True)


def main(*names: str) -> None:
    """Draw what is named, or all."""
    if not names or "terminal" in names:
        (FIGURES / "terminal.svg").write_text(terminal(minute()))
    if not names or "report" in names:
        screenshot()


if __name__ == "__main__":
    main(*sys.argv[1:])
