"""Files that are whole or absent, and locks that name their holder.

Every write goes to a temporary name in the same directory, is synced and renamed, so that a
killed command leaves the old content. Failures of the file system (full, read-only, quota)
become one clear error. A database needs locks that hold: network file systems answer them in their
own ways, some only on one node, some not at all and without an error; so those are known by name,
and everywhere one descriptor must be refused what another one holds.

What others may have written is read with bounds, and only where it is a plain file.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import pwd
import shutil
import stat
import struct
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from glob import escape
from itertools import islice
from math import isfinite
from pathlib import Path
from typing import Any, BinaryIO

from hpcdl.system.errors import BadInput, MissingPrerequisite
from hpcdl.system.text import nearest

_REASONS = {
    errno.ENOSPC: "no space left on the file system",
    errno.EDQUOT: "your quota is used up",
    errno.EROFS: "the file system is read-only",
    errno.EACCES: "no permission to write there",
    errno.EPERM: "no permission to write there",
    errno.ENOTDIR: "a part of the path is a file",
    errno.EEXIST: "a part of the path is a file",
    errno.EISDIR: "it is a directory",
    errno.ENAMETOOLONG: "the name is too long",
}
_CURES = {
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT), "free some space or "),
    **dict.fromkeys((errno.EACCES, errno.EPERM), "ask its owner, or "),
}
_NO_LOCKS = (
    "its file system must have locks: a local disk, or NFS with its lock service; nothing was "
    "changed"
)
_NAMED = 100
"""So many characters of a file's name are in that of its temporary one."""
OF_NETWORKS = frozenset(
    {
        "nfs",
        "nfs4",
        "lustre",
        "gpfs",
        "beegfs",
        "cifs",
        "smb3",
        "smbfs",
        "afs",
        "9p",
        "fuse.sshfs",
        "orangefs",
        "panfs",
        "pvfs2",
        "ceph",
    }
)
"""File systems of several machines, whose locks a database cannot rely on."""
_FLOCK = "hhqqi4x"  # struct flock on 64-bit Linux: type, whence, start, length, process
_WHOLE = struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
_NOT_THERE = {errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL}


def make_directory(path: Path, mode: int = 0o755) -> None:
    """Make a directory, with those above it; whatever the umask, they get no more than `mode`."""
    if not path.is_dir():
        make_directory(path.parent, mode)
        with suppress(FileExistsError):
            path.mkdir(mode)


@contextmanager
def explain_os_errors(path: Path) -> Iterator[None]:
    """Turn the file system's refusals into `MissingPrerequisite` that names the path."""
    try:
        yield
    except OSError as fault:
        reason = _REASONS.get(fault.errno or 0) or fault.strerror or str(fault)
        cure = _CURES.get(fault.errno or 0, "")
        raise MissingPrerequisite(
            f"cannot write {path}: {reason}",
            hint=f"{cure}choose another place; nothing was changed",
        ) from fault


def write_atomic(path: Path, content: str | bytes, *, mode: int = 0o644, sync: bool = True) -> None:
    """Write `content` to `path` as a whole: temporary name, fsync (with `sync`), rename.

    Parent directories are made. `mode` is the file's permission, whatever the umask. Bytes of a
    command line that are no UTF-8 (surrogates in a text) are written as they were.
    """
    data = content if isinstance(content, bytes) else content.encode(errors="surrogateescape")
    with explain_os_errors(path):
        make_directory(path.parent, 0o775)
        handle, name = tempfile.mkstemp(prefix=f".{path.name[:_NAMED]}.", dir=path.parent)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(data)
                file.flush()
                os.fchmod(file.fileno(), mode)
                if sync:
                    os.fsync(file.fileno())
            Path(name).replace(path)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise


def sync_directory(path: Path) -> None:
    """Let the names of a directory outlive a crash of the machine, as `write_atomic`'s content."""
    with explain_os_errors(path), opened(path, os.O_RDONLY) as descriptor:
        os.fsync(descriptor)


