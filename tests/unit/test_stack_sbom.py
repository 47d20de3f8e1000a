"""Papers of a release: what stops a publish, and bills of materials that other tools accept."""

import dataclasses
import datetime
import json
import os

import pytest

pytest.importorskip("cyclonedx", reason="the extra 'records' is not installed")

from hpcdl import facts
from hpcdl.site import Waiver
from hpcdl.stack.publish import publish
from hpcdl.stack.release import current_id
from hpcdl.stack.sbom import (
    AUDIT_FILE,
    CYCLONEDX_FILE,
    audit,
    components,
    findings,
    idle_waivers,
    open_questions,
    purl_of,
    refresh_sbom,
    waivers_of,
    write_sbom,
)
from hpcdl.system.errors import CheckFailed
from tests.make.releases import make_release, passing, silent
from tests.make.sites import small_site

TODAY = datetime.date(2026, 11, 21)
CVE = "CVE-2024-10190"
BECAUSE = "elastic jobs are not run at this site"
BENEATH = {"hpcdl": "Apache-2.0", "openmpi": "BSD-3-Clause-Open-MPI", "python": "Python-2.0.1"}
LOCK = (
    {"name": "horovod", "version": "0.28.1", "file": "h.whl", "sha256": "ab" * 32},
    {"name": "numpy", "version": "2.4.6", "licence": "BSD-3-Clause AND Zlib"},
    {"name": "odd", "version": "1", "licence": "do what you like (c) 2001"},
)


@pytest.fixture
def site(tmp_path, monkeypatch):
    monkeypatch.setattr("hpcdl.stack.sbom.today", lambda: TODAY)
    return small_site(tmp_path)


def locked(*names):
    return tuple({"name": name, "version": "0.28.1"} for name in names)


def questions(site, *names):
    release = make_release(site, "-".join(("r", *names)), lock=locked(*names))
    return list(open_questions(site, release))


def licences(release):
    """SPDX licences by name, None where only words are known."""
    found = {}
    for row in write_sbom(release, (), dry_run=True)["components"]:
        (licence,) = row.get("licenses", [{}])
        known = licence.get("expression") or licence.get("license", {}).get("id")
        found[row["name"]] = known
    return found


def waived(site, name=CVE, until=datetime.date(2027, 1, 31), **kind):
    """The site with one waiver in its file."""
    return dataclasses.replace(site, waivers={name: Waiver(BECAUSE, "Ada", until, **kind)})


def write(site, release):
    """Write the bill, which the library's judge takes; what it says of vulnerabilities."""
    from cyclonedx.schema import SchemaVersion
    from cyclonedx.validation.json import JsonStrictValidator

    write_sbom(release, findings(site, release, components(release)))
    text = (release.root / CYCLONEDX_FILE).read_text()
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(text) is None
    return list(json.loads(text)["vulnerabilities"])


@pytest.mark.parametrize(
    ("package", "agreement"),
    [("cuda", "cuda"), ("nvidia-cudnn-cu12", "cudnn"), ("nvidia-cublas-cu12", "cuda")],
)
def test_nvidia_s_libraries_need_an_accepted_agreement(site, package, agreement):
    (question,) = questions(site, package)
    assert f"`agreements: {{{agreement}: YOUR NAME}}` in" in question
    site = dataclasses.replace(site, agreements={agreement: "Ada"})
    assert questions(site, package, "numpy") == []


def test_the_release_with_an_open_question_is_not_published(site):
    make_release(site, "gpu", lock=locked("nvidia-cudnn-cu12"))
    with pytest.raises(CheckFailed, match="1 answer is missing") as caught:
        publish(site, "gpu", passing, say=silent)
    assert "cuDNN" in caught.value.details[0]
    assert current_id(site) is None


def test_an_expired_waiver_stops_a_publish_and_is_no_answer(site, monkeypatch):
    assert questions(site, "tensorflow-cpu", "horovod") == []
    site = waived(site, until=TODAY)
    assert questions(site, "horovod") == []
    monkeypatch.setattr("hpcdl.stack.sbom.today", lambda: TODAY + datetime.timedelta(1))
    (question,) = questions(site, "py-horovod")
    assert "expired on 2026-11-21" in question
    assert "`waivers` in" in question
    (vulnerability, *_) = write(site, make_release(site, "r", lock=LOCK))
    assert vulnerability["analysis"]["state"] == "in_triage"
    assert "expired" in vulnerability["analysis"]["detail"]


