"""Builds a release from wheels: an immutable tree, and nothing half done.

`plan_build` thinks: versions, identity, steps. `build` acts. The tree is made at its final
place, because virtual environments do not move, but is no release until release.json is
renamed into it; what a killed build leaves is removed by the next, which finds the fetched and
built wheels in the cache. The same inputs give the same id, and then there is nothing to do.
"""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from hpcdl import __version__
from hpcdl.site import Site, StackRequest
from hpcdl.stack.horovod import build_horovod, find_horovod, horovod_folder, mpi_version
from hpcdl.stack.install import (
    add_startup,
    compile_bytecode,
    install,
    open_to_readers,
    require_space,
)
from hpcdl.stack.lmod import SITE_FILE
from hpcdl.stack.loaded import modules_behind
from hpcdl.stack.recipe import (
    Interpreter,
    Recipe,
    choose,
    digest,
    find_request,
    running_interpreter,
)
from hpcdl.stack.release import SCHEMA, Release, read_release, releases_folder
from hpcdl.stack.resolve import check_pins
from hpcdl.stack.seal import record_release
from hpcdl.stack.sources import SourcesChanged, own_digest, own_wheel
from hpcdl.stack.wheelhouse import Say, Wheelhouse, fetch, find_wheelhouse, new_log, sha256
from hpcdl.system.errors import MissingPrerequisite
from hpcdl.system.files import LockBusy, explain_os_errors, shared_lock
from hpcdl.system.resources import cache
from hpcdl.system.run import run

_BUILD_SECONDS = 7200
_ATTEMPTS = 5
TRASH = ".trash-"
"""What the name of a tree begins with that is being removed."""
_RELEASE_ID = re.compile(r".+-\d+(\.\d+)+-(cpu|cuda\d[a-z0-9.-]*)-[0-9a-f]{8}")


@dataclass(frozen=True)
class BuildPlan:
    """What a build will do. `release_id` is None until the wheels are locked."""

    site: Site
    request: StackRequest
    recipe: Recipe
    python: Interpreter
    mpi: str
    own: str
    wheelhouse: Wheelhouse | None
    modules: tuple[Mapping[str, str], ...] = ()
    """Loaded modules that the MPI comes from: the release's module loads them too."""

    @property
    def release_id(self) -> str | None:
        """Readable and content-addressed, such as `tensorflow-2.21.0-cpu-1f0c9a3e`."""
        if self.wheelhouse is None:
            return None
        horovod = horovod_folder(self.recipe, self.python, self.mpi).name
        lock = [wheel.as_lock() for wheel in self.wheelhouse.wheels]
        key = digest(SCHEMA, lock, horovod, self.python.version, self.own, self.request.partitions,
                     self.modules)  # fmt: skip
        return f"{self.request.name}-{self.recipe.tensorflow}-{self.recipe.variant}-{key}"

    @property
    def exists(self) -> bool:
        """Whether that release has been built already."""
        where = releases_folder(self.site) / (self.release_id or "")
        return self.release_id is not None and (where / "release.json").is_file()

    def steps(self) -> list[str]:
        """What is left to do, in words; empty where the release exists."""
        if self.exists:
            return []
        fetched = self.wheelhouse is not None
        built = find_horovod(self.recipe, self.python, self.mpi) is not None
        recipe = self.recipe
        place = releases_folder(self.site) / (self.release_id or "ID")
        return [
            *([] if fetched else [f"fetch {recipe.package} {recipe.tensorflow} and what it needs"]),
            *([] if built else [f"build Horovod {recipe.horovod.version} with {self.mpi}"]),
            f"install them and hpcdl {__version__} in {place}/stack (Python {self.python.version})",
        ]

    def as_data(self) -> dict[str, Any]:
        """The plan for machines."""
        return {
            "schema": 1,
            "stack": self.request.name,
            "backend": "venv",
            "release": self.release_id,
            "exists": self.exists,
            "module": self.recipe.module,
            "versions": dict(self.versions()),
            "proof": self.recipe.proof,
            "source": self.recipe.source,
            "requirements": list(self.recipe.requirements),
            "edits": {edit.name: edit.why for edit in self.recipe.horovod.edits},
            "modules": [dict(module) for module in self.modules],
            "steps": self.steps(),
        }

    def expected(self) -> Release:
        """The release as it will be recorded; its lock lacks Horovod, its id may be unknown."""
        name = self.release_id or f"{self.request.name}-{self.recipe.tensorflow}"
        wheels = self.wheelhouse.wheels if self.wheelhouse else ()
        return Release(
            id=name,
            stack=self.request.name,
            backend="venv",
            root=releases_folder(self.site) / name,
            module=self.recipe.module,
            versions=self.versions(),
            partitions=self.request.partitions,
            proof=self.recipe.proof,
            created="",
            hpcdl=f"{__version__}+{self.own}",
            needs={
                **self.recipe.needs,
                **({"modules": list(self.modules)} if self.modules else {}),
            },
            lock=tuple(wheel.as_lock() for wheel in wheels),
        )

    def versions(self) -> Mapping[str, str]:
        """The components a person asks for, by name."""
        known = {
            "python": self.python.version,
            "tensorflow": self.recipe.tensorflow,
            "horovod": self.recipe.horovod.version,
            "mpi": self.mpi,
            "hpcdl": __version__,
        }
        if self.wheelhouse is not None:
            names = {"keras", "numpy", "scikit-learn"}
            known |= {w.name: w.version for w in self.wheelhouse.wheels if w.name in names}
        return MappingProxyType(known)


