"""Known vulnerabilities of packages, from a file in OSV's format that an admin refreshes.

PREFIX/osv.zip is OSV's own archive of PyPI (https://osv.dev, "data dumps"), PREFIX/osv.json one
entry or a list of them. Nothing is fetched: compute clusters have no internet, and the file's date
is told. An entry concerns a package where it lists the version, or a range of versions holds it.
"""

from __future__ import annotations

import json
import time
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hpcdl.site import Site
from hpcdl.stack.components import Component
from hpcdl.stack.purl import normal_name
from hpcdl.stack.resolve_versions import sort_key
from hpcdl.system.errors import CheckFailed

ARCHIVE = "https://osv-vulnerabilities.storage.googleapis.com/PyPI/all.zip"
_NAMES = ("osv.zip", "osv.json")
_LARGEST = 20_000_000
_MOST = 200_000


@dataclass(frozen=True)
class Vulnerability:
    """One known vulnerability of one package; `fixed` is the first version without it, or ''."""

    id: str
    aliases: tuple[str, ...]
    summary: str
    package: str
    version: str
    purl: str
    fixed: str

    @property
    def names(self) -> tuple[str, ...]:
        """Everything that it is called, its CVE among them."""
        return (self.id, *self.aliases)


def osv_file(site: Site) -> Path | None:
    """The file of vulnerabilities of a prefix, the newest where there are two; None without one."""
    found = [path for name in _NAMES if (path := site.paths.prefix / name).is_file()]
    return max(found, key=lambda path: path.stat().st_mtime) if found else None


def dated(path: Path) -> str:
    """The day of a file, in UTC."""
    return time.strftime("%Y-%m-%d", time.gmtime(path.stat().st_mtime))


def vulnerabilities(path: Path, inside: Sequence[Component]) -> list[Vulnerability]:
    """What is known of the packages that come from PyPI.

    Raises:
        CheckFailed: the file is damaged or is not in OSV's format.
    """
    known: dict[str, list[Component]] = {}
    for one in inside:
        if one.purl.startswith("pkg:pypi/"):
            known.setdefault(normal_name(one.name), []).append(one)
    try:
        found = [hit for entry in _entries(path, known) for hit in _hits(entry, known)]
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError,
            RuntimeError, EOFError, zlib.error, zipfile.BadZipFile) as fault:  # fmt: skip
        raise CheckFailed(
            f"{path} is not a file of OSV: {str(fault)[:200]}",
            hint=f"fetch it again from {ARCHIVE}, or move it away: {path}.broken",
        ) from fault
    return _without_doubles(sorted(found, key=lambda one: (one.package, one.id)))


def _without_doubles(found: Sequence[Vulnerability]) -> list[Vulnerability]:
    """What several databases (GHSA, PYSEC) say of one vulnerability of a package, as one."""
    kept: list[Vulnerability] = []
    for one in found:
        same = next((other for other in kept if other.purl == one.purl
                     and not set(other.names).isdisjoint(one.names)), None)  # fmt: skip
        if same is None:
            kept.append(one)
            continue
        names = dict.fromkeys((*same.aliases, *one.names))
        names.pop(same.id, None)
        told = replace(same, aliases=tuple(names), fixed=same.fixed or one.fixed)
        kept[kept.index(same)] = told
    return kept


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
    entry: Mapping[str, Any], known: Mapping[str, Sequence[Component]]
) -> Iterator[Vulnerability]:
    text = str(entry.get("summary") or entry.get("details") or "").strip().split("\n")[0]
    said = "".join(character for character in text if character.isprintable())
    for affected in () if entry.get("withdrawn") else entry.get("affected", ()):
        package = affected.get("package") or {}
        if package.get("ecosystem") != "PyPI":
            continue
        for component in known.get(normal_name(str(package["name"])), ()):
            if _concerns(affected, component.version):
                yield Vulnerability(
                    id=str(entry["id"]),
                    aliases=tuple(map(str, entry.get("aliases", ()))),
                    summary=said[:200],
                    package=component.name,
                    version=component.version,
                    purl=component.purl,
                    fixed=_fixed(affected, component.version),
                )


def _concerns(affected: Mapping[str, Any], version: str) -> bool:
    """OSV's rule (schema, "evaluation"): a version that is listed, or lies in a range."""
    ranges = [one for one in affected.get("ranges", ()) if one.get("type") != "GIT"]
    listed = version in affected.get("versions", ())
    return listed or any(_in_range(one["events"], version) for one in ranges)


def _in_range(events: Sequence[Mapping[str, str]], version: str) -> bool:
    """Walk the events in the order of their versions; the last one at or before it decides."""
    inside, here = False, sort_key(version)
    rows = [(kind, text) for event in events for kind, text in event.items()]
    for kind, text in sorted(rows, key=lambda row: sort_key(row[1])):
        at = sort_key("0" if text == "0" else text)
        if kind == "introduced" and (text == "0" or here >= at):
            inside = True
        elif (kind == "fixed" and here >= at) or (kind == "last_affected" and here > at):
            inside = False
    return inside


def _fixed(affected: Mapping[str, Any], version: str) -> str:
    """The first version after this one that is said to be without it."""
    told = [event["fixed"] for one in affected.get("ranges", ()) if one.get("type") != "GIT"
            for event in one["events"] if "fixed" in event]  # fmt: skip
    later = [text for text in told if sort_key(text) > sort_key(version)]
    return min(later, key=sort_key) if later else ""
