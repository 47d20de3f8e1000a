"""Lets Spack build an environment in parallel, by a Makefile of its own, and keeps the binaries.

Make knows the order and shares its jobs with every build below it. What counts as done is what
Spack has installed, asked anew each time, so that an interrupted build continues where it was and
a package that was removed is built again. A failure names the package, its log, and the command
that reopens the environment it was built in.

What was built is signed and taken from the build cache next time. The key is the site's own, made
by Spack in PREFIX/spack/keys on first use, or one of the administrator's in Spack's own keyring,
named in the site file. Both the key and gpg are asked for before a build begins, not hours later
when there is something to sign.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import sys
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from hpcdl.site import Site
from hpcdl.stack.spack_backend.tool import Spack
from hpcdl.system.errors import BadInput, ExitCode, HpcdlError, MissingPrerequisite
from hpcdl.system.files import explain_os_errors, write_atomic
from hpcdl.system.run import run
from hpcdl.system.text import StatusLine, duration

_SHOWN_LINES = 12
_AT_A_TIME = 200  # hashes on one command line
_FAILED = re.compile(r"^make: \*\*\* \[[^\]]*/install/(\S+-[a-z0-9]{32})\]", re.MULTILINE)
# What Spack says of a package at work: since 1.2 `[ ] hash name@version phase (1s)` and `[+]`
# or `[x]` at its end, before that `==> Installing name-version-hash [1/1]`.
_AT_WORK = re.compile(r"^\[( |\+|x|e)\] (\w{7}) (\S+)(?: ([a-z][a-z ]*))?", re.MULTILINE)
_INSTALLING = re.compile(r"^==> Installing (\S+)-[a-z0-9]{32}", re.MULTILINE)
_NO_ROOM = re.compile(r"No space left on device|Disk quota exceeded")


class Folders:
    """Where a stack is built: `root` is PREFIX/spack/STACK, `name` its environment's name.

    `build` has all that a build leaves: Makefile, `log` (output of make and Spack), `logs` (one of
    each package that was built here), and `stage`, where packages are built and what failed stays.
    """

    def __init__(self, root: Path, name: str) -> None:
        self.root = root
        self.environment = root / "environments" / name
        self.build = root / "build"
        self.log = self.build / "make.log"
        self.logs = self.build / "logs"
        self.stage = self.build / "stage"


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


def progress(line: StatusLine) -> Show:
    """Shows a build's progress on a status line, a new line for each package that is done."""
    start = time.monotonic()

    def show(tally: Tally) -> None:
        took = f"{duration(time.monotonic() - start):>12}"
        line.show(f"{took}  {tally.text()}", key=None if sys.stderr.isatty() else tally.done)

    return show


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
    # Packages as `name-version-hash`.
    found = re.search(r"SPACK_PACKAGE_IDS := (.*)", makefile.read_text())
    targets = found[1].split() if found else []
    _mark_installed(done, targets, installed(spack, where.environment))
    watch = Watch(where.log, done / "install", len(targets), show)
    watch()
    call = f"SPACK={spack.shell} -c config:install_status:false"
    result = run(
        ["make", "-f", makefile, f"-j{jobs}", call],
        env={**spack.env, **env},
        log=where.log,
        check=False,
        tied=True,
        watch=watch,
    )
    watch()
    _keep_logs(where)
    if not result.ok:
        raise _failure(spack, where)


def installed(spack: Spack, environment: Path) -> set[str]:
    """Hashes of what is installed of an environment."""
    listing = spack.run("-e", environment, "find", "--format", "{hash}", check=False).stdout
    return set(re.findall(r"\b[a-z0-9]{32}\b", listing))


def _mark_installed(done: Path, targets: list[str], hashes: set[str]) -> None:
    """Mark for make what is installed. All marks are of one age, older than what make will make."""
    with explain_os_errors(done):
        shutil.rmtree(done, ignore_errors=True)
        for target in targets:
            if target.rpartition("-")[2] in hashes:
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
                whole = file.read().rpartition(b"\n")[0]
            self._offset += len(whole)
            self._read(whole.decode(errors="replace"))
        done = sum(1 for _ in self._done.glob("*"))
        self._show(Tally(done, self._total, tuple(self._active.values())))

    def _read(self, text: str) -> None:
        for mark, short, name, phase in _AT_WORK.findall(text):
            self._active.pop(short, None)
            if mark == " ":
                self._active[short] = f"{name} {phase}".strip()
        for name in _INSTALLING.findall(text):
            self._active = {"": name}


def _keep_logs(where: Folders) -> None:
    """Copy the logs of what failed or was stopped out of the stages, which come and go."""
    # Beside the stage since Spack 1.2, before inside; of a package's several the newest stays.
    found = [(log.parent.name, log) for log in where.stage.rglob("spack-build-out.txt")]
    found += [(log.name.rpartition("-")[0], log) for log in where.stage.rglob("spack-stage-*.log")]
    with explain_os_errors(where.logs):
        where.logs.mkdir(parents=True, exist_ok=True)
        for name, log in sorted(found, key=lambda pair: pair[1].stat().st_mtime):
            shutil.copyfile(log, where.logs / f"{name.removeprefix('spack-stage-')}.txt")


