"""A release's packages with licences, their known vulnerabilities, and the site's waivers.

Names, versions and digests come from the release's lock, licences from the metadata of the
installed packages or from the lock itself. Words that are no SPDX expression are looked up
in the facts; what nobody knows is said to be unknown, never guessed.

Vulnerabilities come from hpcdl's own facts, which stop a publish until they are waived, and from a
file in OSV's format that an admin refreshes, which only informs. PREFIX/osv.zip is OSV's own
archive of PyPI (https://osv.dev, "data dumps"), PREFIX/osv.json one entry or a list of them;
nothing is fetched, and the file's date is told. An entry concerns a package where it lists the
version, or a range of versions holds it. A waiver answers a vulnerability by any of its names.
"""

from __future__ import annotations

import json
import re
import time
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import cache
from importlib.metadata import distributions
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from hpcdl import facts
from hpcdl.site import Site
from hpcdl.stack.records import Waiver, concerns, read_records, today, waiver_of
from hpcdl.stack.release import BrokenRelease, Release, read_release, release_ids
from hpcdl.stack.wheelhouse import normal_name
from hpcdl.system.errors import CheckFailed, MissingPrerequisite
from hpcdl.system.resources import to_install

_PYPI = {"files.pythonhosted.org", "pypi.io", "pypi.org", "pypi.python.org"}
_SUFFIX = re.compile(r"\.(tar\.\w+|tgz|zip|whl)\Z")
_TAG = re.compile(r"/(?:archive/refs/tags|archive|releases/download)/([^/]+)")
ARCHIVE = "https://osv-vulnerabilities.storage.googleapis.com/PyPI/all.zip"
_NAMES = ("osv.zip", "osv.json")
_LARGEST = 20_000_000
_MOST = 200_000


@dataclass(frozen=True)
class BomComponent:
    """One package: `licence` is an SPDX expression or None, `words` what its metadata says.

    `purl` is its package URL, `url` where its archive was fetched, empty if unknown.
    """

    name: str
    version: str
    sha256: str | None
    licence: str | None
    words: str
    purl: str
    url: str = ""


def components(release: Release) -> tuple[BomComponent, ...]:
    """Every package of a release's lock, by name; one that is there twice is named once.

    hpcdl, Python and the MPI are among them, also where the lock has only wheels.
    """
    spdx_licensing()  # where it is missing, so are the others
    folders = [str(path) for path in release.prefix.glob("lib/python*/site-packages")]
    installed = {
        normal_name(distribution.name): distribution for distribution in distributions(path=folders)
    }
    packages: dict[str, BomComponent] = {}
    for entry in sorted(
        [*release.lock, *_beneath(release)], key=lambda entry: (entry["name"], entry["version"])
    ):
        name = normal_name(entry["name"])
        words = [entry["licence"]] if "licence" in entry else []
        if not words and name in installed:
            words = licence_words(installed[name].metadata)
        licence = next((spdx for word in words if (spdx := spdx_of(word))), None)
        # Where it was fetched, as SPDX writes it (2.3, 7.7): git's with the commit.
        url, commit, purl = entry.get("url", ""), entry.get("commit"), purl_of(entry)
        packages[purl] = BomComponent(
            name,
            entry["version"],
            entry.get("sha256"),
            licence,
            words[0] if words else "",
            purl,
            f"git+{url}@{commit}" if url and commit else url,
        )
    return tuple(packages.values())


def _beneath(release: Release) -> list[Mapping[str, str]]:
    """Return entries for what the lock does not list: hpcdl itself, Python and the MPI."""
    locked = {normal_name(entry["name"]) for entry in release.lock}
    recorded = dict(release.versions)
    # "Open MPI 4.1.4": the program's name and its version.
    mpi, _, version = recorded.get("mpi", "").rpartition(" ")
    versions = {
        "hpcdl": release.hpcdl,
        "python": recorded.get("python", ""),
        mpi.lower().replace(" ", ""): version,
    }
    rows = facts.load("records")["beneath"]
    return [
        {"name": name, "version": version, "hash": "", **rows.get(name, {})}
        for name, version in versions.items()
        if name and version and not {name, f"py-{name}"} & locked
    ]


def licence_words(metadata: Any) -> list[str]:
    """Return a package's licence texts from its metadata, surest first, 200 characters each.

    `metadata` are headers, as `importlib.metadata` and `email.parser` give them.
    """
    stated = [metadata.get("License-Expression") or "", metadata.get("License") or ""]
    stated += [
        text.split(" :: ")[-1]
        for text in metadata.get_all("Classifier") or []
        if text.startswith("License ::")
    ]
    return [line for text in stated if (line := text.strip().split("\n")[0][:200])]


