"""Completions: what a real bash offers after a few letters."""

import argparse
import re
import shlex
import shutil
import subprocess

import pytest

from hpcdl.cli import completion
from hpcdl.cli.framework import build_parser
from tests.unit.conftest import commands

# Asks the completion function what it would offer for a line, as readline does.
ASK = """
source "$1"; shift
COMP_WORDS=("$@"); COMP_CWORD=$(( $# - 1 )); COMP_LINE="$*"; COMP_POINT=${#COMP_LINE}
complete_with=$(complete -p hpcdl | sed -E 's/.*-F ([^ ]+).*/\\1/')
"$complete_with" hpcdl "${@: -1}" "${@: -2:1}" 2>/dev/null
printf '%s\\n' "${COMPREPLY[@]}"
"""


@pytest.fixture(scope="module")
def script(tmp_path_factory):
    file = tmp_path_factory.mktemp("completion") / "hpcdl"
    file.write_text(completion.script("bash"))
    return file


def offered(script, *words):
    line = ["bash", "-c", ASK, "ask", str(script), "hpcdl", *words]
    done = subprocess.run(line, capture_output=True, text=True, check=False)
    return [word.strip() for word in done.stdout.split("\n") if word.strip()]


def test_bash_takes_the_script_without_a_message(script):
    done = subprocess.run(["bash", "-eu", script], capture_output=True, text=True, check=False)
    assert done.stderr == ""


def test_names_of_the_site_are_offered(tmp_path, monkeypatch, hpcdl):
    monkeypatch.setenv("HPCDL_SITE", "pi")
    file = tmp_path / "hpcdl"
    file.write_text(hpcdl("completion", "bash").out)
    assert {"p100", "k80"} <= set(offered(file, "job", "submit", "--partition", ""))
    assert "tensorflow" in offered(file, "stack", "build", "--name", "t")
    assert offered(file, "study", "run", "sjtu") == ["sjtu-inception"]
    monkeypatch.setenv("HPCDL_SITE", "/none.yaml")
    assert "resnet50" in hpcdl("completion", "zsh").out
    assert "no site file" in hpcdl("completion", "zsh", "--site", "/none.yaml", code=2).err


LINES = {
    "jo": {"job"},
    "site ": {"init", "check", "show", "gpus"},
    "job ren": {"render"},
    "job render --gpus": {"--gpus", "--gpus-per-node"},
    "job submit --dry": {"--dry-run"},
    "completion ": {"bash", "zsh"},
    "predict --mod": {"--model"},
    "cluster sta": {"status"},
}


@pytest.mark.parametrize("line", LINES)
def test_commands_and_options_are_offered(script, line):
    assert LINES[line] <= set(offered(script, *line.split(" ")))


def test_files_are_offered_where_a_file_is_wanted(script, tmp_path):
    (tmp_path / "site-of-mine.yaml").write_text("")
    start = str(tmp_path / "site-of")
    assert offered(script, "site", "show", "--site", start) == [f"{tmp_path}/site-of-mine.yaml"]


def every_option():
    for words, command in commands().items():
        options = build_parser("x", command)._option_string_actions.items()
        yield words.split(), {name for name, one in options if one.help != argparse.SUPPRESS}


def test_every_command_and_each_of_its_options_is_in_the_script(script):
    arrays = re.findall(r"^(_shtab_hpcdl_\w+)_option_strings=\((.*)\)$", script.read_text(), re.M)
    found = {name: set(shlex.split(words)) for name, words in arrays}
    for words, options in every_option():
        assert found["_".join(["_shtab_hpcdl", *words]).replace("-", "_")] == options, words


@pytest.mark.skipif(not shutil.which("zsh"), reason="zsh is not installed")
def test_zsh_takes_its_script(tmp_path):
    file = tmp_path / "_hpcdl"
    file.write_text(completion.script("zsh"))
    register = f"autoload -U compinit; compinit -uD; source {file}; print $_comps[hpcdl]"
    for options, printed in (["-n", file], ""), (["-fc", register], "_shtab_hpcdl\n"):
        done = subprocess.run(["zsh", *options], capture_output=True, text=True, check=False)
        assert (done.returncode, done.stdout, done.stderr) == (0, printed, "")
