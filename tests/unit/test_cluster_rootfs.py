"""Roots of other Slurm releases: which is taken, and what is not taken for one."""

import json
import os
from types import SimpleNamespace

import pytest

from hpcdl import facts
from hpcdl.cluster import rootfs, teardown
from hpcdl.cluster.find import site_of
from hpcdl.cluster.needs import check_packages, choose_mode
from hpcdl.site import find_site_file, load_site
from hpcdl.slurm.rules import known_releases
from hpcdl.system.errors import BadInput, MissingPrerequisite


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
    make(cache, "sid", "26.11.1")
    assert rootfs.find("26.05") is None
    assert rootfs.find("26.11").version == "26.11.1"


@pytest.mark.parametrize(("wanted", "there"), [("24.11", True), ("24.11.5", True),
                                               ("24.11.50", False), ("24.1", False)])  # fmt: skip
def test_a_point_release_may_be_named(cache, wanted, there):
    make(cache, "trixie", "24.11.5")
    try:
        assert (rootfs.find(wanted) is not None) == there
    except BadInput:
        assert not there


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


def test_an_unknown_release_is_refused_with_the_nearest(cache, monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    with pytest.raises(BadInput, match=r"Slurm 24\.05"):
        rootfs.check("24.05")


def test_a_user_other_than_root_gets_one_line(cache, monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(MissingPrerequisite, match="needs root"):
        rootfs.check("24.11")


def test_without_debootstrap_its_package_is_named(cache, monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setattr(rootfs, "find_program", lambda name: None)
    with pytest.raises(MissingPrerequisite, match="needs"):
        rootfs.check("24.11")


def test_without_keys_to_check_signatures_nothing_is_fetched(cache, monkeypatch, tmp_path):
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(rootfs, "find_program", lambda name: f"/usr/sbin/{name}")
    monkeypatch.setattr(rootfs, "KEYRING", tmp_path / "none.gpg")
    with pytest.raises(MissingPrerequisite, match="needs") as refused:
        rootfs.check("24.11")
    assert "install" in refused.value.hint


def test_another_release_runs_in_loopback_mode_without_accounting():
    assert choose_mode("auto", "24.11") == "loopback"
    with pytest.raises(BadInput, match="loopback"):
        choose_mode("namespaces", "24.11")
    with pytest.raises(BadInput, match="accounting"):
        check_packages(accounting=True, slurm="24.11")


def test_a_cluster_s_own_site_outlives_it_and_leads_back_to_its_source(tmp_path):
    source = find_site_file("embedded")
    laid = SimpleNamespace(root=tmp_path, slurm_version="24.11.5", directory=tmp_path)
    rootfs.write_own(load_site(source), laid, "pmix")
    own = rootfs.own_site(tmp_path)
    assert load_site(own).slurm.version == "24.11.5"
    assert own.relative_to(tmp_path).parts[0] not in teardown._PASSING
    assert site_of(str(own)).source == source
    assert site_of(str(source)).source == source


def test_an_own_site_whose_source_is_gone_stands_for_itself(tmp_path):
    source = tmp_path / "site.yaml"
    source.write_text(find_site_file("embedded").read_text())
    place = tmp_path / "cluster"
    laid = SimpleNamespace(root=tmp_path, slurm_version="24.11.5", directory=place)
    rootfs.write_own(load_site(source), laid, "pmix")
    source.unlink()
    assert site_of(str(rootfs.own_site(place))).source == rootfs.own_site(place)


def test_an_own_site_says_what_its_source_says_to_the_letter(tmp_path):
    """YAML 1.1 would take 24:00:00 for seconds, and 0123 and 2.10 for other numbers."""
    source = tmp_path / "site.yaml"
    text = find_site_file("embedded").read_text()
    source.write_text(
        text.replace("    gpu: {model: P100", "    account: 0123\n    gpu: {model: P100")
    )
    place = tmp_path / "cluster"
    laid = SimpleNamespace(root=tmp_path, slurm_version="24.11.5", directory=place)
    rootfs.write_own(load_site(source), laid, "pmix")
    assert load_site(rootfs.own_site(place)).partition("p100").account == "0123"


def test_a_pipe_is_no_site_file_and_holds_nothing_up(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    assert rootfs.original_site(tmp_path / "pipe") == tmp_path / "pipe"
