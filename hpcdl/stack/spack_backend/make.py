"""Lets Spack install an environment, in parallel by its own installer, and keep the binaries.

What is installed stays, so that an interrupted build continues where it was. A failure names the
package, its log, and the command that reopens the environment it was built in.

What was built is signed and taken from the build cache next time. The key is the site's own, made
by Spack in PREFIX/spack/keys on first use, or one of the administrator's in Spack's own keyring,
named in the site file. Both the key and gpg are asked for before a build begins, not hours later
when there is something to sign.
"""

from __future__ import annotations

import re
import shlex
import shutil
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from hpcdl.site import Site
from hpcdl.stack.spack_backend.tool import Spack
from hpcdl.system.errors import BadInput, ExitCode, HpcdlError, MissingPrerequisite
from hpcdl.system.files import explain_os_errors
from hpcdl.system.run import run
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
    """Where binaries are kept, and by which key they are signed.

    `key` is None where nothing is signed, empty for the only key of the keyring in `keys`, the
    site's own; else the name of one in Spack's keyring.
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
        named = site.spack.signing_key
        return cls(shared / "buildcache", None if named else shared / "keys", named or "")

    @property
    def env(self) -> Mapping[str, str]:
        """Return the environment variables by which Spack finds the keyring."""
        return {"SPACK_GNUPGHOME": str(self.keys)} if self.keys else {}

    def settings(self) -> dict[str, str]:
        """Spack's settings of it, by file name."""
        signed = "false" if self.key is None else "true"
        entry = f"{{url: 'file://{self.folder}', binary: true, source: false, signed: {signed}}}"
        return {"mirrors.yaml": f"mirrors:\n  {_MIRROR}: {entry}\n"}

    def ready_key(self, spack: Spack, site: Site) -> None:
        """Make the site's own key where it has none yet.

        BadInput where the site file names a key that Spack's keyring has no secret part of.
        """
        if self.key is None:
            return
        listing = spack.run("gpg", "list", "--signing", check=False).stdout
        if self.keys is None and self.key.lower() not in listing.lower():
            raise BadInput(
                f"Spack's keyring has no key '{self.key}' to sign with (spack.signing_key)",
                hint="`spack gpg list --signing` shows those it has; `spack gpg trust FILE` adds",
            )
        if self.keys is not None and "sec" not in listing:
            with explain_os_errors(self.keys):
                self.keys.mkdir(parents=True, exist_ok=True)
                self.keys.chmod(0o700)
            spack.run("gpg", "create", f"hpcdl at {site.name}", "hpcdl@localhost")

    def fill(self, spack: Spack, environment: Path) -> None:
        """Put what is installed of an environment into the cache; what is there already stays."""
        signing = ["--unsigned"] if self.key is None else ["--signed"]
        signing = ["--key", self.key] if self.key else signing
        push = ("buildcache", "push", *signing, "--allow-missing", "--update-index", _MIRROR)
        spack.run("-e", environment, *push)
        if self.key is not None:
            spack.run("gpg", "publish", "--directory", self.folder, "--rebuild-index", check=False)

    def close_keyring(self) -> None:
        """Stop the agent that gpg leaves running for the site's own keyring."""
        if self.keys is not None and self.keys.is_dir() and shutil.which("gpgconf"):
            run(["gpgconf", "--homedir", self.keys, "--kill", "all"], check=False)
