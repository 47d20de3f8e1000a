"""Attacks by a second real user on what hpcdl keeps: cache, home, history."""

import json
import os
import shlex
import shutil
import sqlite3
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from hpcdl import cli
from hpcdl.cli import main
from hpcdl.cluster import rootfs
from hpcdl.jobs import JobSpec, Module, watch
from hpcdl.jobs import sweep as sweeps
from hpcdl.jobs.interactive import Shell, notebook, run_shell
from hpcdl.jobs.script import _compiled_templates
from hpcdl.jobs.submission import find, index, release_of, settle, submit
from hpcdl.jobs.sweep import plan
from hpcdl.regress import history as history_module
from hpcdl.regress.ci import run_night
from hpcdl.regress.history import open_history
from hpcdl.regress.run_directory import is_held, last_page, new_run, sweep
from hpcdl.slurm import client, once
from hpcdl.stack import recipe
from hpcdl.stack.recipe import install, own_build
from hpcdl.stack.resolve import find_request
from hpcdl.system.errors import BadInput, MissingPrerequisite
from hpcdl.system.files import locked, umask, write_atomic
from hpcdl.system.resources import cache, cached, home
from hpcdl.system.run import CommandFailed
from hpcdl.train.data.dataset import require_room
from hpcdl.workflows.study.report import write_report
from tests.make.releases import plan_build
from tests.make.results import result
from tests.make.sites import small_site, takes_every_job
from tests.strangers import as_root, stranger
from tests.unit import slurm_output as said


@pytest.fixture
def site(shared):
    """A site whose work directory is a group's."""
    found = small_site(shared / "prefix")
    return replace(found, paths=replace(found.paths, work=shared / "work"))


@pytest.fixture
def cancelled(monkeypatch):
    """Jobs that are cancelled; what is submitted gets the number 7."""
    found = []
    monkeypatch.setattr(client, "cancel", found.extend)
    takes_every_job(monkeypatch)
    monkeypatch.setattr(once, "submit", lambda *_, token: 7)
    return found


@pytest.fixture
def open_cache(shared, monkeypatch):
    monkeypatch.setenv("HPCDL_CACHE", str(shared / "cache"))
    return shared / "cache"


@pytest.mark.parametrize("opened", ["cache", "cache/uv"])
def test_no_wheel_of_a_cache_that_others_may_write_to_is_installed(open_cache, opened):
    (open_cache / "uv").mkdir(parents=True)
    (open_cache.parent / opened).chmod(0o777)
    with pytest.raises(MissingPrerequisite, match=r"others may|not sticky"):
        install(Path(sys.executable), open_cache / "log", "shtab")


def test_no_python_of_the_current_directory_solves_a_stack(open_cache, monkeypatch):
    """`uv pip compile` runs the `.venv` there, or above it, where no Python is named."""
    (open_cache.parent / ".venv/bin").mkdir(parents=True)
    (open_cache.parent / ".venv/pyvenv.cfg").write_text("home = /usr/bin\nversion = 3.11.2\n")
    planted = open_cache.parent / ".venv/bin/python"
    planted.write_text(f'#!/bin/sh\ntouch {open_cache.parent}/owned\nexec {sys.executable} "$@"\n')
    planted.chmod(0o755)
    monkeypatch.delenv("VIRTUAL_ENV", raising=False)
    (open_cache.parent / "in").mkdir()
    monkeypatch.chdir(open_cache.parent / "in")
    with pytest.raises(CommandFailed):
        recipe._solved(["none"], (), recipe.running_interpreter(), "--offline")
    assert not (open_cache.parent / "owned").exists()


def test_a_lock_of_wheels_that_others_may_write_to_is_not_used(open_cache):
    """They would change the digests: the facts know no wheel that a site adds."""
    site, python = small_site(Path("/nowhere")), recipe.running_interpreter()
    wanted = recipe.recipe_of(site, find_request(site), ("cpu",))
    lock = recipe.lock_file(wanted, python)
    write_atomic(lock, "")
    assert recipe.lock_wheels(wanted, python, print) == lock
    lock.parent.chmod(0o777)
    with pytest.raises(MissingPrerequisite, match="others may rename"):
        plan_build(site)


