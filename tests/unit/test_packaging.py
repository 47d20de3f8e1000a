"""What the wheel must carry, and how light the login node's installation is."""

import configparser
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SETUP = configparser.ConfigParser()
SETUP.read(ROOT / "setup.cfg")


def test_every_package_is_listed_and_the_folders_beside_them():
    listed = set(SETUP["options"]["packages"].split())
    inits = (ROOT / "hpcdl").rglob("__init__.py")
    found = {".".join(path.parent.relative_to(ROOT).parts) for path in inits}
    assert found <= listed, f"add to setup.cfg: {sorted(found - listed)}"
    for folder in ("examples", "templates", "modulefiles", "spack", "reframe_checks"):
        assert f"hpcdl.{folder}" in listed
        assert f"hpcdl.{folder} = {folder}" in SETUP["options"]["package_dir"]


def test_c_sources_travel_in_the_wheel():
    data = SETUP["options.package_data"]
    for source in (ROOT / "hpcdl").rglob("*.c"):
        package = ".".join(source.parent.relative_to(ROOT).parts)
        assert "*.c" in data.get(package, ""), f"add {source.name} to setup.cfg"


def test_a_login_node_needs_three_small_packages():
    needs = [line.split()[0] for line in SETUP["options"]["install_requires"].strip().splitlines()]
    assert sorted({*needs}) == ["PyYAML", "jinja2", "shtab"]


def test_what_the_project_stands_on_is_named_with_a_lower_bound():
    text = (ROOT / "setup.cfg").read_text()
    for package in ("jinja2", "tensorflow-cpu", "horovod", "reframe-hpc", "pytest"):
        assert re.search(rf"^ +{package} >= \d", text, re.M), package


def test_nothing_but_sources_and_pictures_is_tracked():
    """A wheel that was downloaded in the checkout went along with a commit once."""
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, text=True, capture_output=True)
    if listed.returncode != 0:
        pytest.skip("this is no git checkout")
    files = [path for name in listed.stdout.splitlines() if (path := ROOT / name).is_file()]
    binary = {path.name for path in files if b"\0" in path.read_bytes()}
    assert {name for name in binary if not name.endswith(".png")} == set()
