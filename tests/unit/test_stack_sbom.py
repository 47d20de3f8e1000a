"""Bills of materials that other tools accept, and that say so where nobody knows a licence."""

import datetime
import io
import json
import zipfile

import pytest

pytest.importorskip("cyclonedx", reason="the extra 'records' is not installed")
pytest.importorskip("spdx_tools", reason="the extra 'records' is not installed")

from hpcdl.stack.findings import (
    components,
    findings,
    known_names,
    purl_of,
    spdx_of,
    vulnerabilities,
)
from hpcdl.stack.records import Waiver, waive
from hpcdl.stack.sbom import CYCLONEDX_FILE, SPDX_FILE, refresh_sboms, write_sboms
from hpcdl.system.errors import BadInput, CheckFailed
from tests.small_release import make_release, small_site

CVE = "CVE-2024-10190"
TOMORROW = str(datetime.date.today() + datetime.timedelta(1))
BENEATH = {"hpcdl": "Apache-2.0", "openmpi": "BSD-3-Clause-Open-MPI", "python": "Python-2.0.1"}
LOCK = (
    {"name": "horovod", "version": "0.28.1", "file": "h.whl", "sha256": "ab" * 32},
    {"name": "numpy", "version": "2.4.6", "licence": "BSD-3-Clause AND Zlib"},
    {"name": "odd", "version": "1", "licence": "do what you like (c) 2001"},
)


def write(site, release):
    """Write both bills; what the one of CycloneDX says of vulnerabilities."""
    write_sboms(release, findings(site, release, components(release)))
    return list(json.loads((release.root / CYCLONEDX_FILE).read_text())["vulnerabilities"])


def spdx(release):
    """The bill in SPDX's form, which is valid."""
    from spdx_tools.spdx.parser.parse_anything import parse_file
    from spdx_tools.spdx.validation.document_validator import validate_full_spdx_document

    document = parse_file(str(release.root / SPDX_FILE))
    assert validate_full_spdx_document(document) == []
    return document


@pytest.fixture
def release(site):
    """A release with Horovod's metadata installed."""
    release = make_release(site, "tensorflow-2.21.0-cpu-00000001", lock=LOCK)
    info = release.prefix / "lib/python3.11/site-packages/horovod-0.28.1.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Name: horovod\nVersion: 0.28.1\nLicense: Apache 2.0\n")
    write(site, release)
    return release


@pytest.mark.parametrize(
    ("words", "spdx"),
    [
        ("Apache 2.0", "Apache-2.0"),
        ("MIT", "MIT"),
        ("MIT OR Apache-2.0", "MIT OR Apache-2.0"),
        ("GPL-3.0-or-later WITH GCC-exception-3.1", "GPL-3.0-or-later WITH GCC-exception-3.1"),
        ("BSD-3-Clause AND PCRE2-exception", None),
        ("BSD", None),
        ("Copyright (c) 2001, others.", None),
        ("MIT AND", None),
    ],
)
def test_words_become_spdx_only_where_that_is_certain(words, spdx):
    assert spdx_of(words) == spdx


def test_licences_come_from_the_lock_or_the_installed_metadata(release):
    found = {component.name: component.licence for component in components(release)}
    own = {"horovod": "Apache-2.0", "numpy": "BSD-3-Clause AND Zlib", "odd": None}
    assert found == {**own, **BENEATH}


def test_the_spdx_file_is_valid_and_whole(release):
    names = {package.name: package for package in spdx(release).packages}
    assert set(names) == {release.id, "horovod", "numpy", "odd", *BENEATH}
    assert (names["openmpi"].version, names["python"].version) == ("4.1.4", "3.11.7")
    assert names["horovod"].checksums[0].value == "ab" * 32
    assert names["odd"].license_comment == "do what you like (c) 2001"


