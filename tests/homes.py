"""Folders for the clusters of tests and benches: short, and none is left for good.

Unix sockets have short names, so a home lies right below /tmp. It says which process it
belongs to: what a run that was killed has left, clusters included, the next run clears away.
"""

import json
import shutil
import tempfile
from contextlib import contextmanager, suppress
from dataclasses import asdict
from os import getpid
from pathlib import Path

from hpcdl.cluster.identity import place
from hpcdl.cluster.processes import alive, identify
from hpcdl.cluster.shape import ProcessId
from hpcdl.cluster.teardown import down

_PREFIX = "hpcdl-t-"
_OWNER = "owner.json"


@contextmanager
def short_home(below=Path("/tmp")):
    """A folder that is removed at the end, and every cluster in it stopped."""
    for left in below.glob(f"{_PREFIX}*"):
        if _abandoned(left):
            _clear(left)
    home = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=below))
    try:
        process = identify(getpid())
        assert process is not None
        (home / _OWNER).write_text(json.dumps({"boot": place()["boot"], **asdict(process)}))
        yield home
    finally:
        _clear(home)


def _abandoned(home):
    """Whether the process that made a home has ended; one that does not say is left alone."""
    with suppress(OSError, ValueError, KeyError, TypeError):
        said = json.loads((home / _OWNER).read_text())
        return said["boot"] != place()["boot"] or not alive(ProcessId(said["pid"], said["start"]))
    return False


def _clear(home):
    for record in [
        *home.glob("*/cluster.json"),
        *home.glob("*/*/cluster.json"),
        *home.glob("*/*/*/cluster.json"),
    ]:
        down(record.parent, purge=True)
    shutil.rmtree(home, ignore_errors=True)
