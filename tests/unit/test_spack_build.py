"""Building with Spack, the thinking part: plans, names, guards."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from hpcdl.site import StackRequest
from hpcdl.stack.build import plan_stack
from hpcdl.stack.resolve import find_request
from hpcdl.stack.resolve_facts import driver_needs, models, needs_of, wheel_sets
from hpcdl.stack.spack_backend import environment, spack_build
from hpcdl.stack.spack_backend.environment import (
    Lock,
    PackageFailed,
    Spack,
    install,
    inventory,
    lock_holder,
    open_spack,
    read_lock,
    render,
)
from hpcdl.stack.spack_backend.spack_build import (
    SpackPlan,
    _settings,
    environment_text,
    lock_entries,
    own_folder,
    plan_adoption,
)
from hpcdl.system.errors import BadInput, MissingPrerequisite
from hpcdl.system.resources import folder
from tests.make.releases import plan_build
from tests.make.sites import shipped, small_site

KEPLER = "tensorflow-kepler"


def pi(prefix, **stacks):
    site = shipped("pi")
    paths = replace(site.paths, prefix=prefix)
    return replace(site, paths=paths, stacks={**site.stacks, **stacks})


def wheels_stack(**pins):
    return StackRequest("cpus", "spack-wheels", ("cpu",), pins)


def own(*partitions, backend="spack", variant=None, **pins):
    """A stack of that name."""
    return StackRequest("own", backend, partitions, pins, variant=variant)


def planned(site, stack):
    """The environments of a stack's builds, by their partitions; and what gets none, in words."""
    plans, blocked = plan_stack(replace(site, stacks={stack.name: stack}), stack.name)
    faults = " ".join(one.fault.render() for one in blocked)
    return {one.partitions: one.environment for one in plans}, faults


def test_one_build_serves_the_partitions_of_a_generation_others_have_their_own(tmp_path):
    site = pi(tmp_path)
    ((_, wanted),) = planned(site, site.stacks[KEPLER])[0].items()
    assert wanted.specs == ("hpcdl-tensorflow cuda_arch=35,37",)
    assert wanted.versions["tensorflow"] == "2.14.1"
    parts = {name: replace(one, stack=None) for name, one in site.partitions.items()}
    found, _ = planned(replace(site, partitions=parts), own())
    assert set(found) == {("cpu", "fat"), ("k20", "k80"), ("p100",)}
    assert len({one.name for one in found.values()}) == 3, "each has a directory of its own"
    assert found["cpu", "fat"].specs == ("hpcdl-tensorflow ~cuda",)


def test_spack_takes_the_newest_wheels_that_fit_the_pins(tmp_path):
    ((_, wanted),) = planned(pi(tmp_path), wheels_stack())[0].items()
    assert (wanted.wheels, wanted.specs) == (True, ("py-horovod-wheels",))
    assert wanted.versions["tensorflow"] in wheel_sets("py-tensorflow-wheels")
    for name, pin in (("tensorflow", "2.14"), ("python", "3.12")):
        found, fault = planned(pi(tmp_path), wheels_stack(**{name: pin}))
        assert (found, f"{name} {pin}" in fault) == ({}, True)


GPUS = shipped("p100-v100-k80")


def of_own(stack):
    parts = {name: replace(one, stack=None) for name, one in GPUS.partitions.items()}
    return planned(replace(GPUS, partitions=parts), stack)


def test_every_pin_is_required_of_spack():
    pins = {"cudnn": "9.10", "openmpi": "5.0", "gcc": "12", "horovod": "0.28.1", "nccl": "2.29"}
    wanted = of_own(own("p100", **pins))[0]["p100",]
    asked = yaml.safe_load(render(wanted))["spack"]["packages"]
    packages = {"cudnn": "cudnn", "openmpi": "openmpi", "horovod": "py-horovod", "nccl": "nccl"}
    for name, package in packages.items():
        assert asked[package]["require"] == [f"@{wanted.versions[name]}"]
    assert wanted.versions["cudnn"].startswith("9.10")
    assert asked["cxx"]["require"] == [f"gcc@{wanted.versions['gcc']}"]


