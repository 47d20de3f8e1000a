"""Makes a source mirror for machines without internet: all that an environment's build fetches.

Spack fetches and checks; `plan_mirror` knows beforehand which files those are, from the lock,
and `make_mirror` compares what came with them. What is there already is not fetched again, so an
interrupted run continues. What bazel downloads while it builds TensorFlow is no file of Spack's:
its cache is taken in if there is one.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from hpcdl.stack.spack_backend.environment import environment, environments
from hpcdl.stack.spack_backend.tool import Spack, open_spack, require_unlocked
from hpcdl.stack.spack_backend.view import inventory
from hpcdl.stack.wheelhouse import Say, new_log
from hpcdl.system.errors import BadInput, MissingPrerequisite, PartlyDone
from hpcdl.system.files import explain_os_errors, locked
from hpcdl.system.resources import folder, home, scratch_directory
from hpcdl.system.text import table

_SHOWN = 10


@dataclass(frozen=True)
class MirrorSource:
    """One file that a build fetches: an archive known by its digest, or a commit's tree."""

    package: str
    version: str
    url: str
    sha256: str | None
    commit: str | None
    licence: str | None

    def find(self, mirror: Path) -> Path | None:
        """Return the file's path in a mirror; None if it is missing."""
        kept = mirror / "_source-cache"
        if self.sha256:
            found = (kept / "archive" / self.sha256[:2]).glob(f"{self.sha256}*")
        else:
            found = (kept / "git").rglob(f"{self.commit}*")
        return next((path for path in sorted(found) if path.is_file()), None)


@dataclass(frozen=True)
class Mirror:
    """A mirror and what belongs into it; `bazel` is a bazel repository cache to take in."""

    folder: Path
    environments: tuple[Path, ...]
    sources: tuple[MirrorSource, ...]
    bazel: Path | None
    needs_bazel: bool

    @cached_property
    def missing(self) -> tuple[MirrorSource, ...]:
        """Return the missing sources."""
        return tuple(one for one in self.sources if one.find(self.folder) is None)

    def notes(self) -> list[str]:
        """Return notes for the user of the mirror."""
        if not self.needs_bazel or self.bazel or (self.folder / "bazel").is_dir():
            return []
        return [
            "bazel's downloads for TensorFlow are not in it: build once with internet and "
            "HPCDL_BAZEL_CACHE=DIR, then run this again with --bazel-cache DIR"
        ]

    def as_data(self) -> dict[str, Any]:
        """For machines."""
        return {
            "schema": 2,
            "directory": str(self.folder),
            "environments": [one.name for one in self.environments],
            "files": len(self.sources),
            "missing": [asdict(one) for one in self.missing],
            "notes": self.notes(),
        }

    def text(self) -> str:
        """Return the missing files as text."""
        rows = [
            [f"{one.package}@{one.version}", one.licence or "unknown", one.url or one.commit or ""]
            for one in self.missing
        ]
        lines = [table(rows, ["would fetch for", "licence", "from"])] if rows else []
        count = len(self.sources)
        lines.append(f"{count - len(rows)} of {count} files are in {self.folder} already")
        return "\n".join([*lines, *(f"note: {note}" for note in self.notes())])


def plan_mirror(where: Path, root: Path, environments: Sequence[str], bazel: str | None) -> Mirror:
    """Return the plan of a mirror of these environments.

    `root` has spack_repo/ and environments/; `bazel` is a bazel repository cache, by default the
    one of HPCDL_BAZEL_CACHE.

    Raises:
        BadInput: an environment is not solved, or there is no such cache.
    """
    named = bazel or os.environ.get("HPCDL_BAZEL_CACHE") or None
    if named and not Path(named).is_dir():
        raise BadInput(f"there is no bazel cache {named}", hint="name an existing directory")
    paths = tuple(root / "environments" / name for name in environments)
    for path in paths:
        if not (path / "spack.lock").is_file():
            raise BadInput(
                f"environment '{path.name}' is not solved: it has no spack.lock",
                hint="`hpcdl stack concretize` makes one",
            )
    with scratch_directory() as scope:
        spack = open_spack(root, scope)
        built = [package for path in paths for package in inventory(spack, path).packages]
    sources = dict.fromkeys(
        MirrorSource(
            package.name,
            package.version,
            file["url"] or "",
            file["sha256"],
            file["commit"],
            package.licence,
        )
        for package in built
        for file in package.files
        if file["sha256"] or file["commit"]
    )
    compiles = any(package.name == "py-tensorflow" for package in built)
    return Mirror(where, paths, tuple(sources), Path(named) if named else None, compiles)