def plan_build(site: Site, name: str | None = None) -> BuildPlan:
    """What a build of that stack would do on this machine.

    Raises:
        BadInput: there is no such stack, or its pins cannot be kept.
        MissingPrerequisite: no row of the wheels' table fits, or there is no MPI.
    """
    request = find_request(site, name)
    check_pins(request)
    python = running_interpreter()
    recipe = choose(request, python)
    found = find_wheelhouse(recipe, python)
    behind = tuple(modules_behind("mpirun"))
    return BuildPlan(site, request, recipe, python, mpi_version(), own_digest(), found, behind)


def build(plan: BuildPlan, say: Say) -> Release:
    """Build the planned release, or return it where it exists.

    Raises:
        CommandFailed: a step failed; its log is named and nothing is left of the tree.
        MissingPrerequisite: no room, no permission, a compiler missing, another build at work.
    """
    if plan.wheelhouse is None:
        plan = replace(plan, wheelhouse=fetch(plan.recipe, plan.python, say))
    for _ in range(_ATTEMPTS):
        try:
            return _build(plan, say)
        except SourcesChanged:
            say("hpcdl's own files changed meanwhile: starting over with the new ones")
            plan = replace(plan, own=own_digest())
    raise MissingPrerequisite(
        "hpcdl's own files keep changing", hint="build when nobody edits them"
    )


def _build(plan: BuildPlan, say: Say) -> Release:
    """Build a plan whose wheels are there."""
    release_id = plan.release_id
    assert release_id is not None
    if plan.exists:
        return read_release(plan.site, release_id)
    with build_slot(plan.site, say):
        if not plan.exists:
            with new_tree(releases_folder(plan.site) / release_id) as root:
                _fill(plan, root, say)
                _record(plan)
    return read_release(plan.site, release_id)


@contextmanager
def build_slot(site: Site, say: Say) -> Iterator[None]:
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
    """A fresh folder for a release that is removed again where the work on it fails."""
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


def _fill(plan: BuildPlan, root: Path, say: Say) -> None:
    """Make the virtual environment of a release."""
    house, recipe = plan.wheelhouse, plan.recipe
    assert house is not None
    stack, log = root / "stack", new_log(root.name)
    say("checking the wheels against their lock")
    wheels = house.paths()
    require_space(root, wheels)
    say(f"installing {len(wheels)} wheels in {stack}")
    run([plan.python.path, "-m", "venv", "--without-pip", stack], log=log, tied=True)
    python = stack / "bin" / "python"
    pip = next(path for path in wheels if path.name.startswith("pip-"))
    install(python, wheels, pip, log)
    own = own_wheel(python, plan.own)
    horovod = build_horovod(recipe, plan.python, plan.mpi, stack / "bin", say)
    say("installing Horovod and hpcdl")
    install(python, [horovod, own], pip, log)
    packages = stack / "lib" / f"python{plan.python.minor}" / "site-packages"
    # The module's hpcdl knows its site without being told: a publish writes the file.
    (packages / "hpcdl" / SITE_FILE).symlink_to(plan.site.paths.prefix / "etc" / SITE_FILE)
    for name in recipe.horovod.leave_out:
        (stack / name).unlink()
    add_startup(stack)
    say("compiling bytecode, setting permissions")
    store = cache() / "bytecode" / f"{house.folder.name}-{horovod.parent.name}-{_lock_key(house)}"
    compile_bytecode(python, packages, store, log)
    open_to_readers(root)


def _lock_key(house: Wheelhouse) -> str:
    return digest([wheel.as_lock() for wheel in house.wheels])


def _record(plan: BuildPlan) -> None:
    """Seal the tree and write release.json, which makes it a release."""
    horovod = find_horovod(plan.recipe, plan.python, plan.mpi)
    assert horovod is not None
    own = {
        "name": "horovod",
        "version": plan.recipe.horovod.version,
        "file": horovod.name,
        "sha256": sha256(horovod),
        "built": horovod.parent.name,
    }
    expected = plan.expected()
    created = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    record_release(replace(expected, created=created, lock=(*expected.lock, own)))


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
