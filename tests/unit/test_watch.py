"""What is said of a job: also of a chain, of a forgotten one, and while Slurm is away."""

import json
import signal
from pathlib import Path
from unittest.mock import Mock

import pytest

from hpcdl.jobs import watch
from hpcdl.jobs.submission import Submission
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


@pytest.mark.parametrize(("states", "told"), [
    (("FAILED", "RUNNING", "PENDING"), 2),
    (("TIMEOUT", "COMPLETED", "CANCELLED"), 2),
    (("PENDING", "PENDING", "PENDING"), 1),
    (("FAILED", "PENDING", "PENDING"), 2),
    (("FAILED", "FAILED", "CANCELLED"), 2),
    (("CANCELLED", "CANCELLED", "CANCELLED"), 1),
])  # fmt: skip
def test_of_a_chain_the_job_with_the_status_of_the_run_is_reported(tmp_path, known, states, told):
    known(dict(enumerate(states, 1)))
    assert watch.look(Submission(1, tmp_path, (1, 2, 3))).job_id == told


@pytest.mark.parametrize(("code", "state", "description", "status"), [
    ("0\n", "COMPLETED", "it ended well", 0),
    ("23\n", "FAILED", "it ended with exit code 23", 23),
    ("nonsense\n", "UNKNOWN", "Slurm does not know it", 1),
    (None, "UNKNOWN", "Slurm does not know it", 1),
])  # fmt: skip
def test_a_forgotten_job_ends_as_it_wrote(tmp_path, known, code, state, description, status):
    known({})
    if code is not None:
        (tmp_path / "exit_code").write_text(code)
    found = watch.look(Submission(7, tmp_path))
    assert (found.state, found.exit_code) == (state, status)
    assert description in found.description


def test_a_forgotten_job_without_an_exit_code_is_reported_by_its_result(tmp_path, known):
    known({})
    (tmp_path / "result.json").write_text(json.dumps({"outcome": {"status": "completed"}}))
    assert watch.look(Submission(7, tmp_path)).ok


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


@pytest.mark.parametrize(("reason", "told"), [
    ("Nodes required for job are DOWN, DRAINED or reserved for jobs in higher priority partitions",
     "nodes that it needs are down, drained or reserved"),
    ("ReqNodeNotAvail, May be reserved for other job",
     "a node that it needs is down, drained or reserved"),
    ("launch failed requeued held", "its last start failed and it is held"),
    ("Sunspots", "Sunspots"),
])  # fmt: skip
def test_reasons_are_told_in_words_as_squeue_writes_them(reason, told):
    assert watch.describe("PENDING", reason) == f"it waits: {told}"