def test_a_built_wheel_that_others_may_replace_is_not_used(open_cache):
    built = open_cache / "wheels/own/built.whl"
    built.parent.mkdir(parents=True)
    built.touch()
    assert own_build(built) == built
    built.parent.chmod(0o777)
    with pytest.raises(MissingPrerequisite, match="others may rename"):
        own_build(built)


def test_no_root_file_system_that_others_may_write_to_is_used(shared):
    """Root runs Slurm's daemons in it."""
    record = {"suite": "trixie", "version": "24.11.5"}
    (shared / "trixie").mkdir(mode=0o755)
    (shared / "trixie/hpcdl-root.json").write_text(json.dumps(record))
    assert rootfs.read(shared / "trixie") is not None
    (shared / "trixie").chmod(0o777)
    with pytest.raises(MissingPrerequisite, match="others may write"):
        rootfs.read(shared / "trixie")


@as_root
def test_without_a_cache_of_ones_own_all_is_made_anew(open_cache):
    stranger("mkdir -m 777 cache cache/templates cache/numbers", open_cache.parent)
    assert _compiled_templates() is None
    assert cached("numbers", [b"1"], lambda: 1) == cached("numbers", [b"1"], lambda: 2) - 1
    assert list((open_cache / "numbers").iterdir()) == []


@as_root
def test_a_planted_home_names_no_site(shared, monkeypatch, hpcdl):
    stranger("mkdir home; touch home/site.yaml", shared)
    monkeypatch.setenv("HPCDL_HOME", str(shared / "home"))
    assert "belongs to nobody" in hpcdl("site", "show", code=3).err


def test_whatever_the_umask_others_cannot_write_to_what_is_made(shared, monkeypatch):
    monkeypatch.setenv("HPCDL_HOME", str(shared / "home"))
    with umask(0):
        with locked(shared / "prefix/deep/.lock"):
            write_atomic(home("logs") / "deep/file", "")
        with open_history(home("history") / "site.sqlite"):
            pass
    made = list(shared.rglob("*"))
    assert len(made) > 8
    assert [path for path in made if path.stat().st_mode & 0o002] == []
    assert (shared / "home/history/site.sqlite").stat().st_mode & 0o777 == 0o600


@as_root
def test_a_reader_cannot_lock_a_history(shared):
    (shared / "history").mkdir(mode=0o755)
    path = shared / "history/site.sqlite"
    path.touch(mode=0o644)  # of an earlier hpcdl
    with open_history(path) as history:
        assert history.add([result()]) == 1
    stranger("test -x history; ! test -r history/site.sqlite", shared)


_READER = """
import sqlite3, sys
connection = sqlite3.connect(f"file:{sys.argv[1]}?mode=ro", uri=True)
connection.execute("BEGIN")
connection.execute("SELECT count(*) FROM results").fetchone()
print("reading", flush=True)
sys.stdin.read()
"""


@as_root
def test_no_journal_can_be_planted_beside_a_history(shared):
    with pytest.raises(MissingPrerequisite, match="others may write"), open_history(shared / "h"):
        pass


def test_an_import_says_soon_who_reads_the_history(tmp_path, monkeypatch):
    monkeypatch.setattr(history_module, "_WAIT_SECONDS", 0.3)
    path = tmp_path / "site.sqlite"
    with open_history(path) as history:
        history.add([result()])
    argv = [sys.executable, "-c", _READER, str(path)]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as reader:
        assert reader.stdout.readline() == b"reading\n"
        started = time.monotonic()
        told = pytest.raises(MissingPrerequisite, match=f"by pid {reader.pid}$")
        with told, open_history(path) as history:
            history.add([result(value=1.0)])
        assert time.monotonic() - started < 5
        reader.communicate()
    with sqlite3.connect(path) as connection:
        assert connection.execute("SELECT count(*) FROM results").fetchone() == (1,)


def test_a_cache_may_be_kept_elsewhere_by_a_link(tmp_path, open_cache):
    (tmp_path / "big").mkdir()
    open_cache.symlink_to(tmp_path / "big")
    assert cache("wheels") == open_cache / "wheels"