@pytest.mark.parametrize(
    ("partitions", "pins", "archs", "why"),
    [
        (("p100",), {}, ("60",), ""),
        (("p100", "v100"), {"tensorflow": "2.21", "cuda": "12"}, ("60", "70"), ""),
        (("k80",), {}, (), "K80 needs CUDA <= 11.8"),
        (("p100",), {"tensorflow": "2.20"}, (), "the overlay's list of wheels"),
    ],
)
def test_wheels_by_spack_are_for_the_gpus_of_their_list_and_compiling_is_for_all(
    partitions, pins, archs, why
):
    found, fault = of_own(own(*partitions, backend="spack-wheels", **pins))
    assert why in fault
    if archs:
        assert found[partitions].specs == (f"py-horovod-wheels +cuda cuda_arch={','.join(archs)}",)
        assert found[partitions].versions["tensorflow"] == "2.21.0"
    else:
        (compiled,) = of_own(own(*partitions, **pins))[0].values()
        assert compiled.why.startswith("Spack compiles TensorFlow 2.")


def test_wheels_by_spack_are_refused_where_the_driver_is_too_old_for_their_cuda():
    old = replace(GPUS.partitions["p100"], driver="470.256.02", stack=None)
    stack = own("p100", backend="spack-wheels")
    found, fault = planned(replace(GPUS, partitions={"p100": old}, default_partition="p100"), stack)
    assert found == {}
    assert "driver >= 525.60.13" in fault
    assert of_own(own("p100", variant="cpu"))[0]["p100",].archs == ()


def test_a_stack_beside_another_one_serves_its_own_partitions(tmp_path):
    stacks = {
        "tensorflow": StackRequest("tensorflow", "wheels", (), {}),
        "own": own(backend="spack-wheels"),
    }
    parts = {
        name: replace(part, stack="own" if name == "p100" else "tensorflow")
        for name, part in GPUS.partitions.items()
    }
    paths = replace(GPUS.paths, prefix=tmp_path)
    site = replace(GPUS, paths=paths, partitions=parts, stacks=stacks)
    ((plan,), _) = plan_stack(site, "own")
    expected = plan.expected()
    assert (expected.partitions, expected.needs["compute"]) == (("p100",), ["6.0"])
    assert expected.proof == "compiled"
    assert plan.steps()[0] == plan.environment.why
    lock = folder("spack") / "environments" / "p100"
    assert plan_adoption(site, str(lock), "own").expected().partitions == ("p100",)


def test_partitions_with_different_targets_are_not_one_build(tmp_path):
    """Code for a newer CPU ends with SIGILL on an older one."""
    site = pi(tmp_path)
    first, *others = site.stacks[KEPLER].partitions
    newer = replace(site.partitions[first], target="x86_64_v4")
    mixed = replace(site, partitions={**site.partitions, first: newer})
    found, _ = planned(mixed, site.stacks[KEPLER])
    assert set(found) == {(first,), tuple(others)}


def test_a_stack_from_wheels_is_guarded_for_its_target_too(tmp_path):
    site = pi(tmp_path, cpus=wheels_stack())
    cpu = replace(site.partitions["cpu"], target="x86_64_v4")
    plan = plan_build(replace(site, partitions={**site.partitions, "cpu": cpu}), "cpus")
    assert {"avx", "avx512f"} <= set(plan.expected().needs["cpu_flags"])


def test_a_plan_names_its_module_before_anything_is_solved(tmp_path):
    plan = plan_build(pi(tmp_path), KEPLER)
    assert plan.expected().module == "tensorflow/2.14.1-cuda11.8-sm35-sm37"
    assert plan.expected().needs["driver"] == {"from": "450.80.02", "branch": 470}
    assert (plan.release_id, plan.exists) == (None, False)
    assert any("solve" in step for step in plan.steps())
    assert not list(tmp_path.iterdir()), "a plan writes nothing"


def stub(letter):
    """A lock file with TensorFlow and its CUDA."""
    one, code = letter * 32, {"cuda_arch": ["35", "37"]}
    specs = {
        one: {"name": "py-tensorflow", "version": "2.14.1", "parameters": code},
        "c": {"name": "cuda", "version": "11.8.0"},
    }
    return json.dumps({"roots": [{"hash": one, "spec": "x"}], "concrete_specs": specs})


