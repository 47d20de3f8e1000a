"""Bills of materials of a release: SPDX 2.3 and CycloneDX 1.6, written by their libraries.

Both hold the same components. CycloneDX also holds the known vulnerabilities, each with the state
of its waiver as its analysis; in SPDX a package refers to them. Times and serial numbers come from
the release, so that writing it again gives the same file.
"""

from __future__ import annotations

import datetime
import json
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from hpcdl import facts
from hpcdl.site import Site
from hpcdl.stack.findings import (
    Advisory,
    BomComponent,
    components,
    findings,
    osv_file,
    spdx_licensing,
)
from hpcdl.stack.release import Release
from hpcdl.system.errors import CheckFailed, MissingPrerequisite
from hpcdl.system.files import write_atomic
from hpcdl.system.resources import scratch_directory, to_install

SPDX_FILE = "sbom.spdx.json"
CYCLONEDX_FILE = "sbom.cdx.json"
# The form that the SPDX specification (6.5) gives for documents without a site of their own.
_NAMESPACE = "https://spdx.org/spdxdocs/"
_ADVISORIES = "https://osv.dev/vulnerability/"


def write_sboms(release: Release, found: Sequence[Advisory]) -> tuple[Path, Path]:
    """Write both bills of materials into the release, with what is known of its vulnerabilities."""
    inside = components(release)
    try:
        texts = _spdx(release, inside, found), _cyclonedx(release, inside, found)
    except ImportError as fault:
        raise MissingPrerequisite(
            "a bill of materials needs libraries that are not installed", hint=to_install("records")
        ) from fault
    files = release.root / SPDX_FILE, release.root / CYCLONEDX_FILE
    for path, text in zip(files, texts, strict=True):
        write_atomic(path, text)
    return files


def refresh_sboms(site: Site, release: Release, say: Callable[[str], None]) -> None:
    """Write both where they are missing or older than the site's waivers or OSV's file.

    A publish does not fail for them: the reason is printed.
    """
    files = [release.root / name for name in (SPDX_FILE, CYCLONEDX_FILE)]
    sources = [site.paths.prefix / "records.json", osv_file(site)]
    newest = max((path.stat().st_mtime for path in sources if path and path.exists()), default=0.0)
    if all(path.is_file() and path.stat().st_mtime >= newest for path in files):
        return
    try:
        advisories = findings(site, release, components(release))
        write_sboms(release, advisories)
    except (MissingPrerequisite, CheckFailed) as lack:
        say(f"note: no bill of materials: {lack.message}: {lack.hint}")
    except ValueError as fault:
        # The libraries refuse what some package says of itself: no reason to stop a publish.
        say(f"note: no bill of materials: {str(fault)[:300]}")
    else:
        unanswered = sum(advisory.state != "waived" for advisory in advisories)
        if unanswered:
            say(f"note: {unanswered} known vulnerabilities have no waiver: `hpcdl stack sbom`")


def _serial(release: Release) -> uuid.UUID:
    return uuid.uuid5(uuid.NAMESPACE_URL, f"{_NAMESPACE}{release.id}/{release.created}")


def _created(release: Release) -> datetime.datetime:
    return datetime.datetime.strptime(release.created, "%Y-%m-%dT%H:%M:%SZ").replace(
        tzinfo=datetime.timezone.utc
    )


def _cyclonedx(release: Release, inside: Sequence[BomComponent], found: Sequence[Advisory]) -> str:
    from cyclonedx.model import component as cyclone
    from cyclonedx.model.bom import Bom, BomMetaData
    from cyclonedx.output.json import JsonV1Dot6

    whole = cyclone.Component(
        type=cyclone.ComponentType.APPLICATION,
        name=release.id,
        bom_ref=release.id,
        version=release.module_version,
    )
    parts = [_cyclone_component(component) for component in inside]
    bom = Bom(
        serial_number=_serial(release),
        components=parts,
        vulnerabilities=[_cyclone_finding(finding) for finding in found],
        metadata=BomMetaData(component=whole, timestamp=_created(release)),
    )
    bom.register_dependency(whole, parts)
    text: str = JsonV1Dot6(bom).output_as_string(indent=2)
    return text + "\n"


