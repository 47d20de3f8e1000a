"""Roots of other Slurm releases: which is taken, and what is not taken for one."""

import json
import os
from types import SimpleNamespace

import pytest

from hpcdl import facts
from hpcdl.cluster import rootfs, teardown
from hpcdl.cluster.needs import choose_mode
from hpcdl.site import find_site_file, load_site
from hpcdl.slurm.rules import known_releases
from hpcdl.system.errors import BadInput, MissingPrerequisite
from hpcdl.workflows.embedded import site_of


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("HPCDL_CACHE", str(tmp_path))
    return tmp_path / "rootfs"


def make(cache, suite, version, folder=None):
    place = cache / (folder or suite)
    place.mkdir(parents=True)
    record = {"schema": 1, "suite": suite, "version": version, "mirror": "m"}
    (place / "hpcdl-root.json").write_text(json.dumps(record))


def test_the_release_that_a_root_really_has_decides(cache):
    make(cache, "sid", "26.11.5")
    found = [one for one in ("26.05", "26.11", "26.11.5", "26.11.50") if rootfs.find(one)]
    assert found == ["26.11", "26.11.5"]
    with pytest.raises(BadInput):
        rootfs.find("26.1")


def test_half_a_root_is_none(cache):
    make(cache, "trixie", "24.11.5", folder=".trixie.partial")
    (cache / "sid/usr").mkdir(parents=True)
    (cache / "bullseye").mkdir()
    (cache / "bullseye/hpcdl-root.json").write_text("{")
    assert rootfs.built() == ()


def test_every_suite_s_release_is_one_that_rules_know():
    assert set(rootfs.releases()) <= set(known_releases())
    for row in facts.load("slurm_suites")["suites"]:
        assert row["version"].startswith(f"{row['release']}.")
        assert row["source"]
        assert row["proof"] in facts.PROOFS


def test_what_cannot_be_had_is_told_before_anything_is_made(cache, monkeypatch, tmp_path):
    assert choose_mode("auto", "24.11") == "loopback"
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(MissingPrerequisite, match="needs root"):
        rootfs.check("24.11")
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    with pytest.raises(BadInput, match=r"Slurm 24\.05"):
        rootfs.check("24.05")
    # Neither debootstrap, nor keys to check signatures with: nothing is fetched.
    for found, keys in ((None, rootfs.KEYRING), ("/usr/sbin/debootstrap", tmp_path / "none.gpg")):
        monkeypatch.setattr(rootfs, "find_program", lambda _, found=found: found)
        monkeypatch.setattr(rootfs, "KEYRING", keys)
        with pytest.raises(MissingPrerequisite, match="needs") as refused:
            rootfs.check("24.11")
        assert "install" in refused.value.hint


def test_a_cluster_s_own_site_outlives_it_and_leads_back_to_its_source(tmp_path):
    """YAML 1.1 would take 24:00:00 for seconds, and 0123 and 2.10 for other numbers."""
    source, place = tmp_path / "site.yaml", tmp_path / "cluster"
    gpu = "    gpu: {model: P100"
    text = find_site_file("embedded").read_text()
    source.write_text(text.replace(gpu, f"    account: 0123\n{gpu}"))
    state = SimpleNamespace(root=tmp_path, slurm_version="24.11.5", directory=place)
    rootfs.write_own(source, state, "pmix")
    own = rootfs.own_site(place)
    assert load_site(own).slurm.version == "24.11.5"
    assert load_site(own).partition("p100").account == "0123", "as its source, to the letter"
    assert own.relative_to(place).parts[0] not in teardown._PASSING
    for named in (own, source):
        assert site_of(str(named)).source == source
    source.unlink()
    assert site_of(str(own)).source == own, "it stands for itself"


def test_a_pipe_is_no_site_file_and_holds_nothing_up(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    assert rootfs.original_site(tmp_path / "pipe") == tmp_path / "pipe"
