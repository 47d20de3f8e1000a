"""Bills of materials of a release: SPDX 2.3 and CycloneDX 1.6, written by their libraries.

Both hold the same components. CycloneDX also holds the waivers, as its analysis of known
vulnerabilities. Times and serial numbers come from the release, so that writing it again gives
the same file.
"""

from __future__ import annotations

import datetime
import json
import uuid
from collections.abc import Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from hpcdl.stack.components import RECORDS_HINT, Component, components, spdx_licensing
from hpcdl.stack.records import Waiver
from hpcdl.stack.release import Release
from hpcdl.system.errors import MissingPrerequisite
from hpcdl.system.files import write_atomic

if TYPE_CHECKING:
    from cyclonedx.model.component import Component as CycloneComponent
    from cyclonedx.model.vulnerability import Vulnerability
    from spdx_tools.spdx.model import Package

SPDX_FILE = "sbom.spdx.json"
CYCLONEDX_FILE = "sbom.cdx.json"
# The form that the SPDX specification (6.5) gives for documents without a site of their own.
_NAMESPACE = "https://spdx.org/spdxdocs/"


def write_sboms(release: Release, waivers: Sequence[Waiver]) -> tuple[Path, Path]:
    """Write both bills of materials into the release.

    Raises:
        MissingPrerequisite: the libraries are not installed.
    """
    inside = components(release)
    try:
        files = {
            SPDX_FILE: spdx(release, inside),
            CYCLONEDX_FILE: cyclonedx(release, inside, waivers),
        }
    except ImportError as fault:
        raise MissingPrerequisite(
            "a bill of materials needs libraries that are not installed", hint=RECORDS_HINT
        ) from fault
    for name, text in files.items():
        write_atomic(release.root / name, text)
    return release.root / SPDX_FILE, release.root / CYCLONEDX_FILE


def _serial(release: Release) -> uuid.UUID:
    return uuid.uuid5(uuid.NAMESPACE_URL, f"{_NAMESPACE}{release.id}/{release.created}")


def _created(release: Release) -> datetime.datetime:
    return datetime.datetime.strptime(release.created, "%Y-%m-%dT%H:%M:%SZ").replace(
        tzinfo=datetime.timezone.utc
    )


def cyclonedx(release: Release, inside: Sequence[Component], waivers: Sequence[Waiver]) -> str:
    """The CycloneDX document."""
    from cyclonedx.model.bom import Bom, BomMetaData
    from cyclonedx.model.component import Component as CycloneComponent
    from cyclonedx.model.component import ComponentType
    from cyclonedx.output.json import JsonV1Dot6

    whole = CycloneComponent(
        type=ComponentType.APPLICATION, name=release.id, bom_ref=release.id,
        version=release.module.partition("/")[2],
    )  # fmt: skip
    parts = [_cyclone_component(component) for component in inside]
    bom = Bom(
        serial_number=_serial(release),
        components=parts,
        vulnerabilities=[_cyclone_waiver(waiver, inside) for waiver in waivers],
        metadata=BomMetaData(component=whole, timestamp=_created(release)),
    )
    bom.register_dependency(whole, parts)
    text: str = JsonV1Dot6(bom).output_as_string(indent=2)
    return text + "\n"


def _cyclone_component(component: Component) -> CycloneComponent:
    from cyclonedx.model import HashAlgorithm, HashType
    from cyclonedx.model.component import Component as CycloneComponent
    from cyclonedx.model.component import ComponentType
    from cyclonedx.model.license import DisjunctiveLicense, LicenseExpression
    from packageurl import PackageURL

    licences: list[Any] = [DisjunctiveLicense(name=component.words)] if component.words else []
    if component.licence:
        licences = [LicenseExpression(component.licence)]
    digests = [component.sha256] if component.sha256 else []
    return CycloneComponent(
        type=ComponentType.LIBRARY,
        name=component.name,
        version=component.version,
        purl=PackageURL.from_string(component.purl),
        bom_ref=component.purl,
        licenses=licences,
        hashes=[HashType(alg=HashAlgorithm.SHA_256, content=text) for text in digests],
    )


