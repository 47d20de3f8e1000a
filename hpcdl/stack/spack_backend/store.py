"""What nobody needs any more in the install tree that all releases built by Spack share.

Lock files say what is needed: of a release what it runs with, of a stack's environment all of
it, for the next build continues from that. Everything else that Spack has installed goes, by
Spack itself. While a build is at work nothing is looked at: what it has just installed may be in
no lock file yet.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from hpcdl.site import Site
from hpcdl.stack.release import releases_folder
from hpcdl.stack.spack_backend.locked import read_lock
from hpcdl.stack.spack_backend.mirror import shipped_copy
from hpcdl.stack.spack_backend.spack_build import shared, store
from hpcdl.stack.spack_backend.tool import Spack, open_spack
from hpcdl.stack.wheelhouse import new_log
from hpcdl.system.files import locked, size_of
from hpcdl.system.scratch import scratch_directory


@dataclass(frozen=True)
class Installed:
    """A package in the install tree; `size` in bytes, as far as only it has them."""

    hash: str
    title: str
    prefix: Path
    size: int = 0


def is_there(site: Site) -> bool:
    """Whether there is an install tree of ours; from the site's own nothing is ever removed."""
    return site.spack.store is None and store(site).is_dir()


def remove_unneeded(
    site: Site, releases: Collection[str], *, dry_run: bool
) -> tuple[Installed, ...]:
    """Remove the packages that neither these releases nor any stack's environment needs.

    `releases` are the ids of those that stay.

    Raises:
        MissingPrerequisite: a build is at work, there is no Spack, or a lock file cannot be read.
    """
    with ExitStack() as held, scratch_directory() as scope:
        for environments in sorted(shared(site).glob("*/environments")):
            held.enter_context(locked(environments.with_name(".lock"), wait_seconds=0))
        kept = _kept(site, releases)
        spack = _open(site, scope)
        unneeded = [one for one in _installed(spack, store(site)) if one.hash not in kept]
        found = tuple(replace(one, size=size_of(one.prefix)) for one in unneeded)
        if found and not dry_run:
            # No --force: should one of them be needed after all, Spack refuses.
            names = [f"/{one.hash}" for one in found]
            spack.run("uninstall", "--yes-to-all", *names, log=new_log("gc"), tied=True)
    return found


def _kept(site: Site, releases: Collection[str]) -> set[str]:
    kept = set[str]()
    for name in releases:
        own = releases_folder(site) / name / "spack"
        kept |= read_lock(own).to_run if own.is_dir() else set()
    for path in shared(site).glob("*/environments/*/spack.lock"):
        kept |= set(read_lock(path.parent).specs)
    return kept


def _open(site: Site, scope: Path) -> Spack:
    """Spack for the install tree, with the recipes of one of the site's stacks, or ours."""
    padding = site.spack.padded_length
    tree = {"root": str(store(site)), **({"padded_length": padding} if padding else {})}
    settings = {"config.yaml": json.dumps({"config": {"install_tree": tree}})}
    own = min(shared(site).glob("*/spack_repo"), default=None)
    return open_spack(own.parent if own else shipped_copy(), scope, settings)


def _installed(spack: Spack, tree: Path) -> Iterator[Installed]:
    """What lies in the tree; what the machine brought (externals) does not."""
    told = spack.run("find", "--format", "{hash} {name}@{version} {prefix}").stdout
    for line in told.splitlines():
        words = line.strip().split(" ", 2)
        if len(words) == 3 and Path(words[2]).is_relative_to(tree):
            yield Installed(words[0], words[1], Path(words[2]))