def test_a_waiver_of_a_misspelt_name_is_told_to_answer_nothing(site):
    release = make_release(site, "r", lock=locked("horovod"))
    for name, idle in ((CVE, []), (CVE.lower(), [CVE.lower()])):
        site = waived(site, name)
        assert idle_waivers(site, findings(site, release, components(release))) == idle


def test_hpcdl_s_own_waiver_is_dated_owned_and_true_of_the_recipe(site):
    waiver = waivers_of(site)[CVE]
    assert waiver.owner
    assert "horovodrun" in waiver.because
    assert "bin/horovodrun" in facts.load("wheels")["horovod"]["leave_out"]
    assert waivers_of(waived(site))[CVE].owner == "Ada", "the site's own counts instead"


def test_every_row_has_a_source():
    rows = [facts.load("records")[kind] for kind in ("agreements", "weaknesses")]
    assert all(row["source"] for table in rows for row in table.values())


@pytest.mark.parametrize(
    ("words", "spdx"),
    [
        ("Apache 2.0", "Apache-2.0"),
        ("MIT", "MIT"),
        ("MIT OR Apache-2.0", "MIT OR Apache-2.0"),
        ("GPL-3.0-or-later WITH GCC-exception-3.1", "GPL-3.0-or-later WITH GCC-exception-3.1"),
        ("BSD-3-Clause AND PCRE2-exception", ""),
        ("BSD", ""),
        ("Copyright (c) 2001, others.", ""),
        ("MIT AND", ""),
    ],
)
def test_words_become_spdx_only_where_that_is_certain(site, words, spdx):
    lock = ({"name": "numpy", "version": "1", "licence": words},)
    assert licences(make_release(site, "r", lock=lock)) == {"numpy": spdx or None, **BENEATH}


def test_licences_come_from_the_lock_or_the_installed_metadata_and_bytes_stay(site):
    release = make_release(site, "tensorflow-2.21.0-cpu-00000001", lock=LOCK)
    info = release.prefix / "lib/python3.11/site-packages/horovod-0.28.1.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Name: horovod\nVersion: 0.28.1\nLicense: Apache 2.0\n")
    assert licences(release) == {
        "horovod": "Apache-2.0",
        "numpy": "BSD-3-Clause AND Zlib",
        "odd": None,
        **BENEATH,
    }
    write(site, release)
    before = (release.root / CYCLONEDX_FILE).read_bytes()
    assert b"do what you like (c) 2001" in before
    write(site, release)
    assert (release.root / CYCLONEDX_FILE).read_bytes() == before


