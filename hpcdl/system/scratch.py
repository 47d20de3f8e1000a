"""Temporary directories that do not accumulate: what a killed process has left, the next removes.

Each is locked by its process as long as it is in use. The kernel frees the lock of one that was
killed, by whatever signal, and a directory of ours that nobody locks is nobody's any more.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from hpcdl.system.files import explain_os_errors, take_lock
from hpcdl.system.trust import require_no_stranger

_PREFIX = ".hpcdl-scratch-"
_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


@contextmanager
def scratch_directory() -> Iterator[Path]:
    """An empty directory of this user only, removed at the end; those left by others' deaths too.

    It lies where TMPDIR says. MissingPrerequisite: no space left, or no permission, there; or
    another user can put one of his own in its place: much of what lies in it is executed.
    """
    below = require_no_stranger(Path(tempfile.gettempdir(), _PREFIX)).parent
    _clear_left(below)
    with explain_os_errors(below):
        place, descriptor = _made(below)
    try:
        yield place
    finally:
        shutil.rmtree(place, ignore_errors=True)
        os.close(descriptor)


def _made(below: Path) -> tuple[Path, int]:
    """A new directory and the descriptor that locks it."""
    while True:
        place = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=below))
        with suppress(FileNotFoundError):  # somebody may take it for left before it is locked
            descriptor = os.open(place, _FLAGS)
            with suppress(OSError):  # without locks it works, and is only never cleared
                if not take_lock(descriptor) or os.fstat(descriptor).st_nlink == 0:
                    os.close(descriptor)
                    continue
            return place, descriptor


def _clear_left(below: Path) -> None:
    for left in below.glob(f"{_PREFIX}????????"):
        with suppress(OSError):
            descriptor = os.open(left, _FLAGS)
            try:
                if os.fstat(descriptor).st_uid == os.getuid() and take_lock(descriptor):
                    shutil.rmtree(left, ignore_errors=True)
            finally:
                os.close(descriptor)
