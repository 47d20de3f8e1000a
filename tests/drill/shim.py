"""A fault for one command: a preloaded library that fails, or kills, at a chosen change.

The moment is the number of a change to files below a directory, or of a program that is started
or waited for, so that a seed gives the same moment on a slow machine and on a fast one.
"""

import atexit
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path

KILL = 0


@cache
def library():
    """The library, compiled once per run."""
    directory = tempfile.mkdtemp(prefix="hpcdl-shim-")
    atexit.register(shutil.rmtree, directory)
    place = Path(directory) / "shim.so"
    source = Path(__file__).with_name("shim.c")
    subprocess.run(["gcc", "-O1", "-shared", "-fPIC", "-o", place, source, "-ldl"], check=True)
    return place


@dataclass(frozen=True)
class Fault:
    """From change `at` on (0: never), `error` below a directory: an errno, or KILL."""

    below: Path
    at: int = 0
    error: int = KILL
    once: bool = False
    late: bool = False
    """The change is made, and `error` is its answer."""
    slow: int = 0
    """Seconds that the change takes, in place of an error."""
    lock: int = 0
    everybody: bool = False
    """Also in the programs that the command starts."""

    def env(self, home):
        counter = _counter(home)
        counter.write_bytes(bytes(8))
        found = {
            "LD_PRELOAD": str(library()),
            "DRILL_BELOW": str(self.below),
            "DRILL_FROM": str(self.at),
            "DRILL_FAULT": str(self.error),
            "DRILL_LOCK": str(self.lock),
            "DRILL_COUNTER": str(counter),
        }
        found |= {"DRILL_ONCE": "1"} if self.once or self.late else {}
        found |= {"DRILL_LATE": "1"} if self.late else {}
        found |= {"DRILL_SLOW": str(self.slow)} if self.slow else {}
        return found | ({"DRILL_ALL": "1"} if self.everybody else {})

    def count(self, home):
        return int.from_bytes(_counter(home).read_bytes(), "little")


def client(below, memory):
    """The environment of a client of NFS, which remembers in a file what it saw `below`."""
    return {"LD_PRELOAD": str(library()), "DRILL_BELOW": str(below), "DRILL_CLIENT": str(memory)}


def _counter(home):
    return home / "counter"
