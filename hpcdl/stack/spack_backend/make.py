"""Lets Spack build an environment in parallel: a Makefile of Spack's own, and make.

Make knows the order and shares its jobs with every build below it. What counts as done is what
Spack has installed, asked anew each time, so that an interrupted build continues where it was and
a package that was removed is built again. A failure names the package, its log, and the command
that reopens the environment it was built in.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from hpcdl.stack.spack_backend.tool import Spack
from hpcdl.system.errors import ExitCode, HpcdlError, MissingPrerequisite
from hpcdl.system.files import explain_os_errors, write_atomic

_SHOWN_LINES = 12
_HASH = re.compile(r"-([a-z0-9]{32})\Z")
_FAILED = re.compile(r"^make: \*\*\* \[[^\]]*/install/(\S+-[a-z0-9]{32})\]", re.MULTILINE)
# What Spack says of a package at work: since 1.2 `[ ] hash name@version phase (1s)` and `[+]`
# or `[x]` at its end, before that `==> Installing name-version-hash [1/1]`.
_AT_WORK = re.compile(r"^\[( |\+|x|e)\] (\w{7}) (\S+)(?: ([a-z][a-z ]*))?", re.MULTILINE)
_INSTALLING = re.compile(r"^==> Installing (\S+)-[a-z0-9]{32}", re.MULTILINE)
_NO_ROOM = re.compile(r"No space left on device|Disk quota exceeded")


@dataclass(frozen=True)
class Folders:
    """Where a stack is built: `root` is PREFIX/spack/STACK, `name` its environment's name."""

    root: Path
    name: str

    @property
    def environment(self) -> Path:
        """Spack's environment."""
        return self.root / "environments" / self.name

    @property
    def build(self) -> Path:
        """Makefile, logs, stages: all that a build leaves."""
        return self.root / "build"

    @property
    def log(self) -> Path:
        """What make and Spack said."""
        return self.build / "make.log"

    @property
    def logs(self) -> Path:
        """A log per package that was built here."""
        return self.build / "logs"

    @property
    def stage(self) -> Path:
        """Where packages are built; what failed stays there."""
        return self.build / "stage"


@dataclass(frozen=True)
class Tally:
    """How far a build is: packages done, packages in all, and those at work."""

    done: int
    total: int
    current: tuple[str, ...]

    def text(self) -> str:
        """`17/166 packages: cmake@3.31.11 build, zlib-ng@2.3.3 install`."""
        at_work = ", ".join(self.current) or ("all done" if self.done == self.total else "starting")
        return f"{self.done}/{self.total} packages: {at_work}"


Show = Callable[[Tally], None]


class PackageFailed(HpcdlError):
    """A package did not build (exit code 4)."""

    exit_code = ExitCode.COMMAND_FAILED


def make_all(spack: Spack, where: Folders, jobs: int, show: Show, env: Mapping[str, str]) -> None:
    """Install what the environment's lock holds.

    `spack` has the build's own scope; `jobs` is of all packages together; `env` are variables for
    the recipes.

    Raises:
        PackageFailed: names the package, its log and how to reopen its environment.
        MissingPrerequisite: there is no make, or no space left.
    """
    if shutil.which("make") is None:
        raise MissingPrerequisite("there is no make", hint="Debian and Ubuntu: apt install make")
    makefile, done = where.build / "Makefile", where.build / "deps"
    with explain_os_errors(where.build):
        where.stage.mkdir(parents=True, exist_ok=True)
        where.log.unlink(missing_ok=True)
    spack.run("-e", where.environment, "env", "depfile", "-o", makefile, "--make-prefix", done)
    targets = _targets(makefile)
    _mark_installed(done, targets, installed(spack, where.environment))
    watch = Watch(where.log, done / "install", len(targets), show)
    watch()
    result = run_make(spack, makefile, jobs, where.log, watch, env)
    watch()
    _keep_logs(where)
    if result != 0:
        raise _failure(spack, where)


def run_make(
    spack: Spack,
    makefile: Path,
    jobs: int,
    log: Path,
    watch: Callable[[], None],
    env: Mapping[str, str],
) -> int:
    """Run make to its end and return its exit code."""
    from hpcdl.system.run import run

    call = f"{spack.shell} -c config:install_status:false"
    return run(
        ["make", "-f", makefile, f"-j{jobs}", f"SPACK={call}"],
        env={**spack.env, **env},
        log=log,
        check=False,
        tied=True,
        watch=watch,
    ).exit_code


def installed(spack: Spack, environment: Path) -> set[str]:
    """Hashes of what is installed of an environment."""
    told = spack.run("-e", environment, "find", "--format", "{hash}", check=False).stdout
    return set(re.findall(r"\b[a-z0-9]{32}\b", told))


def _targets(makefile: Path) -> tuple[str, ...]:
    """Packages of a Makefile as `name-version-hash`."""
    found = re.search(r"SPACK_PACKAGE_IDS := (.*)", makefile.read_text())
    return tuple(found.group(1).split()) if found else ()


