"""One package knows ReFrame; a ReFrame that it was not run with is refused."""

import configparser
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from hpcdl.regress.reframe_adapter.process import supported
from hpcdl.system.errors import ExitCode
from hpcdl.system.resources import to_install

ROOT = Path(__file__).resolve().parents[2]
ADAPTER = ROOT / "hpcdl" / "regress" / "reframe_adapter"


def test_only_the_adapter_knows_more_of_reframe_than_its_public_names():
    imports = re.compile(r"^\s*(import reframe|from reframe)", re.MULTILINE)
    inner = r"RFM_|_rfm_|\bjob\._|reframe\.frontend|reframe\.core\.(schedulers|meta|launchers)"
    private = re.compile(inner)
    files = [*(ROOT / "hpcdl").rglob("*.py"), *(ROOT / "reframe_checks").glob("*.py")]
    others = {path: path.read_text() for path in files if ADAPTER not in path.parents}
    assert not [path for path, text in others.items() if private.search(text)]
    importing = [path for path, text in others.items() if imports.search(text)]
    assert [p.name for p in importing if p.parent.name != "reframe_checks"] == ["checkbase.py"]


def test_the_packages_bounds_are_the_first_and_the_last_release_that_was_run():
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    wanted = setup["options.extras_require"]["checks"].strip()
    assert wanted == f"reframe-hpc >= {supported()[0]}, <= {supported()[-1]}"


@pytest.mark.parametrize("release", ["4.9.3", "4.11.0", "5.0"])
def test_another_release_is_refused_with_the_range(tmp_path, release):
    """By a real package of that release, first on Python's path."""
    (tmp_path / "reframe").mkdir()
    (tmp_path / "reframe" / "__init__.py").write_text(f"VERSION = {release!r}\n")
    known = tmp_path / f"reframe_hpc-{release}.dist-info"
    known.mkdir()
    said = f"Metadata-Version: 2.1\nName: reframe-hpc\nVersion: {release}\n"
    (known / "METADATA").write_text(said)
    env = {**os.environ, "PYTHONPATH": f"{tmp_path}:{ROOT}"}
    done = subprocess.run([sys.executable, "-m", "hpcdl", "check", "run", "--site", "pi"],
                          env=env, capture_output=True, text=True, check=False)  # fmt: skip
    assert done.returncode == ExitCode.MISSING_PREREQUISITE
    assert done.stderr.splitlines() == [
        f"error: ReFrame {release} is not supported: "
        f"hpcdl works with {supported()[0]} to {supported()[-1]}",
        f"help: {sys.executable} -m pip install 'hpcdl[checks]'",
    ]


def test_nobody_is_told_to_install_into_a_release(tmp_path, monkeypatch):
    (tmp_path / "release.json").touch()
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "stack"))
    assert "`module unload tensorflow`" in to_install("checks")
