"""What is written for Lmod is Lua, whatever a path holds; a Jupyter kernel starts through it."""

import json
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpcdl.site import StackRequest
from hpcdl.stack.gc import collect
from hpcdl.stack.modules import choose, lua, profile, render_modules, write_modules
from hpcdl.stack.publish import plan_publish, plan_rollback, publish, rollback
from hpcdl.stack.release import DISPATCH_FILE, release_for
from hpcdl.stack.resolve import Resolver
from hpcdl.stack.tree import record_release
from hpcdl.system.errors import BadInput
from hpcdl.workflows.modules import module_for
from tests.make.releases import make_current, make_release, passing, silent
from tests.make.sites import mixed_site, small_site


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
    file.write_text(profile(kind, Path(ours)))
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
    made.python.unlink()
    made.python.write_text('#!/bin/sh\necho "$HPCDL_RELEASE [$PYTHONHOME] $@"\n')
    for path in made.prefix.rglob("*"):
        path.chmod(0o755)
    record_release(made)
    publish(site, made.id, passing, say=silent)
    return site, made


@pytest.mark.skipif(not LMOD.is_file(), reason="Lmod is not installed")
def test_the_kernel_starts_without_a_loaded_module(release):
    site, made = release
    file = site.paths.prefix / "etc/kernels/hpcdl-tensorflow/kernel.json"
    content = json.loads(file.read_text())
    assert content["display_name"] == f"TensorFlow ({site.name})"
    argv = [text.format(connection_file="/run/a file.json") for text in content["argv"]]
    env = {"PATH": "/usr/bin:/bin", "HOME": "/nonexistent", "PYTHONHOME": "/opt/other"}
    told = subprocess.check_output(argv, env=env, text=True)
    assert told.strip() == f"{made.id} [] -m ipykernel_launcher -f /run/a file.json"


# Which partition gets which release, and what stays visible.

KEPLER = {"version": "2.14.1", "stack": "kepler", "partitions": ("k80",)}


@pytest.fixture
def site(tmp_path):
    """p100 and v100 want the stack `tensorflow`, k80 wants `kepler`."""
    site = small_site(tmp_path)
    partitions = dict(site.partitions)
    partitions["k80"] = replace(partitions["k80"], stack="kepler")
    partitions["cpu"] = replace(partitions["cpu"], stack=None)
    kepler = StackRequest("kepler", "wheels", ("k80",), {}, variant="cpu")
    return replace(site, partitions=partitions, stacks={**site.stacks, "kepler": kepler})


def served(site):
    found = {name: release_for(site, name) for name in site.partitions}
    return {name: release.id for name, release in found.items() if release}


@pytest.mark.parametrize("order", [("old", "new"), ("new", "old")])
def test_a_partition_gets_the_newest_of_its_stack(site, order):
    make_release(site, "new", version="2.21.0")
    make_release(site, "old", **KEPLER)
    for name in order:
        publish(site, name, passing, say=silent)
    assert served(site) == {"p100": "new", "v100": "new", "k80": "old", "cpu": "new"}
    table = (site.paths.prefix / "current/modules/tensorflow/.modulerc.lua").read_text()
    assert '["k80"] = "2.14.1-cpu"' in table


@pytest.mark.parametrize(
    ("second", "k80"), [(("k80",), "second"), ((), "first")], ids=["it names k80", "both for all"]
)
def test_resolve_and_the_module_mean_the_same_stack(tmp_path, second, k80):
    """`resolve` told the first stack, and the module gave that which named the partition."""
    site = small_site(tmp_path)
    partitions = {name: replace(one, stack=None) for name, one in site.partitions.items()}
    rows = {"first": (), "second": second}
    stacks = {
        name: StackRequest(name, "wheels", names, {}, variant="cpu") for name, names in rows.items()
    }
    site = replace(site, partitions=partitions, stacks=stacks)
    for name, names in rows.items():
        make_current(site, f"of-{name}", stack=name, version="2.21.0", partitions=names)
    told = Resolver(site).resolve()
    wanted = {one.partition: f"of-{one.stack}" for one in told if one.wanted}
    assert wanted == served(site) == {**dict.fromkeys(partitions, "of-first"), "k80": f"of-{k80}"}


