"""Files are whole or absent; locks free themselves; a full disk is one clear line.

That a write that is killed leaves the old file or the new one: test_drills.py.
"""

import errno
import getpass
import json
import os
import resource
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import closing
from pathlib import Path

import pytest

from hpcdl.regress.exchange import Incoming
from hpcdl.regress.run_directory import json_lines
from hpcdl.results.records import RESULT, VERDICTS
from hpcdl.system.errors import BadInput, MissingPrerequisite
from hpcdl.system.files import (
    LockBusy,
    clear_leftovers,
    current_umask,
    last_text,
    locked,
    shared_lock,
    switch_link,
    umask,
    write_atomic,
    write_json,
)
from tests.strangers import as_root, stranger

HOLDER = """
import sys, time
from pathlib import Path
from hpcdl.system.files import locked
with locked(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(60)
"""


def names(directory):
    return [entry.name for entry in directory.iterdir()]


def test_a_write_makes_folders_and_sets_the_mode_whatever_the_umask(tmp_path):
    file = tmp_path / "a" / "b" / "f.sh"
    with umask(0o077):
        write_atomic(file, b"a\xffb".decode(errors="surrogateescape"), mode=0o755)
    assert (file.read_bytes(), file.stat().st_mode & 0o777) == (b"a\xffb", 0o755)
    assert names(file.parent) == ["f.sh"]


def test_what_killed_writes_left_is_cleared_and_nothing_else(tmp_path):
    kept = [tmp_path / name for name in ("f[1].json", ".f[1].json.bak", ".f1.json.abcdefgh")]
    for file in kept:
        file.write_text("kept")
    handle, left = tempfile.mkstemp(prefix=".f[1].json.", dir=tmp_path)
    os.close(handle)
    clear_leftovers(tmp_path / "f[1].json")
    assert not Path(left).exists()
    assert all(file.exists() for file in kept)


def full(*_):
    raise OSError(errno.ENOSPC, "No space left on device")


def test_a_failed_write_leaves_the_old_content_and_no_litter(tmp_path, monkeypatch):
    file = tmp_path / "f"
    write_atomic(file, "old")
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(MissingPrerequisite, match="no space left on the file system") as caught:
        write_atomic(file, "new")
    assert "nothing was changed" in caught.value.hint
    assert (file.read_text(), names(tmp_path)) == ("old", ["f"])


@pytest.mark.parametrize(
    ("path", "why"),
    [
        ("file/x", "a part of the path is a file"),
        ("folder", "it is a directory"),
        ("x" * 300, "the name is too long"),
        ("/proc/nosuch/x", "cannot write"),
    ],
)
def test_what_stands_in_the_way_is_named(tmp_path, path, why):
    (tmp_path / "file").write_text("")
    (tmp_path / "folder").mkdir()
    with pytest.raises(MissingPrerequisite, match=why):
        write_atomic(tmp_path / path, "x")


def test_json_takes_any_text_that_linux_has(tmp_path):
    value = {"argument": b"a\xff".decode(errors="surrogateescape"), "umlaut": "ü"}
    write_json(tmp_path / "f.json", value)
    assert json.loads((tmp_path / "f.json").read_text()) == value


def test_a_link_is_switched_by_one_rename(tmp_path):
    link = tmp_path / "deep" / "current"
    for target in ("r1", "r2"):
        switch_link(link, target)
        assert link.readlink() == Path(target)
    assert names(link.parent) == ["current"]


def test_a_link_never_replaces_a_folder(tmp_path):
    (tmp_path / "current" / "kept").mkdir(parents=True)
    with pytest.raises(MissingPrerequisite, match="it is a directory"):
        switch_link(tmp_path / "current", "r1")
    assert (tmp_path / "current" / "kept").is_dir()
    assert names(tmp_path) == ["current"]


