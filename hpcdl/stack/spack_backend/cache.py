"""The build cache of a site: what Spack has built, signed, and taken from there next time.

The key is the site's own, made by Spack in PREFIX/spack/keys on first use, or one of the
administrator's in Spack's own keyring, named in the site file. Both the key and gpg are asked
for before a build begins, not hours later when there is something to sign.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from hpcdl.site import Site
from hpcdl.stack.spack_backend.tool import Spack
from hpcdl.system.errors import BadInput, MissingPrerequisite
from hpcdl.system.files import explain_os_errors
from hpcdl.system.run import run

_AT_A_TIME = 200  # hashes on one command line


@dataclass(frozen=True)
class BuildCache:
    """Where binaries are kept, and by which key they are signed (None: not signed at all).

    `keys` is the keyring's directory where it is the site's own.
    """

    folder: Path
    keys: Path | None
    key: str | None

    @property
    def env(self) -> Mapping[str, str]:
        """What Spack must know to find the keyring."""
        return {"SPACK_GNUPGHOME": str(self.keys)} if self.keys else {}

    def settings(self) -> dict[str, str]:
        """Spack's settings of it, by file name."""
        signed = "true" if self.key else "false"
        entry = f"{{url: 'file://{self.folder}', binary: true, source: false, signed: {signed}}}"
        return {"mirrors.yaml": f"mirrors:\n  hpcdl-builds: {entry}\n"}


def build_cache(site: Site, *, unsigned: bool) -> BuildCache:
    """The site's build cache; its own key is not made yet.

    Raises:
        MissingPrerequisite: it is to be signed and there is no gpg.
    """
    shared = site.paths.prefix / "spack"
    if unsigned:
        return BuildCache(shared / "buildcache", None, None)
    if not (shutil.which("gpg2") or shutil.which("gpg")):
        raise MissingPrerequisite(
            "there is no gpg to sign the build cache with",
            hint="Debian and Ubuntu: apt install gnupg; or give --unsigned",
        )
    own = None if site.spack.signing_key else shared / "keys"
    return BuildCache(shared / "buildcache", own, site.spack.signing_key or "own")


def ready_key(spack: Spack, cache: BuildCache, site: Site) -> str | None:
    """The fingerprint of the key to sign with, made now where the site has none of its own.

    BadInput where the site file names a key that Spack's keyring has no secret part of.
    """
    if cache.key is None:
        return None
    found = _fingerprint(spack, "" if cache.keys else cache.key)
    if found is None and cache.keys is None:
        raise BadInput(
            f"Spack's keyring has no key '{cache.key}' to sign with (spack.signing_key)",
            hint="`spack gpg list --signing` shows those it has; `spack gpg trust FILE` adds",
        )
    if found is None and cache.keys is not None:
        with explain_os_errors(cache.keys):
            cache.keys.mkdir(parents=True, exist_ok=True)
            cache.keys.chmod(0o700)
        spack.run("gpg", "create", f"hpcdl at {site.name}", "hpcdl@localhost")
        found = _fingerprint(spack, "")
    if found is None:
        raise MissingPrerequisite(
            f"gpg made no key in {cache.keys}", hint="give --unsigned, or name spack.signing_key"
        )
    return found


def _fingerprint(spack: Spack, wanted: str) -> str | None:
    """The first secret key whose fingerprint or name has `wanted` in it."""
    told = spack.run("gpg", "list", "--signing", check=False).stdout
    for block in re.split(r"\n(?=sec)", told):
        found = re.search(r"\b[0-9A-F]{40}\b", block)
        if found and wanted.lower() in block.lower():
            return found.group()
    return None


def fill(
    spack: Spack, cache: BuildCache, environment: Path, hashes: Collection[str], key: str | None
) -> None:
    """Put built packages into the cache; those that are there already stay."""
    signing = ["--key", key] if key else ["--unsigned"]
    push = ["-e", str(environment), "buildcache", "push", *signing, "--only", "package"]
    url = f"file://{cache.folder}"
    names = [f"/{one}" for one in sorted(hashes)]
    for start in range(0, len(names), _AT_A_TIME):
        spack.run(*push, url, *names[start : start + _AT_A_TIME])
    if key:
        spack.run("gpg", "publish", "--directory", cache.folder, "--rebuild-index", check=False)
    spack.run("buildcache", "update-index", url)


def close_keyring(cache: BuildCache) -> None:
    """Stop the agent that gpg leaves running for the site's own keyring."""
    if cache.keys is not None and cache.keys.is_dir() and shutil.which("gpgconf"):
        run(["gpgconf", "--homedir", cache.keys, "--kill", "all"], check=False)
