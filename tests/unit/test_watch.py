"""What is said of a job while it runs and after it ended: also of a chain or a forgotten one."""

import signal
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import pytest

from hpcdl.jobs import watch
from hpcdl.jobs.submission import Submission
from hpcdl.jobs.watch import Snapshot, advise, as_text, describe, report_of
from hpcdl.slurm import client
from hpcdl.system.errors import Stopped
from tests.unit import slurm_output as said


def record(job_id, state):
    nodes = "" if state in {"PENDING", "CANCELLED"} else "n1"
    return said.job(id=job_id, state=state, exit_code=int(state == "FAILED"), nodes=nodes)


@pytest.fixture
def known(monkeypatch):
    """Slurm knows jobs in these states, and no others."""

    def know(states):
        jobs = {job_id: record(job_id, state) for job_id, state in states.items()}
        monkeypatch.setattr(client, "job", jobs.get)

    return know


@pytest.mark.parametrize(
    ("states", "told"),
    [
        (("FAILED", "RUNNING", "PENDING"), 2),
        (("TIMEOUT", "COMPLETED", "CANCELLED"), 2),
        (("PENDING", "PENDING", "PENDING"), 1),
        (("FAILED", "PENDING", "PENDING"), 2),
        (("FAILED", "FAILED", "CANCELLED"), 2),
        (("CANCELLED", "CANCELLED", "CANCELLED"), 1),
    ],
)
def test_of_a_chain_the_job_with_the_status_of_the_run_is_reported(tmp_path, known, states, told):
    known(dict(enumerate(states, 1)))
    assert watch.look(Submission(1, tmp_path, (1, 2, 3))).job_id == told


@pytest.mark.parametrize(
    ("code", "state", "description", "status"),
    [
        ("0\n", "COMPLETED", "it ended well", 0),
        ("23\n", "FAILED", "it ended with exit code 23", 23),
        ("nonsense\n", "UNKNOWN", "Slurm has no record of it; without accounting", 1),
        (None, "UNKNOWN", "Slurm has no record of it; without accounting", 1),
    ],
)
def test_a_forgotten_job_ends_as_it_wrote(tmp_path, known, code, state, description, status):
    known({})
    if code is not None:
        (tmp_path / "exit_code").write_text(code)
    found = watch.look(Submission(7, tmp_path))
    assert (found.state, found.exit_code) == (state, status)
    assert description in found.description


def test_a_cancelled_job_has_who_did_it_or_who_knows(tmp_path, monkeypatch):
    ended = record(7, "CANCELLED")
    jobs = {7: ended, 8: ended._replace(id=8, cancelled_by=0)}
    monkeypatch.setattr(client, "job", jobs.get)
    said = [watch.look(Submission(job, tmp_path)).description for job in (7, 8)]
    assert said == [
        "it was cancelled; by whom, only accounting (slurmdbd) and slurmctld's log say",
        "it was cancelled by root",
    ]


def test_a_controller_that_restarts_does_not_end_the_watching(tmp_path, monkeypatch):
    away = client.SlurmAway("Slurm does not answer")
    # It is back before it knows the job again: how long it was away does not count.
    answers = [away, record(7, "RUNNING"), away, away, None, record(7, "COMPLETED")]
    monkeypatch.setattr(client, "job", Mock(side_effect=answers))
    monkeypatch.setattr(watch, "POLL_SECONDS", 0.0)
    monkeypatch.setattr(watch, "_UNKNOWN_SECONDS", 0.0)
    assert [one.state for one in watch.follow(Submission(7, tmp_path))] == ["RUNNING", "COMPLETED"]


def test_a_controller_that_stays_away_does(tmp_path, monkeypatch):
    away = client.SlurmAway("Slurm does not answer")
    monkeypatch.setattr(client, "job", Mock(side_effect=away))
    monkeypatch.setattr(watch, "POLL_SECONDS", 0.01)
    monkeypatch.setattr(watch, "_AWAY_SECONDS", 0.05)
    with pytest.raises(client.SlurmAway):
        list(watch.follow(Submission(7, tmp_path)))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_the_watching_and_says_that_the_job_continues(number):
    one = Submission(7, Path("/nowhere"))
    with pytest.raises(Stopped, match="stopped watching; job 7 continues"), watch.watched(one):
        signal.raise_signal(number)


@pytest.mark.parametrize(
    ("reason", "told"),
    [
        (
            "Nodes required for job are DOWN, DRAINED or reserved for jobs "
            "in higher priority partitions",
            "nodes that it needs are down, drained or reserved",
        ),
        (
            "ReqNodeNotAvail, May be reserved for other job",
            "a node that it needs is down, drained or reserved",
        ),
        ("launch failed requeued held", "its last start failed and it is held"),
        ("Sunspots", "Sunspots"),
    ],
)
def test_reasons_are_told_in_words_as_squeue_writes_them(reason, told):
    assert watch.describe("PENDING", reason) == f"it waits: {told}"


DONE = Snapshot(7, "COMPLETED", "it is done", 0, "p100-[01-02]", 1, None)
RESULT = {
    "layout": {"ranks": 4},
    "samples": {"seconds": [0.5, 0.5, 0.5]},
    "summary": {
        "images_per_second": 1234.5,
        "images_per_second_p05": 1200.0,
        "images_per_second_p95": 1250.0,
        "phases": {"input": 0.41, "compute": 0.5, "communication": 0.05, "other": 0.04},
    },
}


def test_an_input_bound_job_gets_the_advice_to_ask_for_more_cpus():
    report = report_of(DONE, RESULT)
    assert report["advice"].startswith("input-bound: 41% of each step waits for data; ask for more")
    text = as_text(report)
    assert "1,234.5 images/s (1,200 to 1,250), 4 ranks" in text
    assert ", requeued once" in text


def test_communication_is_named_when_it_is_the_worst_and_a_job_that_computes_gets_no_advice():
    assert advise({"input": 0.1, "communication": 0.3}).startswith("communication-bound: 30%")
    assert advise({"input": 0.02, "compute": 0.9, "communication": 0.08}) == ""


def test_a_job_without_a_result_is_reported_by_its_state():
    report = report_of(DONE, None)
    assert report["images_per_second"] is None
    assert as_text(report) == "job 7: it is done, requeued once"


def test_of_a_job_that_failed_its_log_is_named():
    failed = replace(DONE, state="FAILED", exit_code=1)
    assert "`hpcdl job log 7`" in as_text(report_of(failed, RESULT))
    assert "job log" not in as_text(report_of(replace(failed, state="RUNNING"), None))


def test_loss_and_scores_are_said():
    result = {**RESULT, "summary": {"loss": 0.01, "metrics": {"accuracy": 0.9512}}}
    assert "  loss 0.01, accuracy 0.9512" in as_text(report_of(DONE, result))


@pytest.mark.parametrize("said", ["139: its program crashed (SIGSEGV)", "3", "7"])
def test_a_failure_is_named(said):
    code = int(said.partition(":")[0])
    assert describe("FAILED", code=code) == f"it failed with exit code {said}"