def _cyclone_waiver(waiver: Waiver, inside: Sequence[Component]) -> Vulnerability:
    from cyclonedx.model.impact_analysis import (
        ImpactAnalysisJustification,
        ImpactAnalysisState,
    )
    from cyclonedx.model.vulnerability import BomTarget, Vulnerability, VulnerabilityAnalysis

    from hpcdl import facts

    row = facts.load("records")["weaknesses"][waiver.weakness]
    patterns = row["packages"]
    touched = [one.purl for one in inside if any(fnmatchcase(one.name, p) for p in patterns)]
    return Vulnerability(
        id=waiver.weakness,
        bom_ref=waiver.weakness,
        description=row["what"],
        affects=[BomTarget(ref=purl) for purl in touched],
        analysis=VulnerabilityAnalysis(
            state=ImpactAnalysisState.NOT_AFFECTED,
            justification=ImpactAnalysisJustification.CODE_NOT_REACHABLE,
            detail=f"{waiver.because} (owner: {waiver.owner}, until {waiver.until})",
        ),
    )


def spdx(release: Release, inside: Sequence[Component]) -> str:
    """The SPDX document."""
    from spdx_tools.spdx.model import (
        Actor,
        ActorType,
        CreationInfo,
        Document,
        Package,
        Relationship,
        RelationshipType,
        SpdxNoAssertion,
    )
    from spdx_tools.spdx.writer.json.json_writer import write_document_to_file

    info = CreationInfo(
        spdx_version="SPDX-2.3",
        spdx_id="SPDXRef-DOCUMENT",
        name=release.id,
        document_namespace=f"{_NAMESPACE}{release.id}-{_serial(release)}",
        creators=[Actor(ActorType.TOOL, f"hpcdl-{release.hpcdl}")],
        created=_created(release).replace(tzinfo=None),
    )
    whole = Package("SPDXRef-Release", release.id, SpdxNoAssertion(), files_analyzed=False,
                    version=release.module.partition("/")[2])  # fmt: skip
    packages = [_spdx_package(component) for component in inside]
    relations = [
        Relationship("SPDXRef-DOCUMENT", RelationshipType.DESCRIBES, whole.spdx_id),
        *(Relationship(whole.spdx_id, RelationshipType.CONTAINS, p.spdx_id) for p in packages),
    ]
    document = Document(info, packages=[whole, *packages], relationships=relations)
    with TemporaryDirectory() as scratch:
        path = Path(scratch) / SPDX_FILE
        write_document_to_file(document, str(path), validate=True)
        return json.dumps(json.loads(path.read_text("utf-8")), indent=2) + "\n"


def _spdx_package(component: Component) -> Package:
    from spdx_tools.spdx.model import (
        Checksum,
        ChecksumAlgorithm,
        ExternalPackageRef,
        ExternalPackageRefCategory,
        Package,
        SpdxNoAssertion,
    )

    declared = SpdxNoAssertion()
    if component.licence:
        declared = spdx_licensing().parse(component.licence)
    digests = [component.sha256] if component.sha256 else []
    origin = component.purl.partition(":")[2].partition("/")[0]
    name = f"{origin}-{component.name}-{component.version}"
    safe = "".join(c if (c.isascii() and c.isalnum()) or c in ".-" else "-" for c in name)
    return Package(
        f"SPDXRef-{safe}",
        component.name,
        component.url or SpdxNoAssertion(),
        version=component.version,
        files_analyzed=False,
        checksums=[Checksum(ChecksumAlgorithm.SHA256, text) for text in digests],
        license_declared=declared,
        license_comment=None if component.licence else component.words or None,
        external_references=[
            ExternalPackageRef(ExternalPackageRefCategory.PACKAGE_MANAGER, "purl", component.purl)
        ],
    )
