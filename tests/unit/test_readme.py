"""What README shows to somebody without a cluster works there, word by word."""

import re
import shlex
from pathlib import Path

import pytest

from hpcdl.cli import main

README = (Path(__file__).resolve().parents[2] / "README.md").read_text()
(BLOCK,) = re.findall(r"Without a cluster.*?```console\n(.*?)```", README, re.DOTALL)
COMMANDS = [shlex.split(line, comments=True)[1:] for line in BLOCK.splitlines()]
SAID = {
    "lint": r"my_job\.sh:2:9: error: .*did you mean '--ntasks'",
    "explain": r"#SBATCH --gres=gpu:",
    "scale": r"images/s",
    "resolve": r"2\.14\.1",
}


@pytest.mark.parametrize("words", COMMANDS, ids=lambda words: words[2])
def test_a_command_of_its_first_minute(words, tmp_path, monkeypatch, capsys):
    (tmp_path / "my_job.sh").write_text("#!/bin/bash\n#SBATCH --ntaks=4\nsrun hostname\n")
    monkeypatch.chdir(tmp_path)
    assert words[0] == "hpcdl"
    assert main(words[1:]) == (1 if words[2] == "lint" else 0)
    assert re.search(SAID[words[2]], capsys.readouterr().out)
