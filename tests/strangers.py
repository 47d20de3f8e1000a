"""A second real user, for what others on a shared machine can do. Only root can act as one."""

import os
import subprocess
import tempfile
from contextlib import contextmanager
from dataclasses import dataclass
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


@contextmanager
def people(*names):
    """Real users with homes that everybody may enter, removed at the end with what they run."""
    made = []
    try:
        for name in names:
            subprocess.run(["useradd", "--create-home", name], check=True, capture_output=True)
            made.append(name)
            Path("/home", name).chmod(0o755)
        yield [Person(name) for name in names]
    finally:
        for name in made:
            subprocess.run(["userdel", "--remove", name], check=False, capture_output=True)


@dataclass(frozen=True)
class Person:
    """Runs commands as a real user, in the own home."""

    name: str

    @property
    def home(self):
        return Path("/home", self.name)

    @property
    def _become(self):
        return ("setpriv", f"--reuid={self.name}", f"--regid={self.name}", "--clear-groups")

    def __call__(self, *argv, reads_all=False, **env):
        """`reads_all` lets the user's programs read the tests' Python, wherever it lies."""
        cap = "--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search"
        own = {"HOME": str(self.home), "USER": self.name, "PATH": "/usr/bin:/bin:/usr/sbin:/sbin"}
        return subprocess.run(
            [*self._become, *(cap if reads_all else ()), *map(str, argv)],
            cwd=self.home,
            env=own | env,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