def test_a_second_holder_is_told_who_the_first_is_and_a_dead_one_holds_nothing(tmp_path):
    argv = [sys.executable, "-c", HOLDER, tmp_path / "lock"]
    process = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "held\n"
    said = f"held by {getpass.getuser()}, pid {process.pid} on "
    with pytest.raises(LockBusy, match=said), locked(tmp_path / "lock", wait_seconds=0.1):
        pass
    process.kill()
    process.wait()
    with locked(tmp_path / "lock", wait_seconds=1):
        assert f"pid {os.getpid()} on " in (tmp_path / "lock").read_text()


def test_a_full_disk_does_not_keep_a_lock_from_being_taken(tmp_path, monkeypatch):
    """Who frees space takes one first; the holder's name in it is for people only."""
    monkeypatch.setattr(os, "pwrite", full)
    with locked(tmp_path / "lock"):
        pass


def test_nobody_but_its_owner_can_open_a_lock(tmp_path):
    (tmp_path / "old").touch(mode=0o644)
    for name in ("old", "new"):
        with pytest.raises(ValueError, match="x"), locked(tmp_path / name):
            raise ValueError("x")
        with locked(tmp_path / name, wait_seconds=0.1):  # free after a failure
            assert (tmp_path / name).stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    "make",
    [Path.symlink_to, Path.hardlink_to, lambda lock, _: os.mkfifo(lock)],
    ids=["link", "hard link", "pipe"],
)
def test_what_was_put_in_a_lock_s_place_is_not_written_to(tmp_path, make):
    thesis, lock = tmp_path / "thesis", tmp_path / "lock"
    thesis.write_text("work of years")
    make(lock, thesis)
    with pytest.raises(MissingPrerequisite), locked(lock):
        pass
    assert thesis.read_text() == "work of years"


def test_a_lock_that_was_removed_with_its_directory_holds_nobody(tmp_path):
    """Who waited for it must not hold a file that nobody else will ever find."""
    lock, waiting = tmp_path / "cluster/lock", threading.Event()

    def hold_next():
        waiting.set()
        with locked(lock), pytest.raises(LockBusy), locked(lock, wait_seconds=0.1):
            pass
        done.append(True)

    done = []
    with locked(lock):
        other = threading.Thread(target=hold_next)
        other.start()
        waiting.wait()
        time.sleep(0.2)
        lock.unlink()
        lock.parent.rmdir()
    other.join(10)
    assert done == [True]


@as_root
def test_a_reader_cannot_keep_an_admin_waiting(shared):
    """`flock PREFIX/.publish.lock` by whoever may read the prefix stopped even a rollback."""
    (shared / "prefix").mkdir(mode=0o755)
    with shared_lock(shared / "prefix/.publish.lock"):
        pass
    stranger("flock -n prefix/.publish.lock true 2>&1 | grep 'Permission denied'", shared)


@as_root
def test_a_lock_that_a_stranger_made_first_is_refused(shared):
    stranger("touch lock; chmod 666 lock", shared)
    with pytest.raises(MissingPrerequisite), locked(shared / "lock"):
        pass


@as_root
def test_root_and_the_owner_of_a_prefix_share_its_locks(shared):
    stranger("mkdir prefix", shared)
    with locked(shared / "prefix/.lock"):
        pass
    stranger("flock -n prefix/.lock true", shared)


@as_root
def test_no_file_of_root_s_is_given_away_as_a_lock(shared):
    """A user moves what root made in his directory: root gave it to him, to lock it."""
    stranger("mkdir prefix", shared)
    secret = shared / "prefix/secret"
    secret.write_text("hush")
    secret.chmod(0o600)
    stranger("mv prefix/secret prefix/.lock", shared)
    with locked(shared / "prefix/.lock"):
        stranger("! cat prefix/.lock", shared)
    assert (shared / "prefix/.lock").stat().st_uid == 0


