"""Builds a release with Spack: solve, install in parallel, make one view.

`plan_spack` thinks: environment, files, identity, steps. `build_spack` acts. Everything is made
below PREFIX/spack, which all stacks share: `store` is the install tree, STACK/ one
stack's environment and build. The release is a view and its records, and no release until
release.json is renamed into it.

An interrupted build continues where it was. A failure names the package, its log, and the command
that reopens the environment it was built in. A build cache is Spack's own, by its `autopush`.
"""

from __future__ import annotations

import json
import re
import shlex
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hpcdl import __version__, facts
from hpcdl.site import Site, StackRequest
from hpcdl.stack.recipe import Say, own_digest, own_wheel
from hpcdl.stack.release import Release, ReleasePlan, digest, read_release
from hpcdl.stack.spack_backend import environment as spacks
from hpcdl.stack.spack_backend.adopt import Adoption, adopt
from hpcdl.stack.spack_backend.environment import Spack, SpackEnvironment, environment_of
from hpcdl.stack.tree import require_space
from hpcdl.system.errors import BadInput, CheckFailed, ExitCode, HpcdlError, MissingPrerequisite
from hpcdl.system.files import explain_os_errors, last_text, shared_lock, write_atomic

_STAMP = ".solved"


@dataclass(frozen=True)
class SpackPlan(ReleasePlan):
    """The plan of a build with Spack; `release_id` is None until the environment is solved.

    `files` are to be written below `folder` before that.
    """

    environment: SpackEnvironment
    folder: Path
    files: Mapping[Path, str]
    own: str

    @property
    def folders(self) -> Folders:
        """Where it is built."""
        return Folders(self.folder, self.environment.name)

    @property
    def lock(self) -> Path | None:
        """The lock file, where it is the solution of these very files."""
        lock = self.folders.environment / "spack.lock"
        stamp = self.folders.environment / _STAMP
        solved = lock.is_file() and stamp.is_file() and stamp.read_text() == self.stamp(lock)
        return lock if solved else None

    def make(self, say: Say) -> Release:
        """Build it: see `build_spack`."""
        return build_spack(self, say)

    def stamp(self, lock: Path) -> str:
        """Return the digest of a lock file and of its inputs, recipes included."""
        texts = {str(path): text for path, text in self.files.items()}
        # `spack` says which Spack wrote it: an install by another one writes it anew.
        solved = {key: part for key, part in json.loads(lock.read_text()).items() if key != "spack"}
        return digest(texts, spacks.shipped_recipes(), solved)

    @property
    def release_id(self) -> str | None:
        """That of the environment's lock."""
        return self.adoption().release_id if self.lock else None

    def remaining(self) -> list[str]:
        """Return the steps of a release that does not exist yet."""
        lock = self.lock
        count = f"{len(spacks.read_lock(lock.parent).specs)} " if lock else ""
        return [
            self.environment.why,
            *(f"write {path}" for path in self.files),
            *([] if lock else [f"solve {self.environment.name} with Spack"]),
            f"install what is missing of its {count}packages in {store(self.site)}",
            f"link them and hpcdl {__version__} together in {self.root}/stack",
        ]

    def require_tools(self) -> None:
        """Look for Spack, for what it starts, and for space where the size is known."""
        spacks.find_spack()
        spacks.packages_named()
        table = facts.load("spack")
        missing = [name for name in table["commands"]["needed"] if shutil.which(name) is None]
        if missing:
            names = " ".join(missing)
            raise MissingPrerequisite(
                f"Spack cannot build: there is no {names.replace(' ', ', ')} on PATH",
                hint=f"Debian and Ubuntu: apt install {names}",
            )
        # A later build finds most of its packages in the store.
        if self.environment.wheels and not store(self.site).is_dir():
            size = table["build_gb"]["cuda" if self.environment.archs else "cpu"]
            require_space({store(self.site): size})

    def as_data(self) -> dict[str, Any]:
        """For machines, with the values that only a plan with Spack has."""
        return {
            **super().as_data(),
            "why": self.environment.why,
            "specs": list(self.environment.specs),
            "directory": str(self.folder),
        }

    def adoption(self) -> Adoption:
        """The end of it: the release of the environment, once that is installed."""
        lock = spacks.read_lock(self.folders.environment)
        return Adoption(self.site, self.request, self.partitions, lock, self.own)

    def expected(self) -> Release:
        """The release as it will be recorded, its id perhaps unknown, before anything is built."""
        if self.lock:
            return self.adoption().expected()
        wanted = self.environment
        return spacks.release_of(
            self,
            f"{self.request.name}-{wanted.versions['tensorflow']}",
            wanted.versions,
            wanted.archs,
            self.site.partition((self.partitions or tuple(self.site.partitions))[0]).target,
            wheels=wanted.wheels,
            proof=wanted.proof,
            hpcdl=f"{__version__}+{self.own}",
            lock=(),
        )


def shared(site: Site) -> Path:
    """Return the directory that all stacks of a prefix share."""
    return site.paths.prefix / "spack"


def store(site: Site) -> Path:
    """The install tree that all stacks of a prefix share: the site's, where it has one."""
    return site.spack.store or shared(site) / "store"


