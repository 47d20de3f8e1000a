"""What is written for Lmod is Lua, whatever a version or a path holds."""

import shutil
import subprocess

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpcdl.stack.dispatch import choose
from hpcdl.stack.modules import lua, profile_csh, profile_sh, render_modules, write_modules
from hpcdl.stack.release import DISPATCH_FILE
from tests.small_release import make_release, small_site


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


@pytest.mark.parametrize(("shell", "profile", "start"), [
    *((shell, profile_sh, "set -u; . ") for shell in ("sh", "bash", "zsh")),
    *((shell, profile_csh, "source ") for shell in ("tcsh", "csh")),
])  # fmt: skip
@pytest.mark.parametrize("before", ["", "/site/modules", "/site/modules:/more"])
def test_a_profile_shows_the_modules_once_in_every_shell(tmp_path, shell, profile, start, before):
    """Twice read, with and without a path before, and where unset variables are errors."""
    if shutil.which(shell) is None:
        pytest.skip(f"there is no {shell}")
    ours = str(tmp_path / "it's a prefix" / "modules")
    file = tmp_path / "profile"
    file.write_text(profile({"MODULEPATH": ours}))
    script = f'{start}{file}; {start}{file}; echo "$MODULEPATH"'
    env = {"PATH": "/usr/bin:/bin", **({"MODULEPATH": before} if before else {})}
    words = ["-f", "-c", script] if shell in {"tcsh", "csh", "zsh"} else ["-c", script]
    done = subprocess.run([shell, *words], env=env, capture_output=True, text=True, check=True)
    told = f"{before}:{ours}" if before else ours
    assert (done.stdout.strip(), done.stderr) == (told, "")
