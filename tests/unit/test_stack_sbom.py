"""Bills of materials that other tools accept, and that say so where nobody knows a licence."""

import json
from pathlib import Path

import pytest

pytest.importorskip("cyclonedx", reason="the extra 'records' is not installed")
pytest.importorskip("spdx_tools", reason="the extra 'records' is not installed")

from hpcdl.stack.components import components, spdx_of
from hpcdl.stack.purl import purl_of
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
     ("GPL-3.0-or-later WITH GCC-exception-3.1", "GPL-3.0-or-later WITH GCC-exception-3.1"),
     ("BSD-3-Clause AND PCRE2-exception", None), ("BSD", None),
     ("Copyright (c) 2001, others.", None), ("MIT AND", None)],
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


@pytest.mark.parametrize("name", ["horovod", "py-horovod", "py-horovod-wheels"])
def test_a_waiver_names_the_package_however_it_was_built(tmp_path: Path, name: str) -> None:
    lock = ({"name": name, "version": "0.28.1", "hash": "abc"},)
    release = make_release(small_site(tmp_path), "spack", backend="spack", lock=lock)
    write_sboms(release, waivers_of(release, Records()))
    (weakness,) = json.loads((release.root / CYCLONEDX_FILE).read_text())["vulnerabilities"]
    assert weakness["affects"] == [{"ref": f"pkg:generic/{name}@0.28.1"}]


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
        {"name": "py-horovod", "version": "0.28.1", "hash": "abc", "licence": "Apache-2.0",
         "url": "https://github.com/horovod/horovod.git", "commit": "1d217b5"},
        {"name": "py-setuptools", "version": "69.2.0", "hash": "aaa"},
        {"name": "py-setuptools", "version": "69.2.0", "hash": "bbb"},
        {"name": "py-setuptools", "version": "80.9.0", "hash": "ccc", "sha256": "cd" * 32,
         "url": f"{PYPI}/py3/s/setuptools/setuptools-80.9.0-py3-none-any.whl"},
        {"name": "cuda", "version": "12.9.1", "hash": "eee", "sha256": "ef" * 32,
         "url": "https://developer.download.nvidia.com/cuda_12.9.1.run"},
        {"name": "libstdc++", "version": "1.0+git~3", "hash": "ddd", "licence": "GPL-3.0"},
        {"name": "pcre2", "version": "10.44", "hash": "fff",
         "licence": "BSD-3-Clause AND PCRE2-exception"},
        {"name": "tensorflow-cpu", "version": "2.15.1", "file": "t.whl", "sha256": "ab" * 32},
    )  # fmt: skip
    release = make_release(small_site(tmp_path), "spack", backend="spack", lock=lock)
    write_sboms(release, waivers_of(release, Records()))
    text = (release.root / CYCLONEDX_FILE).read_text()
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(text) is None
    assert len(json.loads(text)["components"]) == 7
    assert json.loads(text)["vulnerabilities"][0]["affects"] == [
        {"ref": "pkg:github/horovod/horovod@1d217b5"}
    ]
    assert "pkg:pypi/tensorflow-cpu@2.15.1" in text
    document = parse_file(str(release.root / SPDX_FILE))
    assert validate_full_spdx_document(document) == []
    places = {package.name: str(package.download_location) for package in document.packages}
    assert places["py-horovod"] == "git+https://github.com/horovod/horovod.git@1d217b5"
    assert places["cuda"].endswith("cuda_12.9.1.run")


PYPI = "https://files.pythonhosted.org/packages"
GITHUB = "https://github.com"
GNU = "https://ftpmirror.gnu.org/bash/bash-5.3.tar.gz"


@pytest.mark.parametrize(
    ("name", "version", "more", "purl"),
    [
        ("py-pyyaml", "6.0.3", {"url": "https://pypi.io/packages/source/p/pyyaml/PyYAML-6.0.3.tgz"},
         "pkg:pypi/pyyaml@6.0.3"),
        ("py-meson-python", "0.19.0",
         {"url": f"{PYPI}/source/m/meson_python/meson_python-0.19.0.tar.gz"},
         "pkg:pypi/meson-python@0.19.0"),
        ("py-tf-keras", "2.20.1", {"url": f"{PYPI}/85/6b/d9/tf_keras-2.20.1-py3-none-any.whl"},
         "pkg:pypi/tf-keras@2.20.1"),
        ("py-tensorflow", "2.20.0", {"url": f"{GITHUB}/tensorflow/tf/archive/v2.20.0.tar.gz"},
         "pkg:github/tensorflow/tf@v2.20.0"),
        ("py-pybind11", "3.0.2", {"url": f"{GITHUB}/pybind/pybind11/archive/refs/tags/v3.0.2.zip"},
         "pkg:github/pybind/pybind11@v3.0.2"),
        ("openjdk", "21.0.10_7", {"url": f"{GITHUB}/Adoptium/temurin21/releases/download/"
                                         "jdk-21.0.10%2B7/OpenJDK21U_21.0.10_7.tar.gz"},
         "pkg:github/adoptium/temurin21@jdk-21.0.10%2B7"),
        ("py-ml-dtypes", "0.5.1", {"url": f"{GITHUB}/jax-ml/ml_dtypes.git", "commit": "560866c"},
         "pkg:github/jax-ml/ml_dtypes@560866c"),
        ("bash", "5.3", {"url": GNU, "sha256": "0d"},
         f"pkg:generic/bash@5.3?checksum=sha256:0d&download_url={GNU}"),
        ("gcc", "12.2.0", {"external": "/usr"}, "pkg:generic/gcc@12.2.0"),
        ("odd", "1", {"url": f"{GITHUB}/only-an-owner"},
         f"pkg:generic/odd@1?download_url={GITHUB}/only-an-owner"),
    ],
)  # fmt: skip
def test_a_package_url_says_where_a_package_comes_from(
    name: str, version: str, more: dict[str, str], purl: str
) -> None:
    from packageurl import PackageURL

    found = purl_of({"name": name, "version": version, "hash": "abc", **more})
    assert found == purl
    assert PackageURL.from_string(found).to_string() == found
