"""Verdicts on the real Slurm: nothing passes that does not deserve it, and nothing is left."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections import defaultdict
from pathlib import Path

import pytest

from hpcdl.cli import main
from hpcdl.cluster import processes
from hpcdl.cluster.state import read_state
from hpcdl.jobs.spec import Module
from hpcdl.regress.exchange import of_outcome
from hpcdl.regress.history import open_history
from hpcdl.regress.references import edits_of, site_file
from hpcdl.regress.reframe_adapter.process import CheckRequest
from hpcdl.regress.run_directory import read_events, runs_directory, sweep
from hpcdl.regress.runner import measure, run_checks
from hpcdl.results.faults import FaultKind, Status
from hpcdl.slurm import client
from hpcdl.system.errors import BadInput, CheckFailed
from tests.browser import chromium
from tests.integration.check_runs import own_site, told
from tests.make import results
from tests.make.sites import shipped, up
from tests.waiting import wait_for

pytestmark = pytest.mark.cluster
pytest.importorskip("reframe", reason="ReFrame is not installed (pip install 'hpcdl[checks]')")
STANDINS = Path(__file__).parents[1] / "standins"
NO_MODULE = defaultdict(lambda: Module(()))
# A run of its own process, as a person's would be, but without a release.
RUN = (
    "import sys; from collections import defaultdict; from pathlib import Path;"
    "from hpcdl.site import load_site;"
    "from hpcdl.jobs.spec import Module; from hpcdl.regress.runner import run_checks;"
    "from hpcdl.regress.reframe_adapter.process import CheckRequest;"
    "run_checks(load_site(Path(sys.argv[1])), defaultdict(lambda: Module(())),"
    " CheckRequest(partitions=(sys.argv[4],), names=(sys.argv[3],), paths=(Path(sys.argv[2]),)))"
)


@pytest.fixture(scope="module", autouse=True)
def overdue(cluster_env, tmp_path_factory):
    """A run whose job outlasts its limit: a minute, in which the other tests run."""
    with pytest.MonkeyPatch.context() as patch:
        there = own_site(cluster_env, tmp_path_factory.mktemp("overdue"), patch)
        process = start(there, "until_cancelled", partition="v100")
    yield process, there
    process.terminate()
    process.wait()


@pytest.fixture
def site(cluster_env, tmp_path, monkeypatch):
    return own_site(cluster_env, tmp_path, monkeypatch)


def reference(check, **changes):
    named = {"case": "default", "metric": "images_per_second"}
    return results.reference(check=check, **named | changes)


def run(site, file, **request):
    request = {"paths": (STANDINS / file,), "partitions": ("p100",), **request}
    return run_checks(site, NO_MODULE, CheckRequest(**request))


def test_nothing_passes_that_does_not_deserve_it(site):
    foreign = ["of_another_job", "of_another_node", "of_2020", "on_another_gpu"]
    wrong = [
        "cancelled_after_its_result",
        "exit_code",
        "no_metric",
        "infinite_metric",
        "nonsense",
        "no_result",
        "too_fast",
    ]
    names = ["honest", "slower", "says_insufficient", "says_missing", *wrong, *foreign]
    edits_of(site, [*map(reference, names), reference("on_a_node", runs=2)]).write()
    outcome = run(site, "checks_that_look_well.py", waived=("says_insufficient", "says_missing"))
    found = {verdict.check: verdict for verdict in outcome.verdicts}
    assert {name: verdict.status for name, verdict in found.items()} == {
        "honest": Status.PASS,
        "slower": Status.FAIL,
        "says_insufficient": Status.FAIL,
        "says_missing": Status.FAIL,
        "no_reference": Status.NO_REFERENCE,
        "on_a_node": Status.INSUFFICIENT,
        **dict.fromkeys((*wrong, *foreign), Status.ERROR),
        "plain_honest": Status.PASS,
        "plain_without_reference": Status.PASS,
        "plain_metric_not_found": Status.ERROR,  # ReFrame only warns
        "plain_cancelled_after_its_pattern": Status.ERROR,
    }
    assert "CANCELLED" in found["cancelled_after_its_result"].reason
    assert "exit code 3" in found["exit_code"].reason
    assert "missing metric: images_per_second" in found["no_metric"].reason
    assert "missing result" in found["no_result"].reason
    assert "too fast to be true" in found["too_fast"].reason
    for name in foreign:
        assert found[name].reason.startswith("foreign result: it "), found[name].reason
    assert "50% below" in found["slower"].reason
    assert "performance variable 'speed': not enough" in found["plain_metric_not_found"].reason
    assert not outcome.ok
    assert not any(verdict.waived for verdict in outcome.verdicts)
    # Faults come through ReFrame's report as data, also those of a job that was given up.
    told = {
        name: [(fault.kind, fault.got) for fault in verdict.faults]
        for name, verdict in found.items()
    }
    assert told["says_missing"] == [(FaultKind.CHECK, None)]
    assert told["cancelled_after_its_result"] == [(FaultKind.ENDED_EARLY, "CANCELLED")]
    assert told["exit_code"] == [(FaultKind.EXIT_CODE, 3)]
    assert told["slower"] == [(FaultKind.BOUND, 500.0)]
    # What was slow is measured again; what gave no number is not queued a second time.
    assert {name: len(verdict.runs) for name, verdict in found.items() if verdict.runs} == {
        "slower": 5
    }


def test_a_run_without_a_check_fails(site):
    outcome = run(site, "checks_with_an_error.py")
    assert not outcome.ok
    assert "ReFrame warns: " in outcome.verdicts[0].reason


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"tags": ("nobody-has-this",)}, "no check has the tag nobody-has-this"),
        ({"paths": (STANDINS / "missing.py",)}, "there are no checks"),
    ],
)
def test_what_selects_no_check_is_refused_and_no_verdict(site, asked, said):
    with pytest.raises(BadInput, match=said):
        run(site, "checks_that_look_well.py", **asked)


def test_a_misspelt_name_beside_a_right_one_is_told(site):
    edits_of(site, [reference("honest")]).write()
    outcome = run(site, "checks_that_look_well.py", names=("honest", "honset"))
    assert [verdict.status for verdict in outcome.verdicts] == [Status.PASS, Status.ERROR]
    assert outcome.verdicts[1].reason == "no check was selected by name honset"


RULED = """
import reframe as rfm
from hpcdl.jobs.spec import JobSpec
from hpcdl.regress.checkbase import HpcdlCheck, Metric
from hpcdl.regress.references import rule
from hpcdl.regress.result import Measured

