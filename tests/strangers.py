"""A second real user, for what others on a shared machine can do. Only root can act as one."""

import os
import subprocess
import tempfile
from pathlib import Path

import pytest

STRANGER = "nobody"
as_root = pytest.mark.skipif(os.getuid() != 0, reason="needs root, to act as a second user")


@pytest.fixture
def shared():
    """A directory where everybody may write, sticky as /tmp is."""
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        place = Path(name)
        place.chmod(0o1777)
        yield place


def stranger(command, place):
    """Run a shell command there as another real user."""
    subprocess.run(["sh", "-c", command], cwd=place, user=STRANGER, group="nogroup", check=True)