@contextmanager
def opened(path: str | Path, flags: int) -> Iterator[int]:
    """A descriptor of a directory: it stays this one, whatever its name leads to meanwhile."""
    descriptor = os.open(path, flags | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def clear_leftovers(*paths: Path) -> None:
    """Remove what killed `write_atomic`s of these paths left beside them.

    Only if no other process can be writing them: under the lock that guards them.
    """
    for path in paths:
        for left in path.parent.glob(f".{escape(path.name[:_NAMED])}.????????"):
            left.unlink(missing_ok=True)


def write_json(path: Path, value: object, *, mode: int = 0o644) -> None:
    """`write_atomic` of a JSON document, indented and ending in a newline."""
    text = json.dumps(value, indent=2, ensure_ascii=False) + "\n"
    # A byte that is no UTF-8, such as in a program's argument, becomes an escape of JSON.
    write_atomic(path, text.encode(errors="backslashreplace"), mode=mode)


def as_json(value: Any, default: Callable[[Any], Any] | None = None) -> str:
    """Return a value as indented JSON; `default` converts types that JSON lacks."""
    how: dict[str, Any] = {"indent": 2, "ensure_ascii": False, "default": default}
    try:
        return json.dumps(value, allow_nan=False, **how)
    except ValueError:
        return json.dumps(_finite(value), **how)


def _finite(value: Any) -> Any:
    """The same without NaN and infinity, which JSON does not have."""
    if isinstance(value, dict):
        return {key: _finite(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(one) for one in value]
    return None if isinstance(value, float) and not isfinite(value) else value


def switch_link(link: Path, target: str) -> None:
    """Make `link` a symbolic link to `target` by one rename: readers see old or new."""
    aside = link.with_name(f".{link.name}.{os.getpid()}")
    with explain_os_errors(link):
        make_directory(link.parent, 0o775)
        aside.unlink(missing_ok=True)
        aside.symlink_to(target)
        try:
            aside.replace(link)
        finally:
            aside.unlink(missing_ok=True)


def size_of(directory: Path) -> int:
    """Bytes that removing a directory frees: those of files that nothing else links to."""
    total = 0
    for where, _, files in os.walk(directory):
        for name in files:
            with suppress(OSError):
                status = os.lstat(os.path.join(where, name))  # noqa: PTH118 - many thousands
                total += status.st_size if status.st_nlink == 1 else 0
    return total


@contextmanager
def made_aside(folder: Path, left: str) -> Iterator[Path]:
    """An empty directory beside `folder` that takes its place where nothing fails.

    What killed ones left beside it, by the pattern `left` + `.partial-*`, is removed.
    """
    # A name of its own: compilers that a killed build left may still write to theirs.
    for old in folder.parent.glob(f"{left}.partial-*"):
        shutil.rmtree(old, ignore_errors=True)
    partial = folder.with_name(f"{folder.name}.partial-{os.getpid()}")
    with explain_os_errors(partial):
        partial.mkdir(parents=True)
    try:
        yield partial
        with explain_os_errors(folder):
            shutil.rmtree(folder, ignore_errors=True)
            partial.rename(folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


class LockBusy(MissingPrerequisite):
    """Somebody else holds the lock (exit code 3)."""


@contextmanager
def locked(path: Path, *, wait_seconds: float = 60.0) -> Iterator[None]:
    """Hold an exclusive lock on `path`; it frees itself when the process dies.

    The file's text names the holder for people; the kernel's lock is what counts. Whoever can open
    a file can lock it, so it is for its owner only.

    Raises:
        LockBusy: it was not free within `wait_seconds`; says who holds it.
        MissingPrerequisite: it cannot be written there, is a link, or is somebody else's.
    """
    descriptor = _hold(path, time.monotonic() + wait_seconds)
    try:
        with suppress(OSError):  # for people only: a full disk must not keep `gc` from its work
            os.ftruncate(descriptor, 0)
            place, since = os.uname().nodename, time.strftime("%Y-%m-%d %H:%M:%S")
            holder = f"held by {user_name()}, pid {os.getpid()} on {place}, since {since}\n"
            os.pwrite(descriptor, holder.encode(), 0)
        yield
    finally:
        os.close(descriptor)


def _hold(path: Path, deadline: float) -> int:
    """Return a locked descriptor; opens again if the previous holder removed the file.

    A file system that has no locks is refused: without them two would work at once.
    """
    while True:
        with explain_os_errors(path):
            make_directory(path.parent)
        descriptor = _open_lock(path)
        try:
            while not take_lock(descriptor):
                if time.monotonic() > deadline:
                    holder = os.pread(descriptor, 1000, 0).decode(errors="replace").strip()
                    message = f"another hpcdl command is running here: {holder or 'unknown holder'}"
                    raise LockBusy(message, hint=f"wait for it to end; its lock is {path}")
                time.sleep(0.05)
            # A client of NFS believes names and links for a minute, and looks anew where their
            # directory is opened: one node saw releases as they were before the other node's turn.
            with suppress(FileNotFoundError), opened(path.parent, os.O_RDONLY):
                status = os.fstat(descriptor)
                if status.st_nlink and os.path.samestat(path.lstat(), status):
                    return descriptor
        except OSError as fault:
            os.close(descriptor)
            message = f"cannot lock {path}: {fault.strerror}"
            raise MissingPrerequisite(message, hint=_NO_LOCKS) from fault
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)


def _open_lock(path: Path) -> int:
    """A descriptor of a lock's file, made where there is none: regular, no link, 0600.

    What root makes in another user's directory belongs to that user: both are to be able to wait.
    """
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    with explain_os_errors(path), opened(path.parent, os.O_PATH) as place:
        descriptor = os.open(path.name, flags, 0o600, dir_fd=place)
        status, owner = os.fstat(descriptor), os.fstat(place).st_uid
        ours = {os.getuid(), owner, 0}
        if not stat.S_ISREG(status.st_mode) or status.st_nlink > 1 or status.st_uid not in ours:
            os.close(descriptor)
            raise MissingPrerequisite(
                f"{path} is no lock of yours: it is a link, no regular file, or another user's",
                hint="remove it if its directory is yours; else choose another directory",
            )
        if status.st_uid == os.getuid():
            os.fchmod(descriptor, 0o600)
        # One with content may be another file of root's, which the user has moved here.
        if os.getuid() == 0 and status.st_uid == 0 != owner and not status.st_size:
            os.fchown(descriptor, owner, -1)
    return descriptor


def user_name(otherwise: str | None = None, number: int | None = None) -> str:
    """The name of a user, this process's if no number is given.

    Where the number has no name, as in a container: `otherwise`, or the number.
    """
    number = os.getuid() if number is None else number
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return otherwise or str(number)


def take_lock(descriptor: int) -> bool:
    """Whether the lock of an open file or directory is ours now; OSError where there are none."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def file_system(path: Path, mounts: str = "/proc/self/mounts") -> str:
    """The type of the file system of a path, '' where it is unknown."""
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


def process_fields(pid: int | str) -> list[str]:
    """The fields of proc(5)'s stat from the third one, the state, on; none if it is gone.

    The 20th of these says when it started, in ticks since the boot: ids are given again.
    """
    try:
        # The name in parentheses may hold anything; what follows its last `)` is regular.
        text = Path(f"/proc/{pid}/stat").read_bytes().decode(errors="replace")
        return text.rpartition(")")[2].split()
    except (OSError, ValueError):
        return []


@contextmanager
def shared_lock(path: Path, *, wait_seconds: float = 60.0) -> Iterator[None]:
    """`locked`, where what is made is for everybody: the directories of the lock itself, too."""
    with umask(0o022), locked(path, wait_seconds=wait_seconds):
        yield


@contextmanager
def umask(mask: int) -> Iterator[None]:
    """Set the mask of new files' permissions for a while."""
    before = os.umask(mask)
    try:
        yield
    finally:
        os.umask(before)


def current_umask() -> int:
    """The mask of new files' permissions, which can only be read by setting it."""
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


@contextmanager
def careful_umask() -> Iterator[None]:
    """Let others write nothing that is made meanwhile, where the caller's mask would let them.

    Slurm hands the mask of sbatch on to the job: what a job makes is its user's alone as well.
    """
    before = current_umask()
    with umask(before if before & 0o002 else before | 0o022):
        yield


MAX_BYTES = 1_000_000
_MOST_NAMES = 1000


def read_regular(
    path: Path,
    limit: int = MAX_BYTES,
    kind: str = "YAML file",
    require: Callable[[Path, os.stat_result], None] | None = None,
) -> bytes:
    """The bytes of a regular file of at most `limit` bytes, else BadInput.

    Others (a pipe, a device) could block or never end. `kind` is what the path should name;
    `require` may refuse the opened file (`trust.require_known_owner`).
    """
    try:
        with open_regular(path, kind) as file:
            # Asked before anything is read: memory is not for what is refused.
            status = os.fstat(file.fileno())
            if require is not None:
                require(path, status)
            large = status.st_size > limit
            data = b"" if large else file.read(limit + 1)
    except (OSError, ValueError) as fault:
        raise unreadable(path, fault) from fault
    if large or len(data) > limit:
        raise BadInput(f"{path} is larger than {limit // 1_000_000} MB: not a file of hpcdl")
    return data


def open_regular(path: Path, kind: str) -> BinaryIO:
    """A regular file, opened to read; BadInput where it is none, or cannot be read."""
    try:
        # Not blocking: to open a pipe without a writer would wait forever.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except (OSError, ValueError) as fault:
        raise unreadable(path, fault) from fault
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISREG(mode):
        return os.fdopen(descriptor, "rb")
    os.close(descriptor)
    found = "a directory" if stat.S_ISDIR(mode) else "no regular file"
    raise BadInput(f"{path} is {found}", hint=f"name a {kind}")


def last_text(path: Path, limit: int = 100_000, end: int | None = None) -> str:
    """The end of a log that anybody may have filled; '' where it cannot be read.

    With `end`, the text before that byte.
    """
    with suppress(BadInput, OSError), open_regular(path, "log") as file:
        size = os.fstat(file.fileno()).st_size if end is None else end
        file.seek(max(0, size - limit))
        return file.read(min(limit, size)).decode(errors="replace")
    return ""


def unreadable(path: Path, fault: Exception) -> BadInput:
    """Return the error for a file that cannot be read, with the reason and a hint."""
    reason = getattr(fault, "strerror", None) or "its name is impossible"
    hint = "ask its owner for the right to read it" if isinstance(fault, PermissionError) else ""
    if isinstance(fault, OSError) and fault.errno == errno.ELOOP:
        hint = "remove that link"
    elif path.parts[:1] == ("~",):
        hint = f"~ was not expanded to your home directory: write {os.path.expanduser(path)}"  # noqa: PTH111
    elif isinstance(fault, FileNotFoundError) and not path.parent.exists():
        hint = f"there is no directory {path.parent}"
    elif isinstance(fault, FileNotFoundError):
        with suppress(OSError, ValueError):
            names = (one.name for one in islice(path.parent.iterdir(), _MOST_NAMES))
            close = nearest(path.name, names)
            hint = f"you are in {Path.cwd()}"
            if close and nearest(path.stem, [Path(close).stem]):  # not alike by .yaml alone
                hint = f"did you mean '{path.parent / close}'?"
    return BadInput(f"cannot read {path}: {reason}", hint=hint)
