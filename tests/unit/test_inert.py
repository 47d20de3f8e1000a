"""Nothing that a stranger wrote commands a terminal, a spreadsheet or a page.

Names, reasons and logs of others pass one function on their way out, whatever the format.
"""

from __future__ import annotations

import csv
import io
import json
import os
import re
import sys
import unicodedata
import xml.etree.ElementTree as ET
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcdl.cli import main
from hpcdl.cli.framework import print_json
from hpcdl.regress.exchange import as_csv, as_json_lines
from hpcdl.regress.formats import FORMATS, as_junit
from hpcdl.regress.history import Result, open_history
from hpcdl.regress.report import night_page
from hpcdl.site import find_site_file
from hpcdl.system import inert
from hpcdl.system.errors import BadInput
from hpcdl.system.inert import UNSEEN, csv_cell, inert_output, of_csv_cell
from hpcdl.system.progress import StatusLine
from hpcdl.system.text import paint, table

HOSTILE = "=2+2\x1b[2J\x07\x9b31m\r\u202egnp.exe\u200b\u2066\ufeff\x00<b>|`x`[a](b)\U000e0041\nPASS"
"""Clears a screen, rings, turns text around, hides, calculates, and begins a line of its own."""
ODD = st.sampled_from("\x1b\x07\x9b\r\n\t\u202e\u2066=+-@'\\|<\"")
TEXTS = st.text(st.characters() | ODD) | st.just(HOSTILE)


def verdict(text: str) -> dict[str, Any]:
    metric = {"name": text, "value": 1.0, "unit": text, "reference": 1.0, "low": None, "high": None,
              "wanted": True}  # fmt: skip
    return {"check": text, "case": text, "partition": text, "status": "FAIL", "reason": text,
            "waived": False, "ok": False, "metrics": [metric], "seconds": 1.0,
            "job": {"nodes": text}}  # fmt: skip


def result(text: str, **changes: Any) -> Result:
    known = {"run": text, "time": "2026-06-01T00:00:00+00:00", "check_name": text, "status": text,
             "case_name": text, "partition": text, "metric": text, "unit": text, "reason": text,
             "release": text, "nodes": text, "log": text, "value": 1.0}  # fmt: skip
    return Result(**{**known, **changes})


def printed(show: Callable[[], object]) -> str:
    """What a terminal would get."""
    screen, before = io.StringIO(), (sys.stdout, sys.stderr)
    sys.stdout = sys.stderr = screen
    try:
        with inert_output():
            show()
    finally:
        sys.stdout, sys.stderr = before
    return screen.getvalue()


def page(text: str) -> str:
    run = {"run": text, "seconds": 1.0, "verdicts": [verdict(text)]}
    with TemporaryDirectory() as folder, open_history(Path(folder, "history")) as history:
        return night_page(run, history, [{}], site=text)


OUTPUTS: dict[str, Callable[[str], str]] = {
    **{name: lambda text, write=write: write({"seconds": 1.0, "verdicts": [verdict(text)]})
       for name, write in FORMATS.items()},
    "csv": lambda text: "\n".join(as_csv([result(text)])),
    "json lines": lambda text: "\n".join(as_json_lines([result(text)])),
    "print": lambda text: printed(lambda: print(text)),
    "print JSON": lambda text: printed(lambda: print_json({text: text})),
    "error": lambda text: BadInput(text, hint=text, details=[text]).render(),
    "table": lambda text: printed(lambda: print(table([[text]], [text]))),
    "status line": lambda text: printed(lambda: StatusLine().show(text)),
    "page": page,
}  # fmt: skip


@pytest.mark.parametrize("name", OUTPUTS)
@given(TEXTS)
def test_no_output_holds_what_a_terminal_obeys_or_a_reader_does_not_see(
    name: str, text: str
) -> None:
    out = OUTPUTS[name](text)
    assert not UNSEEN.search(out.replace("\r\n", "\n") if name == "csv" else out)


def test_what_is_escaped_is_all_that_unicode_calls_a_control_or_a_format() -> None:
    free = set("\t\n\u06dd\u08e2\u0600\u0601\u0602\u0603\u0604\u0605\u070f\u0890\u0891")
    missed = [
        f"{one:x}" for one in range(0x110000)
        if unicodedata.category(chr(one)) in {"Cc", "Cf", "Zl", "Zp", "Cs"}
        and not UNSEEN.match(chr(one)) and chr(one) not in free and not 0x110BD <= one <= 0x1343F
    ]  # fmt: skip
    assert missed == [], "signs of writing, which are seen, are no commands; all others are"


@given(TEXTS)
def test_json_says_the_same(text: str) -> None:
    assert json.loads(printed(lambda: print_json([text]))) == [text]


@given(TEXTS)
def test_a_cell_of_csv_is_no_formula_and_comes_back(text: str) -> None:
    cell = csv_cell(text)
    (read,) = next(csv.reader(io.StringIO(f'"{cell.replace(chr(34), chr(34) * 2)}"\n')))
    assert not re.match(r"[\s]*[=+@\t-]", cell) or re.fullmatch(r"[+-][\d.]+([eE][+-]?\d+)?", cell)
    assert of_csv_cell(read) == text