def test_a_lock_counts_only_for_the_files_and_recipes_it_was_solved_from(tmp_path, monkeypatch):
    plan = plan_build(pi(tmp_path / "prefix"), KEPLER)
    where = plan.where
    where.mkdir(parents=True)
    lock = where / "spack.lock"
    lock.write_text(stub("a"))
    assert plan.solved().lock is None
    (where / ".solved").write_text(plan.stamp())
    assert plan.solved().lock == read_lock(where)
    assert str(plan.solved().release_id).startswith(f"{KEPLER}-2.14.1-cuda11.8-sm35-sm37-")
    lock.write_text(stub("b"))
    assert plan.solved().lock is None, "a lock that somebody changed is solved again"
    lock.write_text(stub("a"))
    newer = tmp_path / "newer"
    shutil.copytree(folder("spack"), newer, ignore=shutil.ignore_patterns("spack.lock"))
    monkeypatch.setattr(environment, "folder", lambda _: newer)
    assert plan.solved().lock == read_lock(where)
    (newer / "spack_repo/hpcdl/packages/py_horovod/mended.patch").write_text("+")
    assert plan.solved().lock is None


@pytest.mark.parametrize(
    ("cuda", "compute", "ends"),
    [
        ("11.8.0", ["3.7"], {"from": "450.80.02", "branch": 470}),
        ("12.9.1", ["6.0", "7.0"], {"from": "525.60.13", "branch": 580}),
        ("12.9.1", ["9.0"], {"from": "525.60.13"}),
        # What the newest of several GPUs still has no end for, the oldest does not end.
        ("12.9.1", ["6.0", "8.0"], {"from": "525.60.13"}),
        ("11.8.0", ["3.7", "6.0"], {"from": "450.80.02", "branch": 580}),
    ],
)
def test_the_guard_knows_both_ends_of_the_driver(cuda, compute, ends):
    assert driver_needs(cuda, compute) == ends


def test_wheels_need_what_wheels_need_and_compiled_code_its_target():
    assert needs_of((), "", "x86_64", wheels=True) == {"cpu_flags": ["avx"]}
    assert "avx" in needs_of(("37",), "11.8.0", "sandybridge", wheels=False)["cpu_flags"]
    both = needs_of(("60", "70"), "12.9.1", "x86_64_v3", wheels=True)
    assert both["compute"] == ["6.0", "7.0"]
    assert {"P100", "V100"} <= set(both["gpus"])
    assert {"P100", "P40"} <= set(models(("60",)))
    assert "V100" not in models(("60",))
    assert needs_of(("90a",), "12.9.1", "x86_64_v3", wheels=False)["compute"] == ["9.0"]


OUTPUT = """\
[ ] aaaaaaa zlib@1.3 staging (0s)
[+] aaaaaaa zlib@1.3 /store/zlib (3s)
[ ] bbbbbbb cmake@3.31 fetching from build cache (0s)
"""


def test_what_spack_prints_names_what_failed(tmp_path):
    where = tmp_path / "environments/x"
    own = tmp_path / "cmake.log"
    own.write_text("checking\nthe compiler speaks\n\n")

    def says(text, code):
        program = tmp_path / "spack"
        program.write_text(f"#!/bin/sh\ncat <<'END'\n{text}END\nexit {code}\n")
        program.chmod(0o755)
        install(Spack(program, "1.3", tmp_path, {"A": "b"}), where, {})

    says(OUTPUT, 0)
    failed = f"[x] bbbbbbb cmake@3.31 failed: {own} (9s)\n"
    with pytest.raises(PackageFailed, match=r"cmake@3\.31 did not build") as caught:
        says(f"{OUTPUT}{failed}[x] ccccccc tar@1 failed\n", 1)
    log, reopen, *lines = caught.value.details
    assert log == f"log:    {own}"
    assert reopen.startswith("reopen: env A=b ")
    assert reopen.endswith("build-env /bbbbbbb -- bash")
    assert lines == ["| checking", "| the compiler speaks", "also failed: tar@1"]
    with pytest.raises(PackageFailed, match="before any package"):
        says("==> Error: no\n", 1)
    own.write_text("cc: No space left on device\n")
    with pytest.raises(MissingPrerequisite, match="no space left while Spack built cmake"):
        says(failed, 1)


def test_the_module_sets_what_spack_sets_but_paths_for_building():
    told = (
        "export SPACK_ENV=/x;\nexport PATH=/v/bin:/usr/bin;\nexport LD_LIBRARY_PATH=/v/lib:/v/l2;\n"
        "export CMAKE_PREFIX_PATH=/v;\nexport XLA_FLAGS='--xla_gpu_cuda_data_dir=/v';\n"
        "alias despacktivate='spack env deactivate';\n"
    )
    assert dict(_settings(told)) == {
        "LD_LIBRARY_PATH": ["/v/lib", "/v/l2"],
        "XLA_FLAGS": "--xla_gpu_cuda_data_dir=/v",
    }


