"""The scripts that `hpcdl job render` prints have no finding, not even advice, on any release."""

from pathlib import Path

import pytest

from hpcdl.jobs import JobSpec, Module, render_script
from hpcdl.jobs.launch import with_version
from hpcdl.jobs.lint import check_signals, check_steps, lint, shell
from hpcdl.slurm.rules import known_releases
from tests.unit.conftest import shipped

MODULE = Module(("tensorflow/2.20.0",), Path("/apps/hpcdl/releases/r1/modules"), "r1")
PLACES = [
    ("pi", "k80"), ("pi", "cpu"), ("p100-v100-k80", "p100"), ("p100-v100-k80", "v100"),
    ("a100-h100", "h100"), ("embedded", "v100"),
]  # fmt: skip
ASKED = [
    {}, {"nodes": 1}, {"nodes": 2}, {"nodes": 2, "program": ("python", "a b", "$x", ";", "\n")},
]  # fmt: skip


@pytest.mark.parametrize("version", known_releases())
def test_a_generated_script_is_clean(version):
    for name, partition in PLACES:
        site = with_version(shipped(name), version)
        for asked in ASKED:
            text = render_script(site, JobSpec(partition, **asked), MODULE).text
            found = lint(text, name="x", version=version, partition=site.partition(partition))
            assert [(one.line, one.rule.id) for one in found] == [], (name, partition, asked)


def test_without_the_parser_nothing_is_concluded_from_what_a_script_does_not_run(monkeypatch):
    """Whose traps lie in the release's file, and what no one has read, is not known."""
    for module in (check_signals, check_steps, shell):
        monkeypatch.setattr(module, "parser", lambda: None)
    functions = MODULE._replace(functions=Path("/apps/job-1.sh"))
    text = render_script(shipped("embedded"), JobSpec("v100", nodes=2), functions).text
    asked = "#!/bin/bash\n#SBATCH -n4 --gpus-per-task=1\n"
    for script in (text, asked + "srun --gres-flags=allow-task-sharing a.out\n"):
        assert lint(script, name="x", version="22.05") == ()