@as_root
def test_an_index_of_jobs_that_others_write_to_names_no_job_of_theirs(shared, site):
    """A group's work directory: whoever plants the next number would have what it does with it."""
    stranger(
        "mkdir -p work/jobs/by-id x; ln -s ../../../x work/jobs/by-id/7; "
        """echo '{"schema": 1, "job_id": 99, "chain": [99], "release": "x"}' > x/job.json""",
        shared,
    )
    with pytest.raises(BadInput, match="job 7 was submitted by nobody"):
        find(site, "7")
    assert find(site, str(shared / "x")).job_id == 99, "who names it means it"
    assert release_of(str(shared / "mine/job.sh")) is None
    assert release_of(str(shared / "x/job.sh")) == "x"
    shutil.copytree(shared / "x", shared / "mine")  # a job of this user's own, under a wrong number
    stranger("ln -s ../../../mine work/jobs/by-id/8", shared)
    with pytest.raises(BadInput, match="by-id/8 leads to job 99, not to 8"):
        find(site, "8")


@as_root
def test_nobody_keeps_others_from_submitting_by_a_job_s_number(shared, site, cancelled):
    """The next number is known; what nobody may replace there cost the job."""
    stranger(f"mkdir -p {index(site)}/7", shared)
    done = submit(site, JobSpec("p100", program=("true",)), Module(()))
    assert find(site, "7").folder == done.folder
    assert [one.folder for one, _ in watch._submissions(site)] == [done.folder]
    assert cancelled == []


@as_root
def test_a_planted_run_cancels_no_jobs(shared, site, cancelled, monkeypatch):
    """Whoever is of a work directory's group makes runs, and everybody sees tokens in the queue."""
    token = once.new_token()
    event = shlex.quote(json.dumps({"token": token, "time": 1.0, "state": "SUBMITTED", "job": 7}))
    runs = "work/checks/runs"
    stranger(
        f"mkdir -p {runs}/a; touch {runs}/a/lock; echo {event} > {runs}/a/events.jsonl", shared
    )
    record = said.job(id=7, state="RUNNING")
    monkeypatch.setattr(client, "job", lambda _: record)
    monkeypatch.setattr(once, "by_token", lambda tokens: {token: (7,)} if token in tokens else {})
    assert sweep(site) == cancelled == []
    for path in (shared / runs / "a", shared / runs / "a/lock"):
        os.chown(path, 0, 0)  # had root made them, the job would be its own
    assert sweep(site) == cancelled == [7]


@as_root
def test_a_planted_submission_takes_no_file_of_this_user_s(shared, site):
    """It looks as if a command was stopped at its first step: what that wrote would be removed."""
    (shared / "mine").mkdir()
    (shared / "mine/job.sh").write_text("thesis")
    place = shared / "work/jobs/unconfirmed"
    stranger(f"mkdir -p {place}; ln -s {shared}/mine {place}/{once.new_token()}", shared)
    assert settle(site) == ()
    assert (shared / "mine/job.sh").read_text() == "thesis"


@as_root
@pytest.mark.parametrize("command", ["mkdir -m 0777 planted", "ln -s mine planted"])
def test_nothing_is_submitted_from_a_stranger_s_directory(shared, site, command):
    """Who owns the directory of a script puts another in its place before Slurm reads it."""
    (shared / "mine").mkdir()
    stranger(command, shared)
    with pytest.raises(MissingPrerequisite, match="planted cannot be trusted: it belongs to nob"):
        submit(site, JobSpec("p100", job_dir=shared / "planted"), Module(()))
    assert not (shared / "planted/job.sh").exists()


@as_root
@pytest.mark.parametrize("command", ["mkdir -m 0777 planted", "ln -s mine planted"])
def test_no_records_are_written_into_a_stranger_s_directory(shared, command):
    (shared / "mine").mkdir()
    stranger(command, shared)
    with pytest.raises(MissingPrerequisite, match="planted cannot be trusted: it belongs to nob"):
        require_room(shared / "planted")


@as_root
def test_no_shell_begins_below_a_directory_of_a_stranger_with_my_name(shared, site, monkeypatch):
    """/scratch/$USER: while Slurm had no node he put it aside, and a script of his own there."""
    stranger("mkdir -m 0777 root", shared)
    monkeypatch.setattr(shutil, "which", lambda name: name)
    folder = shared / "root/work/jobs/shell-1"
    with pytest.raises(MissingPrerequisite, match="root cannot be trusted: it belongs to nobody"):
        run_shell(Shell(folder, (), (), {"shell.sh": b""}), terminal=False)
    assert not folder.exists()


