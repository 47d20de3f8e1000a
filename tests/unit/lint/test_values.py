"""Values of options are judged as sbatch of every release judges them.

values.yaml holds what four real clients said of some 400 values; the installed one is asked again.
controller_values.yaml holds what four slurmctld said of values that clients only pass on.
"""

import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from hpcdl.jobs.lint.check_values import expects
from hpcdl.jobs.lint.options import Option, known_options
from hpcdl.slurm.rules import Release, as_release
from tests.unit.lint.conftest import CONFIG

RELEASES = ("20.11", "22.05", "24.11", "26.05")
HERE = Path(__file__).parent
TRIED = yaml.safe_load((HERE / "values.yaml").read_text())
TRIED_BY_SLURMCTLD = yaml.safe_load((HERE / "controller_values.yaml").read_text())
ELSEWHERE = ("Unable to contact", "any GPU", "needs either", "not allowed by",
             "nodelist or hostfile", "unrecognized option")  # fmt: skip
"""What a value is refused for that is read rightly: something else is missing."""


def verdicts(tried=TRIED):
    """(option, value, the releases that take it)."""
    for option, said in tried.items():
        yield from ((option, value, RELEASES) for value in said.get("accepted", ()))
        yield from ((option, value, ()) for value in said.get("refused", ()))
        yield from ((option, *one) for one in said.get("accepted_by", {}).items())


def takes(option, value, release):
    known = known_options("sbatch").get(option) or known_options("srun")[option]
    return expects(Option(option, value, 0, 1, known), release) is None


@pytest.mark.parametrize("release", RELEASES)
def test_a_value_is_taken_where_the_real_sbatch_takes_it(release):
    wrong = [
        (option, value)
        for option, value, by in verdicts({**TRIED, **TRIED_BY_SLURMCTLD})
        if takes(option, value, as_release(release)) != (release in by)
    ]
    assert wrong == []


@pytest.mark.parametrize(("option", "value", "refused", "taken"), [
    ("exclusive", "topo", "23.11", "24.05"), ("exclusive", "allocation", "25.11", "26.05"),
    ("nodes", "1,2", "22.05", "23.02"), ("signal", "CHLD@60", "23.02", "23.11"),
    ("dependency", "afterok:7,afterok:8?afterok:9", "25.11", "25.05"),
    ("get-user-env", "60L", "25.05", "24.11"),
])  # fmt: skip
def test_between_those_the_sources_say_where_a_value_came_or_went(option, value, refused, taken):
    assert not takes(option, value, as_release(refused))
    assert takes(option, value, as_release(taken))


@pytest.mark.skipif(shutil.which("sbatch") is None, reason="no sbatch is installed")
def test_the_installed_sbatch_says_what_was_written_down(tmp_path):
    config = tmp_path / "slurm.conf"
    config.write_text(CONFIG)
    around = {"PATH": "/usr/bin:/bin", "SLURM_CONF": str(config), "HOME": "/"}
    said = subprocess.run(["sbatch", "--version"], env=around, capture_output=True, check=True)
    release = Release.parse(said.stdout.decode().split()[-1])
    wrong = []
    for option, value, _ in verdicts():
        words = ["timeout", "20", "sbatch", f"--{option}={value}"]
        script = "#!/bin/sh\ntrue\n"
        asked = subprocess.run(words, env=around, input=script, capture_output=True, text=True)
        read = any(one in asked.stderr for one in ELSEWHERE)
        if read != takes(option, value, release):
            wrong.append((option, value, asked.stderr.strip()))
    assert wrong == []