@pytest.mark.parametrize(
    ("name", "more", "purl"),
    [
        ("horovod", {"file": "h.whl"}, "pkg:pypi/horovod@0.28.1"),
        ("horovod", {"hash": "abc"}, "pkg:generic/horovod@0.28.1"),
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
    site = waived(site, **kind)
    (vulnerability, *_) = write(site, make_release(site, "r", lock=LOCK))
    said = vulnerability["analysis"]
    assert BECAUSE in said.pop("detail")
    assert said == analysis


def test_what_spack_built_is_valid_too(site):
    """Names with signs, one package in two builds, and a wheel that a recipe installed."""
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
        {"name": "libstdc++", "version": "1.0+git~3", "hash": "ddd", "licence": "GPL-3.0"},
        {"name": "tensorflow-cpu", "version": "2.15.1", "file": "t.whl", "sha256": "ab" * 32},
        {"name": "nccl", "version": "2", "hash": "e", "licence": "LicenseRef-NVIDIA-Proprietary"},
    )
    release = make_release(site, "spack", backend="spack", lock=lock)
    (vulnerability, *_) = write(site, release)
    assert vulnerability["affects"] == [
        {
            "ref": "pkg:generic/py-horovod@0.28.1?vcs_url=git%2Bhttps://github.com/horovod/horovod.git%401d217b5"
        }
    ]
    text = (release.root / CYCLONEDX_FILE).read_text()
    assert len(json.loads(text)["components"]) == 5 + len(BENEATH)
    assert "pkg:pypi/tensorflow-cpu@2.15.1" in text
    assert "LicenseRef-NVIDIA-Proprietary" in text


PYPI = "https://files.pythonhosted.org/packages"
GNU = "https://ftpmirror.gnu.org/bash/bash-5.3.tar.gz"
TAG = "https://github.com/tensorflow/tensorflow/archive/v2.0.tar.gz"


@pytest.mark.parametrize(
    ("name", "version", "url", "purl"),
    [
        ("py-pyyaml", "6.0.3", f"{PYPI}/p/pyyaml/PyYAML-6.0.3.tgz", "pypi/pyyaml@6.0.3"),
        ("py-tf-keras", "2.1", f"{PYPI}/85/d9/tf_keras-2.1-py3-none-any.whl", "pypi/tf-keras@2.1"),
        ("py-tf", "2.0", TAG, f"generic/py-tf@2.0?download_url={TAG}"),
        ("bash", "5.3", GNU, f"generic/bash@5.3?download_url={GNU}"),
        ("gcc", "12.2.0", "", "generic/gcc@12.2.0"),
    ],
)
def test_a_package_url_says_where_a_package_comes_from(name, version, url, purl):
    from packageurl import PackageURL

    found = purl_of({"name": name, "version": version, "hash": "abc", "url": url})
    assert found == f"pkg:{purl}"
    assert PackageURL.from_string(found).to_string() == found


def answer(*rows):
    """An answer of pip-audit, as its 2.10 writes it."""
    return json.dumps({"dependencies": list(rows), "fixes": []})


NUMPY = {
    "name": "NumPy",
    "version": "2.4.6",
    "vulns": [
        {
            "id": "PYSEC-2099-17",
            "fix_versions": ["1.26.5", "2.10.1", "2.4.7"],
            "aliases": ["CVE-2099-1234", "GHSA-w7xq-3c9m-p4r2"],
            "description": "an \x1b[31marray\x07 too far\n\n### Impact",
        }
    ],
}
SKIPPED = {"name": "odd", "skip_reason": "Dependency not found on PyPI"}


@pytest.fixture
def pip_audit(tmp_path, monkeypatch):
    """Let a program that prints this stand for pip-audit, which has no index here."""

    def put(text):
        program = tmp_path / "bin" / "pip-audit"
        program.parent.mkdir(exist_ok=True)
        program.write_text(f"#!/bin/sh\ncat <<'END'\n{text}\nEND\n")
        program.chmod(0o755)
        monkeypatch.setattr("sys.executable", str(program))
        monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")

    return put


def test_what_pip_audit_knows_is_there_with_the_state_of_its_waiver(site, pip_audit):
    release = make_release(site, "tensorflow-2.21.0-cpu-00000001", lock=LOCK)
    pip_audit(answer({"name": "horovod", "version": "0.28.1", "vulns": []}, NUMPY, SKIPPED))
    assert audit(release, components(release)) == "pip-audit knew 2 of 3 packages"
    found = {row["id"]: row for row in write(site, release)}
    assert set(found) == {CVE, "TF-GRPC-NO-AUTH", "PYSEC-2099-17"}
    row = found["PYSEC-2099-17"]
    assert row["analysis"] == {"state": "in_triage", "detail": "no waiver; fixed in 2.4.7"}
    assert row["description"] == "an [31marray too far"
    assert row["affects"] == [{"ref": "pkg:pypi/numpy@2.4.6"}]
    (*_, one) = findings(waived(site, "CVE-2099-1234"), release, components(release))
    assert one.state == "waived"
    assert BECAUSE in one.describe()


def test_an_index_that_knows_nothing_proves_nothing(site, pip_audit):
    release = make_release(site, "r", lock=LOCK)
    pip_audit(answer(SKIPPED, SKIPPED, SKIPPED))
    assert "no package on its index" in audit(release, components(release))
    pip_audit("no network")
    assert "pip-audit failed" in audit(release, components(release))
    assert not (release.root / AUDIT_FILE).exists()


@pytest.mark.parametrize("text", ["", "{", "[1]", "[" * 100_000, '{"dependencies": [1]}'])
def test_a_damaged_answer_is_refused_and_does_not_stop_a_publish(site, text):
    release = make_release(site, "r", lock=LOCK)
    (release.root / AUDIT_FILE).write_text(text)
    with pytest.raises(CheckFailed, match="no answer of pip-audit"):
        findings(site, release, components(release))
    said = []
    refresh_sbom(site, release, said.append)
    assert AUDIT_FILE in said[0]
    assert len(said) == 1
