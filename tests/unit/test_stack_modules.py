"""What is written for Lmod is Lua, whatever a path holds; a Jupyter kernel starts through it."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpcdl.stack.modules import (
    choose,
    install_kernel,
    lua,
    plan_kernel,
    profile,
    render_modules,
    write_modules,
)
from hpcdl.stack.publish import publish
from hpcdl.stack.release import DISPATCH_FILE
from hpcdl.stack.tree import record_release
from hpcdl.system.errors import BadInput, MissingPrerequisite
from tests.small_release import make_release, passing, silent, small_site


@pytest.mark.skipif(shutil.which("lua") is None, reason="there is no lua")
@settings(max_examples=25, deadline=None)
@given(st.text(max_size=40))
def test_any_text_comes_through_lua_unchanged(text):
    text = text.encode("utf-8", "ignore").decode()
    program = f"io.write({lua(text)})"
    assert subprocess.check_output(["lua", "-"], input=program.encode()).decode() == text


def test_tables_are_readable_and_other_types_refused():
    assert lua({"sm": "sm_60", "ranges": [450, 580], "cpu": False, "none": {}}) == (
        '{\n  ["sm"] = "sm_60",\n  ["ranges"] = {\n    450,\n    580,\n  },\n'
        '  ["cpu"] = false,\n  ["none"] = {},\n}'
    )
    with pytest.raises(TypeError):
        lua(object())


@pytest.mark.skipif(shutil.which("luac") is None, reason="there is no luac")
def test_every_rendered_modulefile_parses(tmp_path):
    site = small_site(tmp_path)
    release = make_release(site, 'odd "name" [[x]]')
    files = render_modules(site, [release], choose(site, [release]))
    assert set(files) == {"tensorflow/2.21.0-cpu.lua", "tensorflow/.modulerc.lua", DISPATCH_FILE}
    for name, text in files.items():
        if name.endswith(".lua"):
            subprocess.run(["luac", "-p", "-"], input=text.encode(), check=True)


def test_writing_modules_again_changes_nothing_and_the_set_before_stays_for_a_load(tmp_path):
    """It may be under way."""
    write_modules(tmp_path, {"tensorflow/1.lua": "a"})
    first = (tmp_path / "modules").resolve()
    write_modules(tmp_path, {"tensorflow/1.lua": "a"})
    assert (tmp_path / "modules").resolve() == first
    assert len(list(tmp_path.glob(".modules*"))) == 1
    for text in "bc":
        write_modules(tmp_path, {"tensorflow/1.lua": text})
    left = {(folder / "tensorflow/1.lua").read_text() for folder in tmp_path.glob(".modules*")}
    assert left == {"b", "c"}
    assert (tmp_path / "modules/tensorflow/1.lua").read_text() == "c"


@pytest.mark.parametrize(
    ("shell", "kind", "start"),
    [
        *((shell, "sh", "set -u; . ") for shell in ("sh", "bash", "zsh")),
        *((shell, "csh", "source ") for shell in ("tcsh", "csh")),
        ("fish", "fish", "source "),
    ],
)
@pytest.mark.parametrize("before", ["", "/site/modules", "/site/modules:/more"])
def test_a_profile_shows_the_modules_once_in_every_shell(tmp_path, shell, kind, start, before):
    """Twice read, with and without a path before, and where unset variables are errors."""
    if shutil.which(shell) is None:
        pytest.skip(f"there is no {shell}")
    ours = str(tmp_path / "it's a prefix" / "modules")
    file = tmp_path / "profile"
    file.write_text(profile(kind, {"MODULEPATH": ours}))
    script = f'{start}{file}; {start}{file}; echo "$MODULEPATH"'
    env = {"PATH": "/usr/bin:/bin", **({"MODULEPATH": before} if before else {})}
    words = ["-f", "-c", script] if shell in {"tcsh", "csh", "zsh"} else ["-c", script]
    words = ["--no-config", *words] if shell == "fish" else words
    done = subprocess.run([shell, *words], env=env, capture_output=True, text=True, check=True)
    told = f"{before}:{ours}" if before else ours
    assert (done.stdout.strip(), done.stderr) == (told, "")


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
