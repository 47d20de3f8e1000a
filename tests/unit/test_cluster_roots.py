"""Roots of other Slurm releases: which is taken, and what is not taken for one."""

import json
import os

import pytest

from hpcdl import facts
from hpcdl.cluster import roots
from hpcdl.cluster.needs import check_packages, choose_mode
from hpcdl.slurm.rules import known_releases
from hpcdl.system.errors import BadInput, MachineLacks


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("HPCDL_CACHE", str(tmp_path))
    return tmp_path / "roots"


def make(cache, suite, version, folder=None):
    place = cache / (folder or suite)
    place.mkdir(parents=True)
    record = {"schema": 1, "suite": suite, "version": version, "mirror": "m"}
    (place / "hpcdl-root.json").write_text(json.dumps(record))


def test_the_release_that_a_root_really_has_decides(cache):
    make(cache, "sid", "26.11.1")
    assert roots.find("26.05") is None
    assert roots.find("26.11").version == "26.11.1"


@pytest.mark.parametrize(("wished", "there"), [("24.11", True), ("24.11.5", True),
                                               ("24.11.50", False), ("24.1", False)])  # fmt: skip
def test_a_point_release_may_be_named(cache, wished, there):
    make(cache, "trixie", "24.11.5")
    try:
        assert (roots.find(wished) is not None) == there
    except BadInput:
        assert not there


def test_half_a_root_is_none(cache):
    make(cache, "trixie", "24.11.5", folder=".trixie.partial")
    (cache / "sid/usr").mkdir(parents=True)
    (cache / "bullseye").mkdir()
    (cache / "bullseye/hpcdl-root.json").write_text("{")
    assert roots.built() == ()


def test_every_suite_s_release_is_one_that_rules_know():
    assert set(roots.releases()) <= set(known_releases())
    for row in facts.load("slurm_suites")["suites"]:
        assert row["version"].startswith(f"{row['release']}.")
        assert row["source"]
        assert row["proof"] in facts.PROOFS


def test_an_unknown_release_is_refused_with_the_nearest(cache, monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    with pytest.raises(BadInput, match=r"Slurm 24\.05"):
        roots.check("24.05")


def test_who_is_not_root_is_told_in_one_line(cache, monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(MachineLacks, match="needs root"):
        roots.check("24.11")


def test_without_debootstrap_its_package_is_named(cache, monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setattr(roots, "find_program", lambda name: None)
    with pytest.raises(MachineLacks, match="needs"):
        roots.check("24.11")


def test_another_release_runs_in_loopback_mode_without_accounting():
    assert choose_mode("auto", "24.11") == "loopback"
    with pytest.raises(BadInput, match="loopback"):
        choose_mode("namespaces", "24.11")
    with pytest.raises(BadInput, match="accounting"):
        check_packages(accounting=True, slurm="24.11")