def _cyclone_component(component: BomComponent) -> Any:
    from cyclonedx.model import HashAlgorithm, HashType
    from cyclonedx.model import component as cyclone
    from cyclonedx.model.license import DisjunctiveLicense, LicenseExpression
    from packageurl import PackageURL

    licences: list[Any] = [DisjunctiveLicense(name=component.words)] if component.words else []
    if component.licence:
        licences = [LicenseExpression(component.licence)]
    digests = [component.sha256] if component.sha256 else []
    return cyclone.Component(
        type=cyclone.ComponentType.LIBRARY,
        name=component.name,
        version=component.version,
        purl=PackageURL.from_string(component.purl),
        bom_ref=component.purl,
        licenses=licences,
        hashes=[HashType(alg=HashAlgorithm.SHA_256, content=text) for text in digests],
    )


def _cyclone_finding(finding: Advisory) -> Any:
    """A vulnerability as its valid waiver says; without one it is still to be looked at."""
    from cyclonedx.model import impact_analysis as impact
    from cyclonedx.model.vulnerability import BomTarget, Vulnerability, VulnerabilityAnalysis

    waived = finding.waiver if finding.state == "waived" else None
    analysis = waived.analysis if waived else {"state": "in_triage"}
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


def _spdx(release: Release, inside: Sequence[BomComponent], found: Sequence[Advisory]) -> str:
    from spdx_tools.spdx import model
    from spdx_tools.spdx.writer.json.json_writer import write_document_to_file

    info = model.CreationInfo(
        spdx_version="SPDX-2.3",
        spdx_id="SPDXRef-DOCUMENT",
        name=release.id,
        document_namespace=f"{_NAMESPACE}{release.id}-{_serial(release)}",
        creators=[model.Actor(model.ActorType.TOOL, f"hpcdl-{release.hpcdl}")],
        created=_created(release).replace(tzinfo=None),
    )
    whole = model.Package(
        "SPDXRef-Release",
        release.id,
        model.SpdxNoAssertion(),
        files_analyzed=False,
        version=release.module_version,
    )
    packages = [_spdx_package(component, found) for component in inside]
    kinds = model.RelationshipType
    relations = [
        model.Relationship("SPDXRef-DOCUMENT", kinds.DESCRIBES, whole.spdx_id),
        *(model.Relationship(whole.spdx_id, kinds.CONTAINS, p.spdx_id) for p in packages),
    ]
    # The licences that are not on SPDX's list, which a document must describe itself.
    used = {one.licence for one in inside}
    own = facts.load("records")["own_licences"]
    described = [model.ExtractedLicensingInfo(name, **own[name]) for name in own if name in used]
    document = model.Document(
        info,
        packages=[whole, *packages],
        relationships=relations,
        extracted_licensing_info=described,
    )
    with scratch_directory() as scratch:
        path = scratch / SPDX_FILE
        write_document_to_file(document, str(path), validate=True)
        return json.dumps(json.loads(path.read_text("utf-8")), indent=2) + "\n"


def _spdx_package(component: BomComponent, found: Sequence[Advisory]) -> Any:
    from spdx_tools.spdx import model

    unknown, kinds = model.SpdxNoAssertion(), model.ExternalPackageRefCategory
    declared = spdx_licensing().parse(component.licence) if component.licence else unknown
    digests = [component.sha256] if component.sha256 else []
    origin = component.purl.partition(":")[2].partition("/")[0]
    name = f"{origin}-{component.name}-{component.version}"
    safe = "".join(c if (c.isascii() and c.isalnum()) or c in ".-" else "-" for c in name)
    about = [model.ExternalPackageRef(kinds.PACKAGE_MANAGER, "purl", component.purl)]
    about += [
        model.ExternalPackageRef(kinds.SECURITY, "advisory", _ADVISORIES + one.id, one.describe())
        for one in found
        if component.purl in one.purls
    ]
    return model.Package(
        f"SPDXRef-{safe}",
        component.name,
        component.url or unknown,
        version=component.version,
        files_analyzed=False,
        checksums=[model.Checksum(model.ChecksumAlgorithm.SHA256, text) for text in digests],
        license_declared=declared,
        license_comment=None if component.licence else component.words or None,
        external_references=about,
    )
