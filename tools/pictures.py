"""Draw the pictures of the README: `make pictures`, with Chromium for the page.

`terminal.svg` and `demo.svg` are casts: commands and what they print now, line by line as time
passes; the first minute on the example site, and the demo. Where nothing moves, all lines are
there. `report.png` is the page of `hpcdl check report` over simulated nights.
`python -m tools.pictures NAME` draws one of them.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from html import escape
from pathlib import Path

from tests import nights

FIGURES = Path(__file__).resolve().parents[1] / "docs" / "figures"
SCRIPT = "#!/bin/bash\n#SBATCH --ntaks=4\nsrun hostname\n"
COMMANDS = (
    ("job lint --site pi my_job.sh", 0, 4),
    ("job explain --site pi --partition p100 --gpus 4", 3, 13),
    ("predict scale --site pi --partition p100 --model resnet50", 2, 6),
    ("stack resolve --site pi", 38, 43),
)
"""Of the first minute: a command, and the lines of its output that are shown."""
_WIDTH, _LINE, _ADVANCE = 118, 18, 7.8
_STYLE = (
    "text{font:13px ui-monospace,Menlo,Consolas,monospace;fill:#d8dee9;white-space:pre;"
    "animation:on 1ms backwards}@keyframes on{from{opacity:0}}"
    "@media(prefers-reduced-motion){text{animation:none}}"
    ".prompt{fill:#a3be8c}.reason{fill:#8fa1b8}.step{font-weight:bold}"
)
_KINDS = (("$ ", "prompt"), ("#  ", "reason"), ("[", "step"))
_FILES = re.compile(r"  (script|log|result) |run  |throughput.*:$")
_MOST = 5


def minute() -> list[str]:
    """The lines of the first minute."""
    lines = []
    with tempfile.TemporaryDirectory() as place:
        (Path(place) / "my_job.sh").write_text(SCRIPT)
        for command, first, last in COMMANDS:
            argv = [sys.executable, "-m", "hpcdl", *command.split()]
            said = subprocess.run(argv, capture_output=True, text=True, check=False, cwd=place)
            lines += [f"$ hpcdl {command}", *said.stdout.splitlines()[first:last], ""]
    return lines[:-1]


def demo() -> list[str]:
    """The lines of the demo."""
    argv = ["bash", "tools/demo.sh"]
    done = subprocess.run(
        argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=True
    )
    return shortened(done.stdout.replace(str(Path.home()), "~"))


def shortened(said: str) -> list[str]:
    """Of each command's output the last lines, but those that only name files."""
    lines = []
    for part in re.split(r"^(?=\$ |\[\d/|Done in)", said, flags=re.M)[1:]:
        first, *rest = part.splitlines()
        out = [one for one in rest if one.strip() and not _FILES.match(one)]
        lines += [first, *(["..."] if len(out) > _MOST else []), *out[-_MOST:]]
        lines += [""] * part.endswith("\n\n")
    return lines


def cast(lines: list[str]) -> str:
    """Lines of a terminal as SVG, cut at its right edge; a command takes a second."""
    rows, seconds = [], 0.0
    for number, line in enumerate(lines, 1):
        kind = next((f' class="{name}"' for begin, name in _KINDS if line.startswith(begin)), "")
        seconds += 1 if "prompt" in kind else 0.1
        cut = line if len(line) <= _WIDTH else line[: _WIDTH - 1] + "\N{HORIZONTAL ELLIPSIS}"
        rows.append(
            f'<text x="14" y="{number * _LINE + 10}"{kind} '
            f'style="animation-delay:{seconds:.1f}s">{escape(cut)}</text>'
        )
    width, height = round(_WIDTH * _ADVANCE + 28), len(lines) * _LINE + 24
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}">\n<style>{_STYLE}</style>\n'
        f'<rect width="100%" height="100%" rx="8" fill="#20252e"/>\n'
        + "\n".join(rows)
        + "\n</svg>\n"
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
    for name, lines in (("terminal", minute), ("demo", demo)):
        if not names or name in names:
            (FIGURES / f"{name}.svg").write_text(cast(lines()))
    if not names or "report" in names:
        screenshot()


if __name__ == "__main__":
    main(*sys.argv[1:])