@cache
def spdx_licensing() -> Any:
    """The library's index of SPDX identifiers; MissingPrerequisite without the extra 'records'."""
    try:
        import packageurl  # noqa: F401 - of the same extra, as the next one
        import packaging.version  # noqa: F401
        from license_expression import get_spdx_licensing
    except ImportError as fault:
        raise MissingPrerequisite(
            "a bill of materials needs libraries that are not installed", hint=to_install("records")
        ) from fault
    return get_spdx_licensing()


def spdx_of(words: str) -> str | None:
    """Return the SPDX expression for these words."""
    licensing = spdx_licensing()
    from license_expression import ExpressionError

    known = facts.load("records")["licences"].get(words.casefold())
    if known and known.startswith("LicenseRef-"):
        return str(known)  # no identifier of SPDX's list: the document has its text
    try:
        # Strict: an exception is allowed after WITH only.
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


def _on_github(path: str, entry: Mapping[str, str]) -> tuple[str, str, str] | None:
    """Owner, repository, and the tag or commit; None where the address names none."""
    parts = path.strip("/").split("/")
    if len(parts) < 2:
        return None
    repository = parts[1].removesuffix(".git")
    found = _TAG.search(path)
    revision = entry.get("commit") or (unquote(_SUFFIX.sub("", found.group(1))) if found else "")
    return (parts[0], repository, revision) if revision else None


@dataclass(frozen=True)
class Advisory:
    """A vulnerability in packages of a release: `state` is `waived`, `expired` or `open`.

    `aliases` are its other names, `purls` the packages, `fixed` the first version without it.
    """

    id: str
    aliases: tuple[str, ...]
    what: str
    packages: tuple[str, ...]
    purls: tuple[str, ...]
    fixed: str = ""
    state: str = "open"
    waiver: Waiver | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """Everything that it is called, its CVE among them."""
        return (self.id, *self.aliases)

    def as_data(self) -> dict[str, object]:
        """For machines."""
        return {
            "id": self.id,
            "aliases": list(self.aliases),
            "what": self.what,
            "packages": list(self.packages),
            "fixed": self.fixed or None,
            "state": self.state,
            "waiver": vars(self.waiver) if self.waiver else None,
        }

    def describe(self) -> str:
        """Return the site's answer to it."""
        if self.waiver is None:
            return "no waiver" + (f"; fixed in {self.fixed}" if self.fixed else "")
        waiver = self.waiver
        expired = "" if self.state == "waived" else "the waiver expired: "
        answers = f"(owner: {waiver.owner}, until {waiver.until})"
        return f"{expired}{waiver.kind}: {waiver.because} {answers}"


def findings(site: Site, release: Release, inside: Sequence[BomComponent]) -> list[Advisory]:
    """Everything known, hpcdl's own facts first; one that both know is named once.

    Raises:
        CheckFailed: OSV's file or the site's records are damaged.
    """
    records, path = read_records(site), osv_file(site)
    own = []
    for name, row in facts.load("records")["weaknesses"].items():
        if concerns(release, row):
            hit = [
                package
                for package in inside
                if any(fnmatchcase(package.name, p) for p in row["packages"])
            ]
            own.append(
                Advisory(
                    name,
                    (),
                    row["what"],
                    tuple(package.name for package in hit),
                    tuple(package.purl for package in hit),
                )
            )
    known = {advisory.id for advisory in own}
    listed = vulnerabilities(path, inside) if path else []
    advisories = [*own, *(advisory for advisory in listed if known.isdisjoint(advisory.names))]
    for number, advisory in enumerate(advisories):
        waiver = next((w for name in advisory.names if (w := waiver_of(name, records))), None)
        if waiver is not None:
            state = "expired" if waiver.expired(today()) else "waived"
            advisories[number] = replace(advisory, state=state, waiver=waiver)
    return advisories


def known_names(site: Site) -> set[str]:
    """Every name in OSV's file of a vulnerability in any release of the site.

    Raises:
        CheckFailed: the file is damaged.
        MissingPrerequisite: the libraries of the extra 'records' are not installed.
    """
    path = osv_file(site)
    if path is None:
        return set()
    inside: dict[str, BomComponent] = {}
    for release_id in release_ids(site):
        with suppress(BrokenRelease):
            inside |= {one.purl: one for one in components(read_release(site, release_id))}
    return {name for one in vulnerabilities(path, list(inside.values())) for name in one.names}


def osv_file(site: Site) -> Path | None:
    """The file of vulnerabilities of a prefix, the newest where there are two; None without one."""
    found = [path for name in _NAMES if (path := site.paths.prefix / name).is_file()]
    return max(found, key=lambda path: path.stat().st_mtime) if found else None


def dated(path: Path) -> str:
    """The day of a file, in UTC."""
    return time.strftime("%Y-%m-%d", time.gmtime(path.stat().st_mtime))