def test_a_releases_lock_names_the_wheels_inside_a_package(tmp_path):
    version = next(iter(wheel_sets("py-tensorflow-wheels")))
    entry = {"name": "py-tensorflow-wheels", "version": version, "hash": "a" * 32, "url": "u"}
    built = {**entry, "prefix": str(tmp_path), "installed": True}
    roots = ({"hash": entry["hash"], "spec": ""},)
    lock = Lock(tmp_path, roots, {entry["hash"]: {**entry, "parameters": {}}})
    entries = list(lock_entries([built], lock))
    assert entries[0] == {**entry, "run": "yes"}
    assert {"numpy", "keras"} <= {entry["name"] for entry in entries[1:]}
    assert all(len(entry["sha256"]) == 64 for entry in entries[1:])


def test_what_goes_into_a_view_never_reaches_the_install_tree(tmp_path):
    inside, view = Path("lib/python3.11/site-packages"), tmp_path / "view"
    store = tmp_path / "store" / inside
    for folder_ in (store, view):
        folder_.mkdir(parents=True)
    (store / "numpy.py").write_text("1")
    (view / "lib").symlink_to(tmp_path / "store" / "lib")
    packages = own_folder(view, inside)
    (packages / "hpcdl.py").write_text("2")
    assert [path.name for path in store.iterdir()] == ["numpy.py"]
    assert (packages / "numpy.py").read_text() == "1"
    assert own_folder(view, inside) == packages
    assert own_folder(view, Path("share/hpcdl")).is_dir()


def test_a_releases_environment_stands_alone(tmp_path):
    specs = {"a": {"name": "x", "namespace": "hpcdl"}, "b": {"name": "y", "namespace": "builtin"}}
    lock = Lock(tmp_path, ({"hash": "a", "spec": "x@1:"},), specs)
    repos = dict.fromkeys(("hpcdl", "builtin", "unused"), tmp_path)
    tree = yaml.safe_load(environment_text(lock, {"store": "/s", "padded": 128, "repos": repos}))[
        "spack"
    ]
    assert (tree["specs"], tree["repos"]) == (["x@1:"], {"hpcdl": "$env/spack_repo/hpcdl"})
    assert tree["config"]["install_tree"] == {"root": "/s", "padded_length": 128}
    assert tree["view"]["default"]["root"] == "../stack"


def test_a_spack_is_new_enough_and_runs_outside_the_caller_s_environment(tmp_path, monkeypatch):
    program = tmp_path / "bin" / "spack"
    program.parent.mkdir()
    program.touch(mode=0o755)
    monkeypatch.setenv("HPCDL_SPACK_ROOT", str(tmp_path))
    for told in ("1.1.0", "nonsense"):
        program.write_text(f"#!/bin/sh\necho {told}\n")
        with pytest.raises(MissingPrerequisite, match="too old") as caught:
            open_spack(tmp_path, tmp_path / "scope")
        assert "1.2 or newer" in caught.value.hint
    program.write_text('#!/bin/sh\necho "1.2.0 [$SPACK_ENV]"\n')
    monkeypatch.setenv("SPACK_ENV", "/home/admin/env")
    assert open_spack(tmp_path, tmp_path / "scope").run("find").stdout == "1.2.0 []\n"
    monkeypatch.setenv("HPCDL_SPACK_PACKAGES", str(tmp_path))
    with pytest.raises(BadInput, match="no packages of Spack"):
        open_spack(tmp_path, tmp_path / "scope")


def test_what_spack_starts_is_looked_for_before_anything_is_made(tmp_path, monkeypatch):
    """A minimal Debian has no patch, and Spack would say so after gigabytes."""
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in ("spack", "make"):
        (programs / name).touch(mode=0o755)
    monkeypatch.setenv("PATH", str(programs))
    monkeypatch.delenv("HPCDL_SPACK_PACKAGES", raising=False)
    monkeypatch.setenv("HPCDL_SPACK_ROOT", str(tmp_path))
    plan = plan_build(pi(tmp_path / "prefix"), KEPLER)
    with pytest.raises(MissingPrerequisite, match="there is no patch on PATH") as caught:
        plan.require_ready()
    assert caught.value.hint == "Debian and Ubuntu: apt install patch"
    (programs / "patch").touch(mode=0o755)
    plan.require_ready()
    assert not (tmp_path / "prefix").exists()


