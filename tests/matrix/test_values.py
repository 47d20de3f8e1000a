"""Values of --array and --dependency are judged as slurmctld of each release judges them."""

import re

from tests.unit.lint.test_values import TRIED_BY_SLURMCTLD, verdicts


def test_slurmctld_says_what_was_written_down(machine):
    def queue(*options):
        held = "sbatch --parsable --hold --partition=cpu --job-name=values --wrap=true"
        return machine(*held.split(), *options, timeout=120)

    job = queue().stdout.strip()
    wrong = []
    for option, value, by in verdicts(TRIED_BY_SLURMCTLD):
        given = re.sub(r"\b7\b", job, value) if option == "dependency" else value
        done = queue(f"--{option}={given}")
        if (done.returncode == 0) != (machine.name in by):
            wrong.append((option, value, done.stderr))
    machine("scancel", "--name=values")
    assert wrong == []
