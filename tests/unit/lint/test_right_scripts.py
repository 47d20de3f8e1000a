"""Right scripts are left alone, on every release: no false alarms."""

from pathlib import Path

import pytest

from hpcdl.jobs.lint import lint
from hpcdl.slurm.rules import known_releases

SCRIPTS = sorted((Path(__file__).parent / "fixtures" / "right").glob("*.sh"))


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_a_right_script_has_no_finding_on_any_release(path):
    for version in known_releases():
        found = lint(path.read_text(), name=path.name, version=version)
        assert [(one.line, one.rule.id) for one in found] == [], version
