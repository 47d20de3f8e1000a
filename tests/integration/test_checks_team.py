"""Checks of a team's own, with log servers and options of jobs of its own."""

import json
from collections import defaultdict
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import pytest

from hpcdl.cli import main
from hpcdl.jobs.spec import Module
from hpcdl.regress.reframe_adapter.process import CheckRequest
from hpcdl.regress.runner import run_checks
from hpcdl.results.faults import Status
from tests.integration.check_runs import own_site, told
from tests.make.releases import make_release

pytestmark = pytest.mark.cluster
pytest.importorskip("reframe", reason="ReFrame is not installed (pip install 'hpcdl[checks]')")


@pytest.fixture
def site(cluster_env, tmp_path, monkeypatch):
    return own_site(cluster_env, tmp_path, monkeypatch)


def run(site, path, *passed, **request):
    asked = CheckRequest(partitions=("p100",), paths=(path,), passed=passed, **request)
    return run_checks(site, defaultdict(lambda: Module(())), asked)


PLAIN = """
import reframe as rfm
import reframe.utility.sanity as sn
from reframe.core.builtins import sanity_function

@rfm.simple_test
class named(rfm.RunOnlyRegressionTest):
    valid_systems, valid_prog_environs = ["*:p100"], ["gnu"]
    executable, time_limit = "hostname", "1m"

    @sanity_function
    def ran(self):
        return sn.assert_true(1)
"""


OWN = """
import reframe as rfm
from hpcdl.jobs.spec import JobSpec
from hpcdl.regress.checkbase import HpcdlCheck, Metric

@rfm.simple_test
class answers(HpcdlCheck):
    def request(self, site, partition):
        return JobSpec(partition=partition.name, gpus=1, minutes=1, name=self.check_name,
                       program=("true",))

    def metrics(self):
        return [Metric("answer", "1/s", lambda measured: 42.0)]

    def faults(self, measured):
        return ()
"""
HANDLER = """
site_configuration = {{"logging": [{{"handlers_perflog": [{{
    "type": "httpjson", "url": "http://127.0.0.1:{port}/nights", "level": "info",
    "extras": {{"index": "nights"}}}}]}}]}}
"""


def test_a_sites_log_server_gets_hpcdls_fields(site, tmp_path):
    with listening() as (port, received):
        (tmp_path / "team.py").write_text(OWN)
        site.paths.prefix.mkdir(exist_ok=True)
        (site.paths.prefix / "reframe.py").write_text(HANDLER.format(port=port))
        outcome = run(site, tmp_path / "team.py", measuring=True)
    (verdict,), (record,) = outcome.verdicts, received
    evidence = record["check_evidence"]
    assert (record["index"], record["check_name"]) == ("nights", "answers")
    assert (evidence["check"], evidence["case"], evidence["partition"]) == (
        verdict.check,
        verdict.case,
        verdict.partition,
    )
    assert evidence["job"] == verdict.job
    assert evidence["metrics"]["answer"]["value"] == 42.0
    assert evidence["layout"]["gpus_per_node"] == 1
    # A server that is away costs a warning of ReFrame, and no check.
    away = run(site, tmp_path / "team.py", measuring=True)
    assert [one.status for one in away.verdicts] == [Status.NO_REFERENCE], told(away)


@contextmanager
def listening():
    """A server on loopback, its port, and the records that it was sent."""
    received = []

    class Takes(BaseHTTPRequestHandler):
        def do_POST(self):
            received.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(200)
            self.end_headers()

    with ThreadingHTTPServer(("127.0.0.1", 0), Takes) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_port, received
        server.shutdown()


def test_a_night_ends_with_the_gates_answer(site, tmp_path, capsys, monkeypatch):
    (tmp_path / "team.py").write_text(PLAIN)
    release = make_release(site, "tensorflow-2.21.0-cpu-00000001")
    (site.paths.prefix / "current").symlink_to(release.root)
    where = ["--site", str(site.source)]
    monkeypatch.setenv("HPCDL_HISTORY", str(tmp_path / "h"))
    night = ["check", "run", *where, "--partition", "p100", "--checks", str(tmp_path / "team.py")]
    assert main(night) == 0
    said = capsys.readouterr().out
    assert main(["check", "gate", *where]) == 0
    assert said.endswith("\n" + capsys.readouterr().out)
    assert main([*night, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["gate"]["open"], told["gate"]["headline"]) == (True, "Gate open: 1 series")
    (tmp_path / "night.json").write_text(json.dumps(told))
    assert main(["check", "report", str(tmp_path / "night.json")]) == 0


def test_options_of_a_job_are_passed_on_to_slurm(site, tmp_path):
    (tmp_path / "team.py").write_text(PLAIN)
    outcome = run(site, tmp_path / "team.py", "-J", "nodelist=p100-02", "-J", "comment=passed-on")
    (verdict,) = outcome.verdicts
    assert verdict.job["nodes"] == "p100-02", told(outcome)
    assert "#SBATCH --comment=passed-on" in next(site.paths.work.rglob("rfm_job.sh")).read_text()