def test_space_is_asked_for_before_the_first_build_from_wheels(tmp_path, monkeypatch):
    """A later one finds most of its packages in the store."""
    asked = []
    monkeypatch.setattr(spack_build, "require_space", lambda needs, **_: asked.append(needs))
    monkeypatch.setattr(spack_build.spacks, "find_spack", lambda: None)
    plan = plan_build(pi(tmp_path, cpus=wheels_stack()), "cpus")
    plan.require_ready()
    assert asked == [{tmp_path / "spack" / "store": 4.0}]
    (tmp_path / "spack" / "store").mkdir(parents=True)
    plan.require_ready()
    assert len(asked) == 1


def test_a_lock_that_nobody_holds_has_no_holder(tmp_path):
    assert lock_holder(tmp_path / "none") is None
    (tmp_path / "lock").touch()
    assert lock_holder(tmp_path / "lock") is None


# Adopting Spack environments: what a lock file tells, and refusals before Spack is asked.

ENVIRONMENTS = folder("spack") / "environments"


def copied(tmp_path):
    """The committed environment p100 with its lock file, in a directory of the test's own."""
    where = tmp_path / "p100"
    where.mkdir()
    for file in ("spack.yaml", "spack.lock"):
        shutil.copyfile(ENVIRONMENTS / "p100" / file, where / file)
    return where


def test_a_lock_file_tells_what_the_release_is():
    lock = read_lock(ENVIRONMENTS / "p100")
    assert (lock.archs, lock.target) == (("60",), "x86_64_v3")
    pi_site = shipped("pi")
    plan = SpackPlan(pi_site, find_request(pi_site), ("p100",), lock.environment, "0", lock)
    release = plan.expected()
    assert release.module == "tensorflow/2.20.0-cuda12.6-sm60"
    assert release.versions["mpi"].startswith("Open MPI 5.0")
    assert release.needs["compute"] == ["6.0"]
    assert release.needs["driver"] == {"from": "525.60.13", "branch": 580}
    assert "avx2" in release.needs["cpu_flags"]
    run = {lock.specs[one]["name"] for one in lock.to_run}
    assert {"cuda", "py-numpy", "py-six"} <= run
    assert "bazel" in {spec["name"] for spec in lock.specs.values()} - run
    assert read_lock(ENVIRONMENTS / "k80").variant == "cuda11.8-sm35-sm37"


def test_the_name_changes_with_what_the_roots_are_and_whom_it_serves():
    lock = read_lock(ENVIRONMENTS / "p100")
    ids = {lock.release_id("gpu", names, own) for names in ((), ("p100",)) for own in ("a", "b")}
    assert len(ids) == 4
    assert all(one.startswith("gpu-2.20.0-cuda12.6-sm60-") for one in ids)


def test_with_wheels_for_gpus_cuda_is_the_wheels_not_nvccs(tmp_path):
    specs = {
        "t": {
            "name": "py-tensorflow-cuda-wheels",
            "version": "2.21.0",
            "namespace": "hpcdl",
            "parameters": {"cuda_arch": ["60", "70"]},
            "arch": {"target": {"name": "zen3"}},
        },
        "c": {"name": "cuda", "version": "12.4.131", "namespace": "builtin"},
    }
    roots = [{"hash": one, "spec": spec["name"]} for one, spec in specs.items()]
    (tmp_path / "spack.lock").write_text(json.dumps({"roots": roots, "concrete_specs": specs}))
    lock = read_lock(tmp_path)
    assert (lock.wheels, lock.target) == (True, "zen3")
    assert (lock.versions["cuda"], lock.versions["nccl"]) == ("12.9.1", "2.32.3")
    assert lock.variant == "cuda12.9-sm60-sm70"


_ZLIB = (
    '{"roots": [{"hash": "z", "spec": "zlib"}], '
    '"concrete_specs": {"z": {"name": "zlib", "version": "1"}}}'
)


def test_what_is_no_installed_environment_with_tensorflow_is_refused(tmp_path):
    site, where = small_site(tmp_path / "prefix"), copied(tmp_path)
    for path in (tmp_path, tmp_path / "none" / "spack.yaml"):
        with pytest.raises(BadInput, match=r"there is no spack\.yaml"):
            plan_adoption(site, str(path))
    (where / "spack.lock").unlink()
    with pytest.raises(MissingPrerequisite, match="is not installed") as caught:
        plan_adoption(site, str(where / "spack.yaml"))
    assert caught.value.hint == f"spack -e {where} install"
    for text in ("", "{", "[]", '{"roots": [{"hash": "a"}], "concrete_specs": {}}'):
        (where / "spack.lock").write_text(text)
        with pytest.raises(MissingPrerequisite, match="cannot be read"):
            plan_adoption(site, str(where))
    (where / "spack.lock").write_text(_ZLIB)
    with pytest.raises(BadInput, match="has no TensorFlow"):
        plan_adoption(site, str(where))