def _mark_installed(done: Path, targets: tuple[str, ...], hashes: set[str]) -> None:
    """Tell make what is installed. All marks are of one age, older than what make will make."""
    with explain_os_errors(done):
        shutil.rmtree(done, ignore_errors=True)
        for target in targets:
            found = _HASH.search(target)
            if found and found.group(1) in hashes:
                for folder in ("install-deps", "install"):
                    mark = done / folder / target
                    mark.parent.mkdir(parents=True, exist_ok=True)
                    mark.touch()
                    os.utime(mark, (1, 1))


class Watch:
    """Reads on in make's log each time it is called, and says how far the build is."""

    def __init__(self, log: Path, done: Path, total: int, show: Show) -> None:
        self._log, self._done, self._total, self._show = log, done, total, show
        self._offset = 0
        self._active: dict[str, str] = {}

    def __call__(self) -> None:
        """Look now."""
        if self._log.exists():
            with self._log.open("rb") as file:
                file.seek(self._offset)
                news = file.read()
            whole = news.rpartition(b"\n")[0]
            self._offset += len(whole)
            self._read(whole.decode(errors="replace"))
        done = sum(1 for _ in self._done.glob("*"))
        self._show(Tally(done, self._total, tuple(self._active.values())))

    def _read(self, text: str) -> None:
        for found in _AT_WORK.finditer(text):
            mark, short, name, phase = found.groups()
            self._active.pop(short, None)
            if mark == " ":
                self._active[short] = f"{name} {phase or ''}".strip()
        for found in _INSTALLING.finditer(text):
            self._active = {"": found.group(1)}


def _keep_logs(where: Folders) -> None:
    """Copy the logs of what failed or was stopped out of the stages, which come and go."""
    for package, log in _stage_logs(where):
        with explain_os_errors(where.logs):
            where.logs.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(log, where.logs / f"{package}.txt")


def _stage_logs(where: Folders) -> Iterator[tuple[str, Path]]:
    """Packages and their logs, oldest first: beside the stage since Spack 1.2, before inside."""
    found = [(log.parent.name, log) for log in where.stage.rglob("spack-build-out.txt")]
    found += [(log.name.rpartition("-")[0], log) for log in where.stage.rglob("spack-stage-*.log")]
    for name, log in sorted(found, key=lambda pair: pair[1].stat().st_mtime):
        yield name.removeprefix("spack-stage-"), log


def _failure(spack: Spack, where: Folders) -> HpcdlError:
    """What went wrong, from make's log and the package's own."""
    said = where.log.read_text(errors="replace")
    failed = list(dict.fromkeys(_FAILED.findall(said)))
    if not failed:
        return PackageFailed(
            "make failed before any package did",
            details=[*said.strip().splitlines()[-_SHOWN_LINES:], f"log: {where.log}"],
        )
    package = failed[0]
    own = where.logs / f"{package}.txt"
    text = own.read_text(errors="replace") if own.exists() else said
    last = [line for line in text.splitlines() if line.strip()][-_SHOWN_LINES:]
    if _NO_ROOM.search("\n".join(last)) or _NO_ROOM.search(said):
        return MissingPrerequisite(
            f"no space left while Spack built {_title(package)}",
            details=[f"log: {own if own.exists() else where.log}"],
            hint="free some space, then run the same command: what is built stays built",
        )
    return PackageFailed(
        f"{_title(package)} did not build",
        details=[
            f"log:    {own if own.exists() else where.log}",
            f"reopen: bash {_reopen(spack, where, package)}",
            *(f"| {line}" for line in last),
            *(f"also failed: {_title(other)}" for other in failed[1:]),
        ],
        hint="mend it, then run the same command: what is built stays built",
    )


def _title(package: str) -> str:
    return _HASH.sub("", package)


def _reopen(spack: Spack, where: Folders, package: str) -> Path:
    """A script that opens a shell, or runs a command, in the package's build environment."""
    path = where.build / f"reopen-{_title(package)}.sh"
    found = _HASH.search(package)
    assert found is not None
    stages = [*where.stage.rglob(f"spack-stage-{package}"), where.stage]
    stage = stages[0]
    exports = [f"export {key}={shlex.quote(value)}" for key, value in spack.env.items()]
    lines = [
        "#!/bin/bash",
        f"# Opens the environment in which {_title(package)} is built; or runs a command there.",
        *exports,
        f"cd {shlex.quote(str(stage))}/spack-src 2>/dev/null || cd {shlex.quote(str(stage))}",
        f"exec {spack.shell} -e {shlex.quote(str(where.environment))} build-env "
        f'/{found.group(1)} -- "${{@:-${{SHELL:-bash}}}}"',
    ]
    write_atomic(path, "\n".join(lines) + "\n", mode=0o755)
    return path
