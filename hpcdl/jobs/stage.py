"""Copies a data set to the node's own disk: in parallel, checked, and only what fits.

What does not fit is linked to its place, so that a program sees the whole data set either
way. A node's disk is everybody's: the copy is in a directory that only its user can change, and a
file that is there already counts only after its content was compared. Standard library only: it
runs once per node, before the ranks.
"""

from __future__ import annotations

import os
import re
import shutil
import stat
import zlib
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from hpcdl.system.errors import BadInput, CheckFailed, MissingPrerequisite
from hpcdl.system.trust import make_private

RESERVE_BYTES = 256_000_000
"""Space left on the disk for everybody else's small files."""
_CHUNK = 4_000_000
_TARGET = re.compile(r"hpcdl-(?P<cluster>.*)-(?P<job>[0-9]+)-[0-9a-f]{16}\Z")


@dataclass(frozen=True)
class StagingPlan:
    """Files of a data set, relative to it: to copy, and to link because they do not fit."""

    copy: tuple[tuple[Path, int], ...]
    link: tuple[tuple[Path, int], ...]

    @property
    def copied_bytes(self) -> int:
        """Bytes that will be copied to the node."""
        return sum(size for _, size in self.copy)


def plan(files: Sequence[tuple[Path, int]], space: int) -> StagingPlan:
    """Split files by what fits into `space` bytes, in the order given. Pure."""
    copy: list[tuple[Path, int]] = []
    for name, size in files:
        if size <= space:
            copy.append((name, size))
            space -= size
    fit = {name for name, _ in copy}
    return StagingPlan(tuple(copy), tuple(file for file in files if file[0] not in fit))


def stage(
    source: Path, target: Path, *, workers: int = 8, reserve: int = RESERVE_BYTES
) -> StagingPlan:
    """Put `source` on the disk of `target`; a file that is there already and equal is kept.

    Raises:
        BadInput: `source` is not a directory.
        MissingPrerequisite: `target` cannot be written, or others could change it.
        CheckFailed: a copy differs from its source.
    """
    if not source.is_dir():
        raise BadInput(f"the data set {source} is not a directory", hint="name that of its shards")
    make_private(target)
    files = sorted(_files(source))
    present = sum(size for name, size in files if _size(target / name) == size)
    chosen = plan(files, max(0, shutil.disk_usage(target).free + present - reserve))
    for folder in dict.fromkeys(name.parent for name, _ in files):
        _make_inside(target, folder)
    for name, _ in chosen.link:
        (target / name).unlink(missing_ok=True)
        (target / name).symlink_to((source / name).absolute())
    with ThreadPoolExecutor(max(1, workers)) as pool:
        list(pool.map(lambda file: _copy(source / file[0], target / file[0]), chosen.copy))
    return chosen


def _make_inside(target: Path, name: Path) -> None:
    """Make the directory `name` below `target`, through no link."""
    place = target
    for part in name.parts:
        place = place / part
        place.mkdir(exist_ok=True)
        if place.is_symlink():
            raise MissingPrerequisite(f"{place} is a link", hint=f"remove {target}, stage anew")


def remove_left(target: Path, alive: Callable[[], Collection[int]]) -> int:
    """Remove what this user's ended jobs of this cluster left beside `target`; give how many.

    A cancelled job starts no step to clean its other nodes, and a lost node cannot. `alive` gives
    the jobs that have not ended; it is asked after looking, so that no job can begin in between.
    """
    own = _TARGET.match(target.name)
    if own is None:
        return 0
    left = {}
    with suppress(OSError):
        for place in target.parent.iterdir():
            found = _TARGET.match(place.name)
            if found and found["cluster"] == own["cluster"] and place != target and _is_own(place):
                left[place] = int(found["job"])
    # A job that runs again has a new directory; what its earlier run left is not in use.
    ended = set(left.values()) - set(alive()) | {int(own["job"])} if left else set()
    gone = [place for place, job in left.items() if job in ended]
    for place in gone:
        clean(place)
    return len(gone)


def _is_own(place: Path) -> bool:
    """Whether this is a directory, not a link, of this user's."""
    status = place.lstat()
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid()


def _files(source: Path) -> Iterator[tuple[Path, int]]:
    """Every file below a directory and its size, through links to directories as well.

    Sets are often put together from links; one that leads back above itself is not entered.
    """
    inside: dict[Path, frozenset[tuple[int, int]]] = {}
    for name, folders, names in os.walk(source, followlinks=True, onerror=_refuse):
        place = Path(name)
        status = place.stat()
        above, here = inside.get(place.parent, frozenset()), (status.st_dev, status.st_ino)
        if here in above:
            folders.clear()
            continue
        inside[place] = above | {here}
        for path in (place / one for one in names):
            if path.is_file():
                yield path.relative_to(source), path.stat().st_size


def _refuse(fault: OSError) -> None:
    """A directory that cannot be listed is no empty one."""
    raise MissingPrerequisite(f"cannot read {fault.filename}: {fault.strerror}") from fault


def clean(target: Path) -> None:
    """Take a staged data set away again; one that is not there is no error."""
    shutil.rmtree(target, ignore_errors=True)


def _copy(source: Path, target: Path) -> None:
    """Copy a file under a temporary name, compare checksums, rename."""
    if _size(target) == source.stat().st_size and _checksum(target) == _checksum(source):
        return
    aside = target.with_name(f".{target.name}.{os.getpid()}")
    aside.unlink(missing_ok=True)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        with source.open("rb") as read, os.fdopen(os.open(aside, flags, 0o600), "wb") as write:
            wanted = 0
            while chunk := read.read(_CHUNK):
                wanted = zlib.crc32(chunk, wanted)
                write.write(chunk)
        if _checksum(aside) != wanted:
            raise CheckFailed(
                f"the copy of {source} on this node differs from it",
                hint="is the node's disk healthy?",
            )
        aside.replace(target)
    except OSError as fault:
        raise MissingPrerequisite(f"cannot copy {source} to {target}: {fault.strerror}") from fault
    finally:
        aside.unlink(missing_ok=True)


def _checksum(path: Path) -> int:
    found = 0
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            found = zlib.crc32(chunk, found)
    return found


def _size(path: Path) -> int | None:
    """A regular file's size; None for a link or nothing."""
    return path.stat().st_size if path.is_file() and not path.is_symlink() else None
