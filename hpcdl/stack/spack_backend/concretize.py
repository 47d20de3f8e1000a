"""Renders a Spack environment into a directory and lets Spack solve it, with a time limit.

A lock file counts only when the versions in it are those of the resolution: `differences` says
where they are not. A solver that finds nothing often prints nothing, so the end of the time
limit is an answer too.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

from hpcdl import facts
from hpcdl.site import Site
from hpcdl.stack.resolve_solver import Range
from hpcdl.stack.spack_backend import environment as spack_yaml
from hpcdl.stack.spack_backend.environment import SpackEnvironment
from hpcdl.stack.spack_backend.tool import Lock, open_spack, read_lock, require_unlocked
from hpcdl.system.errors import CheckFailed, Stopped
from hpcdl.system.files import explain_os_errors, write_atomic
from hpcdl.system.resources import folder, scratch_directory
from hpcdl.system.text import duration

Say = Callable[[str], None]
_PARTS = ("spack_repo", "defaults")


def files_of(site: Site, wanted: SpackEnvironment, root: Path, partition: str) -> dict[Path, str]:
    """The files of a site's environment below `root`; its partitions are like `partition`."""
    return {
        root / "environments" / wanted.name / "spack.yaml": spack_yaml.render(wanted),
        root / "site.yaml": spack_yaml.render_site(site, site.partition(partition)),
    }


def write_files(root: Path, files: Mapping[Path, str]) -> None:
    """Write them and the recipes, so that the directory is complete."""
    with explain_os_errors(root):
        for part in _PARTS:
            shutil.rmtree(root / part, ignore_errors=True)
            ignored = shutil.ignore_patterns("__pycache__")
            shutil.copytree(folder("spack") / part, root / part, ignore=ignored)
    for path, text in files.items():
        write_atomic(path, text)


def shipped_recipes() -> dict[str, str]:
    """The digests of the files that `write_files` copies: the recipes and the defaults."""
    shipped = folder("spack")
    return {
        str(path.relative_to(shipped)): hashlib.sha256(path.read_bytes()).hexdigest()
        for part in _PARTS
        for path in sorted((shipped / part).rglob("*"))
        if path.is_file() and "__pycache__" not in path.parts
    }


def concretize(
    root: Path, wanted: SpackEnvironment, say: Say, *, time_limit: float | None = None
) -> Lock:
    """Let Spack solve an environment below `root`: the lock beside its spack.yaml.

    Raises:
        MissingPrerequisite: no Spack.
        CheckFailed: there is no solution, or it did not come within the time limit (seconds).
    """
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
    return read_lock(where)


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


def _no_solution(wanted: SpackEnvironment, log: Path, what: str) -> CheckFailed:
    text = log.read_text(errors="replace") if log.exists() else ""
    return CheckFailed(
        f"environment '{wanted.name}': {what}",
        details=[*text.strip().splitlines()[-12:], f"log: {log}"],
        hint="Spack often says nothing of a set that is impossible: look for requirements that "
        "contradict each other, and for externals that are missing or not buildable",
    )
