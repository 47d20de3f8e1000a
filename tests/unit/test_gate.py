"""The gate's jobs: an outage of Slurm's is survived, what is left behind or not tried is named."""

import dataclasses
from pathlib import Path
from unittest.mock import Mock

import pytest

from hpcdl.jobs.submission import Submission
from hpcdl.jobs.watch import Snapshot
from hpcdl.site import load_site
from hpcdl.system.errors import MissingPrerequisite
from hpcdl.workflows import gate
from tests.small_release import make_release, small_site

JOB = Submission(7, Path("/nonexistent"))
AWAY = MissingPrerequisite("Slurm does not answer")


def ended(state="COMPLETED"):
    return Snapshot(7, state, state.lower(), 0, "p100-01", 0, None)


@pytest.fixture
def told():
    return []


@pytest.fixture
def look(monkeypatch):
    """What a look at a job gives: an outcome, or one after the other."""
    monkeypatch.setattr(gate, "_POLL_SECONDS", 0.0)
    monkeypatch.setattr(gate, "look", asked := Mock())
    return asked


def test_a_short_outage_is_reported_once_and_waited_for(told, look):
    look.side_effect = [AWAY, AWAY, ended("RUNNING"), AWAY, ended()]
    assert gate._wait([JOB], 0, told.append)[7].ok
    assert told == ["Slurm does not answer: waiting for it"] * 2


def test_a_long_outage_ends_the_gate(told, look, monkeypatch):
    monkeypatch.setattr(gate, "_SILENT_SECONDS", 0.05)
    look.side_effect = AWAY
    with pytest.raises(MissingPrerequisite, match="does not answer"):
        gate._wait([JOB], 0, told.append)


def test_jobs_that_cannot_be_cancelled_are_named(told, look):
    look.side_effect = AWAY
    gate._cancel([JOB], told.append)
    assert told == ["note: the gate's jobs may still be queued (Slurm does not answer): scancel 7"]


def test_a_mixed_partition_that_no_job_can_try_is_said_in_the_result(told, tmp_path, monkeypatch):
    mixed = load_site(Path(__file__).parents[1] / "golden" / "mixed.yaml")
    site = dataclasses.replace(mixed, paths=small_site(tmp_path).paths)
    made = make_release(site, "r", needs={"gpus": ["P100"]}, partitions=("untyped",))
    monkeypatch.setattr(gate, "_require_slurm", lambda: None)
    monkeypatch.setattr(gate, "check_files", lambda *_: [])
    proof = gate.JobGate(told.append, ("untyped",))(site, made)
    assert not proof.passed
    (said,) = (one.describe() for one in proof.checks if not one.ok)
    lack = "no job was started: the release has device code for none of its GPUs, A40, T4"
    assert said == f"untyped: job: {lack}"
