"""`hpcdl clean`: what is old or too much goes, what is needed stays."""

import fcntl
import json
import os
import re
import time
from dataclasses import replace
from unittest.mock import Mock

import pytest

from hpcdl.site import load_site
from hpcdl.site.sections import CLEANED, Limits
from hpcdl.slurm import client
from hpcdl.system.errors import BadInput, MissingPrerequisite
from hpcdl.system.files import locked
from hpcdl.system.resources import cache, home
from hpcdl.workflows import clean as clean_module
from hpcdl.workflows.clean import KINDS, clean
from tests.make.sites import small_site
from tests.strangers import as_root, stranger
from tests.unit.slurm_output import job

DAY = 86400


def made(path, days, size=10):
    """A file, or a directory with one in it, that was changed so many days ago."""
    file = path / "file" if not path.suffix else path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(b"x" * size)
    for one in {file, path}:
        os.utime(one, (time.time() - days * DAY,) * 2)
    return path


@pytest.fixture
def site(tmp_path, monkeypatch):
    monkeypatch.setattr(client, "queue", lambda: ())
    site = small_site(tmp_path / "prefix")
    paths = replace(site.paths, work=tmp_path / "work")
    (tmp_path / "prefix").mkdir()
    return replace(site, paths=paths)


def gone(items):
    return {item.path for item in items if not item.kept}


def kept(items):
    return {item.path.name: item.kept for item in items if item.kept}


def run(site, number, days):
    return made(site.paths.work / f"checks/runs/2026010{number}-000000Z-ab1{number}", days)


def test_the_old_goes_and_the_young_stays(site):
    old = [
        run(site, 1, 91),
        made(home("logs") / "stack/old.log", 31),
        made(home("failures") / "old.sh", 31),
        made(cache("wheels") / "old", 91),
    ]
    young = [
        run(site, 2, 89),
        made(home("logs") / "stack/young.log", 29),
        made(cache("wheels") / "young", 89),
        made(site.paths.prefix / "history.json", 900),
        made(site.paths.work / "checks/runs/my-own", 900),
    ]
    assert gone(clean(site, dry_run=True)) == set(old)
    assert all(path.exists() for path in [*old, *young])
    assert gone(clean(site)) == set(old)
    assert clean(site) == []
    assert [path.exists() for path in [*old, *young]] == [False] * len(old) + [True] * len(young)


def test_the_site_file_has_the_figures(site, tmp_path):
    text, file = site.source.read_text(), tmp_path / "site.yaml"
    file.write_text(text + "clean: {lgos: {days: -1}}\n")
    with pytest.raises(BadInput) as caught:
        load_site(file)
    assert {"lgos", "logs"} <= set(re.findall(r"\w+", caught.value.render()))
    file.write_text(text + "clean: {logs: {days: 5, gb: 0.00000002}, cache: {days: 7}}\n")
    site = replace(site, clean=load_site(file).clean)
    logs = [made(home("logs") / f"{days}.log", days) for days in (6, 3, 2, 1)]
    wheels = [made(cache("wheels") / name, days) for name, days in (("old", 8), ("young", 6))]
    made(home("failures") / "a.sh", 29)
    assert gone(clean(site, dry_run=True)) == {logs[0], logs[1], wheels[0]}
    for days, gb in ((2.5, 1), (9, 25e-9)):
        limited = replace(site, clean={"logs": Limits(days, gb)})
        assert gone(clean(limited, ["logs"], dry_run=True)) == {logs[0], logs[1]}
    assert tuple(kind.name for kind in KINDS) == CLEANED


