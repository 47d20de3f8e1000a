"""ReFrame is the judge of its own words; what is suspicious is measured again the same night."""

import subprocess
import time
from collections import defaultdict
from dataclasses import replace
from pathlib import Path

import pytest

from hpcdl.jobs.spec import Module
from hpcdl.regress.reframe_adapter.process import CheckRequest
from hpcdl.regress.runner import run_checks
from hpcdl.results.faults import FaultKind, Status
from tests.integration.check_runs import own_site, told

pytestmark = pytest.mark.cluster
pytest.importorskip("reframe", reason="ReFrame is not installed (pip install 'hpcdl[checks]')")
CHECKS = Path(__file__).parents[1] / "standins" / "checks_of_reframe.py"
NO_MODULE = defaultdict(lambda: Module(()))


@pytest.fixture
def site(cluster_env, tmp_path, monkeypatch):
    return own_site(cluster_env, tmp_path, monkeypatch)


def run(site, *, path=CHECKS, doubts=None, **request):
    request = {"paths": (path,), "partitions": ("p100",), **request}
    return run_checks(site, NO_MODULE, CheckRequest(**request), None, doubts)


def test_reframes_words_are_verdicts_and_its_warnings_are_faults(site):
    outcome = run(site)
    found = {verdict.name: verdict for verdict in outcome.verdicts}
    assert {name: verdict.status for name, verdict in found.items()} == {
        "well": Status.PASS,
        "other_unit": Status.ERROR,
        "no_number": Status.ERROR,
        "skips": Status.SKIP,
        "fails_as_expected": Status.XFAIL,
        "sizes/width=1": Status.PASS,
        "sizes/width=2": Status.PASS,
    }, told(outcome)
    assert [one.kind for one in found["other_unit"].faults] == [FaultKind.WARNING]
    assert "does not match the unit" in found["other_unit"].reason
    assert found["no_number"].reason.startswith("metric latency has a reference, and the check")
    assert found["skips"].reason == "no burst buffer here"
    assert "ticket 17" in found["fails_as_expected"].reason
    assert found["skips"].ok
    assert found["fails_as_expected"].ok
    (note,) = [one for one in outcome.notes if "nowhere" in one]
    assert "fits no partition: +quantum" in note


def test_variables_and_parameters_are_seen(site):
    outcome = run(site, names=("well",), passed=("-P", "size=1,2", "-S", "typo=3"))
    found = {verdict.name: verdict.status for verdict in outcome.verdicts}
    assert found["well/size=1"] is found["well/size=2"] is Status.PASS, told(outcome)
    (whole,) = [one for one in outcome.verdicts if one.check == "(run)"]
    assert "the following variables were not set" in whole.reason
    assert outcome.settings, "it is no night"


AGAIN = """
import pathlib
import reframe as rfm
import reframe.utility.sanity as sn
from reframe.core.builtins import performance_function, sanity_function

@rfm.simple_test
class measured(rfm.RunOnlyRegressionTest):
    valid_systems, valid_prog_environs = ["*"], ["hpcdl"]
    reference = {{"*": {{"rate": (100, -0.1, None, "MB/s")}}}}
    executable = "{program}"

    @sanity_function
    def well(self):
        return sn.assert_found("rate", self.stdout)

    @performance_function("MB/s")
    def rate(self):
        return sn.extractsingle(r"rate (\\d+)", self.stdout, 1, float)
"""


def check_that_runs(folder, script):
    """A check whose job runs this script; `$count` is the number of its run."""
    program, file = folder / "program", folder / "measured.py"
    counting = f"echo x >> {folder}/runs; count=$(wc -l < {folder}/runs)"
    program.write_text(f"#!/bin/bash\n{counting}\n{script}\n")
    program.chmod(0o755)
    file.write_text(AGAIN.format(program=program))
    return file


@pytest.mark.parametrize(
    ("script", "status", "runs", "said"),
    [
        # One run of a node that was slowed: two more say that it was a spike.
        (
            "echo rate $(( count == 1 ? 50 : 100 ))",
            Status.PASS,
            3,
            "median of 3 runs: 50, 100, 100",
        ),
        ("echo rate 50", Status.FAIL, 5, "rate 50 MB/s is 50% below"),
        # The first node is slow, whichever run it is; the other one is not.
        (
            "[[ $SLURMD_NODENAME == *1 ]] && echo rate 50 || echo rate 100",
            Status.FAIL,
            5,
            "slow node",
        ),
    ],
)
def test_what_is_suspicious_is_measured_again_the_same_night(
    site, tmp_path, script, status, runs, said
):
    path = check_that_runs(tmp_path, script)
    (verdict,) = run(site, path=path).verdicts
    assert verdict.status is status, verdict.reason
    assert said in verdict.reason
    assert len(verdict.runs) == runs
    assert len({one["job"]["id"] for one in verdict.runs}) == runs


def test_a_night_ends_in_time_where_slurm_is_full(site, tmp_path):
    """The first run is slow, and whatever would run after it finds all nodes taken."""
    take = "sbatch --partition=p100 --nodes=$(sinfo -h -p p100 -o %D) --exclusive --time=5"
    script = f'((count > 1)) || {take} --output=/dev/null --wrap "sleep 200" >&2\necho rate 50'
    path = check_that_runs(tmp_path, script)
    short = replace(site, remeasure=replace(site.remeasure, minutes=0.3))
    begun = time.monotonic()
    try:
        outcome = run(short, path=path)
    finally:
        subprocess.run(["scancel", "--name=wrap"], check=False)
    assert time.monotonic() - begun < 120
    (verdict,) = outcome.verdicts
    assert verdict.status is Status.FAIL, verdict.reason
    assert any("gave no result of measured" in note for note in outcome.notes), outcome.notes


PRINTED = """
import reframe as rfm
from hpcdl.jobs.spec import JobSpec
from hpcdl.regress.checkbase import PrintedCheck

@rfm.simple_test
class stream(PrintedCheck):
    pattern, unit = r"Triad: +([0-9.]+)", "{unit}"

    def request(self, site, partition):
        return JobSpec(partition=partition.name, nodes=1, minutes=5, name=self.check_name,
                       program=("bash", "-c", "{program}"))
"""


@pytest.mark.parametrize(
    ("program", "status", "said"),
    [
        ("echo Triad: 100.0; echo Triad:  95.5", Status.NO_REFERENCE, "no reference for stream"),
        ("echo nothing", Status.ERROR, "nothing that the job printed fits"),
        ("echo Triad: 95.5; exit 3", Status.ERROR, "exit code 3"),
    ],
)
def test_a_check_that_only_prints_a_number_is_one_of_ours(site, tmp_path, program, status, said):
    path = tmp_path / "stream.py"
    path.write_text(PRINTED.format(program=program, unit="GB/s"))
    (verdict,) = run(site, path=path).verdicts
    assert (verdict.name, verdict.status) == ("stream/default", status), verdict.reason
    assert said in verdict.reason
    if status is Status.NO_REFERENCE:
        assert [(one.name, one.value, one.unit) for one in verdict.metrics] == [
            ("stream", 95.5, "GB/s")
        ]
