"""Which jobs use which release: read from their scripts."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import pytest

from hpcdl.jobs.script import render_script
from hpcdl.jobs.spec import JobSpec, Module
from hpcdl.system.errors import MissingPrerequisite
from hpcdl.system.files import switch_link, write_json
from hpcdl.workflows import releases
from hpcdl.workflows.releases import Use, pinned_by_jobs, read_script
from tests.make.releases import make_release
from tests.make.sites import small_site
from tests.unit import slurm_output as said


@pytest.fixture
def site(tmp_path):
    site = small_site(tmp_path / "prefix")
    make_release(site, "a")
    make_release(site, "b")
    return site


def current_at(site, *events):
    """Leave a history of actions on releases, each on the first of a month."""
    rows = [
        {"action": action, "release": name, "at": f"2026-0{month}-01T00:00:00Z"}
        for action, name, month in events
    ]
    write_json(site.paths.prefix / "history.json", {"schema": 1, "events": rows})
    switch_link(site.paths.prefix / "current", f"releases/{events[-1][1]}")


def pinned(site, monkeypatch, *found):
    """Why releases are kept where jobs use these."""
    monkeypatch.setattr(releases, "uses", lambda _: found)
    return pinned_by_jobs(site)


def queued(monkeypatch, *jobs, script):
    """Let Slurm's queue have these jobs, with that script of each."""
    monkeypatch.setattr(releases.client, "sees_all_jobs", lambda: True)
    monkeypatch.setattr(releases.client, "queue", lambda: jobs)
    monkeypatch.setattr(releases.client, "batch_script", script)


@pytest.mark.parametrize("name", ["apps", "a b", "o'brien", "\udcff", "b\u2028\\c"])
def test_a_rendered_script_names_its_release(site, name):
    site = replace(site, paths=replace(site.paths, prefix=Path("/", name)))
    folder = site.paths.prefix / "releases" / "a" / "modules"
    module = Module(("tensorflow/2.21.0-cpu",), folder, "a")
    text = render_script(site, JobSpec("p100"), module).text
    assert read_script(site, text) == (("a",), ("tensorflow/2.21.0-cpu",))


@pytest.mark.parametrize(
    ("line", "loads"),
    [
        ("module load tensorflow", ("tensorflow",)),
        ("  module -q load gcc tensorflow/2.21.0-cpu  # mine", ("tensorflow/2.21.0-cpu",)),
        ("module purge; ml tensorflow && python x.py", ("tensorflow",)),
        ("ml load 'tensorflow'", ("tensorflow",)),
        ("module swap gcc tensorflow", ("tensorflow",)),
        ("# module load tensorflow", ()),
        ("echo module unload tensorflow", ()),
        ("module load tensorflow-gpu", ()),
    ],
)
def test_modules_loaded_by_name_are_found(site, line, loads):
    assert read_script(site, f"#!/bin/bash\n{line}\n") == ((), loads)


def test_a_prefix_behind_a_link_is_the_same_prefix(site, tmp_path):
    (tmp_path / "apps").symlink_to(site.paths.prefix)
    linked = replace(site.paths, prefix=tmp_path / "apps")
    text = f"{site.paths.prefix}/releases/a/stack/bin/python train.py"
    assert read_script(replace(site, paths=linked), text) == (("a",), ())


def test_every_job_that_names_a_release_is_a_reason_to_keep_it(site, monkeypatch):
    named = [Use(said.job(id=number), ("a",)) for number in (7, 9)]
    by_name = Use(said.job(id=11), (), ("tensorflow",))
    assert pinned(site, monkeypatch, *named, by_name) == {"a": "jobs 7, 9 will load it"}


def test_a_job_that_nobody_can_read_keeps_everything(site, monkeypatch):
    kept = pinned(site, monkeypatch, Use(said.job(id=7), (), known=False))
    assert set(kept) == {"a", "b"}
    assert "job 7 may use it" in kept["a"]


