"""Trees of releases while they are made: one maker at a time, and nothing half done is left.

A tree is made at its final place, because virtual environments do not move, and is no release
until release.json is in it. Where the work on it fails it is removed; what a killed build leaves
is told by its name and by what it lacks.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from hpcdl.site import Site
from hpcdl.stack.release import releases_folder
from hpcdl.system.files import LockBusy, explain_os_errors, shared_lock

TRASH = ".trash-"
"""What the name of a tree begins with that is being removed."""
_BUILD_SECONDS = 7200
_RELEASE_ID = re.compile(r".+-\d+(\.\d+)+-(cpu|cuda\d[a-z0-9.-]*)-[0-9a-f]{8}")


@contextmanager
def build_slot(site: Site, say: Callable[[str], None]) -> Iterator[None]:
    """Be the only one who makes trees below this prefix; says so where another one is at it.

    Raises:
        MissingPrerequisite: no permission, or the other one takes hours.
    """
    with ExitStack() as held:
        try:
            held.enter_context(shared_lock(build_lock(site), wait_seconds=0))
        except LockBusy as busy:
            say(f"waiting: {busy.message}")
            held.enter_context(shared_lock(build_lock(site), wait_seconds=_BUILD_SECONDS))
        yield


@contextmanager
def new_tree(root: Path) -> Iterator[Path]:
    """A fresh directory for a release that is removed again where the work on it fails."""
    with explain_os_errors(root):
        if root.exists():
            shutil.rmtree(root)
        root.mkdir(parents=True)
    try:
        with explain_os_errors(root):
            yield root
    except BaseException:
        shutil.rmtree(root, ignore_errors=True)
        raise


def build_lock(site: Site) -> Path:
    """The lock of whoever makes trees below this prefix."""
    return releases_folder(site) / ".build.lock"


def unfinished(site: Site) -> list[Path]:
    """Trees that were killed while they were made or removed; ask while no build is at work.

    What has no name of ours, such as `lost+found` or somebody's copy, is left alone.
    """
    with suppress(FileNotFoundError):
        trees = sorted(path for path in releases_folder(site).iterdir() if path.is_dir())
        return [
            tree
            for tree in trees
            if tree.name.startswith(TRASH)
            or (_RELEASE_ID.fullmatch(tree.name) and not (tree / "release.json").is_file())
        ]
    return []
