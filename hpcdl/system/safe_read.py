"""Reads files that people name: regular ones of a sane size, and nothing that could block."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from hpcdl.system.errors import BadInput

MAX_BYTES = 1_000_000


def read_regular(path: Path, limit: int = MAX_BYTES, kind: str = "YAML file") -> bytes:
    """The bytes of a regular file; others (a pipe, a device) could block or never end.

    `kind` is what the path should name.

    Raises:
        BadInput: it is no regular file, cannot be read, or is larger than `limit` bytes.
    """
    try:
        # Not blocking: to open a pipe that nobody writes to would wait for ever.
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise BadInput(f"{path} is no regular file", hint=f"name a {kind}")
            data = file.read(limit + 1)
    except IsADirectoryError as fault:
        raise BadInput(f"{path} is a directory", hint=f"name a {kind}") from fault
    except (OSError, ValueError) as fault:
        reason = getattr(fault, "strerror", None) or "its name is impossible"
        raise BadInput(f"cannot read {path}: {reason}") from fault
    if len(data) > limit:
        raise BadInput(f"{path} is larger than {limit // 1_000_000} MB: not a file of ours")
    return data
