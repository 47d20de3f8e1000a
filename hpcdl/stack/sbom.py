"""The papers of a release: bill of materials (CycloneDX 1.6), vulnerabilities, a site's answers.

Names, versions and digests come from the release's lock, licences from the metadata of the
installed packages or from the lock; what the library does not know stays as it is, never guessed.
Times and the serial number come from the release: writing the bill again gives the same file.

Vulnerabilities come from hpcdl's own facts, which stop a publish until they are waived, and from
pip-audit, which only informs: its answer is kept in the release. The kind of a waiver decides what
the bill says (VEX): only a reason why the release is not affected makes it so, an accepted risk
stays exploitable.
"""

from __future__ import annotations

import datetime
import json
import re
import shutil
import sys
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from importlib.metadata import distributions
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from hpcdl import facts
from hpcdl.site import Site, Waiver
from hpcdl.stack.release import Release, normal_name
from hpcdl.stack.resolve_solver import sort_key as key
from hpcdl.system.declare import build
from hpcdl.system.errors import BadInput, CheckFailed, MissingPrerequisite
from hpcdl.system.files import write_atomic
from hpcdl.system.resources import to_install
from hpcdl.system.run import run

CYCLONEDX_FILE = "sbom.cdx.json"
AUDIT_LIST, AUDIT_FILE = "audit.txt", "audit.json"
"""The release's packages of PyPI, and pip-audit's answer about them."""
_PYPI = {"files.pythonhosted.org", "pypi.io", "pypi.org", "pypi.python.org"}
_SUFFIX = re.compile(r"\.(tar\.\w+|tgz|zip|whl)\Z")
_AUDIT_SECONDS = 300