@rfm.simple_test
class ruled(HpcdlCheck):
    def request(self, site, partition):
        return JobSpec(partition=partition.name, minutes=5, program=("true",))

    def measured(self):
        return Measured({})

    def faults(self, measured):
        return []

    def metrics(self):
        return [Metric("accuracy", "", lambda measured: 0.7)]

    def expected(self, metric, site, partition):
        return rule(self.check_name, self.case_name, partition.name, metric.name, 0.95)
"""


def test_what_a_check_demands_is_neither_measured_nor_replaced(site, tmp_path):
    (tmp_path / "team.py").write_text(RULED)
    edits_of(site, [reference("ruled", metric="accuracy", value=0.5, unit="")]).write()
    (verdict,) = run(site, str(tmp_path / "team.py")).verdicts
    assert verdict.status is Status.FAIL
    assert "its reference 0.95" in verdict.reason
    with pytest.raises(CheckFailed, match="no reference was written"):
        measure(site, NO_MODULE, CheckRequest(("p100",), paths=(tmp_path / "team.py",), repeat=3))


def test_broken_references_are_an_error_with_their_place(site):
    path = site_file(site, "embedded")
    path.parent.mkdir(parents=True)
    path.write_text("schema: 1\nset: embedded\nreferences:\n- {check: honest, value: fast}\n")
    with pytest.raises(BadInput) as caught:
        run(site, "checks_that_look_well.py", names=("honest",))
    assert "embedded.yaml" in caught.value.render()


def test_a_job_that_shows_no_sign_of_life_is_given_up(site):
    outcome = run(site, "checks_that_wait.py", names=("silent",))
    assert outcome.verdicts[0].status is Status.ERROR
    assert "hangs: no output and no progress" in outcome.verdicts[0].reason
    wait_for(lambda: not active_jobs(site))


def test_a_job_that_gets_no_nodes_is_given_up(site, slurm):
    job = slurm.take("p100", 2)
    try:
        outcome = run(site, "checks_that_wait.py", names=("impatient",))
    finally:
        slurm("scancel", job)
    assert outcome.verdicts[0].status is Status.ERROR
    assert "time-out: it got no nodes within" in outcome.verdicts[0].reason
    wait_for(lambda: not active_jobs(site))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_jobs_do_not_outlive_a_stopped_run(site, number):
    process = start(site, "until_cancelled")
    wait_for(lambda: bool(list(runs_directory(site).glob("*/stage/**/started"))))
    process.send_signal(number)
    process.wait(30)
    wait_for(lambda: not active_jobs(site))


# ReFrame alone dies, or hpcdl as well, when sbatch has sent the job and nobody has noted its id.
KILLED = {"ReFrame": "kill -9 $PPID", "both": "kill -9 $HPCDL_CHECK_PARENT $PPID"}


@pytest.mark.parametrize("who", KILLED)
def test_a_job_whose_id_nobody_noted_is_cancelled_by_its_token(site, tmp_path, monkeypatch, who):
    real, commands = shutil.which("sbatch"), tmp_path / "bin"
    commands.mkdir()
    (commands / "sbatch").write_text(f'#!/bin/sh\n{real} "$@" >{tmp_path}/queued\n{KILLED[who]}\n')
    (commands / "sbatch").chmod(0o755)
    monkeypatch.setenv("PATH", f"{commands}:{os.environ['PATH']}")
    start(site, "until_cancelled").wait(60)
    assert active_jobs(site) == [], "no id is known"
    record = client.job(int((tmp_path / "queued").read_text()))
    if who == "both":
        assert record.active
        assert sweep(site) == [record.id]
    wait_for(lambda: not (last := client.job(record.id)) or not last.active)
    assert sweep(site) == []


def test_a_lost_node_is_an_error_that_names_it(site, slurm):
    process = start(site, "until_cancelled")
    wait_for(lambda: bool(list(runs_directory(site).glob("*/stage/**/started"))))
    (job,) = active_jobs(site)
    node = client.job(job).nodes
    slurm.hpcdl("cluster", "node", "kill", node)
    try:
        assert process.wait(120) == 0
        (lost,) = verdicts(site)
        assert (lost["status"], lost["job"]["nodes"]) == ("ERROR", node)
        assert re.search(f"node lost.*{node}", lost["reason"])
    finally:
        slurm.hpcdl("cluster", "node", "up", node)
        wait_for(lambda: not active_jobs(site))
        wait_for(lambda: slurm("sinfo", "-h", "-n", node, "-o", "%t").stdout == "idle\n")


@pytest.mark.long
def test_a_check_for_a_drained_node_answers_within_a_minute(site, slurm):
    slurm("scontrol", "update", "NodeName=p100-02", "State=DRAIN", "Reason=test")
    try:
        begun = time.monotonic()
        outcome = run(
            site,
            "checks_that_look_well.py",
            names=("on_a_node",),
            distribute=True,
            waived=("on_a_node",),
        )
        seconds = time.monotonic() - begun
    finally:
        slurm("scontrol", "update", "NodeName=p100-02", "State=RESUME")
    (lost,) = [verdict for verdict in outcome.verdicts if verdict.status is Status.ERROR]
    assert re.search("p100-02 is.*DRAIN", lost.reason), told(outcome)
    assert seconds < 90, f"it took {seconds:.0f} s"


def test_a_time_out_after_the_result_was_written_is_an_error(overdue):
    process, there = overdue
    assert process.wait(240) == 0
    (verdict,) = verdicts(there)
    assert verdict["status"] == "ERROR"
    assert "time-out: the job ended as TIMEOUT" in verdict["reason"]


@pytest.mark.long
def test_a_slurm_that_goes_away_half_way_is_an_error(site, cluster):
    process = start(site, "lasting")  # its limit does not end it before Slurm is back
    wait_for(lambda: bool(list(runs_directory(site).glob("*/stage/**/started"))))
    state = read_state(cluster.directory)
    # Not by SIGKILL: it saves its jobs every 5 s, and may forget this one, or take it for waiting.
    processes.end([state.processes["slurmctld"]], grace=60)
    try:
        assert process.wait(300) == 0
        text = next(runs_directory(site).glob("*/verdicts.json")).read_text()
        assert "Slurm away" in text
        assert '"ERROR"' in text
    finally:
        up(shipped(), directory=cluster.directory)
    wait_for(lambda: sweep(site))  # the job that nobody could cancel is cancelled now


def test_two_runs_at_once_do_not_disturb_each_other(site):
    edits_of(site, [reference("honest")]).write()
    both = [start(site, "honest", file="checks_that_look_well.py") for _ in range(2)]
    assert [process.wait(60) for process in both] == [0, 0]
    verdicts = [path.read_text() for path in runs_directory(site).glob("*/verdicts.json")]
    assert len(verdicts) == 2
    assert all('"PASS"' in text for text in verdicts), verdicts


def start(site, name, partition="p100", file="checks_that_wait.py"):
    words = (site.source, STANDINS / file, name, partition)
    return subprocess.Popen([sys.executable, "-c", RUN, *words])


def verdicts(site):
    """Those of the one run that a process of its own has made."""
    (file,) = runs_directory(site).glob("*/verdicts.json")
    return json.loads(file.read_text())["verdicts"]


def active_jobs(site):
    ids = [job for path in runs_directory(site).glob("*/events.jsonl") for job in read_events(path)]
    records = [client.job(job) for job in ids]
    return [record.id for record in records if record is not None and record.active]


def test_a_night_of_real_jobs_is_told_with_their_scripts_and_logs(
    site, tmp_path, capsys, monkeypatch
):
    names = ("honest", "slower")
    edits_of(site, [reference(name) for name in names]).write()
    outcome = run(site, "checks_that_look_well.py", names=names)
    history, page = tmp_path / "history.sqlite", tmp_path / "night.html"
    monkeypatch.setenv("HPCDL_HISTORY", str(history))
    with open_history(history, site.name) as opened:
        assert opened.add(of_outcome(outcome)) == 6, (
            "slower is measured four times more the same night"
        )
    words = ["check", "report", "--site", str(site.source)]
    assert main([*words, "--format", "html", "--output", str(page)]) == 0
    # The same run again, from its folder, is no other night.
    imported = ["check", "history", "import", str(outcome.directory.path)]
    assert main([*imported, "--site", str(site.source)]) == 0
    assert capsys.readouterr().out.startswith("0 new results")
    slower = next(one for one in outcome.verdicts if one.check == "slower")
    assert "median of 5 runs: 500, 500, 500, 500, 500" in slower.reason
    with chromium() as browser:
        browser.open(page.as_uri())
        title = browser.do("document.querySelector('h1').textContent")
        assert title == "Gate closed: 1 finding in 2 series"
        row = "[...document.querySelectorAll('tr.row')].find((e) => e.dataset.text.match('slower'))"
        browser.do(f"{row}.querySelector('.open').click()")
        shown = browser.do("document.querySelector('tr.detail:not([hidden]) .facts').textContent")
        assert slower.script in shown
        assert slower.log in shown
