"""Everybody reads a release, nobody else writes it; otherwise it is not published."""

import os
from dataclasses import replace
from types import SimpleNamespace

import pytest

from hpcdl.stack import publish as publish_module
from hpcdl.stack.publish import publish
from hpcdl.stack.release import current_id, read_release
from hpcdl.stack.tree import Entry, build_slot, open_to_readers, record_release, require_safe_modes
from hpcdl.system.errors import CheckFailed
from hpcdl.system.files import umask
from tests.make.releases import make_release, passing, silent
from tests.make.sites import small_site


@pytest.fixture
def site(tmp_path):
    site = small_site(tmp_path)
    make_release(site, "a")
    return site


def refused(site, name):
    """How a publish of that release is refused."""
    with pytest.raises(CheckFailed) as caught:
        publish(site, name, passing, say=silent)
    return caught.value


@pytest.mark.parametrize(
    ("name", "mode", "complaint"),
    [
        ("data", 0o666, "others than its owner may write"),
        ("data", 0o620, "may write"),
        ("data", 0o600, "cannot read"),
        ("data", 0o4755, "set-user-ID"),
        ("bin", 0o744, "cannot read"),
    ],
)
def test_wrong_permissions_stop_the_publish(site, name, mode, complaint):
    path = site.paths.prefix / "releases/a/stack" / name
    if name == "data":
        path.touch()
    path.chmod(mode)
    fault = refused(site, "a")
    assert complaint in fault.details[0]
    assert "chmod" in fault.hint
    assert current_id(site) is None


def test_many_faults_are_counted_not_listed(site):
    for number in range(40):
        path = site.paths.prefix / f"releases/a/stack/data{number}"
        path.touch()
        path.chmod(0o666)
    assert refused(site, "a").details[-1] == "... and 30 more"


def test_what_root_wrote_is_no_fault_and_what_a_stranger_wrote_is(site, monkeypatch):
    """Root publishes and collects below a prefix that another account owns."""
    release, owner = read_release(site, "a"), 4711
    monkeypatch.setattr(os, "lstat", lambda _: SimpleNamespace(st_uid=owner, st_mode=0o40755))

    def entries(user):
        return {"stack": Entry("stack", SimpleNamespace(st_uid=user, st_mode=0o40755))}

    require_safe_modes(release, entries(0))
    with pytest.raises(CheckFailed) as caught:
        require_safe_modes(release, entries(owner + 1))
    assert "belongs to user 4712, the release to 4711" in caught.value.details[0]


@pytest.mark.parametrize("name", ["stack/data", "release.json", "proof.json"])
def test_a_tree_with_a_file_that_others_may_write_is_never_sealed(site, name):
    release = read_release(site, "a")
    (release.root / name).touch()
    (release.root / name).chmod(0o666)
    with pytest.raises(CheckFailed, match="wrong permissions"):
        record_release(release)


@pytest.fixture
def public(site):
    """A site for everybody, all of whose directories can be entered but one."""
    return replace(site, private=False)


@pytest.fixture
def reachable(monkeypatch, tmp_path):
    """Let only what lies below the test's own directory count as closed."""
    real = publish_module.closed_above
    monkeypatch.setattr(
        publish_module,
        "closed_above",
        lambda path: [
            one for one in real(path) if one.is_relative_to(tmp_path) and one != tmp_path
        ],
    )


@pytest.mark.usefixtures("reachable")
def test_a_release_that_users_cannot_reach_is_refused(public):
    releases = public.paths.prefix / "releases"
    publish(public, "a", passing, say=silent)
    make_release(public, "b")
    releases.chmod(0o750)
    fault = refused(public, "b")
    assert "users could not use b" in fault.message
    assert f"users cannot enter {releases}" in fault.details[0]
    assert "private: true" in fault.hint
    assert current_id(public) == "a"


@pytest.mark.usefixtures("reachable")
@pytest.mark.parametrize("closed", ["home", "home/python/bin/python3.11", "home/python/lib"])
def test_a_release_whose_python_users_cannot_run_is_refused(public, tmp_path, closed):
    python = tmp_path / "home/python/bin/python3.11"
    python.parent.mkdir(parents=True)
    python.write_text("#!/bin/sh\n")
    (tmp_path / "home/python/lib/python3.11").mkdir(parents=True)
    for path in (tmp_path / "home").rglob("*"):
        path.chmod(0o755)
    made = make_release(public, "b")
    made.python.unlink()
    made.python.symlink_to(python)
    record_release(made)
    (tmp_path / closed).chmod(0o700)
    assert "its Python" in refused(public, "b").details[0]
    said = []
    publish(replace(public, private=True), "b", passing, say=said.append)
    assert any("its Python" in line for line in said)
    (tmp_path / closed).chmod(0o755)
    publish(public, "b", passing, say=silent)


@pytest.mark.parametrize("mask", [0o000, 0o022, 0o027, 0o077])
def test_the_mask_of_whoever_publishes_plays_no_part(tmp_path, mask):
    with umask(mask):
        site = small_site(tmp_path / "prefix")
        with build_slot(site, silent):
            made = make_release(site, "m")
        (made.prefix / "lib").mkdir()
        (made.prefix / "lib" / "code.py").touch()
        open_to_readers(made.root)
        record_release(made)
        publish(site, "m", passing, say=silent)
    for path in site.paths.prefix.rglob("*"):
        if not path.is_symlink() and path.suffix != ".lock":
            assert path.stat().st_mode & 0o066 == 0o044, path
