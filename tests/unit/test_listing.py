"""`job list`: a user's runs with how they stand, the newest first."""

import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from hpcdl.jobs import JobSpec, Module
from hpcdl.jobs.listing import as_text, own_jobs
from hpcdl.jobs.submission import index, submit
from hpcdl.site import Site
from hpcdl.slurm import client, once
from tests.unit import slurm_output as said


@pytest.fixture
def site(three_generations: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    numbers = iter(range(7, 99))
    monkeypatch.setattr(client, "would_run", lambda _: None)
    monkeypatch.setattr(once, "submit", lambda *_, token: next(numbers))
    known = said.job(id=9, state="RUNNING", nodes="n1")
    monkeypatch.setattr(client, "queue", lambda: (known,))
    return replace(three_generations, paths=replace(three_generations.paths, work=tmp_path))


def test_runs_are_listed_by_what_slurm_or_their_files_say(site: Site) -> None:
    assert own_jobs(site, 5) == ()
    assert as_text(()) == "job  name  partition  state  age  directory"
    ended = submit(site, JobSpec("p100", name="first"), Module(()))
    (ended.folder / "exit_code").write_text("3\n")
    chain = submit(site, JobSpec("v100", name="second", chain=3), Module(()))
    removed = submit(site, JobSpec("v100", name="third"), Module(()))
    shutil.rmtree(removed.folder)
    for age, job_id in enumerate((10, 9, 8, 7)):
        os.utime(index(site) / str(job_id), (0, 1e9 - age), follow_symlinks=False)
    found = own_jobs(site, 5)
    assert [(one.job_id, one.name, one.partition, one.state) for one in found] == [
        (9, "second", "v100", "RUNNING"),
        (7, "first", "p100", "FAILED"),
    ]
    assert [one.folder for one in found] == [chain.folder, ended.folder]
    assert len(own_jobs(site, 1)) == 1
    assert "second" in as_text(found)
