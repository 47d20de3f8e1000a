"""Reads files that people name: regular ones of a sane size, and nothing that could block."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import BinaryIO

from hpcdl.system.errors import BadInput
from hpcdl.system.text import nearest

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