def running(number, started):
    return said.job(id=number, state="RUNNING", partition="p100", started=started)


def test_a_version_loaded_by_name_keeps_every_build_of_it(site, monkeypatch):
    make_release(site, "old", version="2.19.1")
    uses = [
        Use(said.job(id=number), (), (name,))
        for number, name in ((7, "tensorflow/2.19.1-cpu"), (8, "tensorflow/2.2"))
    ]
    assert pinned(site, monkeypatch, *uses) == {"old": "job 7 will load it"}


def test_what_was_current_since_a_job_started_stays_after_a_rollback(site, monkeypatch):
    make_release(site, "c")
    current_at(
        site, ("publish", "c", 1), ("publish", "a", 2), ("publish", "b", 3), ("rollback", "a", 4)
    )
    starts = {7: "2026-03-15T00:00:00", 8: "2026-05-01T00:00:00", 9: "Unknown"}
    seven, eight, nine = (Use(running(*one), (), ("tensorflow",)) for one in starts.items())
    kept = pinned(site, monkeypatch, seven, eight)
    assert kept == {"a": "jobs 7, 8 will load it", "b": "job 7 will load it"}
    assert set(pinned(site, monkeypatch, nine)) == {"a", "b", "c"}


def test_what_an_interactive_job_may_have_loaded_stays(site, monkeypatch):
    """In a shell of salloc a user loads any version; no script tells which."""
    make_release(site, "c")
    current_at(site, ("publish", "c", 1), ("publish", "a", 2), ("publish", "b", 3))
    one = said.job(id=7, state="RUNNING", submitted="2026-02-15T00:00:00")
    queued(monkeypatch, one, script=lambda _: "")
    assert set(pinned_by_jobs(site)) == {"a", "b", "c"}


def test_what_was_loaded_when_a_job_was_submitted_stays(site, monkeypatch):
    """`module load tensorflow; sbatch job.sh`: the job inherits it, and its script says nothing."""
    current_at(site, ("publish", "a", 2), ("publish", "b", 3))
    for submitted, wanted in (("2026-02-15T00:00:00", {"a", "b"}), ("2026-03-15T00:00:00", {"b"})):
        use = Use(said.job(id=7, submitted=submitted), ())
        assert set(pinned(site, monkeypatch, use)) == wanted


def test_every_running_task_of_an_array_keeps_what_it_loaded(site, monkeypatch):
    current_at(site, ("publish", "a", 2), ("publish", "b", 3), ("rollback", "a", 4))
    starts = {8: "2026-03-15T00:00:00", 6: "2026-05-01T00:00:00"}
    tasks = [running(*one)._replace(array_job=7) for one in starts.items()]
    script = Mock(side_effect=["", "module load tensorflow"])  # the first has just ended
    queued(monkeypatch, *tasks, script=script)
    assert pinned_by_jobs(site) == {"a": "jobs 6, 8 will load it", "b": "job 8 will load it"}
    asked = [call.args for call in script.call_args_list]
    assert asked == [(8,), (6,)], "by ids of tasks, for the array's own may be forgotten"


def test_nobody_s_need_is_known_where_slurm_shows_own_jobs_only(site, monkeypatch):
    monkeypatch.setattr(releases.client, "config", lambda: {"PrivateData": "jobs,usage"})
    monkeypatch.setattr(releases.client.os, "getuid", lambda: 65534)
    monkeypatch.setattr(releases.client.shutil, "which", lambda _: None)
    with pytest.raises(MissingPrerequisite, match="PrivateData=jobs") as refused:
        pinned_by_jobs(site)
    assert "AdminLevel=Operator" in str(refused.value.hint)


def test_no_job_s_script_holds_up_gc():
    """It reads everybody's: one of 64 kB took it 20 s, and one of 4 MB, Slurm's limit, a day."""
    code = "import hpcdl.workflows.releases as r; r._LOAD.findall('module' + ' -module' * 99999)"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
