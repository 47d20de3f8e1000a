"""Values of options are judged as sbatch of every release judges them.

values.yaml holds what four real clients said of some 400 values; the installed one is asked again.
controller_values.yaml holds what four slurmctld said of values that clients only pass on.
"""

from pathlib import Path

import pytest
import yaml

from hpcdl.jobs.lint.check_directives import wrong_value
from hpcdl.jobs.lint.options import Option, known_options
from hpcdl.slurm.rules import as_release

RELEASES = ("20.11", "22.05", "24.11", "26.05")
HERE = Path(__file__).parent
TRIED = yaml.safe_load((HERE / "values.yaml").read_text())
TRIED_BY_SLURMCTLD = yaml.safe_load((HERE / "controller_values.yaml").read_text())


def verdicts(tried=TRIED):
    """(option, value, the releases that take it)."""
    for option, said in tried.items():
        yield from ((option, value, RELEASES) for value in said.get("accepted", ()))
        yield from ((option, value, ()) for value in said.get("refused", ()))
        yield from ((option, *one) for one in said.get("accepted_by", {}).items())


def takes(option, value, release):
    known = known_options("sbatch").get(option) or known_options("srun")[option]
    return not wrong_value(Option(option, value, 0, 1, known), release)


@pytest.mark.parametrize("release", RELEASES)
def test_a_value_is_taken_where_the_real_sbatch_takes_it(release):
    wrong = [
        (option, value)
        for option, value, by in verdicts({**TRIED, **TRIED_BY_SLURMCTLD})
        if takes(option, value, as_release(release)) != (release in by)
    ]
    assert wrong == []


@pytest.mark.parametrize(
    ("option", "value", "refused", "taken"),
    [
        ("exclusive", "topo", "23.11", "24.05"),
        ("exclusive", "allocation", "25.11", "26.05"),
        ("nodes", "1,2", "22.05", "23.02"),
        ("signal", "CHLD@60", "23.02", "23.11"),
        ("dependency", "afterok:7,afterok:8?afterok:9", "25.11", "25.05"),
        ("get-user-env", "60L", "25.05", "24.11"),
        ("gpus", "-switches=1@x", "24.11", "22.05"),
        ("gpu-bind", "nx", "23.11", "23.02"),
        ("segment", "x", "24.05", "23.11"),
        ("gres", "gpu:v100:x", "23.11", "23.02"),
    ],
)
def test_between_those_the_sources_say_where_a_value_came_or_went(option, value, refused, taken):
    assert not takes(option, value, as_release(refused))
    assert takes(option, value, as_release(taken))
