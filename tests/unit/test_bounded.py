"""Files that anybody wrote are read in bounded memory, and refused at once where they are none."""

import os
import resource
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import pytest

from hpcdl.regress.exchange import Incoming
from hpcdl.regress.run_directory import json_lines
from hpcdl.regress.series import read_series
from hpcdl.results.records import RESULT, VERDICTS
from hpcdl.system.errors import BadInput
from hpcdl.system.files import last_text

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
    with pytest.raises(BadInput, match="larger than"):
        read_series(file)
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
    ],
)
def test_a_results_database_that_computes_its_rows_is_refused(tmp_path, made, said):
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
