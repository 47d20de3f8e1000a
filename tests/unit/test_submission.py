"""Submitting leaves a job with its record, or nothing: no file of others is lost."""

import os
import signal
from dataclasses import replace

import pytest

from hpcdl.jobs import JobSpec, Module, submission
from hpcdl.slurm import client, once
from hpcdl.system.errors import BadInput


@pytest.fixture
def own(three_generations, tmp_path):
    paths = replace(three_generations.paths, work=tmp_path / "work")
    return replace(three_generations, paths=paths)


@pytest.fixture
def cancelled(monkeypatch):
    """Jobs taken back; what is submitted gets the numbers 7, 8, ..."""
    gone = []
    numbers = iter(range(7, 99))
    monkeypatch.setattr(client, "would_run", lambda _: None)
    monkeypatch.setattr(once, "submit", lambda *_, token: next(numbers))
    monkeypatch.setattr(once, "by_token", lambda _: {})
    monkeypatch.setattr(client, "cancel", gone.extend)
    return gone


def test_a_job_sh_of_others_is_neither_written_over_nor_removed(own, tmp_path, cancelled):
    mine = tmp_path / "job.sh"
    mine.write_text("echo mine\n")
    with pytest.raises(BadInput, match=r"job\.sh already"):
        submission.submit(own, JobSpec("p100", job_dir=tmp_path), Module(()))
    assert mine.read_text() == "echo mine\n"


@pytest.mark.parametrize("sig", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_a_signal_before_the_record_takes_the_job_back(own, tmp_path, cancelled, monkeypatch, sig):
    """Between Slurm's answer and the record."""
    queued = []

    def submit(_, options, *, token):
        queued.append(7 + len(queued))
        os.kill(os.getpid(), sig)
        return queued[-1]

    monkeypatch.setattr(once, "submit", submit)
    with pytest.raises(KeyboardInterrupt):
        submission.submit(own, JobSpec("p100", job_dir=tmp_path / "j", chain=3), Module(()))
    assert queued == cancelled == [7]
    assert not (tmp_path / "j").exists()
