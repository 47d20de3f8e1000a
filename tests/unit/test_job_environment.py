"""Submitting leaves a job with its record, or nothing; values of --env are for the owner alone."""

import os
import re
import signal
import subprocess
from dataclasses import replace

import pytest

from hpcdl.cli import main
from hpcdl.jobs import JobSpec, Module, environment, submission, sweep
from hpcdl.jobs.sweep import plan, request_of
from hpcdl.site import find_site_file, load_site
from hpcdl.slurm import client, once
from hpcdl.system.errors import BadInput
from tests.make import takes_every_job
from tests.strangers import STRANGER, as_root

SECRET = "hunter2 $HOME `id` 'quoted'"


@pytest.fixture
def site(tmp_path, monkeypatch):
    """A site whose Slurm takes every job and never says how it ended."""
    numbers = iter(range(7, 99))
    monkeypatch.setattr(once, "submit", lambda *_, token: next(numbers))
    takes_every_job(monkeypatch)
    monkeypatch.setattr(client, "queue", lambda **_: ())
    shipped = load_site(find_site_file("embedded"))
    return replace(shipped, paths=replace(shipped.paths, work=tmp_path / "work"))


def everything_else(folder):
    """The text of all files of a directory but those of values."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    return "".join(one.read_text() for one in files if not one.name.endswith(environment.NAME))


def test_a_value_is_in_one_file_for_its_owner_alone(site):
    spec = JobSpec("p100", environment={"API_KEY": SECRET}, chain=2)
    job = submission.submit(site, spec, Module(()))
    kept = job.folder / environment.NAME
    assert kept.stat().st_mode & 0o777 == 0o600
    assert "hunter2" in kept.read_text()
    assert "hunter2" not in everything_else(site.paths.work)
    shown = subprocess.run(
        ["bash", "-c", f'source {kept}; printf %s "$API_KEY"'],
        capture_output=True,
        text=True,
        check=True,
    )
    assert shown.stdout == SECRET


def test_arrays_of_a_sweep_keep_theirs(site):
    base = JobSpec("p100", environment={"API_KEY": SECRET, "LR": "0.5"})
    folder = sweep.sweep_directory(site, "s")

    def submit(base, *gpus):
        points = plan(site, base, {"gpus": gpus})
        modules = {"p100": Module(())}
        sweep.submit(site, folder, points, modules, None, request=request_of(base))

    submit(base, "1", "2")
    kept = sorted(folder.glob("*.environment"))
    assert [one.name for one in kept] == ["array-000.environment", "array-001.environment"]
    assert all(one.stat().st_mode & 0o777 == 0o600 for one in kept)
    assert "hunter2" not in everything_else(site.paths.work)
    submit(replace(base, environment={"API_KEY": "renewed", "LR": "0.5"}), "1", "2", "4")
    with pytest.raises(BadInput, match="other values of LR"):
        submit(replace(base, environment={"API_KEY": "renewed", "LR": "0.7"}), "1", "2", "4")


@as_root
def test_another_user_reads_no_value_and_plants_none(site):
    job = submission.submit(site, JobSpec("p100", environment={"API_KEY": SECRET}), Module(()))
    kept = job.folder / environment.NAME
    read = subprocess.run(["cat", kept], user=STRANGER, group="nogroup", capture_output=True)
    assert read.returncode != 0
    planted = kept.read_text().replace("hunter2", "planted")
    kept.unlink()
    kept.write_text(planted)
    os.chown(kept, 65534, 65534)
    text = job.script.read_text()
    lines = re.search(r"(?ms)^if \[\[ -O .*?^done\n", text)[0]
    done = subprocess.run(
        ["bash", "-c", "hpcdl_leave() { exit $1; }; " + lines],
        env={"PATH": "/bin"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 3, "a file of another user is not run: the value is missing"
    assert "API_KEY has no value" in done.stderr


def render(*words):
    return main(["job", "render", "--site", "embedded", "--no-module", *words])


def test_a_rendered_script_has_names_and_a_secret_on_the_command_line_is_told(capsys, monkeypatch):
    monkeypatch.setenv("WANDB_API_KEY", "hunter2")
    said = "--env WANDB_API_KEY` takes it from your environment"
    for words, told in (("LR=hunter2", ""), ("WANDB_API_KEY", ""), ("WANDB_API_KEY=hunter2", said)):
        assert render("--env", words) == 0
        out, err = capsys.readouterr()
        assert f"\nfor hpcdl_name in {words.partition('=')[0]}; do\n" in out
        assert "hunter2" not in out + err
        assert told in err
        assert bool(told) == bool(err)
    assert render("--env", "NOT_SET_ANYWHERE") == 2


def test_names_tell_secrets():
    secret = "API_KEY X_API_KEY HF_TOKEN AWS_SECRET_ACCESS_KEY DB_PASSWORD PGPASSWORD api_key"
    plain = "LR OMP_NUM_THREADS KEYBOARD MONKEY PATH BYPASS"
    found = filter(environment.looks_secret, f"{secret} {plain}".split())
    assert list(found) == secret.split()


@pytest.fixture
def own(three_generations, tmp_path):
    paths = replace(three_generations.paths, work=tmp_path / "work")
    return replace(three_generations, paths=paths)


@pytest.fixture
def cancelled(monkeypatch):
    """Jobs taken back; what is submitted gets the numbers 7, 8, ..."""
    gone = []
    numbers = iter(range(7, 99))
    takes_every_job(monkeypatch)
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