def vulnerabilities(path: Path, inside: Sequence[BomComponent]) -> list[Advisory]:
    """Return OSV's advisories for PyPI packages; CheckFailed: the file is damaged or no OSV."""
    known: dict[str, list[BomComponent]] = {}
    for package in inside:
        if package.purl.startswith("pkg:pypi/"):
            known.setdefault(normal_name(package.name), []).append(package)
    try:
        advisories = [hit for entry in _entries(path, known) for hit in _hits(entry, known)]
    except (
        OSError,
        ValueError,
        KeyError,
        TypeError,
        AttributeError,
        RecursionError,
        RuntimeError,
        EOFError,
        zlib.error,
        zipfile.BadZipFile,
    ) as fault:
        raise CheckFailed(
            f"{path} is not a file of OSV: {str(fault)[:200]}",
            hint=f"fetch it again from {ARCHIVE}, or move it away: {path}.broken",
        ) from fault
    return _without_doubles(
        sorted(advisories, key=lambda advisory: (advisory.packages, advisory.id))
    )


def _without_doubles(found: Sequence[Advisory]) -> list[Advisory]:
    """Merge advisories of several databases (GHSA, PYSEC) for one vulnerability of a package."""
    kept: list[Advisory] = []
    for advisory in found:
        same = next(
            (
                other
                for other in kept
                if other.purls == advisory.purls and not set(other.names).isdisjoint(advisory.names)
            ),
            None,
        )
        if same is None:
            kept.append(advisory)
        else:
            names = tuple(dict.fromkeys(n for n in (*same.names, *advisory.names) if n != same.id))
            kept[kept.index(same)] = replace(
                same, aliases=names, fixed=same.fixed or advisory.fixed
            )
    return [
        replace(advisory, what=f"{advisory.what} ({', '.join(advisory.aliases) or advisory.id})")
        for advisory in kept
    ]


def _entries(path: Path, known: Iterable[str]) -> Iterator[Mapping[str, Any]]:
    if path.suffix == ".json":
        if path.stat().st_size > _LARGEST:
            raise ValueError(f"larger than {_LARGEST // 1_000_000} MB")
        data = json.loads(path.read_bytes())
        yield from data if isinstance(data, list) else [data]
        return
    wanted = [json.dumps(name).encode() for name in known]
    with zipfile.ZipFile(path) as archive:
        members = [one for one in archive.infolist() if one.filename.endswith(".json")]
        for member in members[:_MOST]:
            if member.file_size > _LARGEST:
                raise ValueError(f"{member.filename} is larger than {_LARGEST // 1_000_000} MB")
            text = archive.read(member)
            # Twenty thousand entries, of which a dozen matter: names first, then the format.
            low = text.lower().replace(b"_", b"-").replace(b".", b"-")
            if any(name in low for name in wanted):
                yield json.loads(text)


def _hits(
    entry: Mapping[str, Any], known: Mapping[str, Sequence[BomComponent]]
) -> Iterator[Advisory]:
    text = str(entry.get("summary") or entry.get("details") or "").strip().split("\n")[0]
    summary = "".join(character for character in text if character.isprintable())[:200]
    for affected in () if entry.get("withdrawn") else entry.get("affected", ()):
        package = affected.get("package") or {}
        if package.get("ecosystem") != "PyPI":
            continue
        for component in known.get(normal_name(str(package["name"])), ()):
            version = component.version
            ranges = [one for one in affected.get("ranges", ()) if one.get("type") != "GIT"]
            # OSV's rule (schema, "evaluation"): a version that is listed, or is in a range.
            listed = version in affected.get("versions", ())
            if listed or any(_in_range(one["events"], version) for one in ranges):
                aliases = tuple(map(str, entry.get("aliases", ())))
                yield Advisory(
                    str(entry["id"]),
                    aliases,
                    summary or "no summary",
                    (component.name,),
                    (component.purl,),
                    _fixed(ranges, version),
                )


def _in_range(events: Sequence[Mapping[str, str]], version: str) -> bool:
    """Walk the events in the order of their versions; the last one at or before it decides."""
    inside, here = False, _order(version)
    rows = [(kind, text) for event in events for kind, text in event.items()]
    for kind, text in sorted(rows, key=lambda row: _order(row[1])):
        at = _order(text)
        if kind == "introduced" and (text == "0" or here >= at):
            inside = True
        elif (kind == "fixed" and here >= at) or (kind == "last_affected" and here > at):
            inside = False
    return inside


def _fixed(ranges: Sequence[Mapping[str, Any]], version: str) -> str:
    """The first version after this one that is said to be without it."""
    fixes = (event["fixed"] for one in ranges for event in one["events"] if "fixed" in event)
    return min((fix for fix in fixes if _order(fix) > _order(version)), key=_order, default="")


def _order(version: str) -> Any:
    """Return what a version of PyPI compares by (PEP 440): 2.0rc1 is before 2.0.

    A text that is no version of PyPI is taken by its leading numbers.
    """
    from packaging.version import InvalidVersion, Version

    try:
        return Version(version)
    except InvalidVersion:
        return Version(re.match(r"[0-9]+(\.[0-9]+)*|", version).group() or "0")  # type: ignore[union-attr]
