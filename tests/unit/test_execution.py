"""One profile says what differs where one machine runs all nodes."""

import re
from pathlib import Path

import pytest

from hpcdl.regress.references import WIDEST
from hpcdl.slurm.execution import CLUSTER, PROFILES, SINGLE_NODE, current, current_or_cluster
from hpcdl.system.errors import HpcdlError

ROOT = Path(__file__).resolve().parents[2]
FILES = [*(ROOT / "hpcdl").rglob("*.py"), *(ROOT / "reframe_checks").glob("*.py")]


def test_nothing_else_asks_which_kind_of_machine_it_is():
    asks = re.compile(r"one_machine|shares_cores|is_emulated|config_overrides\" in")
    found = [str(path.relative_to(ROOT)) for path in FILES if asks.search(path.read_text())]
    assert found == ["hpcdl/slurm/execution.py"]


def test_a_slurm_says_itself_which_profile_it_has(tmp_path, monkeypatch):
    scontrol = tmp_path / "scontrol"
    scontrol.write_text('#!/bin/sh\necho "ClusterName = x"; echo "SlurmdParameters = $SAID"\n')
    scontrol.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    for said, profile in (("config_overrides", SINGLE_NODE), ("(null)", CLUSTER)):
        monkeypatch.setenv("SAID", said)
        assert current() is profile
    scontrol.write_text("#!/bin/sh\nexit 1\n")
    with pytest.raises(HpcdlError):
        current()
    assert current_or_cluster() is CLUSTER


def test_chance_is_as_wide_as_the_widest_bound_of_a_reference():
    assert (CLUSTER.margin, CLUSTER.serial) == (0.0, False)
    assert (SINGLE_NODE.margin, SINGLE_NODE.serial) == (WIDEST, True)
    assert list(PROFILES) == ["cluster", "single-node"]
