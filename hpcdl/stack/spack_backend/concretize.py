"""Renders Spack environments into a directory and lets Spack solve them, with a time limit.

A lock file counts only when the versions in it are those of the resolution: `differences` says
where they are not. A solver that finds nothing often prints nothing, so the end of the time
limit is an answer too, and `probable_cause` says what it usually means.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpcdl import facts
from hpcdl.site import Site
from hpcdl.stack.resolve_solver import Range
from hpcdl.stack.spack_backend import environment as spack_yaml
from hpcdl.stack.spack_backend.environment import SpackEnvironment
from hpcdl.stack.spack_backend.tool import Lock, open_spack, read_lock, require_unlocked
from hpcdl.system.errors import CheckFailed, Stopped
from hpcdl.system.files import explain_os_errors, write_atomic
from hpcdl.system.resources import folder, scratch_directory
from hpcdl.system.text import duration, table

Say = Callable[[str], None]
_PARTS = ("spack_repo", "defaults")
_SHOWN = ("tensorflow", "cuda", "cudnn", "nccl", "horovod", "openmpi", "python", "gcc")


@dataclass(frozen=True)
class Solved:
    """Spack's solution of an environment: its lock file, and how it differs from the facts."""

    environment: SpackEnvironment
    lock: Path
    versions: Mapping[str, str]
    packages: int
    seconds: float
    differences: tuple[str, ...]


@dataclass(frozen=True)
class SpackWork:
    """The plan of `concretize`: files to write below `root`, environments to solve."""

    root: Path
    environments: tuple[SpackEnvironment, ...]
    files: Mapping[Path, str]
    site: str | None

    @property
    def changed(self) -> list[Path]:
        """The files that are not yet as they should be."""
        return [
            path
            for path, text in self.files.items()
            if not path.exists() or path.read_text() != text
        ]

    def text(self, *, render_only: bool) -> str:
        """Return as text what would be written and solved, or what was written."""
        lines = [f"write {path}" for path in self.changed] or ["every spack.yaml is up to date"]
        if not render_only:
            lines += [f"solve {one.name} with Spack" for one in self.environments]
        return "\n".join(lines)

    def as_data(self) -> dict[str, Any]:
        """For machines."""
        return {
            "schema": 1,
            "root": str(self.root),
            "environments": [one.name for one in self.environments],
            "changed": [str(path) for path in self.changed],
        }


def plan(
    names: Sequence[str], partition: str | None, root: str | None, the_site: Callable[[], Site]
) -> SpackWork:
    """Return what to render and solve: the shipped environments, or a partition of a site.

    All environments where none is named; or a site's `partition`, with its pins, compilers and
    PMIx. `root` holds environments/: by default the checkout's spack/, for a partition
    PREFIX/spack/PARTITION. `the_site` is called only for a partition.

    Raises:
        BadInput: an unknown environment or partition, or one that no set of versions fits.
    """
    if partition:
        site = the_site()
        own = Path(root) if root else site.paths.prefix / "spack" / partition
        return site_work(site, spack_yaml.environment_for(site, partition), own, partition)
    where = Path(root) if root else folder("spack")
    wanted = tuple(map(spack_yaml.environment, names)) or spack_yaml.environments()
    return SpackWork(
        where, wanted, {_yaml(where, one): spack_yaml.render(one) for one in wanted}, None
    )


def site_work(site: Site, wanted: SpackEnvironment, where: Path, partition: str) -> SpackWork:
    """Return the files of a site's environment; its partitions are like `partition`."""
    scope = spack_yaml.render_site(site, site.partition(partition))
    files = {_yaml(where, wanted): spack_yaml.render(wanted), where / "site.yaml": scope}
    return SpackWork(where, (wanted,), files, site.name)


def render_work(work: SpackWork) -> None:
    """Write what changed; a site's directory also gets the recipes, so that it is complete."""
    if work.site is not None:
        with explain_os_errors(work.root):
            for part in _PARTS:
                shutil.rmtree(work.root / part, ignore_errors=True)
                ignored = shutil.ignore_patterns("__pycache__")
                shutil.copytree(folder("spack") / part, work.root / part, ignore=ignored)
    for path in work.changed:
        write_atomic(path, work.files[path])


