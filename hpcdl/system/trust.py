"""Which paths may be trusted on a machine that is shared with strangers.

`require_private` is the one door: what only this user and root can change. A directory that others
may write to is passed through only where it is sticky, as /tmp is: there nobody can rename what is
not his own; or below one that is this user's and closed to others, where nobody else gets in. So
after the walk nobody else can put anything in the way of a later open.

hpcdl's home and cache come through here whenever a path in them is named (`system.resources`).
Prefix and work directory do not: they may be a group's or a software account's, and nothing in
them is executed but what their users load.
"""

from __future__ import annotations

import grp
import os
import pwd
import shlex
import stat
from contextlib import suppress
from functools import cache
from pathlib import Path

from hpcdl.system.errors import MissingPrerequisite
from hpcdl.system.files import explain_os_errors, make_directory, user_name

_OTHERS = stat.S_IRWXG | stat.S_IRWXO
_MOVE = "copy the files to a directory that only you can change, after reading them"
_MAX_LINKS = 40
"""As many links the kernel follows on the way to one file (path_resolution(7))."""


def require_private(path: Path) -> None:
    """Raise unless `path` exists and only this user and root can change it or swap it for another.

    Links on the way are followed where they are this user's or root's; `path` itself is no link.
    The MissingPrerequisite says what is wrong with which part of the path.
    """
    absolute = path.absolute()
    closed = _walk(absolute.parent)
    status = _status(absolute)
    if stat.S_ISLNK(status.st_mode):
        raise _untrusted(path, "it is a link")
    _require_end(absolute, status, closed)


def require_no_stranger(path: Path) -> Path:
    """`path`, unless somebody else can change it, or the part of it that exists.

    Links are followed, its own as well: to keep a cache on another disk by one is common.
    """
    there = path.absolute()
    while not os.path.lexists(there):
        there = there.parent
    closed = _walk(there)
    if there == path.absolute():
        _require_end(path, path.stat(), closed)
    return path


def require_own(path: Path) -> None:
    """Raise unless a directory is this user's or root's: files of others would run as this user.

    One above it may be a group's or a colleague's. But not one with this user's name: sites say
    /scratch/$USER, and whoever makes that first can put all that is in it aside for his own.
    """
    named = [above for above in path.absolute().parents if above.name == user_name()]
    for place in (path, *named):
        for owner in (place.lstat().st_uid, place.stat().st_uid):  # who made a link can turn it
            if owner not in _owners():
                raise _untrusted(place, f"it belongs to {user_of(owner)}")


def require_known_owner(path: Path, status: os.stat_result) -> None:
    """Raise unless a file that names programs to run belongs to an owner that is trusted already.

    Site, job and study files, checks: they name programs and directories that are run. Trusted are
    root, this user, and who can change hpcdl itself: the owner of its package, and its group where
    the group may write there. `status` is of the opened file: no other can take its place.
    """
    link = path.lstat()
    for owned in (status, link) if stat.S_ISLNK(link.st_mode) else (status,):
        if owned.st_uid not in {*_owners(), *_authors()[0]}:
            hint = (
                "copy it to a file of your own, after reading it; as an admin give it to root, or "
                "to the account or the group that hpcdl is installed for"
            )
            raise _foreign(path, f"it belongs to {user_of(owned.st_uid)}", hint)
    if who := _writers(path, status):
        hint = (
            f"chmod g-w,o-w {shlex.quote(str(path))}; an admin group may share it where hpcdl "
            "itself is installed for that group, with g+w"
        )
        raise _foreign(path, f"{who} may write to it", hint)


def _writers(path: Path, status: os.stat_result) -> str:
    """Who may write to a file or directory, beside those who are trusted; '' for nobody."""
    shared = status.st_gid in _authors()[1] and not status.st_mode & stat.S_IWOTH
    if shared or not _others_write(path, status) or _in_closed_directory(path):
        return ""
    return "everybody" if status.st_mode & stat.S_IWOTH else f"the group {_group(status.st_gid)}"


def _in_closed_directory(path: Path) -> bool:
    """Whether others cannot even reach it: a file with umask 002 in a home of mode 0700."""
    above = (parent.stat() for parent in path.resolve().parents)
    return any(one.st_uid == os.getuid() and not one.st_mode & _OTHERS for one in above)


def require_known_owners(path: Path) -> None:
    """The same for Python that will be run: a file, or a directory with all that is in it.

    Nobody else may add a file there either. ReFrame runs an `__init__.py` beside a check, and above
    it: a planted /tmp/__init__.py ran as whoever had a check in /tmp.
    """
    folder = path if path.is_dir() else path.parent
    for one in (folder, *(sorted(folder.rglob("*")) if path.is_dir() else [path])):
        if one.is_dir():
            _require_no_additions(one)
        elif one == path or (one.suffix == ".py" and one.is_file()):
            require_known_owner(one, one.stat())
    for above in folder.resolve().parents:  # whoever can rename it puts his own in its place
        status = above.stat()
        if not status.st_mode & stat.S_ISVTX and (who := _writers(above, status)):
            raise _foreign(path, f"{who} may rename files in {above}", _MOVE)


def _require_no_additions(folder: Path) -> None:
    status = folder.stat()
    if status.st_uid not in {*_owners(), *_authors()[0]}:
        raise _foreign(folder, f"it belongs to {user_of(status.st_uid)}", _MOVE)
    if who := _writers(folder, status):
        raise _foreign(folder, f"{who} may write to it", _MOVE)


