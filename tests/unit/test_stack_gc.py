"""gc removes what nothing needs, and only that."""

from unittest.mock import Mock

import pytest

from hpcdl.stack.gc import collect
from hpcdl.stack.publish import publish, rollback
from hpcdl.stack.release import release_ids
from hpcdl.system.errors import CheckFailed
from hpcdl.system.files import locked
from tests.make.releases import make_current, make_release, passing, silent
from tests.make.sites import small_site


@pytest.fixture
def site(tmp_path):
    """a to e are published, `loose` was only built."""
    site = small_site(tmp_path)
    for name in "abcde":
        make_current(site, name, version=f"2.{ord(name)}.0")
    make_release(site, "loose")
    return site


def test_the_last_published_stay_and_older_ones_go_also_from_the_modules(site):
    shown = site.paths.prefix / "current/modules/tensorflow"
    assert (shown / "2.97.0-cpu.lua").exists()
    assert set(collect(site, dict, keep=2).removed) == {"a", "b", "c"}
    assert release_ids(site) == ["d", "e", "loose"]
    assert {path.name for path in shown.glob("2*.lua")} == {"2.100.0-cpu.lua", "2.101.0-cpu.lua"}


def test_what_was_rolled_back_and_what_was_published_twice_count_once(site):
    publish(site, "d", passing, say=silent)
    publish(site, "e", passing, say=silent)
    rollback(site, "c")
    assert {"c", "d", "e"} <= set(collect(site, dict, keep=3).kept)


def test_each_that_stays_has_its_reason(site):
    make_current(site, "kepler", version="2.14.1", stack="other", partitions=("k80",))
    (site.paths.prefix / "releases/b/release.json").write_text("{}")
    kept = collect(site, lambda: {"a": "job 7 names it"}, keep=1).kept
    assert (kept["a"], kept["kepler"]) == ("job 7 names it", "is current")
    assert "its record is broken" in kept["b"]
    assert "p100" in kept["e"]
    rollback(site, "a")
    assert collect(site, dict, keep=1).kept["a"] == "is current"


def test_unpublished_ones_go_only_when_asked(site):
    assert "loose" not in collect(site, dict).removed
    assert "loose" in collect(site, dict, unpublished=True).removed


def test_a_dry_run_changes_nothing(site):
    def files():
        return {path for path in site.paths.prefix.rglob("*") if ".lock" not in path.name}

    before = files()
    assert set(collect(site, dict, keep=1, dry_run=True).removed) == {"a", "b", "c", "d"}
    assert files() == before


def test_a_damaged_history_costs_nobody_a_release(site):
    """Which of them a rollback may want is not known then."""
    before = release_ids(site)
    (site.paths.prefix / "history.json").write_text("{")
    with pytest.raises(CheckFailed, match="damaged"):
        collect(site, dict, unpublished=True)
    assert release_ids(site) == before


def test_what_killed_builds_left_goes_unless_a_build_is_at_work(site):
    releases = site.paths.prefix / "releases"
    half = {"tensorflow-2.21.0-cpu-1f0c9a3e", "my-kepler-2.14.1-cuda11.8-sm35-sm37-0123abcd"}
    others = {"lost+found", "old-20260101", "tensorflow-2.21.0-cpu-1f0c9a3e.bak"}
    for name in half | others:
        (releases / name).mkdir()
    with locked(releases / ".build.lock"):
        assert collect(site, dict).unfinished == ()
    assert set(collect(site, dict).unfinished) == half
    assert {path.name for path in releases.iterdir()} & (half | others) == others


def test_a_queue_that_cannot_be_asked_stops_it(site):
    with pytest.raises(RuntimeError):
        collect(site, Mock(side_effect=RuntimeError("Slurm is away")), keep=1)
    assert len(release_ids(site)) == 6


def test_without_spack_releases_go_and_its_packages_are_told_to_be_left(site, monkeypatch):
    (site.paths.prefix / "spack/store/.spack-db").mkdir(parents=True)
    for name in ("HPCDL_SPACK_ROOT", "SPACK_ROOT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PATH", "/nonexistent")
    found = collect(site, dict, keep=1)
    assert set(found.removed) == {"a", "b", "c", "d"}
    assert found.note.startswith("Spack's packages were left alone: Spack is not here")


def test_a_lock_that_nobody_can_read_keeps_every_package(site):
    (site.paths.prefix / "spack/store/.spack-db").mkdir(parents=True)
    (site.paths.prefix / "releases/e/spack").mkdir()
    (site.paths.prefix / "releases/e/spack/spack.lock").write_text('{"roots": [')
    assert "releases/e/spack/spack.lock cannot be read" in collect(site, dict, dry_run=True).note
