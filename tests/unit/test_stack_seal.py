"""The content seal: whatever is changed in a release is found, and nothing else is."""

import os
from pathlib import Path

import pytest

from hpcdl.stack.publish import publish
from hpcdl.stack.release import current_id, read_release
from hpcdl.stack.tree import CHECKED_FILE, CONTENT_FILE, check_integrity, look, record_release
from hpcdl.stack.verify import check_content
from hpcdl.system.errors import CheckFailed
from tests.make.releases import make_release, passing, silent


@pytest.fixture
def release(site):
    """A release with a module, a library, a link and an empty directory in it."""
    made = make_release(site, "a")
    packages = made.prefix / "lib" / "package"
    packages.mkdir(parents=True)
    (packages / "code.py").write_text("value = 1\n")
    (packages / "big.so").write_bytes(b"x" * 3_000_000)
    (packages / "link.so").symlink_to("big.so")
    (made.prefix / "empty").mkdir()
    for path in made.prefix.rglob("*"):
        if not path.is_symlink():
            path.chmod(0o755 if path.is_dir() else 0o644)
    return record_release(made)


def rewrite(root):
    """The same size and the same time of change, as a careful program would leave them."""
    path = root / "stack/lib/package/code.py"
    before = path.stat()
    path.write_text("value = 2\n")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    return "changed: stack/lib/package/code.py"


def flip(root):
    with (root / "stack/lib/package/big.so").open("r+b") as file:
        file.seek(2_000_000)
        file.write(b"y")
    return "changed: stack/lib/package/big.so"


def mode(root):
    (root / "stack/lib/package/code.py").chmod(0o755)
    return "changed: stack/lib/package/code.py"


def relink(root):
    link = root / "stack/lib/package/link.so"
    link.unlink()
    link.symlink_to("code.py")
    return "changed: stack/lib/package/link.so"


def replace_by_file(root):
    link = root / "stack/lib/package/link.so"
    link.unlink()
    link.write_bytes(b"x" * 3_000_000)
    return "changed: stack/lib/package/link.so"


def add(root):
    (root / "stack/lib/tabulate.py").write_text("")
    return "added: stack/lib/tabulate.py"


def remove(root):
    (root / "stack/empty").rmdir()
    return "missing: stack/empty"


def as_nobody(act):
    """What a function says in a process of another user; its interpreter is open already."""
    reader, writer = os.pipe()
    if os.fork() == 0:
        os.setgid(65534)
        os.setuid(65534)
        try:
            said = act()
        except BaseException as fault:
            said = repr(fault)
        os.write(writer, said.encode())
        os._exit(0)
    os.close(writer)
    os.wait()
    with os.fdopen(reader) as answer:
        return answer.read()


CHANGES = [rewrite, flip, mode, relink, replace_by_file, add, remove]


def test_a_release_as_built_passes(release):
    found = check_integrity(release)
    assert (found.ok, found.full) == (True, True)
    assert found.size > 3_000_000
    assert not check_integrity(release, full=False).full


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("full", [True, False])
def test_every_change_is_found(release, change, full):
    wanted = change(release.root)
    found = check_integrity(release, full=full)
    assert found.faults == (wanted,)
    assert found.full


@pytest.mark.parametrize("change", CHANGES)
def test_what_was_changed_is_not_published(site, release, change):
    """Also where its evidence is stored: only somebody who changed it back may go on."""
    publish(site, "a", passing, say=silent)
    wanted = change(release.root)
    with pytest.raises(CheckFailed) as caught:
        publish(site, "a", passing, say=silent)
    assert wanted in caught.value.details[0]
    assert "stack build" in caught.value.hint


def test_what_publishes_write_is_no_change(site, release):
    publish(site, "a", passing, say=silent)
    assert current_id(site) == "a"
    assert check_integrity(read_release(site, "a")).ok


def test_a_touch_costs_one_full_check_and_no_refusal(release):
    os.utime(release.root / "stack/lib/package/code.py")
    assert check_integrity(release, full=False).full
    assert not check_integrity(release, full=False).full


def test_the_seal_itself_cannot_be_exchanged(site, release):
    (release.root / "stack/lib/package/code.py").write_text("value = 3\n")
    record = (release.root / "release.json").read_bytes()
    record_release(release)
    (release.root / "release.json").write_bytes(record)
    with pytest.raises(CheckFailed, match="names another seal"):
        publish(site, "a", passing, say=silent)
    (release.root / CONTENT_FILE).unlink()
    with pytest.raises(CheckFailed, match="no seal"):
        check_integrity(read_release(site, "a"))


def test_a_note_of_another_release_is_not_believed(site, release):
    other = make_release(site, "b")
    (release.root / CHECKED_FILE).write_bytes((other.root / CHECKED_FILE).read_bytes())
    assert check_integrity(release, full=False).full


def test_links_into_a_store_stand_for_what_they_lead_to(site, tmp_path):
    """As in a view of Spack: files and whole directories."""
    store = tmp_path / "store" / "numpy-abc"
    (store / "lib").mkdir(parents=True)
    (store / "lib" / "core.so").write_text("one")
    (store / "readme").write_text("text")
    made = make_release(site, "spack")
    (made.prefix / "lib").symlink_to(store / "lib")
    (made.prefix / "readme").symlink_to(store / "readme")
    sealed = record_release(made, [tmp_path / "store"])
    assert check_integrity(sealed).ok
    (store / "lib" / "core.so").write_text("two")
    assert check_integrity(sealed, full=False).faults == ("changed: stack/lib/core.so",)
    (store / "readme").unlink()
    assert "changed: stack/readme" in check_integrity(sealed).faults


def test_a_link_in_a_store_to_a_directory_above_it_is_followed_once(site, tmp_path):
    include = tmp_path / "store" / "openmpi-abc" / "include"
    include.mkdir(parents=True)
    (include / "mpi.h").write_text("one")
    (include / "me").symlink_to(".")
    made = make_release(site, "spack")
    (made.prefix / "include").symlink_to(include)
    sealed = record_release(made, [tmp_path / "store"])
    found = {name for name in look(sealed) if "include" in name}
    assert found == {f"stack/include{one}" for one in ("", "/me", "/mpi.h")}
    (include / "mpi.h").write_text("two")
    assert check_integrity(sealed).faults == ("changed: stack/include/mpi.h",)


def test_the_gate_says_what_changed(release):
    assert check_content(release).ok
    said = add(release.root)
    check = check_content(release)
    assert not check.ok
    assert said in check.detail


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_a_reader_can_check_and_writes_nothing(release):
    for directory in release.root.parents:
        if directory.stat().st_uid == 0 and directory != Path("/"):
            directory.chmod(directory.stat().st_mode | 0o055)
    noted = (release.root / CHECKED_FILE).stat().st_mtime_ns
    assert as_nobody(lambda: check_integrity(release).describe()).endswith("GB hashed)")
    assert (release.root / CHECKED_FILE).stat().st_mtime_ns == noted
