"""Runs the benchmarks one by one and writes docs/evidence/benchmarks.md."""

import json
import os
import platform
import subprocess
import sys
import time
from pathlib import Path

from hpcdl.system.text import table
from tests.bench import MARK

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "evidence" / "benchmarks.md"
START, END = "<!-- figures -->", "<!-- end of figures -->"


def run_one(name):
    """The figures of one benchmark; one that breaks is a figure that says so."""
    print(f"-- {name}", flush=True)
    argv = [sys.executable, "-c", f"from tests.bench import bench_{name} as one; one.main()"]
    process = subprocess.Popen(argv, cwd=ROOT, text=True, stdout=subprocess.PIPE)
    figures = []
    for line in process.stdout:
        if line.startswith(MARK):
            figures.append(json.loads(line.removeprefix(MARK)))
        else:
            print(line, end="", flush=True)
    if process.wait() != 0:
        broke = dict.fromkeys(("unit", "goal", "yardstick"), "") | {"value": None, "met": False}
        figures.append({**broke, "name": f"{name}: broke", "note": f"exit {process.returncode}"})
    return figures


def row(figure):
    value, met = figure["value"], figure["met"]
    shown = f"{value:.4g} {figure['unit']}".strip() if isinstance(value, (int, float)) else "-"
    verdict = {True: "met", False: "MISSED", None: "" if value is not None else "skipped"}[met]
    return [
        str(figure["name"]),
        shown,
        str(figure["goal"]),
        verdict,
        str(figure["yardstick"]),
        str(figure["note"]),
    ]


def write_page(rows, command):
    """Replace the figures' section of docs/evidence/benchmarks.md; the prose around it stays."""
    head = ["figure", "measured", "goal", "", "yardstick", "note"]
    lines = [
        f"`{command}`, {time.strftime('%Y-%m-%d')}, {os.cpu_count()} cores, "
        f"Python {platform.python_version()}, {platform.system()} {platform.machine()}",
        "",
        "| " + " | ".join(head) + " |",
        "|" + "---|" * len(head),
        *("| " + " | ".join(cell.replace("|", "/") for cell in line) + " |" for line in rows),
    ]
    before, _, rest = PAGE.read_text().partition(START)
    _, _, after = rest.partition(END)
    PAGE.write_text(f"{before}{START}\n" + "\n".join(lines) + f"\n{END}{after}")


def main():
    names = sys.argv[1:] or sorted(
        path.stem.removeprefix("bench_") for path in Path(__file__).parent.glob("bench_*.py")
    )
    rows = [row(figure) for name in names for figure in run_one(name)]
    print("\n" + table(rows, ["figure", "measured", "goal", "", "yardstick", "note"]))
    if not sys.argv[1:]:
        write_page(rows, "make bench")
    skipped = sum(line[3] == "skipped" for line in rows)
    missed = sum(line[3] == "MISSED" for line in rows)
    print(f"\n{len(rows)} figures, {missed} missed, {skipped} skipped")
    return 1 if missed else 0


sys.exit(main())