@pytest.mark.parametrize(
    ("name", "more", "purl"),
    [
        ("horovod", {"file": "h.whl"}, "pkg:pypi/horovod@0.28.1"),
        ("horovod", {"hash": "abc"}, "pkg:generic/horovod@0.28.1"),
        ("py-horovod", {"hash": "abc"}, "pkg:generic/py-horovod@0.28.1"),
        ("py-horovod-wheels", {"hash": "abc"}, "pkg:generic/py-horovod-wheels@0.28.1"),
    ],
)
def test_a_waiver_is_the_analysis_of_a_vulnerability_however_it_was_built(site, name, more, purl):
    lock = ({"name": name, "version": "0.28.1", **more},)
    vulnerability, server = write(site, make_release(site, "r", lock=lock))
    assert (vulnerability["id"], server["id"]) == (CVE, "TF-GRPC-NO-AUTH")
    assert vulnerability["analysis"]["state"] == "not_affected"
    assert vulnerability["analysis"]["justification"] == "code_not_reachable"
    assert server["analysis"]["justification"] == "requires_configuration"
    assert vulnerability["affects"] == [{"ref": purl}]


@pytest.mark.parametrize(
    ("kind", "analysis"),
    [
        ({}, {"state": "exploitable", "response": ["will_not_fix"]}),
        (
            {"kind": "code-not-present"},
            {"state": "not_affected", "justification": "code_not_present"},
        ),
    ],
)
def test_only_a_reason_of_that_kind_says_that_a_release_is_not_affected(site, kind, analysis):
    """Every waiver once became not_affected, code_not_reachable: a signed false statement."""
    waive(site, Waiver(CVE, "the board has taken this risk", "Ada", TOMORROW, **kind))
    (vulnerability, *_) = write(site, make_release(site, "r", lock=LOCK))
    said = vulnerability["analysis"]
    assert "the board has taken this risk" in said.pop("detail")
    assert said == analysis


def test_writing_them_again_gives_the_same_bytes(site, release):
    before = [(release.root / name).read_bytes() for name in (SPDX_FILE, CYCLONEDX_FILE)]
    write(site, release)
    assert [(release.root / n).read_bytes() for n in (SPDX_FILE, CYCLONEDX_FILE)] == before


def test_what_spack_built_is_valid_too(site):
    """Names with signs, one package in two builds, and a wheel that a recipe installed."""
    from cyclonedx.schema import SchemaVersion
    from cyclonedx.validation.json import JsonStrictValidator

    lock = (
        {
            "name": "py-horovod",
            "version": "0.28.1",
            "hash": "abc",
            "licence": "Apache-2.0",
            "url": "https://github.com/horovod/horovod.git",
            "commit": "1d217b5",
        },
        {"name": "py-setuptools", "version": "69.2.0", "hash": "aaa"},
        {"name": "py-setuptools", "version": "69.2.0", "hash": "bbb"},
        {
            "name": "py-setuptools",
            "version": "80.9.0",
            "hash": "ccc",
            "sha256": "cd" * 32,
            "url": f"{PYPI}/py3/s/setuptools/setuptools-80.9.0-py3-none-any.whl",
        },
        {
            "name": "cuda",
            "version": "12.9.1",
            "hash": "eee",
            "sha256": "ef" * 32,
            "url": "https://developer.download.nvidia.com/cuda_12.9.1.run",
        },
        {"name": "libstdc++", "version": "1.0+git~3", "hash": "ddd", "licence": "GPL-3.0"},
        {
            "name": "pcre2",
            "version": "10.44",
            "hash": "fff",
            "licence": "BSD-3-Clause AND PCRE2-exception",
        },
        {"name": "tensorflow-cpu", "version": "2.15.1", "file": "t.whl", "sha256": "ab" * 32},
    )
    release = make_release(site, "spack", backend="spack", lock=lock)
    (vulnerability, *_) = write(site, release)
    assert vulnerability["affects"] == [{"ref": "pkg:github/horovod/horovod@1d217b5"}]
    text = (release.root / CYCLONEDX_FILE).read_text()
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(text) is None
    assert len(json.loads(text)["components"]) == 7 + len(BENEATH)
    assert "pkg:pypi/tensorflow-cpu@2.15.1" in text
    places = {one.name: str(one.download_location) for one in spdx(release).packages}
    assert places["py-horovod"] == "git+https://github.com/horovod/horovod.git@1d217b5"
    assert places["cuda"].endswith("cuda_12.9.1.run")


