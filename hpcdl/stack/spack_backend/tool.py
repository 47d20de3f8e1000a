"""Spack itself: where it is, whether it is one that fits, how it is called; what its locks say.

Nothing of a user's own Spack settings is changed: a `Spack` has a scope of settings of its own.

The lock file of an environment tells of a stack: versions, GPUs, CPU, identity. It is JSON: `roots`
(hash and spec) and `concrete_specs` by hash. A release is named by its content: the hashes of the
roots, which cover all that is below them.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hpcdl import __version__, facts
from hpcdl.stack.release import (
    MODULE,
    SCHEMA,
    Release,
    ReleasePlan,
    digest,
    releases_folder,
    variant_of,
)
from hpcdl.stack.resolve_facts import gpus_of, needs_of, wheel_sets
from hpcdl.stack.resolve_solver import sort_key
from hpcdl.system.errors import BadInput, MissingPrerequisite
from hpcdl.system.files import lock_holder, write_atomic
from hpcdl.system.run import CommandResult, run
from hpcdl.system.text import utc_now

# A shell with an active environment: `spack find` would list that one's packages alone.
_ACTIVE = frozenset({"SPACK_ENV", "SPACK_ENV_VIEW"})
_RECIPES = ("packages", "wheels", "cuda_wheels")


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
    output = run([program, "--version"], timeout=120, hint="SPACK_PYTHON names its Python").stdout
    match = re.match(r"\d+(\.\d+)+", output.strip())
    least = str(facts.load("spack")["at_least"]["spack"])
    if match is None or sort_key(match.group()) < sort_key(least):
        raise MissingPrerequisite(
            f"{program} is Spack {output.strip()[:40] or 'of no version'}, "
            "too old for this overlay",
            hint=f"use Spack {least} or newer; set HPCDL_SPACK_ROOT to its directory",
        )
    return output.strip()


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


@dataclass(frozen=True)
class Lock:
    """A lock file: `environment` is its directory, `specs` are by hash."""

    environment: Path
    roots: tuple[Mapping[str, str], ...]
    specs: Mapping[str, Mapping[str, Any]]

    @property
    def to_run(self) -> set[str]:
        """Hashes of what its roots need to run."""
        hashes: set[str] = set()
        todo = [root["hash"] for root in self.roots]
        while todo:
            one = todo.pop()
            if one not in hashes:
                hashes.add(one)
                todo += [
                    other["hash"]
                    for other in self.specs[one].get("dependencies", ())
                    if {"link", "run"} & set(other["parameters"]["deptypes"])
                ]
        return hashes

    @property
    def components(self) -> dict[str, str]:
        """The versions of the stack's components among its packages."""
        book = facts.load("spack")
        names = {package: name for key in _RECIPES for name, package in book[key].items()}
        specs = self.specs.values()
        found = {names[spec["name"]]: spec["version"] for spec in specs if spec["name"] in names}
        if not self.archs:
            found.pop("cuda", None)  # nvcc may be there for something else
        if self.wheels:
            rows = wheel_sets(self.tensorflow["name"]).get(self.tensorflow["version"], {})
            # CUDA's libraries are in the wheels, of another release than the nvcc.
            found |= rows.get("versions", {}) if self.archs else {}
            found |= {"keras": rows["others"]["keras"]["version"]} if rows else {}
        return found

    @property
    def tensorflow(self) -> Mapping[str, Any]:
        """The spec of TensorFlow, or `BadInput` where there is none."""
        names = {facts.load("spack")[key]["tensorflow"] for key in _RECIPES}
        matching = [self.specs[one] for one in self.to_run if self.specs[one]["name"] in names]
        if not matching:
            raise BadInput(
                f"the environment {self.environment} has no TensorFlow",
                hint=f"add one of {', '.join(sorted(names))} to its specs",
            )
        return matching[0]

    @property
    def wheels(self) -> bool:
        """Return whether TensorFlow comes from wheels."""
        return bool(self.tensorflow["name"] != facts.load("spack")["packages"]["tensorflow"])

    @property
    def archs(self) -> tuple[str, ...]:
        """Spack's cuda_arch values of TensorFlow, such as `60`; none for CPUs."""
        found = self.tensorflow["parameters"].get("cuda_arch", ())
        values = [found] if isinstance(found, str) else found
        return tuple(sorted(one for one in values if one != "none"))

    @property
    def target(self) -> str:
        """The microarchitecture it is compiled for."""
        target = self.tensorflow["arch"]["target"]
        return str(target if isinstance(target, str) else target["name"])

    @property
    def namespaces(self) -> set[str]:
        """The package repositories that its recipes come from."""
        return {str(spec["namespace"]) for spec in self.specs.values()}

    @property
    def variant(self) -> str:
        """`cpu`, or CUDA's release and the GPUs: `cuda12.9-sm60`."""
        return variant_of(self.archs, self.components.get("cuda", ""))

    def release_id(self, stack: str, partitions: tuple[str, ...], own: str) -> str:
        """Readable and content-addressed, such as `tensorflow-2.20.0-cuda12.9-sm60-1f0c9a3e`."""
        hashes = sorted(root["hash"] for root in self.roots)
        key = digest(SCHEMA, hashes, own, partitions)
        return f"{stack}-{self.tensorflow['version']}-{self.variant}-{key}"


def release_of(
    plan: ReleasePlan,
    release_id: str,
    components: Mapping[str, str],
    archs: tuple[str, ...],
    target: str,
    *,
    wheels: bool,
    **more: Any,
) -> Release:
    """The release of a stack by Spack, as it is wanted or as it is locked: `components` by name.

    `archs` are Spack's cuda_arch values, `target` is the microarchitecture.
    """
    cuda = components.get("cuda", "")
    mpi = f"Open MPI {components['openmpi']}" if "openmpi" in components else "MPI"
    return Release(
        id=release_id,
        stack=plan.request.name,
        backend="spack-wheels" if wheels else "spack",
        root=releases_folder(plan.site) / release_id,
        module=f"{MODULE}/{components['tensorflow']}-{variant_of(archs, cuda)}",
        versions={**components, "hpcdl": __version__, "mpi": mpi},
        partitions=plan.partitions,
        created=utc_now(),
        needs=needs_of(archs, cuda, target, gpus_of(plan.site, plan.partitions), wheels=wheels),
        **more,
    )


def read_lock(environment: Path) -> Lock:
    """The lock file of an environment; MissingPrerequisite: there is none, or it cannot be read."""
    path = environment / "spack.lock"
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        lock = Lock(environment, tuple(data["roots"]), data["concrete_specs"])
        lock.to_run  # noqa: B018 - damaged ones are refused here
        return lock
    except FileNotFoundError as fault:
        raise MissingPrerequisite(
            f"the environment {environment} is not installed: it has no spack.lock",
            hint=f"spack -e {environment} install",
        ) from fault
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as fault:
        raise MissingPrerequisite(
            f"the lock file {path} cannot be read",
            details=[f"{type(fault).__name__}: {str(fault)[:200]}"],
            hint=f"spack -e {environment} concretize --force",
        ) from fault