def test_a_shared_lock_s_folders_are_everybody_s_whatever_the_umask(tmp_path):
    with umask(0o077):
        with shared_lock(tmp_path / "apps" / "hpcdl" / ".lock"):
            (tmp_path / "apps" / "file").touch()
        assert current_umask() == 0o077
    for name, mode in (("apps", 0o755), ("apps/hpcdl", 0o755), ("apps/file", 0o644)):
        assert (tmp_path / name).stat().st_mode & 0o777 == mode


# Files that anybody wrote are read in bounded memory, and refused at once where they are none.

HUGE = 2_000_000_000
MEMORY = 100_000_000
IMPORT = """
import sys, time; from pathlib import Path
from hpcdl.regress.exchange import Incoming
from hpcdl.system.errors import BadInput
begin = time.process_time()
try: list(Incoming(Path(sys.argv[1])))
except BadInput as fault: print(fault.message, *fault.details)
seconds = time.process_time() - begin
print(seconds, Path('/proc/self/status').read_text().partition('VmHWM:')[2].split()[0])
"""


def huge(path, begin=b"", fill=b""):
    """A file of 2 GB, nearly all of it a hole, which reads as zeros on one line."""
    with path.open("wb") as file:
        file.write(begin + fill)
        file.truncate(HUGE)
    return path


@pytest.mark.parametrize("begin", [b"", b"{\n", b'{"run": "', b"job_completion_time|name\n"])
def test_an_import_of_one_line_of_2_gb_is_refused_in_a_moment(tmp_path, begin):
    """A process of its own, whose memory is measured; Python itself takes some of it."""
    file = huge(tmp_path / "results", begin, b"x" * 5_000_000)
    done = subprocess.run([sys.executable, "-c", IMPORT, file], capture_output=True, text=True)
    said, figures = done.stdout.strip().splitlines()
    seconds, kilobytes = figures.split()
    assert "longer than" in said or "larger than" in said
    assert float(seconds) < 1
    assert int(kilobytes) * 1024 < MEMORY


def test_files_of_others_are_asked_for_their_size_first(tmp_path):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    begin = time.monotonic()
    for kind in (RESULT, VERDICTS):
        file = huge(tmp_path / kind.name, b'{"schema": 2, "run": "')
        assert kind.find(tmp_path) is None
    assert json_lines(file) == []
    assert len(last_text(file, 1000)) == 1000
    assert time.monotonic() - begin < 5
    assert (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024 < MEMORY


def test_what_would_block_or_never_end_is_not_read(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", Path("/dev/zero"), tmp_path):
        assert last_text(path) == ""
    with pytest.raises(BadInput, match="no regular file"):
        list(Incoming(tmp_path / "pipe"))


@pytest.mark.parametrize(
    ("made", "said"),
    [
        ("VIEW sessions AS {endless}", "no table of sessions"),
        ("TABLE sessions (json_blob AS (printf('%.*c', 900000000, 'x')), n)", "no table"),
        (
            "TABLE sessions AS SELECT replace(hex(zeroblob(99999)), '00', '[') json_blob",
            "recursion",
        ),
        pytest.param(
            *("TABLE sessions AS SELECT hex(zeroblob(60000000)) json_blob", "too big"),
            marks=pytest.mark.skipif(sys.version_info < (3, 11), reason="sqlite3 has no limits"),
        ),
    ],
)
def test_a_results_database_that_computes_its_rows_or_has_a_huge_one_is_refused(
    tmp_path, made, said
):
    """A file of 8 kB had rows without end."""
    endless = (
        "WITH RECURSIVE each(json_blob) AS (SELECT '{}' UNION ALL SELECT json_blob FROM each) "
        "SELECT json_blob FROM each"
    )
    with closing(sqlite3.connect(tmp_path / "results.db")) as database:
        database.execute(f"CREATE {made.replace('{endless}', endless)}")
        database.commit()
    with pytest.raises(BadInput, match=said):
        list(Incoming(tmp_path / "results.db"))
