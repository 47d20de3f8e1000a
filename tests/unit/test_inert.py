"""Nothing that a stranger wrote commands a terminal, a spreadsheet or a page.

Names, reasons and logs of others pass one function on their way out, whatever the format.
"""

import io
import json
import os
import re
import unicodedata
import xml.etree.ElementTree as ET
from contextlib import redirect_stderr, redirect_stdout, suppress
from datetime import datetime, timezone
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcdl.cli import main
from hpcdl.cli.framework import print_json
from hpcdl.regress.exchange import as_json_lines
from hpcdl.regress.formats import FORMATS, as_junit
from hpcdl.regress.gate import ask
from hpcdl.regress.history import open_history
from hpcdl.regress.report import night_page
from hpcdl.system.errors import BadInput
from hpcdl.system.text import (
    UNSEEN,
    StatusLine,
    did_you_mean,
    inert,
    inert_output,
    markdown_cell,
    paint,
    table,
)
from tests.make import results

HOSTILE = "=2+2\x1b[2J\x07\x9b31m\r\u202egnp.exe\u200b\u2066\ufeff\x00<b>|`x`[a](b)\U000e0041\nPASS"
"""Clears a screen, rings, turns text around, hides, calculates, and begins a line of its own."""
ODD = st.sampled_from("\x1b\x07\x9b\r\n\t\u202e\u2066=+-@'\\|<\"")
TEXTS = st.text(st.characters() | ODD) | st.just(HOSTILE)


def verdict(text):
    names = dict.fromkeys(("check", "case", "partition"), text)
    metric = results.METRIC | {"name": text, "unit": text}
    return results.verdict("FAIL", text, **names, metrics=[metric], job={"nodes": text})


def result(text, **changes):
    names = "run check_name status case_name partition metric unit reason release nodes log"
    return results.result(value=1.0, **dict.fromkeys(names.split(), text) | changes)


def printed(show):
    """What a terminal would get."""
    screen = io.StringIO()
    with redirect_stdout(screen), redirect_stderr(screen), inert_output():
        show()
    return screen.getvalue()


def page(text):
    run = {"run": text, "seconds": 1.0, "verdicts": [verdict(text)]}
    with TemporaryDirectory() as folder, open_history(Path(folder, "history")) as history:
        answer = ask(history, now=datetime.now(timezone.utc))
        return night_page(run, history, site=text, answer=answer)


OUTPUTS = {
    **{
        name: lambda text, write=write: write({"seconds": 1.0, "verdicts": [verdict(text)]})
        for name, write in FORMATS.items()
    },
    "json lines": lambda text: "\n".join(as_json_lines([result(text)])),
    "print": lambda text: printed(lambda: print(text)),
    "print JSON": lambda text: printed(lambda: print_json({text: text})),
    "error": lambda text: BadInput(text, hint=text, details=[text]).render(),
    "table": lambda text: printed(lambda: print(table([[text]], [text]))),
    "status line": lambda text: printed(lambda: StatusLine().show(text)),
    "page": page,
}


@pytest.mark.parametrize("name", OUTPUTS)
@given(TEXTS)
def test_no_output_holds_what_a_terminal_obeys_or_a_reader_does_not_see(name, text):
    out = OUTPUTS[name](text)
    assert not UNSEEN.search(out)


def test_what_is_escaped_is_all_that_unicode_calls_a_control_or_a_format():
    free = set("\t\n\u06dd\u08e2\u0600\u0601\u0602\u0603\u0604\u0605\u070f\u0890\u0891")
    missed = [
        f"{one:x}"
        for one in range(0x110000)
        if unicodedata.category(chr(one)) in {"Cc", "Cf", "Zl", "Zp", "Cs"}
        and not UNSEEN.match(chr(one))
        and chr(one) not in free
        and not 0x110BD <= one <= 0x1343F
    ]
    assert missed == [], "signs of writing, which are seen, are no commands; all others are"


@given(TEXTS)
def test_json_says_the_same(text):
    assert json.loads(printed(lambda: print_json([text]))) == [text]


@given(TEXTS)
def test_junit_is_read_back_as_what_is_seen(text):
    suite = ET.fromstring(as_junit({"seconds": 1.0, "verdicts": [verdict(text)]}))
    assert suite.find(".//failure").get("message") == inert(text)


def test_a_name_makes_no_line_no_link_and_no_code_of_a_table():
    lines = FORMATS["markdown"]({"seconds": 1.0, "verdicts": [verdict(HOSTILE)]}, None).splitlines()
    assert len(lines) == 3
    assert not re.search(r"(?<!\\)[`\[<]", lines[2])
    assert len(table([[HOSTILE]]).splitlines()) == 1