def plan_spack(
    site: Site,
    request: StackRequest,
    names: tuple[str, ...],
    served: tuple[str, ...],
    *,
    alone: bool = True,
) -> SpackPlan:
    """The plan of one build with Spack: for the partitions `names`, recorded as for `served`.

    Where the stack has others (not `alone`), its environment is named by its variant.

    Raises BadInput: no set of versions fits, or the stack has packages that are wheels.
    """
    if request.packages:
        raise BadInput(
            f"`packages:` of stack '{request.name}' are wheels, and Spack builds it",
            hint="`backend: wheels` takes them; with Spack, add specs to an environment of your "
            "own",
        )
    wanted = environment_of(site, request, names, request.name)
    if not alone:
        target = site.partition(names[0]).target
        wanted = replace(wanted, name=f"{request.name}-{wanted.variant}-{target}")
    place = shared(site) / wanted.name
    files = spacks.files_of(site, wanted, place, names[0])
    return SpackPlan(site, request, served, wanted, place, files, own_digest())


def build_spack(plan: SpackPlan, say: Say) -> Release:
    """Build the planned release, or return it where it exists."""
    if plan.exists:
        return read_release(plan.site, plan.expected().id)
    plan.require_ready()
    say(plan.environment.why)
    with shared_lock(plan.folder / ".lock", wait_seconds=10):
        return _build(plan, say)


def _build(plan: SpackPlan, say: Say) -> Release:
    where = plan.folders
    spack = open_build(plan)
    spacks.require_unlocked(where.environment)
    if plan.lock is None:
        _solve(plan, say)
    if plan.exists:
        return read_release(plan.site, plan.expected().id)
    adoption = plan.adoption()
    env = {}
    if not plan.environment.wheels:  # hpcdl is a package of the compiled stacks only
        env["HPCDL_WHEEL"] = str(own_wheel()[1])
    say(f"installing with Spack, which says in {where.log} how far it is")
    install(spack, where, env)
    return adopt(adoption, spack, say)


def open_build(plan: SpackPlan) -> Spack:
    """Spack with the settings of this build, in a directory that a person can use too."""
    where = plan.folders
    config = (
        f"config:\n  build_stage: ['{where.stage}']\n"
        f"  source_cache: '{shared(plan.site) / 'downloads'}'\n"
    )
    spack = spacks.open_spack(plan.folder, where.build / "scope", {"config.yaml": config})
    site = {"HPCDL_SPACK_SITE": str(plan.folder / "site.yaml")}
    return replace(spack, env={**spack.env, **site})


def _solve(plan: SpackPlan, say: Say) -> None:
    spacks.write_files(plan.folder, plan.files)
    lock = spacks.concretize(plan.folder, plan.environment, say)
    if differ := spacks.differences(plan.environment, lock):
        raise CheckFailed(
            f"Spack solved '{plan.environment.name}' with other versions than the resolution",
            details=differ,
            hint="name what the machine has among spack.externals, or pin the stack's versions",
        )
    stamp = plan.stamp(lock.environment / "spack.lock")
    write_atomic(lock.environment / _STAMP, stamp)


_SHOWN_LINES = 12
_END = 100_000  # bytes of a package's log in which the last words are looked for
# What Spack's installer prints of a package: `[x] hash name@version failed: its log`.
_FAILED = re.compile(r"^\[x\] (\w{7}) (\S+) failed(?:: (\S+))?", re.MULTILINE)
_NO_ROOM = re.compile(r"No space left on device|Disk quota exceeded")


class Folders:
    """Where a stack is built: `root` is PREFIX/spack/STACK, `name` its environment's name.

    `build` has all that a build leaves: `log` (what Spack prints), and `stage`, where packages are
    built and what failed stays.
    """

    def __init__(self, root: Path, name: str) -> None:
        self.root = root
        self.environment = root / "environments" / name
        self.build = root / "build"
        self.log = self.build / "install.log"
        self.stage = self.build / "stage"


class PackageFailed(HpcdlError):
    """A package did not build (exit code 4)."""

    exit_code = ExitCode.COMMAND_FAILED


def install(spack: Spack, where: Folders, env: Mapping[str, str]) -> None:
    """Install what the environment's lock holds.

    `spack` has the build's own scope; `env` are variables for the recipes.
    """
    with explain_os_errors(where.build):
        where.stage.mkdir(parents=True, exist_ok=True)
        where.log.unlink(missing_ok=True)
    words = ("-e", where.environment, "install", "--only-concrete")
    more = replace(spack, env={**spack.env, **env})
    if not more.run(*words, log=where.log, check=False, tied=True).ok:
        raise _failure(spack, where)


def _failure(spack: Spack, where: Folders) -> HpcdlError:
    output = where.log.read_text(errors="replace")
    failed = _FAILED.findall(output)
    if not failed:
        return PackageFailed(
            "Spack failed before any package did",
            details=[*output.strip().splitlines()[-_SHOWN_LINES:], f"log: {where.log}"],
        )
    (short, title, named), *others = failed
    log = Path(named) if named and Path(named).is_file() else where.log
    last = [line for line in last_text(log, _END).splitlines() if line.strip()][-_SHOWN_LINES:]
    if _NO_ROOM.search("\n".join([*last, output])):
        return MissingPrerequisite(
            f"no space left while Spack built {title}",
            details=[f"log: {log}"],
            hint="free some space, then run the same command: what is built stays built",
        )
    settings = shlex.join(["env", *(f"{key}={value}" for key, value in spack.env.items())])
    place = shlex.join(["-e", str(where.environment), "build-env", f"/{short}", "--"])
    return PackageFailed(
        f"{title} did not build",
        details=[
            f"log:    {log}",
            f"reopen: {settings} {spack.shell} {place} bash",
            *(f"| {line}" for line in last),
            *(f"also failed: {name}" for _, name, _ in others),
        ],
        hint="mend it, then run the same command: what is built stays built",
    )