def test_of_one_stack_with_a_release_per_gpu_each_partition_gets_its_own(site):
    """Spack compiles a stack once for each kind of GPU."""
    for name in ("p100", "v100"):
        make_current(site, f"for-{name}", partitions=(name,))
    assert (served(site)["p100"], served(site)["v100"]) == ("for-p100", "for-v100")


def test_earlier_versions_stay_visible_and_a_rollback_only_changes_the_default(site):
    for name, version in (("a", "2.20.0"), ("b", "2.21.0")):
        make_current(site, name, version=version)
    rollback(site)
    modules = site.paths.prefix / "current/modules/tensorflow"
    assert {path.name for path in modules.glob("*.lua")} >= {"2.20.0-cpu.lua", "2.21.0-cpu.lua"}
    assert set(served(site).values()) == {"a"}


def test_of_two_builds_of_a_version_its_name_means_the_current_one_and_in_a_job_its_own(site):
    """A job that was submitted under an old release keeps it by that release's own modulepath."""
    first, second = (make_current(site, name) for name in ("a", "b"))
    file = site.paths.prefix / "current/modules/tensorflow/2.21.0-cpu.lua"
    assert '["id"] = "b"' in file.read_text()
    for release in (first, second):
        own = (release.modules / f"{release.module}.lua").read_text()
        assert f'["id"] = "{release.id}"' in own
    rollback(site)
    assert '["id"] = "a"' in file.read_text()


@pytest.fixture
def three(site):
    """Two releases of the stack `tensorflow` were published, then one of `kepler`."""
    make_current(site, "a", version="2.20.0")
    make_current(site, "b", version="2.21.0")
    make_current(site, "k", **KEPLER)
    return site


def test_rolling_one_stack_back_leaves_the_others_their_release(three):
    moves = dict.fromkeys(("p100", "v100", "cpu"), ("b", "a"))
    assert plan_rollback(three, "a").moves == moves
    assert rollback(three, "a").moves == moves
    assert served(three) == {"p100": "a", "v100": "a", "k80": "k", "cpu": "a"}
    publish(three, "b", passing, say=silent)
    assert served(three) == {"p100": "b", "v100": "b", "k80": "k", "cpu": "b"}


def test_a_plain_rollback_undoes_the_last_publish_whatever_its_stack(three):
    assert rollback(three).moves == {"k80": ("k", "b")}
    assert set(served(three).values()) == {"b"}
    rollback(three)
    assert set(served(three).values()) == {"a"}


def test_a_publish_says_which_partitions_get_it(three):
    make_release(three, "new", **KEPLER | {"version": "2.15.1"})
    assert plan_publish(three, "new").moves == {"k80": ("k", "new")}
    told = publish(three, "new", passing, say=silent).as_data()["partitions"]
    assert told == {"k80": {"before": "k", "after": "new"}}


def test_in_a_partition_of_several_models_each_gets_the_newest_with_code_for_it(tmp_path):
    site = mixed_site(tmp_path)
    cpu = {name: replace(one, variant="cpu") for name, one in site.stacks.items()}
    site = replace(site, stacks=cpu)
    typed = {"stack": "tf", "partitions": ("typed",)}
    for name, gpus in (("ampere", ["A100", "A40"]), ("ada", ["L40S", "L4"])):
        make_current(site, name, **typed, needs={"gpus": gpus}, module=f"tensorflow/{name}")
    for model, name in (("A100-PCIe-40GB", "ampere"), ("L40S", "ada")):
        assert release_for(site, "typed", model).id == name
        assert module_for(site, "typed", gpu_model=model.lower()).release == name
    assert collect(site, dict, keep=1).kept["ampere"] == "serves typed"
    with pytest.raises(BadInput, match="no one release serves all GPU models of 'typed'") as told:
        module_for(site, "typed")
    assert "--gpu-model L40S" in told.value.hint
    make_current(site, "both", **typed, needs={"gpus": ["A100", "L40S"]})
    assert module_for(site, "typed").release == "both"


@pytest.mark.parametrize("models", ["[]", "{}", '{"typed": 3}', '{"typed": {"L40S": "gone"}}'])
def test_a_damaged_dispatch_file_still_serves_a_mixed_partition(tmp_path, models):
    site = mixed_site(tmp_path)
    make_current(site, "one")
    (tmp_path / "current" / "modules" / DISPATCH_FILE).write_text(
        '{"default": "one", "partitions": {"typed": "one"}, "models": ' + models + "}"
    )
    assert release_for(site, "typed", "L40S").id == "one"
