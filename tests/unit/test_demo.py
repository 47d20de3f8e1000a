"""The demo: its commands are ones that hpcdl takes; a failure ends it and says so."""

import re
import shlex
import subprocess
from pathlib import Path

import pytest

from hpcdl.cli import load_group
from hpcdl.cli.framework import build_parser

SCRIPT = Path(__file__).parents[2] / "tools/demo.sh"
CHECK = "--partition p100 --tag smoke --name throughput"
TEXT = SCRIPT.read_text().replace("\\\n", "").replace('"${check[@]}"', CHECK)
STANDIN = """#!/bin/bash
echo "$(basename "$0") $*" >> {log}
case "$*" in {fails}*) exit {status} ;; 'check run'*'--set'*) exit 1 ;; esac
case "$*" in *--json*) echo '    "datasets": "/data"' ;; esac
"""


@pytest.mark.parametrize("line", re.findall(r"^run \d hpcdl (.*)", TEXT, re.M))
def test_hpcdl_takes_a_command_of_the_demo(line):
    words = shlex.split(line.partition(" -- ")[0])
    (command,) = (one for one in load_group(words[0]).commands if one.name == words[1])
    build_parser("hpcdl", command).parse_args(words[2:])


@pytest.mark.parametrize(
    ("fails", "status", "steps", "code", "said"),
    [
        ("nothing", 0, "", 0, "Done in "),
        ("nothing", 0, "2", 0, "Done in "),
        ("stack build", 4, "", 1, "step 2: its command exited with status 4, not 0"),
        ("job submit", 5, "", 5, "`make demo` continues there"),
    ],
)
def test_the_demo_ends_where_a_command_does_not_do_what_it_must(
    tmp_path, fails, status, steps, code, said
):
    for name in ("hpcdl", "sinfo"):
        text = STANDIN.format(log=tmp_path / "log", fails=f"'{fails}'", status=status)
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    env = {"PATH": f"{tmp_path}:/usr/bin:/bin", "HPCDL_HOME": str(tmp_path / "home")}
    for again in (False, True):
        done = subprocess.run(
            ["bash", SCRIPT, *steps.split()],
            env=env,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        assert (" s the last time." in done.stdout) == again
    assert (done.returncode, said in done.stdout) == (code, True), done.stdout
    last = (tmp_path / "log").read_text().splitlines()[-1]
    ends = {"": "hpcdl check run", "2": "hpcdl stack publish"}
    assert last.startswith(f"hpcdl {fails}" if code else ends[steps])