@cache
def _authors() -> tuple[frozenset[int], frozenset[int]]:
    """The users and groups that can change hpcdl's own code."""
    package = Path(__file__).resolve().parents[1].stat()
    if not package.st_mode & stat.S_IWGRP:
        return frozenset({package.st_uid}), frozenset()
    members: set[int] = set()
    with suppress(KeyError):
        for name in grp.getgrgid(package.st_gid).gr_mem:
            members.add(pwd.getpwnam(name).pw_uid)
    return frozenset({package.st_uid, *members}), frozenset({package.st_gid})


def _group(number: int) -> str:
    try:
        return grp.getgrgid(number).gr_name
    except KeyError:
        return str(number)


def _foreign(path: Path, reason: str, hint: str) -> MissingPrerequisite:
    message = f"{path} is not read: {reason}, and it says what is run"
    return MissingPrerequisite(message, hint=hint)


def make_private(path: Path, mode: int = 0o700) -> Path:
    """Make a directory, and its parents, that only this user can write to, whatever the umask.

    What is there already is refused where it is another user's, a link, or open to others.
    """
    with explain_os_errors(path):
        make_directory(path.parent)
        with suppress(FileExistsError):
            path.mkdir(mode=mode)
    require_private(path)
    if not path.is_dir():
        raise MissingPrerequisite(f"{path} is no directory", hint="choose another place")
    return path


def _require_end(path: Path, status: os.stat_result, closed: bool) -> None:
    if status.st_uid not in {0, os.getuid()}:
        raise _untrusted(path, f"it belongs to {user_of(status.st_uid)}")
    if _others_write(path, status) and not closed:
        mode = f"mode {stat.S_IMODE(status.st_mode):04o}"
        raise _untrusted(path, f"others may write to it ({mode})", cure=True)


def _walk(path: Path) -> bool:
    """Check every directory from the root down to `path`, as the kernel does: through links.

    Returns whether a directory above it is this user's and closed to others.
    """
    left, links = list(reversed(path.parts[1:])), _MAX_LINKS
    real = [(Path("/"), False)]  # from the root down, each with whether it is closed
    while left:
        name = left.pop()
        if name == "..":
            real = real[:-1] or real
            continue
        above, closed = real[-1]
        here = above / name
        status = _status(here)
        if status.st_uid not in _owners():
            raise _untrusted(here, f"it belongs to {user_of(status.st_uid)}")
        if stat.S_ISLNK(status.st_mode):
            if not links:
                raise _untrusted(here, "too many links lead from one to the next")
            links -= 1
            target = here.readlink()
            real = real[:1] if target.is_absolute() else real
            left += reversed(target.parts[1:] if target.is_absolute() else target.parts)
            continue
        if _others_write(here, status) and not status.st_mode & stat.S_ISVTX and not closed:
            reason = "others may rename files in it, as it is not sticky"
            raise _untrusted(here, reason, cure=True)
        own = status.st_uid == os.getuid() and not status.st_mode & _OTHERS
        real.append((here, closed or own))
    return real[-1][1]


def _status(path: Path) -> os.stat_result:
    try:
        return path.lstat()
    except OSError as fault:
        raise _untrusted(path, (fault.strerror or str(fault)).lower()) from fault


def _others_write(path: Path, status: os.stat_result) -> bool:
    """Whether another user may write there; this user's own group does not count.

    With an access list the group's permissions are the most that any of its users has (acl(5)).
    """
    if not status.st_mode & stat.S_IWGRP or not _own_group(status.st_gid):
        return bool(status.st_mode & (stat.S_IWGRP | stat.S_IWOTH))
    listed = False
    with suppress(OSError):  # a file system without any
        listed = "system.posix_acl_access" in os.listxattr(path)
    return listed or bool(status.st_mode & stat.S_IWOTH)


def _own_group(number: int) -> bool:
    """Whether it is the group that was made for this user alone, as many Linux systems do."""
    try:
        user, group = pwd.getpwuid(os.getuid()), grp.getgrgid(number)
    except KeyError:
        return False
    named = user.pw_gid == number and user.pw_name == group.gr_name
    return named and set(group.gr_mem) <= {user.pw_name}


@cache
def _owners() -> frozenset[int]:
    """Return the uids whose directories may be passed through: this user's and root's.

    In a container of a user the machine's root has no number of its own (user_namespaces(7)).
    """
    unmapped: set[int] = set()
    with suppress(OSError, ValueError, IndexError):
        if int(Path("/proc/self/uid_map").read_text().split()[2]) < 2**32 - 1:
            unmapped = {int(Path("/proc/sys/kernel/overflowuid").read_text())}
    return frozenset({0, os.getuid()} | unmapped)


def user_of(number: int) -> str:
    """The name of a user, or its number where it has none."""
    return user_name(f"user {number}", number)


def _untrusted(path: Path, reason: str, *, cure: bool = False) -> MissingPrerequisite:
    """The error; `cure` where the path's mode alone is wrong."""
    choose = "choose a path that only you (or root) can change"
    mend = f"if it is yours, `chmod g-w,o-w {shlex.quote(str(path))}`; else "
    return MissingPrerequisite(
        f"{path} cannot be trusted: {reason}", hint=(mend if cure else "") + choose
    )
