"""Bills of materials that other tools accept, and that say so where nobody knows a licence."""

import json
from pathlib import Path

import pytest

pytest.importorskip("cyclonedx", reason="the extra 'records' is not installed")
pytest.importorskip("spdx_tools", reason="the extra 'records' is not installed")

from hpcdl.stack.components import components, spdx_of
from hpcdl.stack.records import Records, waivers_of
from hpcdl.stack.release import Release
from hpcdl.stack.sbom import CYCLONEDX_FILE, SPDX_FILE, write_sboms
from tests.small_release import make_release, small_site

LOCK = (
    {"name": "horovod", "version": "0.28.1", "file": "h.whl", "sha256": "ab" * 32},
    {"name": "numpy", "version": "2.4.6", "licence": "BSD-3-Clause AND Zlib"},
    {"name": "odd", "version": "1", "licence": "do what you like (c) 2001"},
)


@pytest.fixture
def release(tmp_path: Path) -> Release:
    """A release with Horovod's metadata installed."""
    release = make_release(small_site(tmp_path), "tensorflow-2.21.0-cpu-00000001", lock=LOCK)
    info = release.prefix / "lib/python3.11/site-packages/horovod-0.28.1.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Name: horovod\nVersion: 0.28.1\nLicense: Apache 2.0\n")
    write_sboms(release, waivers_of(release, Records()))
    return release


@pytest.mark.parametrize(
    ("words", "spdx"),
    [("Apache 2.0", "Apache-2.0"), ("MIT", "MIT"), ("MIT OR Apache-2.0", "MIT OR Apache-2.0"),
     ("BSD", None), ("Copyright (c) 2001, others.", None), ("MIT AND", None)],
)  # fmt: skip
def test_words_become_spdx_only_where_that_is_certain(words: str, spdx: str | None) -> None:
    assert spdx_of(words) == spdx


def test_licences_come_from_the_lock_or_the_installed_metadata(release: Release) -> None:
    found = {component.name: component.licence for component in components(release)}
    assert found == {"horovod": "Apache-2.0", "numpy": "BSD-3-Clause AND Zlib", "odd": None}


def test_the_spdx_file_is_valid_and_whole(release: Release) -> None:
    from spdx_tools.spdx.parser.parse_anything import parse_file
    from spdx_tools.spdx.validation.document_validator import validate_full_spdx_document

    document = parse_file(str(release.root / SPDX_FILE))
    assert validate_full_spdx_document(document) == []
    names = {package.name: package for package in document.packages}
    assert set(names) == {release.id, "horovod", "numpy", "odd"}
    assert names["horovod"].checksums[0].value == "ab" * 32
    assert names["odd"].license_comment == "do what you like (c) 2001"


def test_a_waiver_is_the_analysis_of_a_vulnerability(release: Release) -> None:
    data = json.loads((release.root / CYCLONEDX_FILE).read_text())
    (weakness,) = data["vulnerabilities"]
    assert weakness["id"] == "CVE-2024-10190"
    assert weakness["analysis"]["state"] == "not_affected"
    assert weakness["affects"] == [{"ref": "pkg:pypi/horovod@0.28.1"}]


def test_writing_them_again_gives_the_same_bytes(release: Release) -> None:
    before = [(release.root / name).read_bytes() for name in (SPDX_FILE, CYCLONEDX_FILE)]
    write_sboms(release, waivers_of(release, Records()))
    assert [(release.root / n).read_bytes() for n in (SPDX_FILE, CYCLONEDX_FILE)] == before


def test_what_spack_built_is_valid_too(tmp_path: Path) -> None:
    """Names with signs, one package in two builds, and a wheel that a recipe installed."""
    from cyclonedx.schema import SchemaVersion
    from cyclonedx.validation.json import JsonStrictValidator
    from spdx_tools.spdx.parser.parse_anything import parse_file
    from spdx_tools.spdx.validation.document_validator import validate_full_spdx_document

    lock = (
        {"name": "py-horovod", "version": "0.28.1", "hash": "abc", "licence": "Apache-2.0"},
        {"name": "py-setuptools", "version": "69.2.0", "hash": "aaa"},
        {"name": "py-setuptools", "version": "69.2.0", "hash": "bbb"},
        {"name": "py-setuptools", "version": "80.9.0", "hash": "ccc"},
        {"name": "libstdc++", "version": "1.0+git~3", "hash": "ddd", "licence": "GPL-3.0"},
        {"name": "tensorflow-cpu", "version": "2.15.1", "file": "t.whl", "sha256": "ab" * 32},
    )
    release = make_release(small_site(tmp_path), "spack", backend="spack", lock=lock)
    write_sboms(release, waivers_of(release, Records()))
    text = (release.root / CYCLONEDX_FILE).read_text()
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(text) is None
    assert len(json.loads(text)["components"]) == 5
    assert json.loads(text)["vulnerabilities"][0]["affects"] == [
        {"ref": "pkg:generic/py-horovod@0.28.1"}
    ]
    assert "pkg:pypi/tensorflow-cpu@2.15.1" in text
    document = parse_file(str(release.root / SPDX_FILE))
    assert validate_full_spdx_document(document) == []
