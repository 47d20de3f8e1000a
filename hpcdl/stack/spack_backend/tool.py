"""Spack itself: where it is, whether it is one that fits, and how it is called.

Nothing of a user's own Spack settings is changed: a `Spack` has a scope of settings of its own.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hpcdl import facts
from hpcdl.stack.resolve_solver import sort_key
from hpcdl.system.errors import BadInput, MissingPrerequisite
from hpcdl.system.files import lock_holder, write_atomic
from hpcdl.system.run import CommandResult, run

# A shell with an active environment: `spack find` would list that one's packages alone.
_ACTIVE = frozenset({"SPACK_ENV", "SPACK_ENV_VIEW"})


@dataclass(frozen=True)
class Spack:
    """How Spack is called: `scope` holds settings of this run, `env` variables on top."""

    program: Path
    version: str
    scope: Path
    env: Mapping[str, str] = field(default_factory=dict)

    def run(self, *words: str | Path, **options: Any) -> CommandResult:
        """Run it outside any environment of the caller's; `options` are those of `run`."""
        base = {name: value for name, value in os.environ.items() if name not in _ACTIVE}
        argv = [self.program, "-C", self.scope, *words]
        return run(argv, env=self.env, base_env=base, **options)

    @property
    def shell(self) -> str:
        """The beginning of every call, for a shell."""
        return shlex.join([str(self.program), "-C", str(self.scope)])


def find_spack() -> Path:
    """The `spack` program: of HPCDL_SPACK_ROOT, SPACK_ROOT, or PATH; else MissingPrerequisite."""
    for name in ("HPCDL_SPACK_ROOT", "SPACK_ROOT"):
        program = Path(os.environ.get(name) or "/nonexistent") / "bin" / "spack"
        if program.is_file():
            return program
    found = shutil.which("spack")
    if found is None:
        raise MissingPrerequisite(
            "Spack is not here", hint="set HPCDL_SPACK_ROOT to its directory, or put it on PATH"
        )
    return Path(found)


def open_spack(root: Path, scope: Path, settings: Mapping[str, str] | None = None) -> Spack:
    """Spack for the environments below `root`, with settings written into `scope`.

    `root` has spack_repo/ and environments/, perhaps a site.yaml; `settings` are further files for
    the scope, such as config.yaml, by name.

    Raises:
        MissingPrerequisite: there is no Spack, or one that is too old.
        BadInput: HPCDL_SPACK_PACKAGES leads to no packages.
    """
    program = find_spack()
    version = _version(program)
    site = root / "site.yaml"
    files = dict(settings or {})
    if builtin := packages_named():
        overlay = (root / "spack_repo" / "hpcdl").absolute()
        # In a list of repositories the first one wins.
        own = f"  hpcdl: {overlay}\n" if overlay.is_dir() else ""
        files["repos.yaml"] = f"repos:\n{own}  builtin: {builtin}\n"
    for name, text in files.items():
        write_atomic(scope / name, text)
    return Spack(program, version, scope, {"HPCDL_SPACK_SITE": str(site)} if site.exists() else {})


def _version(program: Path) -> str:
    told = run([program, "--version"], timeout=120, hint="SPACK_PYTHON names its Python").stdout
    found = re.match(r"\d+(\.\d+)+", told.strip())
    least = str(facts.load("spack")["at_least"]["spack"])
    if found is None or sort_key(found.group()) < sort_key(least):
        raise MissingPrerequisite(
            f"{program} is Spack {told.strip()[:40] or 'of no version'}, too old for this overlay",
            hint=f"use Spack {least} or newer; set HPCDL_SPACK_ROOT to its directory",
        )
    return told.strip()


def packages_named() -> Path | None:
    """Packages of the checkout in HPCDL_SPACK_PACKAGES, if any; BadInput: none are there."""
    packages = os.environ.get("HPCDL_SPACK_PACKAGES")
    if not packages:
        return None
    builtin = Path(packages).absolute() / "repos" / "spack_repo" / "builtin"
    if not (builtin / "repo.yaml").is_file():
        raise BadInput(
            f"HPCDL_SPACK_PACKAGES is {packages}, where there are no packages of Spack",
            hint="name a checkout of github.com/spack/spack-packages",
        )
    return builtin


def require_unlocked(environment: Path) -> None:
    """MissingPrerequisite where another Spack is at work: ours would wait for it without a word."""
    holder = lock_holder(environment / ".spack-env" / "transaction_lock")
    if holder is not None:
        raise MissingPrerequisite(
            f"another Spack is at work on {environment}: process {holder}",
            hint="wait until it ends, then run the same command again",
        )