def components(release: Release) -> tuple[Any, ...]:
    """Every package of a release's lock as a component of the CycloneDX library, by name.

    One that is there twice is named once. hpcdl, Python and the MPI are among them, also where the
    lock has only wheels. MissingPrerequisite without the extra 'records'.
    """
    try:
        from cyclonedx.model import HashAlgorithm, HashType
        from cyclonedx.model.component import Component, ComponentType
        from packageurl import PackageURL
    except ImportError as fault:
        raise MissingPrerequisite(
            "a bill of materials needs libraries that are not installed", hint=to_install("records")
        ) from fault
    folders = [str(path) for path in release.prefix.glob("lib/python*/site-packages")]
    installed = {normal_name(one.name): one for one in distributions(path=folders)}
    packages: dict[str, Any] = {}
    rows = [*release.lock, *_beneath(release)]
    for entry in sorted(rows, key=lambda entry: (entry["name"], entry["version"])):
        name, purl = normal_name(entry["name"]), purl_of(entry)
        words = [entry["licence"]] if "licence" in entry else []
        if not words and name in installed:
            words = licence_words(installed[name].metadata)
        digest = entry.get("sha256", "")
        known = [digest] if digest and " " not in digest else []  # one of several wheels
        packages[purl] = Component(
            type=ComponentType.LIBRARY,
            name=name,
            version=entry["version"],
            purl=PackageURL.from_string(purl),
            bom_ref=purl,
            licenses=licence_of(words),
            hashes=[HashType(alg=HashAlgorithm.SHA_256, content=text) for text in known],
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


def licence_of(words: Sequence[str]) -> list[Any]:
    """The first of these words that is a licence for the library of CycloneDX, else the first."""
    from cyclonedx.contrib.license.factories import LicenseFactory

    known = facts.load("records")["licences"]
    made = [LicenseFactory().make_from_string(known.get(one.casefold(), one)) for one in words]
    return [*(one for one in made if not getattr(one, "name", None)), *made][:1]


def purl_of(entry: Mapping[str, str]) -> str:
    """The package URL of a lock's entry: where the package really comes from.

    Wheels, and what Spack built from PyPI's archives, are `pkg:pypi`; anything else is
    `pkg:generic` with the archive's address and digest (github.com/package-url/purl-spec).
    Entries from Spack have a `hash`, and `url`, `sha256` of their archives.
    """
    from packageurl import PackageURL

    name, version, url = entry["name"], entry["version"], entry.get("url", "")
    if "hash" not in entry:
        return str(PackageURL("pypi", None, normal_name(name), version))
    if urlsplit(url).hostname in _PYPI:  # named by the archive: Spack has names of its own
        file = _SUFFIX.sub("", url.rpartition("/")[2])
        project = file.partition(f"-{version}" if f"-{version}" in file else "-")[0]
        return str(PackageURL("pypi", None, normal_name(project), version))
    digest = f"sha256:{entry['sha256']}" if url and "sha256" in entry else ""
    # Of a checkout only the commit says which one.
    checkout = f"git+{url}@{entry['commit']}" if "commit" in entry else ""
    found = {"vcs_url": checkout, "download_url": "" if checkout else url, "checksum": digest}
    qualifiers = {key: value for key, value in found.items() if value}
    return str(PackageURL("generic", None, name, version, qualifiers))


@dataclass(frozen=True)
class Advisory:
    """A vulnerability in packages of a release, and the site's answer to it.

    `aliases` are its other names, `purls` the packages, `fixed` the first version without it.
    """

    id: str
    aliases: tuple[str, ...]
    what: str
    purls: tuple[str, ...]
    fixed: str = ""
    waiver: Waiver | None = None

    @property
    def state(self) -> str:
        """`waived`, `expired` or `open`."""
        if self.waiver is None:
            return "open"
        return "expired" if self.waiver.until < today() else "waived"

    def describe(self) -> str:
        """Return the site's answer to it."""
        if self.waiver is None:
            return "no waiver" + (f"; fixed in {self.fixed}" if self.fixed else "")
        waiver = self.waiver
        expired = "" if self.state == "waived" else "the waiver expired: "
        answers = f"(owner: {waiver.owner}, until {waiver.until})"
        return f"{expired}{waiver.kind}: {waiver.because} {answers}"


def findings(site: Site, release: Release, inside: Sequence[Any]) -> list[Advisory]:
    """Everything known, hpcdl's own facts first; one that both know is named once."""
    own = list(_known(site, release, inside))
    known = {one.id for one in own}
    audited = _audited(release, inside, waivers_of(site))
    return [*own, *(one for one in audited if known.isdisjoint((one.id, *one.aliases)))]


def _known(site: Site, release: Release, inside: Sequence[Any] = ()) -> Iterator[Advisory]:
    """Yield what hpcdl's own facts say of a release."""
    waivers = waivers_of(site)
    for name, row in facts.load("records")["weaknesses"].items():
        if holds(release, row["packages"], row["versions"]):
            patterns = row["packages"]
            hit = (str(p.purl) for p in inside if any(fnmatchcase(p.name, one) for one in patterns))
            yield Advisory(name, (), row["what"], tuple(hit), waiver=waivers.get(name))


def _audited(
    release: Release, inside: Sequence[Any], waivers: Mapping[str, Waiver]
) -> Iterator[Advisory]:
    """Yield what pip-audit's answer in the release says of its packages."""
    path = release.root / AUDIT_FILE
    if not path.is_file():
        return
    purls = {(one.name, one.version): one.purl for one in inside if one.purl.type == "pypi"}
    try:
        for row in json.loads(path.read_bytes())["dependencies"]:
            purl = purls.get((normal_name(row["name"]), row.get("version", "")))
            for entry in row.get("vulns", ()) if purl else ():
                names = (str(entry["id"]), *map(str, entry["aliases"]))
                words = str(entry.get("description") or "no description").strip().split("\n")[0]
                plain = "".join(character for character in words if character.isprintable())
                waiver = next((waivers[name] for name in names if name in waivers), None)
                # Fixes of older branches do not help.
                later = (v for v in map(str, entry["fix_versions"]) if key(v) > key(row["version"]))
                fixed = min(later, key=key, default="")
                yield Advisory(names[0], names[1:], plain[:200], (str(purl),), fixed, waiver)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as fault:
        raise CheckFailed(
            f"{path} is no answer of pip-audit: {str(fault)[:200]}",
            hint=f"remove it, then `hpcdl stack sbom {release.id}` asks again",
        ) from fault


def audit(release: Release, inside: Sequence[Any]) -> str:
    """Let pip-audit look at the release's packages of PyPI, keep its answer; a note on it.

    A package that pip-audit cannot find is not counted as sound.
    """
    listed, answer = release.root / AUDIT_LIST, release.root / AUDIT_FILE
    rows = [f"{one.name}=={one.version}" for one in inside if one.purl.type == "pypi"]
    write_atomic(listed, "".join(f"{row}\n" for row in rows))
    ask = f"--disable-pip --no-deps -f json -r {listed} -o {answer}"
    program = shutil.which("pip-audit") or shutil.which(
        "pip-audit", path=Path(sys.executable).parent
    )
    if program is None:
        return f"pip-audit is not here; elsewhere: `pip-audit {ask}`"
    words = ["--disable-pip", "--no-deps", "--progress-spinner", "off", "-f", "json", "-r"]
    answered = run([program, *words, listed], check=False, timeout=_AUDIT_SECONDS)
    try:
        skipped = sum("skip_reason" in row for row in json.loads(answered.stdout)["dependencies"])
    except (ValueError, KeyError, TypeError):
        return f"pip-audit failed: {' | '.join(answered.last_lines(2))}"
    if skipped == len(rows):
        return f"pip-audit found no package on its index; elsewhere: `pip-audit {ask}`"
    write_atomic(answer, answered.stdout)
    return f"pip-audit knew {len(rows) - skipped} of {len(rows)} packages"


def write_sbom(
    release: Release, advisories: Sequence[Advisory], *, dry_run: bool = False
) -> dict[str, Any]:
    """Write the bill of materials, with what is known of vulnerabilities, into the release."""
    from cyclonedx.model import component as cyclone
    from cyclonedx.model.bom import Bom, BomMetaData
    from cyclonedx.output.json import JsonV1Dot6

    whole = cyclone.Component(
        type=cyclone.ComponentType.APPLICATION,
        name=release.id,
        bom_ref=release.id,
        version=release.module_version,
    )
    made = datetime.datetime.strptime(release.created, "%Y-%m-%dT%H:%M:%SZ")
    parts = components(release)
    bom = Bom(
        serial_number=uuid.uuid5(uuid.NAMESPACE_URL, f"hpcdl/{release.id}/{release.created}"),
        components=parts,
        vulnerabilities=[_vulnerability(one) for one in advisories],
        metadata=BomMetaData(component=whole, timestamp=made.replace(tzinfo=datetime.timezone.utc)),
    )
    bom.register_dependency(whole, parts)
    text = JsonV1Dot6(bom).output_as_string(indent=2)
    if not dry_run:
        write_atomic(release.root / CYCLONEDX_FILE, f"{text}\n")
    whole_bill: dict[str, Any] = json.loads(text)
    return whole_bill


def _vulnerability(finding: Advisory) -> Any:
    """A vulnerability as its valid waiver says; without one it is still to be looked at."""
    from cyclonedx.model import impact_analysis as impact
    from cyclonedx.model.vulnerability import BomTarget, Vulnerability, VulnerabilityAnalysis

    waived = finding.waiver if finding.state == "waived" else None
    kinds = facts.load("records")["waiver_kinds"]
    analysis = kinds[waived.kind] if waived else {"state": "in_triage"}
    why, response = analysis.get("justification"), analysis.get("response")
    return Vulnerability(
        id=finding.id,
        bom_ref=finding.id,
        description=finding.what,
        affects=[BomTarget(ref=purl) for purl in finding.purls],
        analysis=VulnerabilityAnalysis(
            state=impact.ImpactAnalysisState(analysis["state"]),
            justification=impact.ImpactAnalysisJustification(why) if why else None,
            responses=[impact.ImpactAnalysisResponse(response)] if response else None,
            detail=finding.describe(),
        ),
    )


def refresh_sbom(site: Site, release: Release, say: Callable[[str], None]) -> None:
    """Write it where it is missing or older than the site file or pip-audit's answer.

    A publish does not fail for it: the reason is printed.
    """
    file = release.root / CYCLONEDX_FILE
    sources = [site.source, release.root / AUDIT_FILE]
    newest = max((path.stat().st_mtime for path in sources if path.exists()), default=0.0)
    if file.is_file() and file.stat().st_mtime >= newest:
        return
    try:
        advisories = findings(site, release, components(release))
        write_sbom(release, advisories)
    except (MissingPrerequisite, CheckFailed, BadInput) as lack:
        say(f"note: no bill of materials: {lack.message}: {lack.hint}")
    except ValueError as fault:
        # The library refuses what some package says of itself: no reason to stop a publish.
        say(f"note: no bill of materials: {str(fault)[:300]}")
    else:
        unanswered = sum(advisory.state != "waived" for advisory in advisories)
        if unanswered:
            say(f"note: {unanswered} known vulnerabilities have no waiver: `hpcdl stack sbom`")


def today() -> datetime.date:
    """Today in UTC."""
    return datetime.datetime.now(datetime.timezone.utc).date()


def waivers_of(site: Site) -> dict[str, Waiver]:
    """The waivers by vulnerability: the site's own, else those that come with hpcdl."""
    rows = facts.load("records")["weaknesses"]
    shipped = {name: build(Waiver, row["waiver"]) for name, row in rows.items() if "waiver" in row}
    return {**shipped, **site.waivers}


def idle_waivers(site: Site, advisories: Sequence[Advisory]) -> list[str]:
    """The site's waivers that answer none of these: misspelt, or for another release."""
    known = {name for one in advisories for name in (one.id, *one.aliases)}
    return sorted(set(site.waivers) - known)


def require_answers(site: Site, release: Release) -> None:
    """CheckFailed where an agreement is not accepted, or a vulnerability has no valid waiver."""
    missing = list(open_questions(site, release))
    if missing:
        raise CheckFailed(
            f"{release.id} is not published: {len(missing)} "
            f"{'answer is' if len(missing) == 1 else 'answers are'} missing",
            details=missing,
        )


def open_questions(site: Site, release: Release) -> Iterator[str]:
    """Yield the open agreements and vulnerabilities, each with what answers it."""
    for name, row in facts.load("records")["agreements"].items():
        if name not in site.agreements and holds(release, row["packages"]):
            yield (
                f"{row['title']} ({row['url']}) is not accepted: `agreements: {{{name}: YOUR "
                f"NAME}}` in {site.source} says that it is"
            )
    for one in _known(site, release):
        if one.state != "waived":
            until = (
                f"its waiver expired on {one.waiver.until}" if one.waiver else "there is no waiver"
            )
            yield f"{one.id} ({one.what}): {until}; `waivers` in {site.source} takes one"


def holds(release: Release, patterns: list[str], versions: list[str] | None = None) -> bool:
    """Return whether a release has a package of these names (and versions)."""
    inside = {entry["name"]: entry["version"] for entry in release.lock} | dict(release.versions)
    return any(
        fnmatchcase(name, pattern)
        and (versions is None or any(fnmatchcase(version, one) for one in versions))
        for name, version in inside.items()
        for pattern in patterns
    )