PYPI = "https://files.pythonhosted.org/packages"
GITHUB = "https://github.com"
GNU = "https://ftpmirror.gnu.org/bash/bash-5.3.tar.gz"


@pytest.mark.parametrize(
    ("name", "version", "more", "purl"),
    [
        (
            "py-pyyaml",
            "6.0.3",
            {"url": "https://pypi.io/packages/source/p/pyyaml/PyYAML-6.0.3.tgz"},
            "pkg:pypi/pyyaml@6.0.3",
        ),
        (
            "py-meson-python",
            "0.19.0",
            {"url": f"{PYPI}/source/m/meson_python/meson_python-0.19.0.tar.gz"},
            "pkg:pypi/meson-python@0.19.0",
        ),
        (
            "py-tf-keras",
            "2.20.1",
            {"url": f"{PYPI}/85/6b/d9/tf_keras-2.20.1-py3-none-any.whl"},
            "pkg:pypi/tf-keras@2.20.1",
        ),
        (
            "py-tensorflow",
            "2.20.0",
            {"url": f"{GITHUB}/tensorflow/tf/archive/v2.20.0.tar.gz"},
            "pkg:github/tensorflow/tf@v2.20.0",
        ),
        (
            "py-pybind11",
            "3.0.2",
            {"url": f"{GITHUB}/pybind/pybind11/archive/refs/tags/v3.0.2.zip"},
            "pkg:github/pybind/pybind11@v3.0.2",
        ),
        (
            "openjdk",
            "21.0.10_7",
            {
                "url": f"{GITHUB}/Adoptium/temurin21/releases/download/"
                "jdk-21.0.10%2B7/OpenJDK21U_21.0.10_7.tar.gz"
            },
            "pkg:github/adoptium/temurin21@jdk-21.0.10%2B7",
        ),
        (
            "py-ml-dtypes",
            "0.5.1",
            {"url": f"{GITHUB}/jax-ml/ml_dtypes.git", "commit": "560866c"},
            "pkg:github/jax-ml/ml_dtypes@560866c",
        ),
        (
            "bash",
            "5.3",
            {"url": GNU, "sha256": "0d"},
            f"pkg:generic/bash@5.3?checksum=sha256:0d&download_url={GNU}",
        ),
        ("gcc", "12.2.0", {"external": "/usr"}, "pkg:generic/gcc@12.2.0"),
        (
            "odd",
            "1",
            {"url": f"{GITHUB}/only-an-owner"},
            f"pkg:generic/odd@1?download_url={GITHUB}/only-an-owner",
        ),
    ],
)
def test_a_package_url_says_where_a_package_comes_from(name, version, more, purl):
    from packageurl import PackageURL

    found = purl_of({"name": name, "version": version, "hash": "abc", **more})
    assert found == purl
    assert PackageURL.from_string(found).to_string() == found


OSV = {
    "id": "GHSA-aaaa-bbbb-cccc",
    "aliases": ["CVE-2099-0001"],
    "summary": "an \x1b[31marray\x07 too far",
    "affected": [
        {
            "package": {"ecosystem": "PyPI", "name": "NumPy"},
            "ranges": [
                {"type": "ECOSYSTEM", "events": [{"introduced": "2.0"}, {"fixed": "2.10.1"}]}
            ],
        },
        {"package": {"ecosystem": "npm", "name": "odd"}, "versions": ["1"]},
    ],
}


def test_nvidia_s_licence_is_named_and_its_text_is_in_the_document(site):
    own = "LicenseRef-NVIDIA-Proprietary"
    lock = (
        {"name": "nvidia-nccl-cu12", "version": "2.28", "licence": own},
        {"name": "nvidia-cublas-cu11", "version": "11", "licence": "NVIDIA Proprietary Software"},
    )
    release = make_release(site, "gpu", lock=lock)
    write(site, release)
    licences = {one.name: one.licence for one in components(release)}
    assert licences["nvidia-nccl-cu12"] == licences["nvidia-cublas-cu11"] == own
    (text,) = spdx(release).extracted_licensing_info
    assert text.license_id == own


