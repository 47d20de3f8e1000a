"""On a terminal of 40 columns nothing is lost; colours are for terminals that may have them."""

import os
import pty
import re
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest

from hpcdl.cli import GROUPS, main
from hpcdl.system.text import StatusLine, table
from tests.unit.conftest import commands

REPORTS = [
    "predict scale --site pi --partition p100 --model resnet50",
    "site show --site embedded",
    "stack resolve --site pi",
    "job lint --site embedded job.sh",
    "check references show --site embedded",
    "doctor --role laptop",
]
COLOUR = "\x1b["


@pytest.fixture
def seen(tmp_path, monkeypatch):
    """Runs a command on a terminal: its exit status, and what a person sees."""
    (tmp_path / "job.sh").write_text("#!/bin/bash\n#SBATCH --ntaks=4\nsrun hostname\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HPCDL_HOME", str(tmp_path))

    def run(words, **env):
        ours, theirs = pty.openpty()
        with monkeypatch.context() as patch, ThreadPoolExecutor() as beside:
            for name in ("NO_COLOR", "TERM"):
                patch.delenv(name, raising=False)
            for name, value in env.items():
                patch.setenv(name, value)
            told = beside.submit(lambda: b"".join(iter(lambda: _read(ours), b"")))
            with os.fdopen(theirs, "w") as terminal:
                patch.setattr(sys, "stdout", terminal)
                status = main(words.split())
        os.close(ours)
        return status, told.result().decode()

    return run


def _read(terminal):
    try:
        return os.read(terminal, 65536)
    except OSError:  # the last program has closed it
        return b""


@pytest.mark.parametrize("words", REPORTS)
def test_a_narrow_terminal_loses_nothing_of_a_report(words, seen):
    wide, narrow = (seen(words, COLUMNS=columns, NO_COLOR="1") for columns in ("400", "40"))
    assert wide[0] == narrow[0]
    assert set(wide[1].split()) <= set(narrow[1].split())
    assert COLOUR not in narrow[1]


@pytest.mark.parametrize("words", ["", *GROUPS, *(one for one in commands() if " " in one)])
def test_the_help_fits_40_columns(words, monkeypatch, capsys):
    said = {}
    for columns in ("40", "400"):
        monkeypatch.setenv("COLUMNS", columns)
        with suppress(SystemExit):
            main([*words.split(), "--help"])
        said[columns] = capsys.readouterr().out
    # A command's example is one to copy; names and headings may be long.
    lines = [one for one in said["40"].splitlines()[1:] if not one.endswith(":")]
    assert [one for one in lines if len(one) > 40 and len(one.split()) > 2] == []
    wide, small = (re.sub(r"(?ms)^usage: .*?\n\n", "", text) for text in said.values())
    assert "".join(wide.split()) == "".join(small.split())


def test_a_row_is_a_paragraph_only_where_it_does_not_fit(seen):
    rows, header = [["1", "a" * 20], ["2", "b" * 20]], ("job", "name")
    assert table(rows, header).splitlines()[0] == "job  name"  # no terminal
    long = "site show --site embedded"
    assert "\r\nGPUs per node" in seen(long, COLUMNS="40")[1]
    assert "\r\nGPUs per node" not in seen(long, COLUMNS="80")[1]


def test_a_status_line_that_stays_is_whole(monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    ours, theirs = pty.openpty()
    text = "job 1: it waits " + "for a node " * 5 + "that is down"
    with os.fdopen(theirs, "w") as stream, StatusLine(stream) as line:
        line.show(text, key="PENDING")
        line.show("job 1: it runs", key="RUNNING")
    said = b"".join(iter(lambda: _read(ours), b"")).decode()
    os.close(ours)
    seen = [part.replace("\x1b[K", "") for part in said.split("\r")]
    assert [part.strip() for part in seen if part] == [text[:39], text, "job 1: it runs", ""]


@pytest.mark.parametrize(
    ("env", "coloured"),
    [
        ({"TERM": "xterm"}, True),
        ({"TERM": "xterm", "NO_COLOR": "1"}, False),
        ({"TERM": "dumb"}, False),
    ],
    ids=["terminal", "NO_COLOR", "dumb"],
)
def test_colours_are_for_terminals_that_may_have_them(env, coloured, seen):
    _, said = seen("job lint --site embedded job.sh", **env)
    assert (COLOUR in said) == coloured
