"""Who may read and write a release: everybody, and nobody but its owner and root.

A file that others may write is a way into every job that loads the module; one that users
cannot read fails in theirs and not in the admin's. Both stop a publish.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from hpcdl.site import Site
from hpcdl.stack.release import Release
from hpcdl.stack.seal import shortened
from hpcdl.system.errors import CheckFailed

_ROOT = 0
_BELONGS = "belongs to user"
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
_SPECIAL = stat.S_ISUID | stat.S_ISGID


def require_safe_modes(release: Release, seen: Mapping[str, os.stat_result]) -> None:
    """CheckFailed where a file of a release breaks the rule; `seen` as for `mode_faults`."""
    faults = list(mode_faults(release.root, seen))
    if faults:
        strange = sum(_BELONGS in fault for fault in faults)
        cures = [f"chown -R {os.lstat(release.root).st_uid} {release.root}"] if strange else []
        cures += [f"chmod -R u=rwX,go=rX {release.root}"] if strange < len(faults) else []
        raise CheckFailed(
            f"{release.id} has files with wrong permissions and is not published",
            details=shortened(faults),
            hint=" && ".join(cures),
        )


def require_readers(site: Site, release: Release, say: Callable[[str], None]) -> None:
    """CheckFailed where users cannot reach a release, or cannot run the Python it is built on.

    Of a private site `say` is told of each fault, and that is all.
    """
    faults = list(dict.fromkeys(_reach_faults(release)))
    if faults and not site.private:
        raise CheckFailed(
            f"users could not use {release.id}, and it is not published",
            details=faults,
            hint="chmod o+x these directories, or choose another prefix or Python; where only its "
            "owner uses the prefix, `private: true` in the site file says so",
        )
    for fault in faults:
        say(f"note: {fault}")


def _reach_faults(release: Release) -> Iterator[str]:
    """What keeps others than the owner from a release."""
    for directory in closed_above(release.root):
        yield f"users cannot enter {directory}, which the release lies in"
    real = release.python.resolve()
    try:
        there = real.is_file()
    except PermissionError:  # this user is one of those who cannot
        yield f"users cannot enter the directories of its Python {real}"
        return
    if not there:
        yield f"its Python {real} is not there"
        return
    version = ".".join(release.versions.get("python", "").split(".")[:2])
    library = real.parents[1] / "lib" / f"python{version}"
    for directory in [*closed_above(real), *closed_above(library / "os.py")]:
        yield f"users cannot enter {directory}, which its Python lies in"
    if not real.stat().st_mode & stat.S_IXOTH:
        yield f"users cannot execute its Python {real}"


def mode_faults(root: Path, seen: Mapping[str, os.stat_result] | None = None) -> Iterator[str]:
    """What is wrong with the tree's owners and permissions, one line each.

    `seen` is `lstat` of everything below some of its directories, by path relative to it, where
    that is known: those are not read again.
    """
    owner, seen = os.lstat(root).st_uid, seen or {}
    sound: set[tuple[int, int]] = set()  # tens of thousands of files have a handful of modes
    for name, status in seen.items():
        kind = (status.st_mode, status.st_uid)
        if kind not in sound and not stat.S_ISLNK(status.st_mode):
            found = list(_fault(f"{root}/{name}", status, owner))
            yield from found
            sound |= set() if found else {kind}
    closed: list[OSError] = []
    for where, folders, files in os.walk(root, onerror=closed.append):
        if where == str(root):
            folders[:] = [name for name in folders if name not in seen]
        for path in (where, *(f"{where}/{name}" for name in files)):
            status = os.lstat(path)
            if not stat.S_ISLNK(status.st_mode):
                yield from _fault(path, status, owner)
    yield from (f"{one.filename}: cannot be read: {one.strerror}" for one in closed)


def _fault(path: str, status: os.stat_result, owner: int) -> Iterator[str]:
    mode = status.st_mode
    needed = stat.S_IROTH | (stat.S_IXOTH if stat.S_ISDIR(mode) else 0)
    if mode & _OTHERS_WRITE:
        yield f"{path}: mode {stat.S_IMODE(mode):04o}, others than its owner may write it"
    if mode & needed != needed:
        yield f"{path}: mode {stat.S_IMODE(mode):04o}, users cannot read it"
    if mode & _SPECIAL and not stat.S_ISDIR(mode):
        yield f"{path}: mode {stat.S_IMODE(mode):04o}, set-user-ID or set-group-ID"
    if status.st_uid not in {owner, _ROOT}:
        yield f"{path}: {_BELONGS} {status.st_uid}, the release to {owner}"


def closed_above(path: Path) -> list[Path]:
    """The directories above `path` that users cannot enter, outermost first."""
    parents = [parent for parent in reversed(path.absolute().parents) if parent.is_dir()]
    return [parent for parent in parents if not parent.stat().st_mode & stat.S_IXOTH]