def test_a_name_in_a_hint_begins_no_line_that_looks_like_ours():
    """The names of an imported history were shown as they are: `help: run ...` on its own line."""
    for word in ("nothing", "x\nhelp: run mf"):
        assert "\n" not in did_you_mean(word, ["x\nhelp: run me", "other"])


def test_a_cell_of_markdown_makes_no_link_and_notifies_nobody():
    """A check's reason with an address and an @all was both, as a comment on a merge request."""
    text = markdown_cell("see https://evil.example WWW.evil.example ask @all, me@evil.example")
    assert not re.search(r"://|www\.|@\w", text, re.IGNORECASE)
    assert re.sub(r"\\|<!-- -->", "", text).startswith("see https://evil.example WWW.evil")


def test_colours_of_our_own_pass_and_those_of_a_name_do_not(monkeypatch):
    monkeypatch.setattr("hpcdl.system.text.use_color", lambda _: True)
    out = printed(lambda: print(paint("\x1b[32mPASS", "red")))
    assert out == "\x1b[31m\\u001b[32mPASS\x1b[0m\n"


KNOWN = ("--site", "embedded")
RUN = "20261121-031000-ab12"
JOB = {"watch": [], "report": [], "cancel": []}
COMMANDS = {
    "history show": ["check", "history", "show", *KNOWN],
    "history export": ["check", "history", "export", *KNOWN],
    "gate": ["check", "gate", *KNOWN],
    "drift": ["check", "drift", "nights.csv"],
    **{f"report {name}": ["check", "report", RUN, "--format", name] for name in FORMATS},
    "page": ["check", "report", RUN, "--format", "html", *KNOWN],
    "site of strangers": ["site", "show", "--site", "broken.yaml"],
    "lint": ["job", "lint", "job.sh"],
    "import": ["check", "history", "import", HOSTILE.replace("\0", ""), *KNOWN],
    "typed": ["job", "watch", HOSTILE, "--site", "embedded"],
    "option": ["job", "watch", f"--{HOSTILE}", "--site", "embedded"],
    "unknown": [HOSTILE],
    **{f"{name} of a job": ["job", name, "job", *more] for name, more in JOB.items()},
}


@pytest.fixture
def planted(tmp_path, monkeypatch):
    """A directory of what strangers wrote, and a Slurm that says what a job's user chose."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HPCDL_HISTORY", "history.sqlite")
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    with open_history(tmp_path / "history.sqlite", "embedded") as opened:
        opened.add([result(HOSTILE, job=1), result("x", status=HOSTILE)])
    run = {
        "schema": 2,
        "run": str(tmp_path / RUN),
        "seconds": 1.0,
        "verdicts": [{**verdict(HOSTILE), "log": HOSTILE}],
    }
    job = {"schema": 1, "job_id": 7, "chain": [7], "name": HOSTILE, "partition": HOSTILE}
    ended = {"schema": 2, "outcome": {"status": HOSTILE, "reason": HOSTILE, "exit_code": 1}}
    for name, text in {
        f"{RUN}/verdicts.json": json.dumps(run),
        "broken.yaml": f"name: {json.dumps(HOSTILE)}\n{json.dumps(HOSTILE)}: 1\n",
        "job.sh": f"#!/bin/bash\n#SBATCH --nope={HOSTILE}\n",
        "nights.csv": f'time,value,"{HOSTILE}"\n2026-06-01,1,2\n',
        "job/job.json": json.dumps(job),
        "job/result.json": json.dumps(ended),
        "job/job.log": HOSTILE,
        "said": HOSTILE,
        **dict.fromkeys(
            ("squeue", "sacct", "scontrol", "scancel"),
            f"#!/bin/sh\ncat {tmp_path}/said >&2\nexit 1\n",
        ),
    }.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text, newline="")
        (tmp_path / name).chmod(0o755)
    return tmp_path


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("more", [[], ["--json"]], ids=["text", "json"])
def test_no_command_passes_on_what_a_stranger_wrote(planted, capsys, command, more):
    with suppress(SystemExit):  # argparse
        main([*COMMANDS[command], *more])
    out, err = capsys.readouterr()
    assert out + err
    written = [page.read_text() for page in planted.glob("*.html")]
    assert not UNSEEN.search("".join([out, err, *written]))
    assert "Traceback" not in err
