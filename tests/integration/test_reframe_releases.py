"""Probes of ReFrame itself, without a cluster: it knows hpcdl's checks, and leaves nothing out.

They run with the ReFrame beside this hpcdl; `make test-reframe`: with every supported release.
"""

import json
import os
import re
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pytest

from hpcdl.jobs.spec import Module
from hpcdl.regress.reframe_adapter.process import RECORD_VARIABLE, read_session, supported
from hpcdl.regress.reframe_adapter.settings import render_settings
from hpcdl.regress.run_directory import RunDirectory
from hpcdl.regress.verdict import judge
from hpcdl.results.faults import Status
from hpcdl.system.resources import folder
from tests.make.sites import shipped

pytest.importorskip("reframe", reason="ReFrame is not installed (pip install 'hpcdl[checks]')")
ROOT = Path(__file__).resolve().parents[2]
PYTHONS = os.environ.get("HPCDL_REFRAME_PYTHONS", sys.executable).split(":")
LOCAL = """
site_configuration = {
    "systems": [{"name": "here", "hostnames": [".*"], "partitions": [
        {"name": "all", "scheduler": "local", "launcher": "local", "environs": ["none"]}]}],
    "environments": [{"name": "none"}],
}
"""
TEAM = """
import reframe as rfm
import reframe.utility.sanity as sn
from reframe.core.builtins import (parameter, performance_function, run_after, sanity_function,
                                   variable)

class Plain(rfm.RunOnlyRegressionTest):
    valid_systems, valid_prog_environs, executable = ["*"], ["*"], "true"

    @sanity_function
    def well(self):
        return sn.assert_true(1)

@rfm.simple_test
class runs(Plain):
    pass

@rfm.simple_test
class without_values(Plain):
    size = parameter()

@rfm.simple_test
class without_systems(rfm.RunOnlyRegressionTest):
    valid_prog_environs, executable = ["*"], "true"

@rfm.simple_test
class not_copyable(Plain):
    @run_after("init")
    def hold(self):
        self.held = (n for n in range(3))

@rfm.simple_test
class raises(Plain):
    @run_after("init")
    def fail(self):
        raise ValueError("no such thing")

@rfm.simple_test
class does_not_apply(Plain):
    @run_after("init")
    def leave(self):
        self.skip_if(True, "not here")

@rfm.simple_test
class depends(Plain):
    @run_after("init")
    def needs(self):
        self.depends_on("nobody")

@rfm.simple_test
class without_value(Plain):
    @performance_function("MB/s")
    def speed(self):
        return sn.extractsingle("speed: (.*)", self.stdout, 1, float)
"""