@pytest.mark.parametrize("packed", [True, False])
def test_what_osv_knows_stands_there_with_the_state_of_its_waiver(site, tmp_path, packed):
    release = make_release(site, "tensorflow-2.21.0-cpu-00000001", lock=LOCK)
    if packed:
        with zipfile.ZipFile(tmp_path / "osv.zip", "w") as archive:
            archive.writestr("GHSA-aaaa-bbbb-cccc.json", json.dumps(OSV))
            archive.writestr("GHSA-none.json", json.dumps({**OSV, "withdrawn": "2026-01-01"}))
    else:
        (tmp_path / "osv.json").write_text(json.dumps([OSV]))
    found = {row["id"]: row for row in write(site, release)}
    assert set(found) == {CVE, "TF-GRPC-NO-AUTH", "GHSA-aaaa-bbbb-cccc"}
    row = found["GHSA-aaaa-bbbb-cccc"]
    assert row["analysis"] == {"state": "in_triage", "detail": "no waiver; fixed in 2.10.1"}
    assert row["description"] == "an [31marray too far (CVE-2099-0001)"
    assert row["affects"] == [{"ref": "pkg:pypi/numpy@2.4.6"}]
    assert "advisory" in (release.root / SPDX_FILE).read_text()

    because, today = "nobody indexes arrays by what others send", str(datetime.date.today())
    waive(site, Waiver("CVE-2099-0001", because, "Ada", today), known_here=known_names(site))
    (*_, one) = findings(site, release, components(release))
    assert one.state == "waived"
    assert because in one.describe()
    other = Waiver("CVE-2099-0002", because, "Ada", today)
    with pytest.raises(BadInput, match="CVE-2099-0002"):
        waive(site, other, known_here=known_names(site))


def as_published(name, events, versions):
    """One package of an entry as OSV publishes it: it lists the versions of each range."""
    return {
        "package": {"ecosystem": "PyPI", "name": name, "purl": f"pkg:pypi/{name}"},
        "ranges": [{"type": "ECOSYSTEM", "events": events}],
        "versions": versions,
        "database_specific": {"source": "https://github.com/"},
    }


OF_GITHUB = {
    "id": "GHSA-w7xq-3c9m-p4r2",
    "schema_version": "1.7.3",
    "modified": "2099-03-27T22:03:05Z",
    "summary": "numpy reads beyond the end of an array in a made-up function",
    "details": "### Impact\nAnybody who may name an axis.\n\n```python\nnumpy.none(axis=-1)\n```\n",
    "aliases": ["CVE-2099-1234", "PYSEC-2099-17"],
    "related": ["CGA-2222-3333-4444"],
    "database_specific": {"cwe_ids": ["CWE-125"], "severity": "HIGH", "nvd_published_at": None},
    "affected": [
        as_published("numpy", [{"introduced": "0"}, {"fixed": "1.26.5"}], ["1.26.4", "1.26.4rc1"]),
        as_published("numpy", [{"introduced": "2.0.0"}, {"fixed": "2.4.7"}], ["2.4.5", "2.4.6"]),
        as_published("numpy-quaddtype", [{"introduced": "0"}], ["0.1"]),
    ],
}
OF_PYTHON = {
    "id": "PYSEC-2099-17",
    "aliases": ["CVE-2099-1234", "GHSA-w7xq-3c9m-p4r2"],
    "details": "numpy is the array package. A made-up function reads too far.",
    "affected": [
        {
            "package": {"name": "numpy", "ecosystem": "PyPI", "purl": "pkg:pypi/numpy"},
            "ranges": [
                {
                    "type": "GIT",
                    "repo": "https://github.com/numpy/numpy",
                    "events": [{"introduced": "0"}, {"fixed": "6841e522" * 5}],
                },
                {"type": "ECOSYSTEM", "events": [{"introduced": "0"}, {"fixed": "2.4.7"}]},
            ],
            "versions": ["2.4.5", "2.4.6"],
        }
    ],
}
MALICIOUS = {
    "id": "MAL-2099-4711",
    "summary": "Malicious code in numpyy (PyPI)",
    "affected": [as_published("numpyy", [{"introduced": "0"}], ["2.4.6"])],
}


