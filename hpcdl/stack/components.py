"""What is inside a release, with licences: the ground of its bills of materials.

Names, versions and digests come from the release's lock, licences from the metadata of the
installed packages or from the lock itself. Words that are no SPDX expression are looked up
in the facts; what nobody knows is said to be unknown, never guessed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.metadata import distributions
from typing import Any
from urllib.parse import unquote, urlsplit

from hpcdl import facts
from hpcdl.stack.release import Release
from hpcdl.system.errors import MissingPrerequisite
from hpcdl.system.resources import to_install

_PYPI = {"files.pythonhosted.org", "pypi.io", "pypi.org", "pypi.python.org"}
_SUFFIX = re.compile(r"\.(tar\.\w+|tgz|zip|whl)\Z")
_TAG = re.compile(r"/(?:archive/refs/tags|archive|releases/download)/([^/]+)")


@dataclass(frozen=True)
class Component:
    """One package: `licence` is an SPDX expression or None, `words` what its metadata says.

    `purl` is its package URL, `url` where its archive was fetched, empty where nobody knows.
    """

    name: str
    version: str
    sha256: str | None
    licence: str | None
    words: str
    purl: str
    url: str = ""


def components(release: Release) -> tuple[Component, ...]:
    """Every package of a release's lock, by name; one that is there twice is named once.

    hpcdl, Python and the MPI are among them, also where the lock has only wheels.
    """
    spdx_licensing()  # where it is missing, so are the others
    folders = [str(path) for path in release.prefix.glob("lib/python*/site-packages")]
    installed = {normal_name(found.name): found for found in distributions(path=folders)}
    found: dict[str, Component] = {}
    for entry in sorted([*release.lock, *_beneath(release)],
                        key=lambda entry: (entry["name"], entry["version"])):  # fmt: skip
        name = normal_name(entry["name"])
        words = [entry["licence"]] if "licence" in entry else []
        if not words and name in installed:
            words = licence_words(installed[name].metadata)
        licence = next((spdx for word in words if (spdx := spdx_of(word))), None)
        # Where it was fetched, as SPDX writes it (2.3, 7.7): git's with the commit.
        url, commit, purl = entry.get("url", ""), entry.get("commit"), purl_of(entry)
        found[purl] = Component(name, entry["version"], entry.get("sha256"), licence,
                                words[0] if words else "", purl,
                                f"git+{url}@{commit}" if url and commit else url)  # fmt: skip
    return tuple(found.values())


def _beneath(release: Release) -> list[Mapping[str, str]]:
    """What a release holds or stands on beside its lock: hpcdl itself, Python and the MPI."""
    locked = {normal_name(entry["name"]) for entry in release.lock}
    told = dict(release.versions)
    # "Open MPI 4.1.4": the program's name and its version.
    mpi, _, version = told.get("mpi", "").rpartition(" ")
    versions = {"hpcdl": release.hpcdl, "python": told.get("python", ""),
                mpi.lower().replace(" ", ""): version}  # fmt: skip
    rows = facts.load("records")["beneath"]
    return [
        {"name": name, "version": version, "hash": "", **rows.get(name, {})}
        for name, version in versions.items()
        if name and version and not {name, f"py-{name}"} & locked
    ]


def licence_words(metadata: Any) -> list[str]:
    """What a package's metadata says of its licence, surest first; a line of 200 characters each.

    `metadata` are headers, as `importlib.metadata` and `email.parser` give them.
    """
    said = [metadata.get("License-Expression") or "", metadata.get("License") or ""]
    said += [text.split(" :: ")[-1] for text in metadata.get_all("Classifier") or []
             if text.startswith("License ::")]  # fmt: skip
    return [line for text in said if (line := text.strip().split("\n")[0][:200])]


@cache
def spdx_licensing() -> Any:
    """The library's index of SPDX identifiers; MissingPrerequisite without the extra 'records'."""
    try:
        import packageurl  # noqa: F401 - of the same extra
        from license_expression import get_spdx_licensing
    except ImportError as fault:
        raise MissingPrerequisite(
            "a bill of materials needs libraries that are not installed", hint=to_install("records")
        ) from fault
    return get_spdx_licensing()


def spdx_of(words: str) -> str | None:
    """The SPDX expression that these words are or stand for."""
    licensing = spdx_licensing()
    from license_expression import ExpressionError

    known = facts.load("records")["licences"].get(words.casefold())
    if known and known.startswith("LicenseRef-"):
        return str(known)  # no identifier of SPDX's list: the document has its text
    try:
        # Strict: an exception stands behind WITH only.
        return str(licensing.parse(known or words, validate=True, strict=True))
    except ExpressionError:
        return None


def purl_of(entry: Mapping[str, str]) -> str:
    """The package URL of a lock's entry: where the package really comes from.

    Wheels, and what Spack built from PyPI's archives, are `pkg:pypi`; what comes from GitHub is
    `pkg:github` with its tag or commit; anything else is `pkg:generic` with the archive's address
    and digest. The names are those of the archives, not Spack's (github.com/package-url/purl-spec).
    Entries from Spack have a `hash`, and `url`, `sha256`, `commit` of their archives.
    """
    from packageurl import PackageURL

    name, version = entry["name"], entry["version"]
    if "hash" not in entry:
        return str(PackageURL("pypi", None, normal_name(name), version))
    url = entry.get("url", "")
    host, path = urlsplit(url).hostname, urlsplit(url).path
    if host in _PYPI:
        file = _SUFFIX.sub("", path.rpartition("/")[2])
        project = file.partition(f"-{version}" if f"-{version}" in file else "-")[0]
        return str(PackageURL("pypi", None, normal_name(project), version))
    known = _on_github(path, entry) if host == "github.com" else None
    if known:
        owner, repository, revision = known
        return str(PackageURL("github", owner.lower(), repository.lower(), revision))
    digest = f"sha256:{entry['sha256']}" if "sha256" in entry else ""
    found = {"download_url": url, "checksum": digest if url else ""}
    qualifiers = {key: value for key, value in found.items() if value}
    return str(PackageURL("generic", None, name, version, qualifiers))


def normal_name(name: str) -> str:
    """A project's name as PyPI compares it (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()


def _on_github(path: str, entry: Mapping[str, str]) -> tuple[str, str, str] | None:
    """Owner, repository, and the tag or commit; None where the address names none."""
    parts = path.strip("/").split("/")
    if len(parts) < 2:
        return None
    repository = parts[1].removesuffix(".git")
    found = _TAG.search(path)
    revision = entry.get("commit") or (unquote(_SUFFIX.sub("", found.group(1))) if found else "")
    return (parts[0], repository, revision) if revision else None
