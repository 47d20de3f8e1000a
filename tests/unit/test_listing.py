"""`job list`: a user's runs with how they stand, the newest first."""

import os
import shutil
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import pytest

from hpcdl.cli import main
from hpcdl.jobs import JobSpec, Module, sweep, watch
from hpcdl.jobs.manifest import read_manifest
from hpcdl.jobs.submission import Submission, index, submit
from hpcdl.jobs.watch import list_text, own_jobs
from hpcdl.slurm import client, once
from tests.make.sites import takes_every_job
from tests.strangers import as_root
from tests.unit import slurm_output as said


@pytest.fixture
def site(three_generations, tmp_path, monkeypatch):
    numbers = iter(range(7, 99))
    takes_every_job(monkeypatch)
    monkeypatch.setattr(client, "own_jobs", frozenset)
    monkeypatch.setattr(once, "submit", lambda *_, token: next(numbers))
    monkeypatch.setattr(client, "queue", lambda **_: (said.job(id=9, state="RUNNING", nodes="n1"),))
    return replace(three_generations, paths=replace(three_generations.paths, work=tmp_path))


def test_runs_are_listed_by_what_slurm_or_their_files_say(site):
    assert own_jobs(site, 5) == ()
    ended = submit(site, JobSpec("p100", name="first"), Module(()))
    (ended.folder / "exit_code").write_text("3\n")
    chain = submit(site, JobSpec("v100", name="second", chain=3), Module(()))
    removed = submit(site, JobSpec("v100", name="third"), Module(()))
    shutil.rmtree(removed.folder)
    for age, job_id in enumerate((10, 9, 8, 7)):
        os.utime(index(site) / str(job_id), (0, 1e9 - age), follow_symlinks=False)
    found = own_jobs(site, 5)
    assert [(one.job_id, one.name, one.partition, one.state, one.folder) for one in found] == [
        (9, "second", "v100", "RUNNING", chain.folder),
        (7, "first", "p100", "FAILED", ended.folder),
    ]
    assert len(own_jobs(site, 1)) == 1
    assert "second" in list_text(found)


def test_a_cancelled_job_is_listed_with_who_did_it(site, monkeypatch):
    known = [said.job(id=number, state="CANCELLED") for number in (7, 8)]
    monkeypatch.setattr(client, "queue", lambda **_: known)
    root = said.job(id=7, state="CANCELLED", cancelled_by=0)
    monkeypatch.setattr(client, "accounted", lambda jobs: {7: root} if jobs == [7, 8] else 0)
    for _ in known:
        submit(site, JobSpec("p100"), Module(()))
    states = [line.split()[3:6] for line in list_text(own_jobs(site, 5)).splitlines()[1:]]
    assert sorted(states) == [["CANCELLED", "by", "?"], ["CANCELLED", "by", "root"]]


def swept(site, name):
    """A sweep of one array: jobs 7, 8... in the order of the calls."""
    rates = {"lr": ["0", "1", "2", "3"]}
    points = sweep.plan(site, JobSpec("p100", name=name, program=("true",)), rates)
    folder = sweep.sweep_directory(site, name)
    sweep.submit(site, folder, points, {"p100": Module(())}, None)
    return folder


def ended(folder, *codes):
    """The first tasks of a sweep have ended with these exit codes."""
    for row, code in zip(read_manifest(folder).rows.values(), codes, strict=False):
        Path(row.directory).mkdir(parents=True, exist_ok=True)
        Path(row.directory, "exit_code").write_text(code)


def test_an_array_is_listed_by_its_tasks(site, monkeypatch):
    first, second = swept(site, "first"), swept(site, "second")
    ended(first, "0", "1", "0", "0")
    ended(second, "0")
    running = said.job(id=30, array_job=8, array_tasks="1", state="RUNNING")
    pending = said.job(id=8, array_job=8, array_tasks="2-3%1", state="PENDING")
    monkeypatch.setattr(client, "queue", lambda **_: (running, pending))
    found = {one.name: one for one in own_jobs(site, 5)}
    assert found["second"].folder == second
    assert {(one.job_id, one.state, one.description) for one in found.values()} == {
        (7, "FAILED", "4 tasks: 3 completed, 1 failed"),
        (8, "RUNNING", "4 tasks: 1 completed, 1 running, 2 pending"),
    }
    assert len(own_jobs(site, 1)) == 1
    assert [one.state for one in sweep.run_statuses(first, None)].count("done") == 3


def test_an_array_that_nobody_knows_of_is_unconfirmed(site, monkeypatch):
    monkeypatch.setattr(once, "submit", Mock(side_effect=once.unconfirmed()))
    monkeypatch.setattr(once, "by_token", lambda tokens: {})
    with pytest.raises(once.Unconfirmed):
        swept(site, "mute")
    assert [(one.job_id, one.state) for one in own_jobs(site, 5)] == [(None, "UNCONFIRMED")]
    monkeypatch.setattr(once, "by_token", lambda tokens: dict.fromkeys(tokens, (12,)))
    assert [one.job_id for one in own_jobs(site, 5)] == [12]


