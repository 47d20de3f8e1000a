"""Adopting Spack environments: what a lock file tells, and refusals before Spack is asked."""

import json
import shutil
from dataclasses import replace

import pytest

from hpcdl.site import StackRequest
from hpcdl.stack.resolve import find_request
from hpcdl.stack.spack_backend import adopt
from hpcdl.stack.spack_backend.adopt import Adoption, plan_adoption
from hpcdl.stack.spack_backend.environment import Spack, read_lock
from hpcdl.system.errors import BadInput, MissingPrerequisite
from hpcdl.system.resources import folder
from tests.small_release import small_site
from tests.unit.conftest import shipped

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
    release = Adoption(shipped("pi"), find_request(shipped("pi")), ("p100",), lock, "0").expected()
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
    assert (lock.components["cuda"], lock.components["nccl"]) == ("12.9.1", "2.32.3")
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
            adopt._inventory(Spack(program, "1.3.0", tmp_path), where)
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
    assert list(plan.left_out) == plan.details()["left_out"] == ["k80", "v100"]
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
