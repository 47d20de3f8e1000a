"""The table of the drills is what ran; what drills and tests rely on holds."""

import errno
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.drill.__main__ import BEGIN, DRILLS, END, PAGE, results, table
from tests.drill.harness import Bench
from tests.drill.shim import Fault, client
from tests.homes import short_home

WRITE = (
    "import os, sys; from pathlib import Path; from hpcdl.system.files import write_atomic;"
    "from hpcdl.system.errors import HpcdlError\n"
    "try: write_atomic(Path(sys.argv[1]), 'new')\n"
    "except HpcdlError as error: sys.exit(error.message)"
)
needs_gcc = pytest.mark.skipif(shutil.which("gcc") is None, reason="gcc is not installed")


def test_the_table_in_the_page_has_the_rows_of_drills_and_what_they_are():
    text = PAGE.read_text()
    assert text.partition(BEGIN + "\n")[2].partition(END)[0] == table(results(text))


def test_every_drill_has_a_name_of_its_own_and_an_end():
    assert len({drill.name for drill in DRILLS}) == len(DRILLS)
    assert all(drill.goal > 0 and 0 < drill.seconds <= 7200 for drill in DRILLS)


@needs_gcc
def test_each_change_is_the_moment_of_one_round_before_any_comes_again(tmp_path):
    """Also where a drill is taken up later: the order is the seed's."""
    write = [sys.executable, "-c", WRITE, str(tmp_path / "file")]
    benches = [Bench(tmp_path, range(first, 9), 0, "seed") for first in (0, 5)]
    first, later = ([one.moment("write", turn, write) for turn in range(40)] for one in benches)
    changes = len(benches[0].orders["write"])
    assert 3 < changes < 40
    assert sorted(first[:changes]) == list(range(1, changes + 1))
    assert first == later


def made(folder):
    (folder / "place").mkdir()
    return folder / "place/file"


@needs_gcc
def test_a_file_is_old_or_new_at_every_moment_of_a_kill(tmp_path):
    """All moments, one after the other; and the last one kills nothing any more."""
    file, codes = made(tmp_path), []
    for at in range(1, 12):
        file.write_text("old")
        codes.append(_write(file, Fault(file.parent, at), tmp_path).returncode)
        assert file.read_text() in {"old", "new"}
    assert (codes[0], codes[-1]) == (-9, 0)


@needs_gcc
@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS])
def test_a_write_that_fails_leaves_the_old_file_and_says_why(tmp_path, error):
    file = made(tmp_path)
    for at in range(1, 4):
        file.write_text("old")
        done = _write(file, Fault(file.parent, at, error), tmp_path)
        assert done.returncode == 1
        assert f"cannot write {file}" in done.stderr
        assert file.read_text() == "old"


def _write(file, fault, home):
    words, env = [sys.executable, "-c", WRITE, str(file)], {**os.environ, **fault.env(home)}
    return subprocess.run(words, env=env, capture_output=True, text=True, check=False)


KILLED = """
import os, signal, sys
from pathlib import Path
from tests.homes import short_home
with short_home(Path(sys.argv[1])) as home:
    print(home, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_the_home_of_a_killed_run_is_cleared_by_the_next(tmp_path):
    words = [sys.executable, "-c", KILLED, tmp_path]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    left = Path(done.stdout.strip())
    assert left.parent == tmp_path, done.stderr
    assert left.is_dir()
    with short_home(tmp_path):
        assert not left.exists()


def test_the_home_of_a_run_that_lives_and_one_of_no_owner_are_left_alone(tmp_path):
    (tmp_path / "hpcdl-t-other").mkdir()
    with short_home(tmp_path) as one, short_home(tmp_path):
        assert json.loads((one / "owner.json").read_text())["pid"]
        assert (tmp_path / "hpcdl-t-other").is_dir()
    assert not one.exists(), "at the end"


SEES = """
import os, sys
place = sys.argv[1]
def seen(): return [os.path.exists(f"{place}/file"), os.readlink(f"{place}/link")]
print(*seen(), flush=True); input(); print(*seen(), flush=True)
os.listdir(place); print(*seen())
"""


@needs_gcc
def test_a_client_of_nfs_believes_what_it_saw_until_it_opens_the_directory(tmp_path):
    place = made(tmp_path).parent
    (place / "link").symlink_to("old")
    run = {"text": True, "stdout": subprocess.PIPE, "stdin": subprocess.PIPE}
    words = [sys.executable, "-c", SEES, str(place)]
    with subprocess.Popen(words, env=os.environ | client(place, tmp_path / "one"), **run) as one:
        assert one.stdout.readline() == "False old\n"
        (place / "file").touch()
        (place / "link").unlink()
        (place / "link").symlink_to("new")
        assert one.communicate("\n")[0] == "False old\nTrue new\n"
