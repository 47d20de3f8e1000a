"""Makes a source mirror for machines without internet: all that an environment's build fetches.

Spack fetches, checks and counts (`spack mirror create`). What is there already is not fetched
again, so an interrupted run continues. What bazel downloads while it builds TensorFlow is no file
of Spack's: its cache is taken in if there is one.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpcdl.stack.spack_backend.environment import environment, environments
from hpcdl.stack.spack_backend.tool import Spack, open_spack, read_lock, require_unlocked
from hpcdl.stack.wheelhouse import Say, new_log
from hpcdl.system.errors import BadInput, MissingPrerequisite, PartlyDone
from hpcdl.system.files import explain_os_errors, locked
from hpcdl.system.resources import folder, home, scratch_directory
from hpcdl.system.safe_read import last_text

_END = 20_000


@dataclass(frozen=True)
class Mirror:
    """A mirror and what belongs into it; `bazel` is a bazel repository cache to take in."""

    folder: Path
    environments: tuple[Path, ...]
    packages: int
    bazel: Path | None
    needs_bazel: bool

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
            "schema": 3,
            "directory": str(self.folder),
            "environments": [one.name for one in self.environments],
            "packages": self.packages,
            "notes": self.notes(),
        }

    def text(self) -> str:
        """Return what belongs into it as text."""
        names = ", ".join(one.name for one in self.environments)
        line = f"the sources of {self.packages} packages ({names}) belong into {self.folder}"
        return "\n".join([line, *(f"note: {note}" for note in self.notes())])


def plan_mirror(where: Path, root: Path, environments: Sequence[str], bazel: str | None) -> Mirror:
    """Return the plan of a mirror of these environments.

    `root` has spack_repo/ and environments/; `bazel` is a bazel repository cache, by default the
    one of HPCDL_BAZEL_CACHE.

    Raises:
        BadInput: there is no such cache.
        MissingPrerequisite: an environment is not solved.
    """
    named = bazel or os.environ.get("HPCDL_BAZEL_CACHE") or None
    if named and not Path(named).is_dir():
        raise BadInput(f"there is no bazel cache {named}", hint="name an existing directory")
    paths = tuple(root / "environments" / name for name in environments)
    specs = {key: spec for path in paths for key, spec in read_lock(path).specs.items()}
    compiles = any(spec["name"] == "py-tensorflow" for spec in specs.values())
    count = sum("external" not in spec for spec in specs.values())
    return Mirror(where, paths, count, Path(named) if named else None, compiles)


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
        with scratch_directory() as scope:
            own = {"config.yaml": f"config:\n  build_stage: ['{where / '.stage'}']\n"}
            spack = open_spack(root, scope, own)
            for path in mirror.environments:
                _fetch(spack, where, path, say)
        shutil.rmtree(where / ".stage", ignore_errors=True)
        if mirror.bazel is not None:
            say(f"taking in bazel's downloads from {mirror.bazel}")
            with explain_os_errors(where):
                shutil.copytree(mirror.bazel, where / "bazel", dirs_exist_ok=True)


def _fetch(spack: Spack, where: Path, environment: Path, say: Say) -> None:
    require_unlocked(environment)
    log = new_log("mirror")
    say(f"{environment.name}: fetching what is missing; log: {log}")
    create = ["-e", str(environment), "mirror", "create", "--all", "--directory", str(where)]
    result = spack.run(*create, check=False, log=log, tied=True)
    if result.ok:
        return
    if "No space left on device" in last_text(log, _END):
        raise MissingPrerequisite(
            f"no space left for the mirror in {where}",
            hint="free some space, then run the same command: what is there stays",
        )
    raise PartlyDone(
        f"some files of {environment.name} did not come",
        details=[*last_text(log, _END).strip().splitlines()[-8:], f"log: {log}"],
        hint="run the same command again; what is there is not fetched again",
    )
