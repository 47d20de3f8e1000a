"""Package URLs of what a release holds: where each package really comes from.

Wheels, and what Spack built from PyPI's archives, are `pkg:pypi`; what comes from GitHub is
`pkg:github` with its tag or commit; anything else is `pkg:generic` with the archive's address
and digest. The names are those of the archives, not Spack's (github.com/package-url/purl-spec).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from urllib.parse import unquote, urlsplit

_PYPI = {"files.pythonhosted.org", "pypi.io", "pypi.org", "pypi.python.org"}
_SUFFIX = re.compile(r"\.(tar\.\w+|tgz|zip|whl)\Z")
_TAG = re.compile(r"/(?:archive/refs/tags|archive|releases/download)/([^/]+)")


def purl_of(entry: Mapping[str, str]) -> str:
    """The package URL of a lock's entry.

    Args:
        entry: `name` and `version`; from Spack also `hash`, and `url`, `sha256`, `commit` of its
            archive as far as it has one.
    """
    from packageurl import PackageURL

    name, version = entry["name"], entry["version"]
    if "hash" not in entry:
        return str(PackageURL("pypi", None, normal_name(name), version))
    url = entry.get("url", "")
    host, path = urlsplit(url).hostname, urlsplit(url).path
    if host in _PYPI:
        return str(PackageURL("pypi", None, _project(path, version), version))
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


def _project(path: str, version: str) -> str:
    """The project's name from an archive of PyPI's."""
    file = _SUFFIX.sub("", path.rpartition("/")[2])
    found = file.partition(f"-{version}")[0] if f"-{version}" in file else file.split("-")[0]
    return normal_name(found)


def _on_github(path: str, entry: Mapping[str, str]) -> tuple[str, str, str] | None:
    """Owner, repository, and the tag or commit; None where the address names none."""
    parts = path.strip("/").split("/")
    if len(parts) < 2:
        return None
    repository = parts[1].removesuffix(".git")
    found = _TAG.search(path)
    revision = entry.get("commit") or (unquote(_SUFFIX.sub("", found.group(1))) if found else "")
    return (parts[0], repository, revision) if revision else None
