"""A Jupyter kernel starts through the module, whatever the notebook server has loaded."""

import json
import subprocess
from pathlib import Path

import pytest

from hpcdl.stack.modules import install_kernel, plan_kernel
from hpcdl.stack.publish import publish
from hpcdl.stack.seal import record_release
from hpcdl.system.errors import BadInput, MissingPrerequisite
from tests.small_release import make_release, passing, silent, small_site

LMOD = Path("/usr/share/lmod/lmod/init/bash")


@pytest.fixture
def release(tmp_path):
    """A published release whose Python says what it is called with, and its site."""
    site = small_site(tmp_path / "a prefix", lmod=LMOD.is_file())
    made = make_release(site, "tensorflow-2.21.0-cpu-00000001")
    (made.prefix / "lib/python3.11/site-packages/ipykernel").mkdir(parents=True)
    made.python.unlink()
    made.python.write_text('#!/bin/sh\necho "$HPCDL_RELEASE [$PYTHONHOME] $@"\n')
    for path in made.prefix.rglob("*"):
        path.chmod(0o755)
    record_release(made)
    publish(site, made.id, passing, say=silent)
    return site, made


def test_a_release_without_ipykernel_is_refused_with_the_way(tmp_path):
    site = small_site(tmp_path)
    with pytest.raises(BadInput, match="ipykernel") as caught:
        plan_kernel(site, make_release(site, "bare"), follow=False, prefix=tmp_path)
    assert "packages: [ipykernel]" in caught.value.hint


@pytest.mark.skipif(not LMOD.is_file(), reason="Lmod is not installed")
@pytest.mark.parametrize("follow", [True, False])
def test_it_starts_without_a_loaded_module(release, tmp_path, follow):
    kernel = plan_kernel(*release, follow=follow, prefix=tmp_path / "jupyter")
    install_kernel(kernel)
    assert kernel.file.is_relative_to(tmp_path / "jupyter/share/jupyter/kernels")
    words = json.loads(kernel.file.read_text())["argv"]
    argv = [text.format(connection_file="/run/a file.json") for text in words]
    env = {"PATH": "/usr/bin:/bin", "HOME": "/nonexistent", "PYTHONHOME": "/opt/other"}
    told = subprocess.check_output(argv, env=env, text=True)
    assert told.strip() == f"{release[1].id} [] -m ipykernel_launcher -f /run/a file.json"


def test_without_a_prefix_it_is_the_user_s_own(release, tmp_path, monkeypatch):
    monkeypatch.delenv("JUPYTER_DATA_DIR", raising=False)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    kernel = plan_kernel(*release, follow=True, prefix=None)
    assert kernel.file == tmp_path / "data/jupyter/kernels/hpcdl-tensorflow/kernel.json"


def test_a_place_that_cannot_be_written_is_one_clear_error(release, tmp_path):
    (tmp_path / "file").touch()
    kernel = plan_kernel(*release, follow=True, prefix=tmp_path / "file")
    with pytest.raises(MissingPrerequisite, match="cannot write"):
        install_kernel(kernel)
