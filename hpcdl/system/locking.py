"""Whether a directory's file system keeps locks, by its type and by trying; who holds one.

A database file needs locks that hold. Network file systems answer them in their own ways, some
only on one node, some not at all and without an error; so those are known by name, and
everywhere one descriptor must be refused what another one holds.
"""

from __future__ import annotations

import errno
import fcntl
import os
import struct
import tempfile
from contextlib import suppress
from pathlib import Path

SHARED = frozenset({"nfs", "nfs4", "lustre", "gpfs", "beegfs", "cifs", "smb3", "smbfs", "afs",
                    "9p", "fuse.sshfs", "orangefs", "panfs", "pvfs2", "ceph"})  # fmt: skip
"""File systems of several machines, whose locks a database cannot rely on."""
_FLOCK = "hhqqi4x"  # struct flock on 64-bit Linux: type, whence, start, length, process
_WHOLE = struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
_NOT_THERE = {errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL}


def file_system(path: Path, mounts: str = "/proc/self/mounts") -> str:
    """The type of the file system that a path lies on, '' where it cannot be known."""
    place = str(path.absolute().parent.resolve())
    best, kind = "", ""
    with suppress(OSError):
        for line in Path(mounts).read_text(errors="replace").splitlines():
            _, point, type_, *_ = [*line.split(), "", "", ""]
            point = point.replace("\\040", " ")
            inside = place == point or place.startswith(point.rstrip("/") + "/")
            if inside and len(point) >= len(best):
                best, kind = point, type_
    return kind


def locks_hold(directory: Path) -> bool:
    """Whether a lock in this directory keeps another one out (fcntl(2), F_OFD_SETLK).

    Locks of open file descriptions are the kind that a single process can try against itself;
    a file system handles them as it does the locks of processes, which SQLite uses.
    """
    with (
        tempfile.TemporaryFile(dir=directory) as file,
        Path(f"/proc/self/fd/{file.fileno()}").open("r+b") as other,  # the same, opened anew
    ):
        try:
            fcntl.fcntl(file, fcntl.F_OFD_SETLK, _WHOLE)
        except OSError as fault:
            if fault.errno in _NOT_THERE:
                return False
            raise
        try:
            fcntl.fcntl(other, fcntl.F_OFD_SETLK, _WHOLE)
        except OSError as fault:
            return fault.errno in {errno.EAGAIN, errno.EACCES}
    return False


def lock_holder(path: Path) -> int | None:
    """The process that holds a lock on `path` (fcntl(2)); None if it is free.

    It lets go of this process's own locks on it, as every close does.
    """
    with suppress(FileNotFoundError), path.open("r+b") as file:
        kind, *_, process = struct.unpack(_FLOCK, fcntl.fcntl(file, fcntl.F_GETLK, _WHOLE))
        return None if kind == fcntl.F_UNLCK else int(process)
    return None
