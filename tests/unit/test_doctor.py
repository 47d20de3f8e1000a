"""`hpcdl doctor` names what is missing and how to install it, and nothing else; a node's driver."""

import json
from pathlib import Path

import pytest

from hpcdl import facts
from hpcdl.system import packages
from hpcdl.system.packages import nvidia_driver
from hpcdl.workflows import doctor

ROWS = [
    {"purpose": "a", "package": "shell", "program": "sh"},
    {"purpose": "a", "package": "unicorn", "program": "no-such-program"},
    {"purpose": "b", "package": "unicorn", "program": "no-such-program"},
    {"purpose": "b", "package": "passwords", "file": "/etc/pass*d"},
    {"purpose": "b", "package": "dragon", "file": "/no/such/*/file"},
]


def test_packages_are_found_by_program_or_file():
    found = packages.look(ROWS, ["a", "b"])
    assert [one.name for one in found if not one.missing] == ["shell", "passwords"]
    assert packages.missing_names(found) == ["unicorn", "dragon"]
    install = "apt-get install --no-install-recommends unicorn dragon"
    assert packages.apt_line(found).endswith(install)
    assert packages.apt_line(found[:1]) == ""


@pytest.mark.skipif(not Path("/etc/debian_version").exists(), reason="Debian's packages only")
def test_debian_s_program_of_another_package_does_not_count_without_the_file():
    for file, missing in (("/no/such/*.h", ["headers"]), ("/etc/pass*d", [])):
        row = {"purpose": "a", "package": "headers", "program": "env", "file": file}
        assert packages.missing_names(packages.look([row], ["a"])) == missing


@pytest.mark.parametrize(
    ("said", "version"),
    [
        ("slurm-wlm 22.05.8", "22.05.8"),
        ("mpicc: Open MPI 4.1.4 (Language: C)", "4.1.4"),
        ("g++ (Debian 12.2.0-14+deb12u1) 12.2.0", "12.2.0-14+deb12u1"),
        ("no digits", ""),
    ],
)
def test_versions_are_read_off_what_programs_say(said, version):
    assert packages.version_in(said) == version


def test_every_row_has_a_purpose_and_a_way_to_see_it():
    known = facts.load("packages")
    for row in known["packages"]:
        assert "program" in row or "file" in row, row
    purposes = {row["purpose"] for row in [*known["packages"], *known["python"]]}
    for role in known["roles"].values():
        assert {*role["needs"], *role["optional"]} <= purposes
        assert set(role["asks"]) <= {"slurm", "site", *doctor.OF_SLURM, *doctor.OF_SITE}
    assert {one.purpose for one in doctor.diagnose().findings} == purposes


def test_what_is_missing_is_said_with_exit_code_3(monkeypatch, hpcdl):
    monkeypatch.setitem(
        facts.load("packages"),
        "packages",
        [
            {"purpose": "cluster", "package": "unicorn", "program": "no-such-program"},
            {"purpose": "report", "package": "dragon", "program": "no-such-program"},
        ],
    )
    shown = hpcdl("doctor", code=3).out
    assert "apt-get install --no-install-recommends unicorn\n" in shown
    assert "apt-get install --no-install-recommends dragon" in shown
    assert json.loads(hpcdl("doctor", "--json", code=3).out)["complete"] is False
    del facts.load("packages")["packages"][0]
    assert "nothing is missing" in hpcdl("doctor").out, "what is optional may be missing"


def test_a_laptop_needs_no_slurm_and_no_site(monkeypatch, hpcdl):
    for name in ("PATH", "SLURM_CONF", "HPCDL_SITE"):
        monkeypatch.delenv(name, raising=False)
    assert "\nnothing is missing\n" in hpcdl("doctor", "laptop").out


@pytest.mark.parametrize("role", ["login", "admin"])
def test_a_cluster_s_machine_without_slurm_is_told_what_lacks(role, tmp_path, monkeypatch, hpcdl):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("HPCDL_HOME", str(tmp_path))
    monkeypatch.delenv("HPCDL_SITE", raising=False)
    data = json.loads(hpcdl("doctor", role, "--json", code=3).out)
    lacks = {one["name"]: one["remedy"] for one in data["findings"] if one["found"] is None}
    assert "PATH" in lacks["Slurm"]
    assert "hpcdl site init" in lacks["site file"]
    assert "slurmctld" not in json.dumps(data)


CLOSED = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  470.256.02  Thu May  2 14:37:44\n"
OPEN = (
    "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  550.54.15  Release Build\n"
    "GCC version:  gcc version 12.2.0\n"
)


@pytest.mark.parametrize(
    ("text", "version"), [(CLOSED, "470.256.02"), (OPEN, "550.54.15"), ("else", None), (None, None)]
)
def test_the_version_is_read_where_there_is_a_driver(tmp_path, text, version):
    if text is not None:
        (tmp_path / "version").write_text(text)
    assert nvidia_driver(tmp_path / "version") == version
