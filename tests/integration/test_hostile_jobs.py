"""Jobs of a second real user, whose names, comments and paths look like Slurm's own answers."""

import json
import multiprocessing
import os
import subprocess
import sys
from pathlib import Path

import pytest

from hpcdl.slurm import client, once
from hpcdl.system.errors import MissingPrerequisite
from hpcdl.workflows.releases import pinned_by_jobs
from tests.integration.conftest import HPCDL
from tests.strangers import STRANGER, as_root

pytestmark = [pytest.mark.cluster, as_root]


class Hostile:
    """Submits jobs as `nobody`, held so that they stay where they are."""

    def __init__(self, slurm, place):
        self.slurm, self.place, self.jobs = slurm, place, set[int]()

    def submit(self, *options, script="job.sh", argument=""):
        (self.place / script).write_text("#!/bin/sh\nsleep 60\n")
        done = subprocess.run(
            ["sbatch", "--parsable", "--hold", "--mem=10", *options, script, argument],
            cwd=self.place,
            env={**self.slurm.env, "HOME": "/"},
            user=STRANGER,
            group="nogroup",
            extra_groups=[],
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        )
        self.jobs.add(int(done.stdout))
        return int(done.stdout)


@pytest.fixture
def hostile(slurm, cluster_home, shared, monkeypatch):
    monkeypatch.setenv("SLURM_CONF", slurm.env["SLURM_CONF"])
    mode = cluster_home.stat().st_mode
    cluster_home.chmod(0o711)
    (shared / "his").mkdir(mode=0o755)
    found = Hostile(slurm, shared / "his")
    yield found
    slurm("scancel", *map(str, found.jobs), check=False)
    cluster_home.chmod(mode)


def test_what_a_stranger_calls_his_job_is_no_field_and_no_record(hostile):
    names = (
        "x JobId=999999 JobState=COMPLETED ExitCode=0:0",
        "x\nJobId=999998 JobState=COMPLETED",
        "999998|COMPLETED\n999998 0:0 0",
        "\x1b[2J",
    )
    ids = [hostile.submit("-J", name, f"--comment=JobId=999997 {name}") for name in names]
    found = {job.id: job for job in client.queue()}
    assert set(ids) <= set(found)
    assert max(found) < 999_997
    assert [found[job].name for job in ids] == list(names)
    assert {found[job].state for job in ids} == {"PENDING"}


def test_a_stranger_s_job_with_one_s_token_is_not_one_s_own(hostile):
    """Whoever lists the queue sees tokens; with one, his job would be taken for the submitted."""
    token = once.new_token()
    hostile.submit(script=f"{token}.sh", argument=token)
    assert once.by_token({token}) == {}
    shown = hostile.slurm(HPCDL, "job", "list", "--json", "--site", "embedded").stdout
    assert not hostile.jobs & {row["job_id"] for row in json.loads(shown)}


def test_whom_slurm_shows_own_jobs_only_removes_no_release(hostile, embedded_site):
    """Others' jobs may need it: with PrivateData=jobs, no answer is not "no jobs"."""
    conf = Path(hostile.slurm.env["SLURM_CONF"])
    before = conf.read_text()
    asking = multiprocessing.get_context("fork").Process(target=_exit_of_gc, args=[embedded_site])
    try:
        conf.write_text(before + "PrivateData=jobs\n")
        hostile.slurm("scontrol", "reconfigure")
        assert pinned_by_jobs(embedded_site) == {}, "root is shown all jobs: none needs one"
        asking.start()
        asking.join(60)
    finally:
        conf.write_text(before)
        hostile.slurm("scontrol", "reconfigure")
    assert asking.exitcode == MissingPrerequisite.exit_code


def _exit_of_gc(site):
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
    with pytest.raises(MissingPrerequisite, match="PrivateData=jobs"):
        pinned_by_jobs(site)
    sys.exit(MissingPrerequisite.exit_code)
