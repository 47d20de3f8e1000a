"""Everybody reads a release, nobody else writes it; otherwise it is not published."""

import os
from pathlib import Path

import pytest

from hpcdl.site import Site
from hpcdl.stack.modes import closed_above, mode_faults
from hpcdl.stack.publish import publish
from hpcdl.stack.release import current_id
from hpcdl.system.errors import CheckFailed
from tests.small_release import make_release, passing, silent, small_site


@pytest.fixture
def site(tmp_path: Path) -> Site:
    site = small_site(tmp_path)
    make_release(site, "a")
    return site


@pytest.mark.parametrize(
    ("mode", "complaint"),
    [(0o666, "others than its owner may write"), (0o620, "may write"), (0o600, "cannot read"),
     (0o4755, "set-user-ID")],
)  # fmt: skip
def test_a_file_with_wrong_permissions_stops_the_publish(
    site: Site, mode: int, complaint: str
) -> None:
    path = site.paths.prefix / "releases/a/stack/data"
    path.touch()
    path.chmod(mode)
    with pytest.raises(CheckFailed) as caught:
        publish(site, "a", passing, say=silent)
    assert complaint in caught.value.details[0]
    assert "chmod" in caught.value.hint
    assert current_id(site) is None


def test_a_folder_that_users_cannot_enter_stops_it_too(site: Site) -> None:
    (site.paths.prefix / "releases/a/stack/bin").chmod(0o744)
    with pytest.raises(CheckFailed):
        publish(site, "a", passing, say=silent)


def test_many_faults_are_counted_not_listed(site: Site) -> None:
    for number in range(40):
        path = site.paths.prefix / f"releases/a/stack/data{number}"
        path.touch()
        path.chmod(0o666)
    with pytest.raises(CheckFailed) as caught:
        publish(site, "a", passing, say=silent)
    assert caught.value.details[-1] == "... and 30 more"


def test_a_published_release_keeps_the_rule(site: Site) -> None:
    publish(site, "a", passing, say=silent)
    assert list(mode_faults(site.paths.prefix / "releases" / "a")) == []


def test_closed_folders_above_are_named(tmp_path: Path) -> None:
    inner = tmp_path / "open" / "closed" / "inner"
    inner.mkdir(parents=True)
    inner.parent.chmod(0o700)
    assert closed_above(inner)[-1] == inner.parent


def test_what_root_wrote_is_no_fault_and_what_a_stranger_wrote_is(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Root publishes and collects below a prefix that another account owns."""
    root = site.paths.prefix / "releases" / "a"
    (root / "release.json").unlink()
    real, owner = os.lstat, 4711

    def owned_by(user: int) -> None:
        def lstat(path: str | Path) -> os.stat_result:
            status = real(path)
            uid = user if str(path) == str(root / "stack") else owner
            return os.stat_result([*status[:4], uid, *status[5:]])

        monkeypatch.setattr(os, "lstat", lstat)

    owned_by(0)
    assert list(mode_faults(root)) == []
    owned_by(owner + 1)
    assert "belongs to user 4712, the release to 4711" in next(mode_faults(root))


def test_a_strict_umask_closes_nothing_that_users_need(site: Site) -> None:
    before = os.umask(0o077)
    try:
        publish(site, "a", passing, say=silent)
    finally:
        os.umask(before)
    for path in ("etc", "etc/site.yaml", "releases/a/modules/tensorflow", "current/modules"):
        assert (site.paths.prefix / path).stat().st_mode & 0o055 >= 0o044, path
    assert closed_above(site.paths.prefix / "etc/site.yaml") == closed_above(
        site.paths.prefix / "x"
    )