def test_entries_as_osv_publishes_them_are_one_finding_where_databases_agree(tmp_path):
    """A file per entry in all.zip; both databases of PyPI have most vulnerabilities."""
    with zipfile.ZipFile(tmp_path / "osv.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        for entry in (OF_PYTHON, MALICIOUS, OF_GITHUB):
            archive.writestr(f"{entry['id']}.json", json.dumps(entry))
    release = make_release(small_site(tmp_path), "r", lock=LOCK)
    (one,) = vulnerabilities(tmp_path / "osv.zip", components(release))
    assert (one.id, one.purls) == ("GHSA-w7xq-3c9m-p4r2", ("pkg:pypi/numpy@2.4.6",))
    assert one.aliases == ("CVE-2099-1234", "PYSEC-2099-17")
    assert one.what.startswith("numpy reads beyond the end of an array in a made-up function (CVE")
    assert one.fixed == "2.4.7"

    (tmp_path / "osv.zip").unlink()
    (tmp_path / "osv.json").write_text(json.dumps(OF_PYTHON))
    (one,) = vulnerabilities(tmp_path / "osv.json", components(release))
    assert one.what.startswith("numpy is the array package. A made-up function reads too far.")


@pytest.mark.parametrize(
    ("events", "versions", "inside"),
    [
        ([{"introduced": "0"}, {"fixed": "2.4.6"}], [], False),
        ([{"introduced": "0"}, {"fixed": "2.4.7"}], [], True),
        ([{"introduced": "0"}, {"last_affected": "2.4.6"}], [], True),
        ([{"introduced": "0"}, {"last_affected": "2.4.5"}], [], False),
        ([{"introduced": "0"}, {"fixed": "1.0"}, {"introduced": "2.4"}], [], True),
        ([{"introduced": "3"}], [], False),
        ([], ["2.4.6"], True),
        ([], ["2.4.60"], False),
        # PEP 440: a release candidate is before its final release, a post release behind it.
        ([{"introduced": "0"}, {"fixed": "2.4.6rc1"}], [], False),
        ([{"introduced": "2.4.6.post1"}], [], False),
        ([{"introduced": "2.4.6rc1"}, {"fixed": "2.4.7.dev0"}], [], True),
    ],
)
def test_a_version_lies_in_a_range_as_osv_says(site, tmp_path, events, versions, inside):
    package = as_published("numpy", events, versions)
    if not events:
        package["ranges"] = []
    (tmp_path / "osv.json").write_text(json.dumps({**OSV, "affected": [package]}))
    release = make_release(site, "r", lock=LOCK)
    assert bool(vulnerabilities(tmp_path / "osv.json", components(release))) is inside


def damaged_member():
    """An archive one of whose members cannot be unpacked."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("PYSEC-1.json", json.dumps(OSV) * 50)
    start = 30 + len("PYSEC-1.json")
    return packed.getvalue()[:start] + b"\xff\xff" + packed.getvalue()[start + 2 :]


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"{",
        b"[1]",
        b"[" * 100_000,
        b'{"affected": 1}',
        b"\xff",
        damaged_member(),
    ],
    ids=range(7),
)
@pytest.mark.parametrize("name", ["osv.json", "osv.zip"])
def test_a_damaged_file_of_osv_is_refused_and_does_not_stop_a_publish(site, tmp_path, name, text):
    release = make_release(site, "r", lock=LOCK)
    (tmp_path / name).write_bytes(text)
    with pytest.raises(CheckFailed, match="not a file of OSV") as caught:
        findings(site, release, components(release))
    assert "osv-vulnerabilities" in caught.value.hint
    said = []
    refresh_sboms(site, release, said.append)
    assert name in said[0]
    assert len(said) == 1


def test_an_expired_waiver_is_no_answer(site, monkeypatch):
    monkeypatch.setattr("hpcdl.stack.records.today", lambda: datetime.date(2026, 1, 1))
    waive(site, Waiver(CVE, "nobody starts elastic jobs", "Ada", "2026-01-02"))
    (vulnerability, *_) = write(site, make_release(site, "r", lock=LOCK))
    assert vulnerability["analysis"]["state"] == "in_triage"
    assert "expired" in vulnerability["analysis"]["detail"]