def test_where_spack_may_lack_its_packages_the_hint_names_the_variable(tmp_path, monkeypatch):
    program = tmp_path / "spack"
    program.write_text("#!/bin/sh\necho no repository builtin >&2; exit 1\n")
    program.chmod(0o755)
    where, builtin = copied(tmp_path), tmp_path / "packages/repos/spack_repo/builtin"
    builtin.mkdir(parents=True)
    (builtin / "repo.yaml").touch()
    for packages, named in (("", True), (str(tmp_path / "packages"), False)):
        monkeypatch.setenv("HPCDL_SPACK_PACKAGES", packages)
        with pytest.raises(MissingPrerequisite, match="cannot read the environment") as caught:
            inventory(Spack(program, "1.3.0", tmp_path), where)
        assert "no repository builtin" in "".join(caught.value.details)
        assert ("in HPCDL_SPACK_PACKAGES" in caught.value.hint) is named


def three_generations(tmp_path, **changes):
    """A site with K80, P100 and V100 and one stack for all of them."""
    site = shipped("p100-v100-k80")
    bare = {name: replace(one, stack=None) for name, one in site.partitions.items()}
    stack = replace(StackRequest("gpu", "spack", (), {}), **changes)
    paths = replace(site.paths, prefix=tmp_path / "prefix")
    return replace(site, paths=paths, partitions=bare, stacks={"gpu": stack})


def test_a_release_serves_the_partitions_whose_gpus_it_has_code_for(tmp_path):
    where = str(copied(tmp_path))
    plan = plan_adoption(three_generations(tmp_path), where)
    assert plan.expected().partitions == ("p100",)
    assert list(plan.left_out) == plan.as_data()["left_out"] == ["k80", "v100"]
    assert plan.steps()[0] == "serve p100, not k80 (K80), v100 (V100-SXM2): its code is for sm_60"
    whole = three_generations(tmp_path, partitions=("p100",))
    assert plan_adoption(whole, where).left_out == ()
    others = three_generations(tmp_path, partitions=("k80", "v100"))
    with pytest.raises(BadInput, match=r"has code for sm_60, and stack 'gpu' serves") as caught:
        plan_adoption(others, where)
    assert "k80 (K80), v100 (V100-SXM2)" in caught.value.message


def test_code_for_cpus_is_for_partitions_without_gpus_unless_the_site_says_otherwise(tmp_path):
    where = copied(tmp_path)
    lock = json.loads((where / "spack.lock").read_text())
    for spec in lock["concrete_specs"].values():
        if spec["name"] == "py-tensorflow":
            spec["parameters"]["cuda_arch"] = ["none"]
    (where / "spack.lock").write_text(json.dumps(lock))
    with pytest.raises(BadInput, match="has code for CPUs"):
        plan_adoption(three_generations(tmp_path), str(where))
    assert plan_adoption(three_generations(tmp_path, variant="cpu"), str(where)).left_out == ()


def test_a_plan_is_told_and_writes_nothing(tmp_path, hpcdl, monkeypatch):
    where = str(copied(tmp_path))
    command = ["stack", "adopt", where, "--dry-run", "--json", "--site", "p100-v100-k80"]
    for name in ("HPCDL_SPACK_ROOT", "SPACK_ROOT", "HPCDL_SPACK_PACKAGES"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    told = json.loads(hpcdl(*command, code=3).out)  # as the adoption itself would end
    assert told["module"] == "tensorflow/2.20.0-cuda12.6-sm60"
    assert told["blocked"].startswith("Spack is not here; set HPCDL_SPACK_ROOT")
    assert not told["exists"]
    assert [path.name for path in tmp_path.iterdir()] == ["p100"]
    program = tmp_path / "spack" / "bin" / "spack"
    program.parent.mkdir(parents=True)
    program.touch()
    monkeypatch.setenv("HPCDL_SPACK_ROOT", str(tmp_path / "spack"))
    assert json.loads(hpcdl(*command).out)["blocked"] is None
