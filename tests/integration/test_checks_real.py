"""The shipped checks on the real Slurm with the real release: what they measure, what they name."""

import subprocess
from dataclasses import replace
from datetime import datetime, timezone

import pytest

from hpcdl.regress.exchange import of_outcome
from hpcdl.regress.gate import ask
from hpcdl.regress.history import open_history
from hpcdl.regress.reframe_adapter.process import CheckRequest
from hpcdl.regress.runner import measure, run_checks
from hpcdl.results.faults import Status
from hpcdl.workflows.modules import modules_by_partition
from tests.integration.check_runs import own_site, statuses, told, value, with_release
from tests.integration.conftest import HPCDL

pytestmark = [pytest.mark.cluster, pytest.mark.stack]
pytest.importorskip("reframe", reason="ReFrame is not installed (pip install 'hpcdl[checks]')")
ONE_RANK = "throughput/mlp-1x1-digits-fp32"
"""What else the machine does changes this one least."""
MEASURED = {Status.PASS, Status.NO_REFERENCE}


@pytest.fixture
def site(cluster_env, stack_site, release, digits, tmp_path, monkeypatch):
    own = own_site(cluster_env, tmp_path, monkeypatch)
    return with_release(own, stack_site.paths.prefix, digits)


def run(site, **request):
    request = {"partitions": ("p100",), **request}
    return run_checks(site, modules_by_partition(site), CheckRequest(**request))


def test_the_smoke_checks_measure_what_their_names_say(site, release):
    outcome = run(site, tags=("smoke",))
    found = {verdict.name: verdict for verdict in outcome.verdicts}
    assert {name: verdict.status for name, verdict in found.items()} == {
        "modules/default": Status.PASS,
        "binding/default": Status.PASS,
        "users_job/default": Status.PASS,
        "allreduce/horovod-2x2": Status.NO_REFERENCE,
        "throughput/mlp-2x2-digits-fp32": Status.NO_REFERENCE,
        "storage/work": Status.NO_REFERENCE,
    }, told(outcome)
    assert all(verdict.release == release.id for verdict in found.values())
    assert value(found["binding/default"], "ranks") == 8
    assert value(found["allreduce/horovod-2x2"], "bus_gbs_4MiB") > 0
    assert value(found["storage/work"], "read_mbs") > 0


def test_a_slow_node_is_named_in_the_verdict_and_by_the_gate(site, cluster_env, tmp_path):
    subprocess.run([HPCDL, "cluster", "node", "slow", "p100-02"], env=cluster_env, check=True)
    try:
        outcome = run(site, names=("throughput",), distribute=True)
    finally:
        subprocess.run([HPCDL, "cluster", "node", "heal", "p100-02"], env=cluster_env, check=True)
    found = {str(verdict.job["nodes"]): verdict for verdict in outcome.verdicts}
    assert set(found) == {"p100-01", "p100-02"}
    assert found["p100-02"].status is Status.FAIL, told(outcome)
    assert found["p100-02"].reason.startswith("slow node: p100-02 is ")
    assert found["p100-01"].status is Status.NO_REFERENCE
    with open_history(tmp_path / "history.sqlite") as history:
        history.add(of_outcome(outcome))
        answer = ask(history, now=datetime.now(timezone.utc))
    assert not answer.open
    assert any("slow node: p100-02" in finding.description for finding in answer.findings)


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_every_nightly_check_works_on_two_emulated_nodes(site):
    outcome = run(site, tags=("nightly",))
    found = statuses(outcome)
    assert set(found.values()) <= MEASURED, told(outcome)
    assert {name.partition("/")[0] for name in found} == {
        "allreduce",
        "alone",
        "binding",
        "convergence",
        "copies",
        "input_pipeline",
        "killed",
        "modules",
        "resume_after_kill",
        "resume_after_requeue",
        "scaling_small",
        "storage",
        "throughput",
        "users_job",
    }


@pytest.mark.long
@pytest.mark.timeout(7200)
def test_a_healthy_night_passes_twenty_times_out_of_twenty(site):
    request = CheckRequest(partitions=("p100",), tags=("smoke",), repeat=5)
    modules = modules_by_partition(site)
    assert measure(site, modules, request)[0]
    for night in range(20):
        outcome = run_checks(site, modules, replace(request, repeat=1))
        assert outcome.ok, f"night {night}: {told(outcome)}"