@as_root
def test_what_others_link_in_the_index_costs_nothing(site, monkeypatch):
    """Each of 100,000 links was read, and Slurm's answers sought for it."""
    run = submit(site, JobSpec("p100"), Module(()))
    for number in range(1000, 1100):
        (index(site) / str(number)).symlink_to(site.paths.work / "theirs")
        os.chown(index(site) / str(number), 65534, 65534, follow_symlinks=False)
    sought = Mock(side_effect=lambda _, path: Submission(7, run.folder))
    monkeypatch.setattr(watch, "find", sought)
    assert [one.folder for one in own_jobs(site, 5)] == [run.folder]
    assert sought.call_count == 1


@as_root
def test_sweeps_of_others_and_broken_ones_are_left_out(site):
    """In a group's work directory each is told of his own."""
    for name in ("stranger", "broken", "mine"):
        swept(site, name)
    os.chown(site.paths.work / "sweeps/stranger", 65534, 65534)
    (site.paths.work / "sweeps/broken/sweep.json").write_text("{")
    assert [one.name for one in own_jobs(site, 5)] == ["mine"]


def test_an_array_of_another_cluster_is_neither_listed_nor_cancelled(site, tmp_path, monkeypatch):
    """Two embedded clusters share the work directory: both count their jobs from 1."""
    swept(site, "of-the-other")
    active = said.job(id=7, array_job=7, array_tasks="0-3", state="RUNNING")
    monkeypatch.setattr(client, "queue", lambda **_: (active,))
    assert [one.job_id for one in own_jobs(site, 5)] == [7]
    monkeypatch.setattr("hpcdl.cli.job.the_site", lambda _: site)
    embedded(tmp_path, monkeypatch)
    assert own_jobs(site, 5) == ()
    assert main(["job", "cancel", "7"]) == 2
    point = sweep.plan(site, JobSpec("p100", name="of-the-other"), {"lr": ["0"]})
    folder = sweep.sweep_directory(site, "of-the-other")
    assert [one.state for one in sweep.run_statuses(folder, point)] == ["missing"]


def embedded(tmp_path, monkeypatch):
    """From here on an embedded cluster is asked."""
    (tmp_path / "c/etc").mkdir(parents=True)
    (tmp_path / "c/.hpcdl-cluster").touch()
    monkeypatch.setenv("SLURM_CONF", f"{tmp_path}/c/etc/slurm.conf")


@pytest.mark.parametrize("command", ["watch", "report", "log -f", "cancel"])
def test_a_job_of_another_cluster_is_not_asked_about(site, tmp_path, monkeypatch, capsys, command):
    """Here another job has that number."""
    other = submit(site, JobSpec("p100"), Module(()))
    monkeypatch.setattr(client, "job", lambda id_: said.job(id=id_, state="RUNNING"))
    monkeypatch.setattr("hpcdl.cli.job.the_site", lambda _: site)
    embedded(tmp_path, monkeypatch)
    assert main(["job", *command.split(), str(other.folder)]) == 2
    assert "belongs to another cluster" in capsys.readouterr().err
    assert main(["job", "log", str(other.folder)]) == 0


def test_a_submission_on_its_way_to_another_cluster_stays_its(site, tmp_path, monkeypatch):
    monkeypatch.setattr(once, "submit", Mock(side_effect=once.unconfirmed()))
    monkeypatch.setattr(once, "by_token", lambda tokens: {})
    with pytest.raises(once.Unconfirmed):
        submit(site, JobSpec("p100", job_dir=tmp_path / "job"), Module(()))
    assert [one.state for one in own_jobs(site, 5)] == ["UNCONFIRMED"]
    os.utime(tmp_path / "job/job.json", (0, 0))
    with monkeypatch.context() as there:
        embedded(tmp_path, there)
        assert own_jobs(site, 5) == ()
    assert (tmp_path / "job/job.json").exists()
    assert [one.state for one in own_jobs(site, 5)] == ["NOT QUEUED"]


@pytest.mark.parametrize("which", ["7", "7_1"])
def test_an_array_is_no_job_of_its_own_and_says_what_it_is(site, monkeypatch, hpcdl, which):
    folder = swept(site, "rates")
    monkeypatch.setattr("hpcdl.cli.job.the_site", lambda _: site)
    for command in ("watch", "log", "report"):
        said = hpcdl("job", command, which, code=2).err
        assert f"job {which} is of the array of a sweep or study in {folder}" in said
        assert "`hpcdl job cancel 7` ends all of it" in said


def test_an_array_is_cancelled_by_its_number(site, monkeypatch, capsys):
    swept(site, "one")
    cancelled = []
    monkeypatch.setattr(client, "cancel", cancelled.extend)
    monkeypatch.setattr(client, "queue", lambda **_: [])
    monkeypatch.setattr("hpcdl.cli.job.the_site", lambda _: site)
    assert main(["job", "cancel", "7", "8"]) == 2
    assert (
        "there is no job 8 submitted by hpcdl\n  nothing was cancelled" in capsys.readouterr().err
    )
    assert main(["job", "cancel", "7", "7"]) == 0
    assert cancelled == [7]