def choose_environments(names: Sequence[str]) -> tuple[Path, tuple[str, ...]]:
    """The directory with the shipped environments, and which of them: all where none is named.

    Raises BadInput for an unknown environment.
    """
    known = tuple(environment(name).name for name in names)
    return shipped_copy(), known or tuple(one.name for one in environments())


def shipped_copy() -> Path:
    """A copy of the shipped recipes and environments, for Spack writes beside what it reads."""
    copy = home("spack", "shipped")
    with locked(copy.with_name(".shipped.lock")), explain_os_errors(copy):
        for part in ("spack_repo", "defaults", "environments"):
            shutil.copytree(
                folder("spack") / part,
                copy / part,
                dirs_exist_ok=True,
                ignore=shutil.ignore_patterns("__pycache__", ".spack-env", "view", "._view"),
            )
    return copy


def make_mirror(mirror: Mirror, root: Path, say: Say) -> None:
    """Fetch what is missing.

    Raises:
        PartlyDone: some files did not come; the rest is there, and running again continues.
        MissingPrerequisite: no space left, no permission, another one at work in that directory.
    """
    where = mirror.folder
    with locked(where / ".lock", wait_seconds=10):
        log = new_log("mirror")
        with scratch_directory() as scope:
            own = {"config.yaml": f"config:\n  build_stage: ['{where / '.stage'}']\n"}
            spack = open_spack(root, scope, own)
            for path in mirror.environments:
                _fetch(spack, where, path, log, say)
        shutil.rmtree(where / ".stage", ignore_errors=True)
        if mirror.bazel is not None:
            say(f"taking in bazel's downloads from {mirror.bazel}")
            _link_all(mirror.bazel, where / "bazel")
    left = [one for one in mirror.sources if one.find(where) is None]
    if left:
        raise PartlyDone(
            f"{len(left)} of {len(mirror.sources)} files did not come",
            details=[
                *(one.url or f"{one.package} {one.commit}" for one in left[:_SHOWN]),
                *(["..."] if len(left) > _SHOWN else []),
                f"log: {log}",
            ],
            hint="run the same command again; what is there is not fetched again",
        )


def _fetch(spack: Spack, where: Path, environment: Path, log: Path, say: Say) -> None:
    require_unlocked(environment)
    say(f"{environment.name}: fetching what is missing; log: {log}")
    create = ["-e", str(environment), "mirror", "create", "--all", "--directory", str(where)]
    result = spack.run(*create, check=False, log=log, tied=True)
    if not result.ok and "No space left on device" in log.read_text(errors="replace"):
        raise MissingPrerequisite(
            f"no space left for the mirror in {where}",
            hint="free some space, then run the same command: what is there stays",
        )


def _link_all(source: Path, target: Path) -> None:
    """Link a tree's files into another directory, or copy them where they cannot be linked."""
    with explain_os_errors(target):
        for base, _, names in os.walk(source):
            there = target / Path(base).relative_to(source)
            there.mkdir(parents=True, exist_ok=True)
            for name in names:
                if not (there / name).exists():
                    try:
                        (there / name).hardlink_to(Path(base, name))
                    except OSError:
                        shutil.copy2(Path(base, name), there / name)