def test_a_run_that_is_going_on_the_latest_and_one_with_jobs_left_stay(site):
    running, left, latest, over = (run(site, number, 200) for number in (1, 2, 3, 4))
    (latest.parent.parent / "latest").symlink_to(f"runs/{latest.name}")
    event = {"job": 7, "name": "c", "directory": str(left), "state": "RUNNING"}
    (left / "events.jsonl").write_text(json.dumps(event) + "\n")
    (over / "events.jsonl").write_text(json.dumps({**event, "state": "COMPLETED"}) + "\n")
    for path in (left, over):
        made(path, 200)
    with (running / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        made(running, 200)
        told = clean(site, ["check-runs"])
    assert gone(told) == {over}
    assert kept(told) == {
        running.name: "it runs",
        latest.name: "it is the latest run",
        left.name: "job 7 may still run",
    }
    assert (over.exists(), running.exists()) == (False, True)


def test_links_to_queued_jobs_stay_and_all_of_them_where_slurm_is_away(site, monkeypatch):
    index = site.paths.work / "jobs/by-id"
    index.mkdir(parents=True)
    for number in ("1", "2"):
        (index / number).symlink_to("../gone")
        os.utime(index / number, (0, 0), follow_symlinks=False)

    away = Mock(side_effect=MissingPrerequisite("Slurm does not answer"))
    monkeypatch.setattr(client, "queue", away)
    assert gone(clean(site, ["job-index"])) == set()
    monkeypatch.setattr(client, "queue", lambda: (job(id=2, state="PENDING"),))
    told = clean(site, ["job-index"])
    assert (gone(told), kept(told)) == ({index / "1"}, {"2": "the job has not ended"})


def test_nothing_is_taken_from_a_build(site):
    old = made(cache("wheels") / "old", 400)
    (site.paths.prefix / "releases").mkdir()
    for lock in (cache("wheels") / ".lock", site.paths.prefix / "releases/.build.lock"):
        with locked(lock):
            (item,) = clean(site, ["cache"])
            assert f"pid {os.getpid()}" in item.kept
    assert gone(clean(site, ["cache"])) == {old}
    fresh = made(cache("wheels") / "fresh", 0)
    assert gone(clean(replace(site, clean={"cache": Limits(0, 0)}), ["cache"])) == set(), (
        "in use within the last hour"
    )
    assert fresh.exists()


@as_root
def test_a_link_in_a_shared_work_directory_leads_to_no_files_of_root(site, tmp_path):
    thesis = made(tmp_path / "root/thesis", 900)
    (site.paths.work / "checks").mkdir(parents=True)
    (site.paths.work / "checks/runs").symlink_to(tmp_path / "root")
    assert clean(site, ["check-runs"]) == []
    (tmp_path / "root/20260101-000000Z-ab12").symlink_to(thesis)
    assert clean(replace(site, clean={"check-runs": Limits(0)}), ["check-runs"]) == []
    assert thesis.exists()
    os.chown(thesis, 65534, -1)
    thesis.rename(tmp_path / "root/20260102-000000Z-ab12")
    assert clean(replace(site, clean={"check-runs": Limits(0)}), ["check-runs"]) == []


@as_root
def test_no_link_of_a_stranger_stops_it(site, shared):
    """In a group's work directory anybody may have made these."""
    paths = replace(site.paths, work=shared / "work")
    stranger(
        "mkdir -pm 777 work/checks work/jobs/by-id; chmod 777 work/checks; mkdir -m 777 "
        "work/checks/runs; ln -s latest work/checks/latest; ln -s x work/jobs/by-id/²",
        shared,
    )
    old = made(shared / "work/checks/runs/20260101-000000Z-ab12", 91)
    assert gone(clean(replace(site, paths=paths))) == {old}


def test_the_command_names_what_would_go(site, hpcdl):
    made(home("logs") / "old.log", 31, 2_000_000)
    said = hpcdl("clean", "--dry-run", "--site", "embedded", "logs").out
    assert "old.log" in said
    assert "1 would go, 2.0 MB" in said


@as_root
def test_what_was_put_in_the_place_of_an_old_run_stays(site, shared, monkeypatch):
    """The owner of a group's work directory turns `runs` to another one while root cleans."""
    site = replace(site, paths=replace(site.paths, work=shared / "work"))
    stranger("mkdir -pm 0777 work/checks/runs; chmod 0777 work/checks", shared)
    old = run(site, 1, 91)
    precious = made(shared / "precious" / old.name, 1)
    remove = clean_module._remove

    def later(item):
        stranger(f"cd work/checks && mv runs away && ln -s {shared}/precious runs", shared)
        remove(item)

    monkeypatch.setattr(clean_module, "_remove", later)
    assert gone(clean(site, ["check-runs"])) == {old}
    assert (precious / "file").exists()
