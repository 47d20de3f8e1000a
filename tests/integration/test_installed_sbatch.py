"""The installed sbatch says of values what was written down of its release."""

import shutil
import subprocess

import pytest

from hpcdl.slurm.rules import SlurmRelease
from tests.unit.lint.test_values import takes, verdicts

CONFIG = """\
ClusterName=none
SlurmctldHost=localhost(127.0.0.1)
SlurmctldPort=1
SelectType=select/cons_tres
GresTypes=gpu
MessageTimeout=1
NodeName=localhost NodeAddr=127.0.0.1 CPUs=16
PartitionName=main Nodes=localhost
"""
"""A slurm.conf without a controller: what a client refuses by itself, it refuses."""
ELSEWHERE = (
    "Unable to contact",
    "any GPU",
    "needs either",
    "not allowed by",
    "nodelist or hostfile",
    "unrecognized option",
)
"""What a value is refused for that is read rightly: something else is missing."""


@pytest.mark.skipif(shutil.which("sbatch") is None, reason="no sbatch is installed")
def test_the_installed_sbatch_says_what_was_written_down(tmp_path):
    config = tmp_path / "slurm.conf"
    config.write_text(CONFIG)
    around = {"PATH": "/usr/bin:/bin", "SLURM_CONF": str(config), "HOME": "/"}
    said = subprocess.run(["sbatch", "--version"], env=around, capture_output=True, check=True)
    release = SlurmRelease.parse(said.stdout.decode().split()[-1])
    wrong = []
    for option, value, _ in verdicts():
        words = ["timeout", "20", "sbatch", f"--{option}={value}"]
        script = "#!/bin/sh\ntrue\n"
        asked = subprocess.run(words, env=around, input=script, capture_output=True, text=True)
        read = any(one in asked.stderr for one in ELSEWHERE)
        if read != takes(option, value, release):
            wrong.append((option, value, asked.stderr.strip()))
    assert wrong == []
