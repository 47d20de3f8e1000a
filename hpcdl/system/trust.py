"""Which paths may be trusted on a machine that is shared with strangers.

`require_private` is the one door: what only this user and root can change. A directory that others
may write to is passed through only where it is sticky, as /tmp is: there nobody can rename what is
not his own; or below one that is this user's and closed to others, where nobody else gets in. So
after the walk nobody else can put anything in the way of a later open.
"""

from __future__ import annotations

import os
import pwd
import shlex
import stat
from pathlib import Path

from hpcdl.system.errors import MissingPrerequisite

_OTHERS = stat.S_IRWXG | stat.S_IRWXO
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
_MAX_LINKS = 40
"""As many links the kernel follows on the way to one file (path_resolution(7))."""


def require_private(path: Path) -> None:
    """Raise unless `path` exists and only this user and root can change it or swap it for another.

    Links on the way are followed where they are this user's or root's; `path` itself is no link.

    Raises:
        MissingPrerequisite: what is wrong with which part of the path.
    """
    absolute = Path(os.path.abspath(path))  # noqa: PTH100 - resolve() would follow the links
    closed = _walk(absolute.parent, _MAX_LINKS)
    try:
        handle = os.open(absolute, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as fault:
        raise _untrusted(path, (fault.strerror or str(fault)).lower()) from fault
    try:
        status = os.fstat(handle)
    finally:
        os.close(handle)
    if stat.S_ISLNK(status.st_mode):
        raise _untrusted(path, "it is a link")
    _require_owner(path, status)
    if status.st_mode & _OTHERS_WRITE and not closed:
        mode = f"mode {stat.S_IMODE(status.st_mode):04o}"
        raise _untrusted(path, f"others may write to it ({mode})", cure=True)


def _walk(path: Path, links: int) -> bool:
    """Check every directory from the root down to `path`, through links.

    Returns:
        Whether one on the way is this user's and closed to others.
    """
    here, closed = Path("/"), False
    for name in path.parts[1:]:
        here = here / name
        try:
            status = here.lstat()
        except OSError as fault:
            raise _untrusted(here, (fault.strerror or str(fault)).lower()) from fault
        _require_owner(here, status)
        if stat.S_ISLNK(status.st_mode):
            if not links:
                raise _untrusted(here, "too many links lead from one to the next")
            target = here.parent / here.readlink()
            closed = _walk(Path(os.path.normpath(target)), links - 1)
        elif status.st_uid == os.getuid() and not status.st_mode & _OTHERS:
            closed = True
        elif status.st_mode & _OTHERS_WRITE and not status.st_mode & stat.S_ISVTX and not closed:
            said = "others may rename what lies in it, as it is not sticky"
            raise _untrusted(here, said, cure=True)
    return closed


def _require_owner(path: Path, status: os.stat_result) -> None:
    if status.st_uid not in {0, os.getuid()}:
        raise _untrusted(path, f"it belongs to {_user(status.st_uid)}")


def _user(number: int) -> str:
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return f"user {number}"


def _untrusted(path: Path, reason: str, *, cure: bool = False) -> MissingPrerequisite:
    """The error; `cure` where the path's mode alone is wrong."""
    choose = "choose a path that only you (or root) can change"
    mend = f"if it is yours, `chmod g-w,o-w {shlex.quote(str(path))}`; else "
    return MissingPrerequisite(
        f"{path} cannot be trusted: {reason}", hint=(mend if cure else "") + choose
    )