@as_root
@pytest.mark.parametrize("planted", ["mkdir -m 0777 own; ln -s ../mine own/report", "mkdir own"])
def test_no_report_of_a_study_is_written_by_way_of_a_stranger_s_directory(shared, planted):
    """A link in WORK/studies led to files of this user's that were then replaced."""
    (shared / "mine").mkdir()
    stranger(planted, shared)
    with pytest.raises(MissingPrerequisite, match=r"own(/report)? cannot be trusted: it be"):
        write_report(None, shared / "own/report")
    assert list((shared / "mine").iterdir()) == []


def test_no_jupyterlab_begins_where_everybody_may_write(shared, tmp_path):
    """Its kernels are `python -m ipykernel_launcher` there: a module of a stranger's ran."""
    with pytest.raises(BadInput, match=r"everybody may write to .*, and what is there would run"):
        notebook(JobSpec("p100"), shared)
    assert str(tmp_path) in notebook(JobSpec("p100"), tmp_path).program


def test_whatever_the_umask_others_write_to_nothing_that_a_command_makes(tmp_path, monkeypatch):
    """A sweep's directory of logs was everybody's: a link in it leads Slurm to any file."""
    monkeypatch.setattr(cli, "_answer", lambda _: (tmp_path / "logs").mkdir() or 0)
    with umask(0):
        assert cli.main([]) == 0
        assert os.umask(0) == 0, "given back"
    assert not (tmp_path / "logs").stat().st_mode & 0o022


@pytest.mark.usefixtures("cancelled")
def test_a_group_writes_to_nothing_of_a_sweep(tmp_path):
    """Its logs were the group's under umask 002: a link there leads Slurm to any file."""
    site = small_site(tmp_path / "prefix")
    points = plan(site, JobSpec("p100", program=("x",)), {"lr": ["1", "2"]})
    with umask(0o002):
        sweeps.submit(site, tmp_path / "s", points, {"p100": Module(())}, None)
    made = [tmp_path / "s", *(path for path in (tmp_path / "s").rglob("*") if path.is_dir())]
    assert len(made) == 5, "logs, points and two of these"
    assert [path for path in made if path.stat().st_mode & 0o022] == []


@as_root
def test_nobody_keeps_a_run_s_lock(shared, site):
    """Who may read a lock can hold it: jobs of a killed run were never cancelled."""
    with new_run(site) as run:
        assert is_held(run.path / "lock")
        assert "held by root" in (run.path / "lock").read_text()
    assert not is_held(run.path / "lock")
    stranger(f"! flock -n {run.path}/lock true", shared)


@as_root
def test_a_planted_directory_of_reports_is_neither_written_nor_mailed(shared, site):
    """A link in it led `check night` to any file of whom it runs as, and a mail to its content."""
    (shared / "thesis").write_text("mine")
    stranger(
        "mkdir -p work/checks/reports && cd work/checks/reports && "
        "for name in nightly.json nightly.html; do ln -s ../../../thesis $name; done",
        shared,
    )
    assert last_page(site) is None
    with pytest.raises(MissingPrerequisite, match="reports cannot be trusted: it belongs to nob"):
        run_night(site, weekly=False)
    assert (shared / "thesis").read_text() == "mine"


@as_root
def test_a_planted_sweep_is_not_continued(shared):
    """Its manifest says where links are made, and by which jobs the others wait."""
    row = {"id": "a", "token": "x", "directory": str(shared / "target")}
    manifest = shlex.quote(json.dumps({"schema": 2, "points": [row]}))
    stranger(f"mkdir -m 0777 planted; echo {manifest} > planted/sweep.json", shared)
    with pytest.raises(MissingPrerequisite, match="planted cannot be trusted: it belongs to nob"):
        sweeps.submit(small_site(shared / "prefix"), shared / "planted", (), {}, None)
    assert not (shared / "target").exists()


@as_root
def test_a_planted_job_directory_cancels_no_jobs(shared, cancelled, capsys):
    stranger("""mkdir x; echo '{"schema": 1, "job_id": 7, "chain": [7, 8]}' > x/job.json""", shared)
    assert main(["job", "cancel", str(shared / "x"), "--site", "embedded"]) == 3
    assert "x cannot be trusted: it belongs to nobody" in capsys.readouterr().err
    assert cancelled == []
