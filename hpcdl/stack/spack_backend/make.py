"""Lets Spack install an environment, in parallel by its own installer, and keep the binaries.

What is installed stays, so that an interrupted build continues where it was. A failure names the
package, its log, and the command that reopens the environment it was built in.

What was built is taken from the build cache next time. It is signed where the site file names a key
of Spack's keyring, which is asked for before a build begins, not hours later.
"""

from __future__ import annotations

import re
import shlex
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from hpcdl.site import Site
from hpcdl.stack.spack_backend.tool import Spack
from hpcdl.system.errors import BadInput, ExitCode, HpcdlError, MissingPrerequisite
from hpcdl.system.files import explain_os_errors
from hpcdl.system.safe_read import last_text
from hpcdl.system.text import StatusLine, duration

_MIRROR = "hpcdl-builds"
_SHOWN_LINES = 12
_END = 100_000  # bytes of a package's log in which the last words are looked for
# What Spack's installer prints of a package: `[ ] hash name@version phase (1s)`, then `[+]` and
# its prefix, or `[x]` and its log.
_FAILED = re.compile(r"^\[x\] (\w{7}) (\S+) failed(?:: (\S+))?", re.MULTILINE)
_DONE = re.compile(r"^\[\+\] ", re.MULTILINE)
_AT_WORK = re.compile(r"^\[ \] \w{7} (\S+ [a-z][a-z ]*[a-z])", re.MULTILINE)
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


Show = Callable[[str, int], None]
"""Shows what a build does, given the number of packages that are installed so far."""


def progress(line: StatusLine) -> Show:
    """Shows a build's progress on a status line, a new line for each package that is done."""
    start = time.monotonic()

    def show(text: str, done: int) -> None:
        took = f"{duration(time.monotonic() - start):>12}"
        line.show(f"{took}  {text}", key=None if sys.stderr.isatty() else done)

    return show


class PackageFailed(HpcdlError):
    """A package did not build (exit code 4)."""

    exit_code = ExitCode.COMMAND_FAILED


def install(spack: Spack, where: Folders, show: Show, env: Mapping[str, str]) -> None:
    """Install what the environment's lock holds.

    `spack` has the build's own scope; `env` are variables for the recipes.

    Raises:
        PackageFailed: names the package, its log and how to reopen its environment.
        MissingPrerequisite: no space left.
    """
    with explain_os_errors(where.build):
        where.stage.mkdir(parents=True, exist_ok=True)
        where.log.unlink(missing_ok=True)

    def watch() -> None:
        text = where.log.read_text(errors="replace") if where.log.exists() else ""
        done, at_work = len(_DONE.findall(text)), _AT_WORK.findall(text)
        show(f"{done} packages installed{f', {at_work[-1]}' if at_work else ''}", done)

    words = ("-e", where.environment, "install", "--only-concrete")
    more = Spack(spack.program, spack.version, spack.scope, {**spack.env, **env})
    result = more.run(*words, log=where.log, check=False, tied=True, watch=watch)
    watch()
    if not result.ok:
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


@dataclass(frozen=True)
class BuildCache:
    """Where binaries are kept; `key` is the name of the key that signs them, empty for none."""

    folder: Path
    key: str

    @classmethod
    def of_site(cls, site: Site) -> BuildCache:
        """The site's own."""
        return cls(site.paths.prefix / "spack" / "buildcache", site.spack.signing_key or "")

    def settings(self) -> dict[str, str]:
        """Spack's settings of it, by file name."""
        signed = str(bool(self.key)).lower()
        entry = f"{{url: 'file://{self.folder}', binary: true, source: false, signed: {signed}}}"
        return {"mirrors.yaml": f"mirrors:\n  {_MIRROR}: {entry}\n"}

    def require_key(self, spack: Spack) -> None:
        """BadInput where Spack's keyring has no secret part of the key; asked before a build."""
        if not self.key:
            return
        listing = spack.run("gpg", "list", "--signing", check=False).stdout
        if self.key.lower() not in listing.lower():
            raise BadInput(
                f"Spack's keyring has no key '{self.key}' to sign with (spack.signing_key)",
                hint="`spack gpg list --signing` shows those it has; `spack gpg create` makes one",
            )

    def fill(self, spack: Spack, environment: Path) -> None:
        """Put what is installed of an environment into the cache; what is there already stays."""
        signing = ("--key", self.key) if self.key else ("--unsigned",)
        push = ("buildcache", "push", *signing, "--allow-missing", "--update-index", _MIRROR)
        spack.run("-e", environment, *push)
        if self.key:
            spack.run("gpg", "publish", "--directory", self.folder, "--rebuild-index", check=False)