def test_numbers_stay_numbers() -> None:
    assert [csv_cell(one) for one in (-1.5, 3, None, "-1.5", "+2e-3", "=1", "-x", "@a", "'a")] == [
        -1.5, 3, None, "-1.5", "+2e-3", "'=1", "'-x", "'@a", "''a"]  # fmt: skip
    assert of_csv_cell("'written by hand") == "'written by hand"


@given(TEXTS)
def test_junit_is_read_back_as_what_is_seen(text: str) -> None:
    suite = ET.fromstring(as_junit({"seconds": 1.0, "verdicts": [verdict(text)]}))
    assert suite.find(".//failure").get("message") == inert.inert(text)  # type: ignore[union-attr]


def test_a_name_makes_no_line_no_link_and_no_code_of_a_table() -> None:
    lines = FORMATS["markdown"]({"seconds": 1.0, "verdicts": [verdict(HOSTILE)]}, None).splitlines()
    assert len(lines) == 3
    assert not re.search(r"(?<!\\)[`\[<]", lines[2])
    assert len(table([[HOSTILE]]).splitlines()) == 1


def test_colours_of_our_own_pass_and_those_of_a_name_do_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("hpcdl.system.text.use_color", lambda _: True)
    out = printed(lambda: print(paint("\x1b[32mPASS", "red")))
    assert out == "\x1b[31m\\u001b[32mPASS\x1b[0m\n"


def walk(tmp_path: Path) -> dict[str, list[str]]:
    """Commands that show what strangers wrote, each with the names in it planted."""
    site = find_site_file("embedded")
    history = tmp_path / "history.sqlite"
    with open_history(history, "embedded") as opened:
        opened.add([result(HOSTILE, job=1), result("x", status=HOSTILE)])
    run = tmp_path / "20261121-031000-ab12"
    run.mkdir()
    said = {"schema": 2, "run": str(run), "seconds": 1.0,
            "verdicts": [{**verdict(HOSTILE), "log": HOSTILE}]}  # fmt: skip
    (run / "verdicts.json").write_text(json.dumps(said))
    broken = tmp_path / "broken.yaml"
    broken.write_text(f"name: {json.dumps(HOSTILE)}\n{json.dumps(HOSTILE)}: 1\n")
    script = tmp_path / "job.sh"
    script.write_bytes(f"#!/bin/bash\n#SBATCH --nope={HOSTILE}\n".encode())
    csv_file = tmp_path / "nights.csv"
    csv_file.write_text(f'time,value,"{HOSTILE}"\n2026-06-01,1,2\n', newline="")
    known = ["--site", str(site), "--history", str(history)]
    return {
        "history show": ["check", "history", "show", *known],
        "history export": ["check", "history", "export", *known],
        "history csv": ["check", "history", "export", "--csv", *known],
        "gate": ["check", "gate", *known],
        "drift": ["check", "drift", str(csv_file)],
        **{f"report {name}": ["check", "report", str(run), "--format", name] for name in FORMATS},
        "page": ["check", "report", str(run), "--html", str(tmp_path / "page.html"), *known],
        "site of strangers": ["site", "show", "--site", str(broken)],
        "lint": ["job", "lint", str(script)],
        "import": ["check", "history", "import", HOSTILE.replace("\0", ""), *known],
        "typed": ["job", "watch", HOSTILE, "--site", str(site)],
        "option": ["job", "watch", f"--{HOSTILE}", "--site", str(site)],
        "unknown": [HOSTILE],
        **{f"{name} of a job": ["job", name, str(job_of_a_stranger(tmp_path)), *more]
           for name, more in (("watch", ["--once"]), ("report", []), ("cancel", []))},
    }  # fmt: skip


def job_of_a_stranger(folder: Path) -> Path:
    """A job's directory, and a Slurm that says what its user chose."""
    job = folder / "job"
    job.mkdir(exist_ok=True)
    said = {"schema": 1, "job_id": 7, "chain": [7], "name": HOSTILE, "partition": HOSTILE}
    (job / "job.json").write_text(json.dumps(said))
    ended = {"status": HOSTILE, "reason": HOSTILE, "exit_code": 1}
    (job / "result.json").write_text(json.dumps({"schema": 2, "outcome": ended}))
    (job / "job.log").write_text(HOSTILE)
    for name in ("squeue", "sacct", "scontrol", "scancel"):
        (folder / name).write_text(f"#!/bin/sh\ncat {folder}/said >&2\nexit 1\n")
        (folder / name).chmod(0o755)
    (folder / "said").write_text(HOSTILE)
    return job


COMMANDS = ("history show", "history export", "history csv", "gate", "drift", "page",
            "site of strangers", "lint", "import", "typed", "option", "unknown",
            "watch of a job", "report of a job", "cancel of a job",
            *(f"report {name}" for name in FORMATS))  # fmt: skip


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("more", [[], ["--json"]], ids=["text", "json"])
def test_no_command_passes_on_what_a_stranger_wrote(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    command: str,
    more: list[str],
) -> None:
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    with suppress(SystemExit):  # argparse
        main([*walk(tmp_path)[command], *more])
    out, err = capsys.readouterr()
    page = tmp_path / "page.html"
    written = page.read_text() if page.exists() else ""
    assert out + err
    assert not UNSEEN.search(out + err + written)
    assert "Traceback" not in err
