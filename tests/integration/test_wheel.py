"""The built wheel, in an empty virtual environment, outside any checkout."""

import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import hpcdl
from tests.integration.conftest import Shell
from tools.release import built, faults

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """The `hpcdl` command of a wheel installed without extras."""
    folder = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "build", "--wheel", "--outdir", str(folder), str(ROOT)]
    made = subprocess.run(build, capture_output=True, text=True, check=False)
    assert made.returncode == 0, made.stderr[-2000:]
    subprocess.run([sys.executable, "-m", "venv", folder / "venv"], check=True)
    pip = [folder / "venv/bin/pip", "install", "--quiet", next(folder.glob("hpcdl-*.whl"))]
    subprocess.run(pip, check=True, capture_output=True)
    return folder / "venv/bin/hpcdl"


def run(command, *words, folder):
    env = {"PATH": os.environ["PATH"], "HOME": str(folder), "HPCDL_HOME": str(folder / "home")}
    return Shell(env, folder)(command, *words).stdout


def test_every_group_shows_its_help(installed, tmp_path):
    overview = run(installed, "--help", folder=tmp_path)
    assert overview.startswith("example: ")
    groups = re.findall(r"^  (\w+)", overview, re.M)
    assert {"job", "stack", "check"} <= set(groups)
    for group in groups:
        assert "example: " in run(installed, group, "--help", folder=tmp_path)


def test_templates_and_shipped_sites_are_inside(installed, tmp_path):
    words = ("job", "render", "--site", "pi", "--partition", "p100", "--gpus", "2", "--no-module")
    assert run(installed, *words, folder=tmp_path).startswith("#!/bin/bash\n")


def test_examples_modulefiles_spack_and_checks_are_inside(installed):
    package = next(installed.parents[1].glob("lib/python3*/site-packages/hpcdl"))
    for program in ("keras_digits.py", "frameworks/torch_training.py", "frameworks/pictures.py"):
        assert (package / "examples" / program).is_file()
    asked = "import importlib.util as u; print(u.find_spec('hpcdl.examples.frameworks.pictures'))"
    python = [installed.parent / "python", "-c", asked]
    found = subprocess.run(python, cwd=package, capture_output=True, text=True, check=True).stdout
    assert str(package / "examples" / "frameworks") in found, "for `hpcdl train --dataset`"
    assert list((package / "modulefiles").rglob("*.lua"))
    assert list((package / "reframe_checks").glob("*.py"))
    assert list((package / "spack").rglob("package.py"))
    assert (package / "py.typed").exists()


def test_the_installation_is_light(installed):
    packages = subprocess.run(
        [installed.parent / "pip", "list", "--format=freeze"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    names = {line.split("==")[0].lower() for line in packages.splitlines()}
    assert names <= {"hpcdl", "jinja2", "markupsafe", "pyyaml", "shtab", "pip", "setuptools"}


def test_the_wheel_is_small_and_has_no_tool_of_developers(installed):
    (wheel,) = installed.parents[2].glob("hpcdl-*.whl")
    assert faults(wheel, f"## {hpcdl.__version__} - now") == []
    with zipfile.ZipFile(wheel) as archive:
        tops = {name.split("/")[0] for name in archive.namelist()}
    assert tops == {"hpcdl", f"hpcdl-{hpcdl.__version__}.dist-info"}


def test_an_extra_of_the_wheel_s_file_brings_its_packages(installed):
    (wheel,) = installed.parents[2].glob("hpcdl-*.whl")
    asked = [installed.parent / "pip", "install", "--dry-run", f"{wheel}[checks]"]
    done = subprocess.run(asked, capture_output=True, text=True, check=True)
    assert re.search(r"Would install .*ReFrame-HPC", done.stdout, re.I)


@pytest.mark.long
def test_a_release_is_the_same_bytes_twice(tmp_path):
    made = [built(tmp_path / name) for name in ("one", "two")]
    one, two = ({path.name: path.read_bytes() for path in paths} for paths in made)
    assert one == two
