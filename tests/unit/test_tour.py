"""The tour: its commands are ones that hpcdl takes, Enter runs them, Ctrl-C tells the way on."""

import os
import pty
import re
import select
import shlex
import subprocess
import sys

import pytest

from hpcdl.cli import load_group
from hpcdl.cli.framework import Group, build_parser
from hpcdl.cli.tour import STEPS

CTRL_C = b"\x03"
# Programs in the background inherit that Ctrl-C is ignored; at a terminal it is not.
ALONE = ["setsid", "--ctty", "env", "--default-signal=INT"]
TOUR = [sys.executable, "-m", "hpcdl", "tour"]
COMMANDS = [one for step in STEPS for one in step.commands if one.startswith("hpcdl ")]


@pytest.mark.parametrize("line", COMMANDS)
def test_hpcdl_takes_a_command_of_the_tour(line):
    words = shlex.split(line.partition(" -- ")[0])[1:]
    group = load_group(words[0])
    assert isinstance(group, Group)
    (command,) = (one for one in group.commands if one.name == words[1])
    build_parser("hpcdl", command).parse_args(words[2:])


def toured(typed, *words, home):
    """Exit status and output of a tour on a terminal where a person types."""
    ours, theirs = pty.openpty()
    env = {**os.environ, "HPCDL_HOME": str(home), "NO_COLOR": "1", "PATH": "/usr/bin:/bin"}
    argv = [*ALONE, *TOUR, *words]
    with subprocess.Popen(argv, stdin=theirs, stdout=theirs, stderr=theirs, env=env) as run:
        os.close(theirs)
        said, asked = "", b""
        while run.poll() is None:
            if select.select([ours], [], [], 1)[0]:
                said += read(ours)
                if said.endswith(" ") and said.splitlines()[-1].startswith("$ "):
                    asked = typed
                    os.write(ours, asked)
            elif asked == CTRL_C:  # Python had looked for signals and not yet begun to read
                os.write(ours, asked)
        while part := read(ours):
            said += part
    os.close(ours)
    return run.returncode, said


def read(terminal):
    try:
        return os.read(terminal, 4096).decode()
    except OSError:  # the last program has closed it
        return ""


@pytest.mark.parametrize("typed", [CTRL_C, b"\x04"], ids=["Ctrl-C", "Ctrl-D"])
def test_a_tour_that_is_ended_tells_how_to_go_on(typed, tmp_path):
    status, said = toured(typed, "--from", "2", home=tmp_path)
    assert status == 5
    assert said.count("$ hpcdl ") == 1
    assert "the tour stopped at step 2" in said
    assert "`hpcdl tour --from 2` continues there" in said
    assert "Traceback" not in said


def test_enter_runs_the_command_and_a_failure_ends_the_tour(tmp_path):
    status, said = toured(b"\n", "--from", "4", home=tmp_path)
    assert re.search(r"step 4: its command exited with status (\d+), not 0", said), said
    assert "error: " in said.partition("step 4:")[0]  # the command's own
    assert status == 1


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        ("--dry-run --to 2", 0, r"\$ hpcdl cluster up\n(?s:.*)\$ hpcdl stack publish"),
        ("--json --from 7", 0, '"status": 1'),
        ("", 2, "help: use `hpcdl tour --yes`"),
        ("--from 8", 2, "'8' is not a whole number from 1 to 7"),
        ("--from 3 --to 2", 2, "no step from 3 to 2"),
    ],
)
def test_a_tour_that_nobody_takes(words, status, said):
    done = subprocess.run(
        [*TOUR, *words.split()],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == status
    assert re.search(said, done.stdout + done.stderr)
