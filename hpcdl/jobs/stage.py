"""Copies a data set to the node's own disk: in parallel, and only what fits.

What does not fit is linked to its place, so that a program sees the whole data set either way. A
node's disk is everybody's: the copy is in a directory that only its user can change. Nodes may
share it, as emulated ones do. Standard library only: it runs once per node, before the ranks.
"""

from __future__ import annotations

import os
import re
import shutil
import stat
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from hpcdl.system.errors import BadInput, CheckFailed, MissingPrerequisite
from hpcdl.system.trust import make_private

_AT_ONCE = 8
RESERVE_BYTES = 256_000_000
"""Space left on the disk for everybody else's small files."""
_TARGET = re.compile(r"hpcdl-(?P<cluster>.*)-(?P<job>[0-9]+)-[0-9a-f]{16}\Z")


class StagedFiles(NamedTuple):
    """Files of a data set, relative to it, with their sizes; what does not fit is linked."""

    copied: list[tuple[Path, int]]
    linked: list[tuple[Path, int]]


def stage(source: Path, target: Path, *, reserve: int = RESERVE_BYTES) -> StagedFiles:
    """Put `source` on the disk of `target`, which another node may fill at the same time.

    Raises:
        BadInput: `source` is not a directory.
        MissingPrerequisite: `target` cannot be written, others could change it, or it has links.
        CheckFailed: a copy is shorter or longer than its source.
    """
    if not source.is_dir():
        raise BadInput(f"the data set {source} is not a directory", hint="name that of its shards")
    make_private(target)
    space = shutil.disk_usage(target).free - reserve
    staged = StagedFiles([], [])
    for name, size in sorted(_files(source)):
        fits = size <= space
        (staged.copied if fits else staged.linked).append((name, size))
        space -= size * fits
        folder = (target / name).parent
        folder.mkdir(parents=True, exist_ok=True)
        if folder.resolve() != (target.resolve() / name).parent:
            raise MissingPrerequisite(f"{folder} is a link", hint=f"remove {target}, stage anew")
    for name, _ in staged.linked:
        with suppress(FileExistsError):
            (target / name).symlink_to((source / name).absolute())
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        list(pool.map(lambda file: _copy(source / file[0], target / file[0]), staged.copied))
    return staged


def _copy(source: Path, target: Path) -> None:
    """Copy a file under a name of its own, and rename it."""
    aside = target.with_name(f".{target.name}.{os.urandom(4).hex()}")
    try:
        shutil.copyfile(source, aside)
        if source.stat().st_size != aside.stat().st_size:
            message = f"the copy of {source} on this node has another size"
            raise CheckFailed(message, hint="is it written to at the same time?")
        aside.replace(target)
    except OSError as fault:
        raise MissingPrerequisite(f"cannot copy {source} to {target}: {fault.strerror}") from fault
    finally:
        aside.unlink(missing_ok=True)


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
            found, status = _TARGET.match(place.name), place.lstat()
            mine = stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid()
            if found and found["cluster"] == own["cluster"] and place != target and mine:
                left[place] = int(found["job"])
    # A job that runs again has a new directory; what its earlier run left is not in use.
    ended = set(left.values()) - set(alive()) | {int(own["job"])} if left else set()
    gone = [place for place, job in left.items() if job in ended]
    for place in gone:
        shutil.rmtree(place, ignore_errors=True)
    return len(gone)


def _files(source: Path) -> Iterator[tuple[Path, int]]:
    """Every file below a directory and its size, through links to directories as well.

    Sets are often put together from links; one that leads back above itself is not entered.
    """
    for name, folders, names in os.walk(source, followlinks=True, onerror=_refuse):
        place = Path(name)
        above = {folder.resolve() for folder in place.parents}
        folders[:] = [one for one in folders if (place / one).resolve() not in above | {place}]
        for path in (place / one for one in names):
            if path.is_file():
                yield path.relative_to(source), path.stat().st_size


def _refuse(fault: OSError) -> None:
    """A directory that cannot be listed is no empty one."""
    raise MissingPrerequisite(f"cannot read {fault.filename}: {fault.strerror}") from fault