def _failure(spack: Spack, where: Folders) -> HpcdlError:
    output = where.log.read_text(errors="replace")
    failed = list(dict.fromkeys(_FAILED.findall(output)))
    if not failed:
        return PackageFailed(
            "make failed before any package did",
            details=[*output.strip().splitlines()[-_SHOWN_LINES:], f"log: {where.log}"],
        )
    package, *others = failed
    title = _title(package)
    own = where.logs / f"{package}.txt"
    log = own if own.exists() else where.log
    last = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
    last = last[-_SHOWN_LINES:]
    if _NO_ROOM.search("\n".join([*last, output])):
        return MissingPrerequisite(
            f"no space left while Spack built {title}",
            details=[f"log: {log}"],
            hint="free some space, then run the same command: what is built stays built",
        )
    return PackageFailed(
        f"{title} did not build",
        details=[
            f"log:    {log}",
            f"reopen: bash {_reopen(spack, where, package)}",
            *(f"| {line}" for line in last),
            *(f"also failed: {_title(other)}" for other in others),
        ],
        hint="mend it, then run the same command: what is built stays built",
    )


def _title(package: str) -> str:
    return package.rpartition("-")[0]


def _reopen(spack: Spack, where: Folders, package: str) -> Path:
    """A script that opens a shell, or runs a command, in the package's build environment."""
    title, _, digest = package.rpartition("-")
    path = where.build / f"reopen-{title}.sh"
    stage = shlex.quote(str(next(where.stage.rglob(f"spack-stage-{package}"), where.stage)))
    lines = [
        "#!/bin/bash",
        f"# Opens the environment in which {title} is built; or runs a command there.",
        *(f"export {key}={shlex.quote(value)}" for key, value in spack.env.items()),
        f"cd {stage}/spack-src 2>/dev/null || cd {stage}",
        f"exec {spack.shell} -e {shlex.quote(str(where.environment))} build-env "
        f'/{digest} -- "${{@:-${{SHELL:-bash}}}}"',
    ]
    write_atomic(path, "\n".join(lines) + "\n", mode=0o755)
    return path


@dataclass(frozen=True)
class BuildCache:
    """Where binaries are kept, and by which key they are signed (None: not signed at all).

    `keys` is the keyring's directory where it is the site's own.
    """

    folder: Path
    keys: Path | None
    key: str | None

    @classmethod
    def of_site(cls, site: Site, *, unsigned: bool) -> BuildCache:
        """The site's own, its key not made yet; MissingPrerequisite: no gpg to sign it with."""
        shared = site.paths.prefix / "spack"
        if unsigned:
            return cls(shared / "buildcache", None, None)
        if not (shutil.which("gpg2") or shutil.which("gpg")):
            raise MissingPrerequisite(
                "there is no gpg to sign the build cache with",
                hint="Debian and Ubuntu: apt install gnupg; or give --unsigned",
            )
        own = None if site.spack.signing_key else shared / "keys"
        return cls(shared / "buildcache", own, site.spack.signing_key or "own")

    @property
    def env(self) -> Mapping[str, str]:
        """Return the environment variables by which Spack finds the keyring."""
        return {"SPACK_GNUPGHOME": str(self.keys)} if self.keys else {}

    def settings(self) -> dict[str, str]:
        """Spack's settings of it, by file name."""
        signed = "true" if self.key else "false"
        entry = f"{{url: 'file://{self.folder}', binary: true, source: false, signed: {signed}}}"
        return {"mirrors.yaml": f"mirrors:\n  hpcdl-builds: {entry}\n"}

    def ready_key(self, spack: Spack, site: Site) -> str | None:
        """The fingerprint of the key to sign with, made now where the site has none of its own.

        BadInput where the site file names a key that Spack's keyring has no secret part of.
        """
        if self.key is None:
            return None
        fingerprint = _fingerprint(spack, "" if self.keys else self.key)
        if fingerprint is None and self.keys is None:
            raise BadInput(
                f"Spack's keyring has no key '{self.key}' to sign with (spack.signing_key)",
                hint="`spack gpg list --signing` shows those it has; `spack gpg trust FILE` adds",
            )
        if fingerprint is None and self.keys is not None:
            with explain_os_errors(self.keys):
                self.keys.mkdir(parents=True, exist_ok=True)
                self.keys.chmod(0o700)
            spack.run("gpg", "create", f"hpcdl at {site.name}", "hpcdl@localhost")
            fingerprint = _fingerprint(spack, "")
        if fingerprint is None:
            raise MissingPrerequisite(
                f"gpg made no key in {self.keys}",
                hint="give --unsigned, or name spack.signing_key",
            )
        return fingerprint

    def fill(
        self, spack: Spack, environment: Path, hashes: Collection[str], key: str | None
    ) -> None:
        """Put built packages into the cache; those that are there already stay."""
        signing = ["--key", key] if key else ["--unsigned"]
        push = ["-e", str(environment), "buildcache", "push", *signing, "--only", "package"]
        url = f"file://{self.folder}"
        names = [f"/{one}" for one in sorted(hashes)]
        for start in range(0, len(names), _AT_A_TIME):
            spack.run(*push, url, *names[start : start + _AT_A_TIME])
        if key:
            spack.run("gpg", "publish", "--directory", self.folder, "--rebuild-index", check=False)
        spack.run("buildcache", "update-index", url)

    def close_keyring(self) -> None:
        """Stop the agent that gpg leaves running for the site's own keyring."""
        if self.keys is not None and self.keys.is_dir() and shutil.which("gpgconf"):
            run(["gpgconf", "--homedir", self.keys, "--kill", "all"], check=False)


def _fingerprint(spack: Spack, wanted: str) -> str | None:
    """The first secret key whose fingerprint or name has `wanted` in it."""
    listing = spack.run("gpg", "list", "--signing", check=False).stdout
    for block in re.split(r"\n(?=sec)", listing):
        found = re.search(r"\b[0-9A-F]{40}\b", block)
        if found and wanted.lower() in block.lower():
            return found.group()
    return None
