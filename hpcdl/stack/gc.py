"""Removes releases that nothing needs any more.

Kept are: what is current or serves a partition, what a rollback may still want, what queued or
running jobs have pinned (asked of the caller, for this package knows no queue), and releases
whose record is broken, for a person must look at these. A tree leaves by one rename into the
trash, so that a killed gc leaves whole releases only; the next one empties the trash.

Then `spack gc` removes from the install tree that all releases built by Spack share what no release
and no stack's environment needs; the next build continues from these. While a build is at work
nothing is looked at: what it has just installed may be in no lock file yet.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Collection, Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass

from hpcdl.site import Site
from hpcdl.stack import publish
from hpcdl.stack.modules import read_history
from hpcdl.stack.publish import shown_after, sound_releases
from hpcdl.stack.release import current_id, current_release, release_ids, releases_folder
from hpcdl.stack.spack_backend.environment import open_spack, read_lock
from hpcdl.stack.spack_backend.spack_build import shared, store
from hpcdl.stack.tree import TRASH, build_lock, unfinished
from hpcdl.system.errors import HpcdlError, MissingPrerequisite
from hpcdl.system.files import explain_os_errors, locked, shared_lock, size_of, umask
from hpcdl.system.resources import folder, scratch_directory

Pinned = Callable[[], Mapping[str, str]]
KEEP = 3
_WAIT_SECONDS = 900
_LISTED = re.compile(r"^ *(\w{7}) ([^\s@]+@[\w.-]+)", re.MULTILINE)
"""How Spack lists packages: hash, name and version."""


@dataclass(frozen=True)
class Garbage:
    """What is removed and what stays.

    `removed` has the bytes freed by release id, `kept` the reason; `packages` are Spack's, `note`
    says why these were not looked at.
    """

    removed: Mapping[str, int]
    unfinished: tuple[str, ...]
    kept: Mapping[str, str]
    packages: tuple[str, ...]
    note: str = ""

    def as_data(self) -> dict[str, object]:
        """For machines."""
        return {"schema": 1, **asdict(self)}


def collect(
    site: Site,
    pinned: Pinned,
    *,
    keep: int = KEEP,
    unpublished: bool = False,
    dry_run: bool = False,
) -> Garbage:
    """Remove what nothing needs, or list what would be removed.

    `pinned` gives the releases that queued and running jobs need, each with the reason; it is asked
    under the lock. `keep` is how many of the last published ones stay, the current one among them;
    with `unpublished` those that were never published go, too.
    """
    with shared_lock(publish.publish_lock(site), wait_seconds=_WAIT_SECONDS):
        needed = pinned()
        # Unfinished trees first: on a full disk their space is wanted for new modulefiles.
        leftovers = _leftovers(site, dry_run)
        with publish.switch_lock(site, _WAIT_SECONDS):  # a rollback may have come in between
            kept = _reasons(site, needed, keep, unpublished)
            doomed = [
                releases_folder(site) / name for name in release_ids(site) if name not in kept
            ]
            if not dry_run and doomed:
                # First no link leads there any more, then it is removed.
                if (current := current_release(site)) is not None:
                    gone = {tree.name for tree in doomed}
                    publish.show_modules(site, current, without=gone)
                with explain_os_errors(releases_folder(site)):
                    for tree in doomed:
                        shutil.rmtree(tree.with_name(f"{TRASH}{tree.name}"), ignore_errors=True)
                    doomed = [tree.rename(f"{tree.parent}/{TRASH}{tree.name}") for tree in doomed]
        sizes = {tree.name.removeprefix(TRASH): size_of(tree) for tree in doomed}
        for tree in doomed if not dry_run else ():
            shutil.rmtree(tree, ignore_errors=True)
    packages, note = _packages(site, kept, dry_run)
    return Garbage(sizes, leftovers, kept, packages, note)


def _reasons(site: Site, pinned: Mapping[str, str], keep: int, unpublished: bool) -> dict[str, str]:
    existing, events = release_ids(site), read_history(site)
    # Rolled back or not: a rollback may be taken back.
    latest_first = dict.fromkeys(event.release for event in reversed(events))
    published = [name for name in latest_first if name in existing]
    serving: dict[str, list[str]] = {}
    if (shown := shown_after(site, events)) is not None:
        for partition in site.partitions:
            for name in shown.chosen.given(partition):
                serving.setdefault(name, []).append(partition)
    # Weak reasons first: a stronger one takes their place.
    broken = set(existing) - set(sound_releases(site))
    kept = dict.fromkeys(broken, "its record is broken: look at it, then remove it by hand")
    if not unpublished:
        kept |= dict.fromkeys(set(existing) - set(published), "was never published")
    kept |= dict.fromkeys(published[:keep], f"is one of the last {keep} published")
    kept |= pinned
    kept |= {name: f"serves {', '.join(partitions)}" for name, partitions in serving.items()}
    kept |= {str(current_id(site)): "is current"}
    return {name: kept[name] for name in existing if name in kept}


def _packages(site: Site, releases: Collection[str], dry_run: bool) -> tuple[tuple[str, ...], str]:
    """Let Spack remove what these releases and all environments do not need; why not, if not."""
    # From the site's own install tree nothing is ever removed.
    if site.spack.store is not None or not store(site).is_dir():
        return (), ""
    places = [releases_folder(site) / name / "spack" for name in releases]
    places = [place for place in places if place.is_dir()]
    try:
        with umask(0o022), ExitStack() as held, scratch_directory() as scope:
            for environments in sorted(shared(site).glob("*/environments")):
                held.enter_context(locked(environments.with_name(".lock"), wait_seconds=0))
                places += [lock.parent for lock in environments.glob("*/spack.lock")]
            for place in places:
                read_lock(place)  # a damaged one is told by its path
            own = min(shared(site).glob("*/spack_repo"), default=folder("spack") / "spack_repo")
            padding = site.spack.padded_length
            tree = {"root": str(store(site)), **({"padded_length": padding} if padding else {})}
            settings = {"config.yaml": json.dumps({"config": {"install_tree": tree}})}
            spack = open_spack(own.parent, scope, settings)
            needed = [word for place in places for word in ("-e", place)]
            answer = "n\n" if dry_run else "y\n"  # it lists them, then asks
            listed = spack.run("gc", "-E", "-b", *needed, stdin=answer, tied=True).stdout
            return tuple(f"{title}/{key}" for key, title in _LISTED.findall(listed)), ""
    except HpcdlError as fault:
        # The releases are removed by now, and must be reported: this can be done another time.
        more = f" ({fault.hint})" if fault.hint else ""
        return (), f"Spack's packages were left alone: {fault.message}{more}"


def _leftovers(site: Site, dry_run: bool) -> tuple[str, ...]:
    """Remove what killed builds and killed collections left, unless a build is at work."""
    try:
        with shared_lock(build_lock(site), wait_seconds=0):
            found = unfinished(site)
            for tree in found if not dry_run else ():
                shutil.rmtree(tree, ignore_errors=True)
    except MissingPrerequisite:
        return ()
    return tuple(tree.name for tree in found)
