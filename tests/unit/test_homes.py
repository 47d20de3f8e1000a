"""What a killed test run leaves is cleared by the next; what others use is left alone."""

import json
import subprocess
import sys
from pathlib import Path

from tests.homes import short_home

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