def reframe(python, directory, *argv):
    """Run ReFrame as hpcdl does, and give what it told and printed."""
    run = RunDirectory(directory)
    env = {key: value for key, value in os.environ.items() if not key.startswith("RFM_")}
    env |= {"PYTHONPATH": str(ROOT), RECORD_VARIABLE: str(run.record)}
    done = subprocess.run(
        [
            python,
            "-m",
            "hpcdl.regress.reframe_adapter.recorder",
            *map(str, argv),
            "--prefix",
            directory,
            "--report-file",
            run.report,
        ],
        env=env,
        cwd=directory,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    return read_session(run, done.returncode), done.stdout + done.stderr


@pytest.fixture(params=PYTHONS)
def python(request):
    return str(request.param)


def test_it_is_a_supported_release(python):
    asked = [python, "-c", "import reframe; print(reframe.VERSION)"]
    assert subprocess.check_output(asked, text=True).strip() in supported()


def test_all_checks_of_hpcdl_are_known_to_reframe(python, tmp_path):
    settings = tmp_path / "settings.py"
    modules = defaultdict(lambda: Module(()))
    settings.write_text(render_settings(shipped("pi"), modules))
    session, said = reframe(python, tmp_path, "-C", settings, "--describe")
    assert (session.exit_code, session.left_out) == (0, ()), said
    listed = {check["@class"] for check in json.loads(said)}
    declared = {
        name
        for path in folder("reframe_checks").glob("*.py")
        for name in re.findall(r"^@rfm\.simple_test\nclass (\w+)", path.read_text(), re.MULTILINE)
    }
    assert declared <= listed
    assert len(declared) > 10


def test_what_it_leaves_out_is_told(python, tmp_path):
    for name, text in {"settings": LOCAL, "team": TEAM, "cut": "import reframe\nnothing\n"}.items():
        (tmp_path / f"{name}.py").write_text(text)
    argv = [part for name in ("team", "cut", "gone") for part in ("-c", tmp_path / f"{name}.py")]
    session, said = reframe(python, tmp_path, "-C", tmp_path / "settings.py", *argv, "-r")
    left_out = "\n".join(session.left_out)
    for part in (
        "gone.py' does not exist",
        "skipping test 'without_values': the following parameters are undefined",
        "skipping test 'raises': value error: no such thing",
        "skipping test 'without_systems': 'valid_systems' not defined",
        "'not_copyable.held' is not copyable",
        "skipping test file 'cut.py': name error: name 'nothing' is not defined",
        "skipping all dependent test cases - depends @here:all+none",
    ):
        assert part in left_out, said
    assert sorted(case["name"] for case in session.cases) == ["runs", "without_value"]
    assert session.exit_code == 0, "which is why it must be told"
    (silent,) = [case for case in session.cases if case["name"] == "without_value"]
    verdict = judge(silent)
    assert verdict.status is Status.ERROR, "it declares a metric, and gave no number"
    assert "speed" in verdict.reason


def test_a_run_that_selects_nothing_says_so(python, tmp_path):
    for name, text in {"settings": LOCAL, "team": TEAM}.items():
        (tmp_path / f"{name}.py").write_text(text)
    files = ("-C", tmp_path / "settings.py", "-c", tmp_path / "team.py")
    session, said = reframe(python, tmp_path, *files, "-r", "-n", "nobody")
    assert (session.exit_code, session.cases) == (0, ()), said


RATES = """
import reframe as rfm
import reframe.utility.sanity as sn
from reframe.core.builtins import performance_function, sanity_function

class Rated(rfm.RunOnlyRegressionTest):
    valid_systems, valid_prog_environs, executable = ["*"], ["*"], "echo"
    executable_opts = ["speed: 5"]
    reference = {"*": {"speed": (10, -0.1, None, "MB/s")}}

    @sanity_function
    def well(self):
        return sn.assert_found("speed", self.stdout)

    @performance_function("MB/s")
    def speed(self):
        return sn.extractsingle("speed: (.*)", self.stdout, 1, float)

@rfm.simple_test
class slow(Rated):
    pass

@rfm.simple_test
class wrong(Rated):
    executable_opts = ["nothing"]

@rfm.simple_test
class not_built(rfm.CompileOnlyRegressionTest):
    valid_systems, valid_prog_environs, sourcepath = ["*"], ["*"], "gone.c"

@rfm.simple_test
class fast(Rated):
    executable_opts = ["speed: 10"]
"""


def test_each_way_to_fail_is_told_from_the_others(python, tmp_path):
    for name, text in {"settings": LOCAL, "team": RATES}.items():
        (tmp_path / f"{name}.py").write_text(text)
    files = ("-C", tmp_path / "settings.py", "-c", tmp_path / "team.py")
    session, said = reframe(python, tmp_path, *files, "-r")
    found = {case["name"]: case["result"] for case in session.cases}
    assert found == {"fast": "pass", "slow": "fail", "wrong": "fail", "not_built": "fail"}, said
    (wrong,) = [case for case in session.cases if case["name"] == "wrong"]
    verdict = judge(wrong)
    assert verdict.status is Status.ERROR
    assert "pattern 'speed' not found" in verdict.reason


def test_what_nobody_recorded_is_told(tmp_path):
    (told,) = read_session(RunDirectory(tmp_path), 0).left_out
    assert "nothing recorded" in told
