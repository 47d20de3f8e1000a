"""The wheels of a stack: fetched once by pip, locked by their digests, kept in the cache.

A wheelhouse is a directory that appears by one rename when it is complete. pip fetches, so a
site's pip.conf (mirrors, proxies, certificates) counts; afterwards nothing needs the network.
Before every use each file is compared with the lock.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from hpcdl.stack.recipe import Interpreter, Recipe, digest
from hpcdl.system.errors import MissingPrerequisite
from hpcdl.system.files import explain_os_errors, shared_lock, write_json
from hpcdl.system.resources import cache, home
from hpcdl.system.run import run
from hpcdl.system.text import utc_stamp
from hpcdl.system.trust import require_private

Say = Callable[[str], None]
_FETCH_SECONDS = 3600


@dataclass(frozen=True)
class Wheel:
    """One file of a wheelhouse, as locked."""

    name: str
    version: str
    file: str
    sha256: str

    def as_lock(self) -> Mapping[str, str]:
        """The entry in a lock."""
        return {"name": self.name, "version": self.version, "file": self.file,
                "sha256": self.sha256}  # fmt: skip


@dataclass(frozen=True)
class Wheelhouse:
    """A complete, locked set of wheels."""

    folder: Path
    wheels: tuple[Wheel, ...]

    def version(self, name: str) -> str:
        """The locked version of a package."""
        return next(wheel.version for wheel in self.wheels if wheel.name == name)

    def paths(self) -> list[Path]:
        """The files, after each has been compared with its digest.

        Raises:
            MissingPrerequisite: a file is missing or is not what was locked.
        """
        for wheel in self.wheels:
            path = self.folder / wheel.file
            if not path.is_file() or sha256(path) != wheel.sha256:
                raise MissingPrerequisite(
                    f"the wheel {path} is not the one that was locked",
                    hint=f"remove {self.folder}; the next build fetches it again",
                )
        return [self.folder / wheel.file for wheel in self.wheels]


def wheels_cache() -> Path:
    """Where wheels are kept, fetched or built."""
    return cache("wheels")


def new_log(what: str) -> Path:
    """A fresh log file's path."""
    import os

    return home("logs", "stack") / f"{utc_stamp()}-{os.getpid()}-{what}.log"


def wheelhouse_folder(recipe: Recipe, python: Interpreter) -> Path:
    """Where the wheelhouse of a recipe lies, whether or not it is there yet."""
    key = digest(recipe.requirements, python.minor)
    return wheels_cache() / f"{recipe.package}-{recipe.tensorflow}-{python.tag}-{key}"


def find_wheelhouse(recipe: Recipe, python: Interpreter) -> Wheelhouse | None:
    """The wheelhouse of a recipe, where it is complete."""
    folder = wheelhouse_folder(recipe, python)
    try:
        if folder.is_dir():
            require_private(folder)  # made under a careless umask, or by an older hpcdl
        entries = json.loads((folder / "lock.json").read_text(encoding="utf-8"))["wheels"]
        wheels = tuple(Wheel(**entry) for entry in entries)
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return Wheelhouse(folder, wheels) if all((folder / w.file).is_file() for w in wheels) else None


def fetch(recipe: Recipe, python: Interpreter, say: Say) -> Wheelhouse:
    """The wheelhouse of a recipe, fetched now where it is not there.

    Raises:
        CommandFailed: pip failed; its log is named.
        MissingPrerequisite: no pip, no space left.
    """
    with shared_lock(wheels_cache() / ".lock", wait_seconds=_FETCH_SECONDS):
        found = find_wheelhouse(recipe, python)
        if found is not None:
            return found
        pip = _pip(python, say)
        say(f"fetching {recipe.package} {recipe.tensorflow} and what it needs "
            f"(about {recipe.fetch_gb:.1f} GB, once)")  # fmt: skip
        folder = wheelhouse_folder(recipe, python)
        partial = folder.with_name(f"{folder.name}.partial")
        # Begun anew each time (pip caches what it fetched): two versions of one package, fetched
        # on different days, must not meet in one lock.
        with explain_os_errors(partial):
            shutil.rmtree(partial, ignore_errors=True)
            partial.mkdir(parents=True)
        run(
            [*pip, "download", "--only-binary", ":all:", "--dest", partial, *recipe.requirements],
            log=new_log("fetch"),
            timeout=_FETCH_SECONDS,
            hint="pip needs PyPI or a mirror of it: set it in pip.conf, or PIP_INDEX_URL; what "
            "`packages:` in site.yaml asks for must have wheels and agree with TensorFlow",
        )
        wheels = [_locked_wheel(path) for path in sorted(partial.glob("*.whl"))]
        write_json(
            partial / "lock.json", {"schema": 1, "wheels": [dict(w.as_lock()) for w in wheels]}
        )
        with explain_os_errors(folder):
            shutil.rmtree(folder, ignore_errors=True)
            partial.rename(folder)
    return Wheelhouse(folder, tuple(wheels))


def tools(python: Interpreter, say: Say) -> Path:
    """A small environment of that Python with pip in it; its directory."""
    where = cache("tools", python.tag)
    if not (where / "bin" / "pip").is_file():
        say(f"making pip ready for Python {python.minor}")
        run([python.path, "-m", "venv", "--clear", where], log=new_log("tools"),
            hint="Debian and Ubuntu: apt install python3-venv")  # fmt: skip
    for part in (where, where / "bin"):  # what is in it is executed
        require_private(part)
    return where


def _pip(python: Interpreter, say: Say) -> list[str | Path]:
    """The pip of that environment."""
    program = tools(python, say) / "bin" / "python"
    return [program, "-m", "pip", "--disable-pip-version-check", "--no-input", "--no-color"]


def _locked_wheel(path: Path) -> Wheel:
    """A wheel's lock entry; name and version are in the file's name (PEP 427)."""
    name, version = path.name.split("-")[:2]
    return Wheel(name.lower().replace("_", "-"), version, path.name, sha256(path))


def sha256(path: Path) -> str:
    """The digest of a file."""
    state = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            state.update(block)
    return state.hexdigest()