def shipped_recipes() -> dict[str, str]:
    """The digests of the files that `render_work` copies: the recipes and the defaults."""
    shipped = folder("spack")
    return {
        str(path.relative_to(shipped)): hashlib.sha256(path.read_bytes()).hexdigest()
        for part in _PARTS
        for path in sorted((shipped / part).rglob("*"))
        if path.is_file() and "__pycache__" not in path.parts
    }


def concretize(
    root: Path, wanted: SpackEnvironment, say: Say, *, time_limit: float | None = None
) -> Solved:
    """Let Spack solve an environment below `root`; its lock file is beside its spack.yaml.

    Raises:
        MissingPrerequisite: no Spack.
        CheckFailed: there is no solution, or it did not come within the time limit (seconds);
            with the probable cause.
    """
    start = time.monotonic()
    where = root / "environments" / wanted.name
    log = where / "concretize.log"
    log.unlink(missing_ok=True)
    # The facts' limit is longer where others compute too.
    load = max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))
    limit = time_limit or float(facts.load("spack")["time_limit"]) * load
    with scratch_directory() as scope:
        spack = open_spack(root, scope)
        require_unlocked(where)
        say(f"{wanted.name}: Spack solves it, at most {duration(limit)}")
        solve = ["-e", str(where), "concretize", "--force"]
        try:
            result = spack.run(*solve, timeout=limit, check=False, log=log, tied=True)
        except Stopped as fault:
            raise _no_solution(wanted, log, f"no answer within {duration(limit)}") from fault
    if not result.ok:
        raise _no_solution(wanted, log, "Spack found no solution")
    lock = read_lock(where)
    took, differ = time.monotonic() - start, differences(wanted, lock)
    return Solved(wanted, where / "spack.lock", lock.components, len(lock.specs), took, differ)


def differences(wanted: SpackEnvironment, lock: Lock) -> tuple[str, ...]:
    """Where a lock file's versions are not the resolution's: `nccl: 2.29.3, not 2.29.7`."""
    locked = lock.components
    if wanted.wheels:
        locked.pop("cuda", None)  # of nvcc: the libraries are in the wheels
    slurms = any("external" in spec for spec in lock.specs.values() if spec["name"] == "pmix")
    if "pmix" not in wanted.pinned and slurms:
        locked.pop("pmix", None)  # Slurm's, whatever it is
    expected = {**wanted.versions, "gcc": wanted.gcc}
    return tuple(
        f"{name}: {locked[name]}, not {expected[name]}"
        for name in locked
        if name in expected and not Range(expected[name]).allows(locked[name])
    )


def probable_cause(text: str) -> str:
    """Return a hint for the end of a concretizer's output."""
    rows = facts.load("spack")["causes"]
    return str(next(row["cause"] for row in rows if re.search(row["said"], text, re.IGNORECASE)))


def _no_solution(wanted: SpackEnvironment, log: Path, what: str) -> CheckFailed:
    text = log.read_text(errors="replace") if log.exists() else ""
    return CheckFailed(
        f"environment '{wanted.name}': {what}",
        details=[*text.strip().splitlines()[-12:], f"log: {log}"],
        hint=f"probable cause: {probable_cause(text)}",
    )


def _yaml(root: Path, wanted: SpackEnvironment) -> Path:
    return root / "environments" / wanted.name / "spack.yaml"


def solved_text(found: Sequence[Solved]) -> str:
    """A row per environment, then where its versions are not the resolution's."""
    rows = [
        [
            one.environment.name,
            *(one.versions.get(name, "-") for name in _SHOWN),
            str(one.packages),
            duration(one.seconds),
        ]
        for one in found
    ]
    lines = [table(rows, ["environment", *_SHOWN, "packages", "took"])]
    lines += [f"{one.environment.name}: {text}" for one in found for text in one.differences]
    return "\n".join(lines)


def solved_data(found: Sequence[Solved]) -> dict[str, Any]:
    """The same for machines."""
    rows = [
        {
            "name": one.environment.name,
            "lock": str(one.lock),
            "versions": dict(one.versions),
            "packages": one.packages,
            "seconds": round(one.seconds, 1),
            "differences": list(one.differences),
        }
        for one in found
    ]
    return {"schema": 1, "environments": rows}
