"""Adopting Spack environments: what a lock file tells, and refusals before Spack is asked."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from hpcdl.cli import main
from hpcdl.site import StackRequest
from hpcdl.stack.spack_backend.adopt import plan_adoption
from hpcdl.stack.spack_backend.locked import read_lock
from hpcdl.system.errors import BadInput, MissingPrerequisite
from hpcdl.system.resources import folder
from tests.small_release import small_site

ENVIRONMENTS = folder("spack") / "environments"


def copied(tmp_path: Path, name: str) -> Path:
    """A committed environment with its lock file, in a directory of the test's own."""
    where = tmp_path / name
    where.mkdir()
    for file in ("spack.yaml", "spack.lock"):
        shutil.copyfile(ENVIRONMENTS / name / file, where / file)
    return where


def test_a_lock_file_tells_what_the_release_is() -> None:
    lock = read_lock(ENVIRONMENTS / "p100")
    assert lock.archs == ("60",)
    assert lock.target == "x86_64_v3"
    assert lock.module == "tensorflow/2.20.0-cuda12.6-sm60"
    assert lock.versions()["mpi"].startswith("Open MPI 5.0")
    needs = lock.needs()
    assert needs["compute"] == ["6.0"]
    assert needs["driver"] == {"from": "525.60.13", "branch": 580}
    assert "avx2" in needs["cpu_flags"]
    build_only = {spec["name"] for one, spec in lock.specs.items() if one not in lock.to_run}
    assert "bazel" in build_only


def test_two_generations_in_one_lock_are_both_in_its_name() -> None:
    assert read_lock(ENVIRONMENTS / "k80").module == "tensorflow/2.14.1-cuda11.8-sm35-sm37"


def test_the_name_changes_with_what_the_roots_are_and_whom_it_serves() -> None:
    lock = read_lock(ENVIRONMENTS / "p100")
    requests = [StackRequest("gpu", "spack", names, {}) for names in ((), ("p100",))]
    ids = {lock.release_id(request, own) for request in requests for own in ("a", "b")}
    assert len(ids) == 4
    assert all(one.startswith("gpu-2.20.0-cuda12.6-sm60-") for one in ids)


def test_with_wheels_for_gpus_cuda_is_the_wheels_not_nvccs(tmp_path: Path) -> None:
    specs = {
        "t": {"name": "py-tensorflow-cuda-wheels", "version": "2.21.0", "namespace": "hpcdl",
              "parameters": {"cuda_arch": ["60", "70"]}, "arch": {"target": {"name": "zen3"}}},
        "c": {"name": "cuda", "version": "12.4.131", "namespace": "builtin"},
    }  # fmt: skip
    roots = [{"hash": one, "spec": spec["name"]} for one, spec in specs.items()]
    (tmp_path / "spack.lock").write_text(json.dumps({"roots": roots, "concrete_specs": specs}))
    lock = read_lock(tmp_path)
    assert lock.wheels
    assert lock.target == "zen3"
    assert lock.versions()["cuda"] == "12.9.1"
    assert lock.versions()["nccl"] == "2.32.3"
    assert lock.module == "tensorflow/2.21.0-cuda12.9-sm60-sm70"


def test_what_is_no_environment_is_bad_input(tmp_path: Path) -> None:
    site = small_site(tmp_path / "prefix")
    for path in (tmp_path, tmp_path / "none" / "spack.yaml"):
        with pytest.raises(BadInput, match=r"there is no spack\.yaml"):
            plan_adoption(site, str(path))


def test_an_environment_without_a_lock_is_not_installed(tmp_path: Path) -> None:
    where = copied(tmp_path, "p100")
    (where / "spack.lock").unlink()
    with pytest.raises(MissingPrerequisite, match="is not installed") as caught:
        plan_adoption(small_site(tmp_path / "prefix"), str(where / "spack.yaml"))
    assert caught.value.hint == f"spack -e {where} install"


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"roots": [{"hash": "a"}], "concrete_specs": {}}']
)
def test_a_torn_lock_is_told(tmp_path: Path, text: str) -> None:
    where = copied(tmp_path, "p100")
    (where / "spack.lock").write_text(text)
    with pytest.raises(MissingPrerequisite, match="cannot be read"):
        plan_adoption(small_site(tmp_path / "prefix"), str(where))


def test_an_environment_without_tensorflow_is_bad_input(tmp_path: Path) -> None:
    where = copied(tmp_path, "p100")
    lock = {"roots": [{"hash": "z", "spec": "zlib"}],
            "concrete_specs": {"z": {"name": "zlib", "version": "1"}}}  # fmt: skip
    (where / "spack.lock").write_text(json.dumps(lock))
    with pytest.raises(BadInput, match="has no TensorFlow"):
        plan_adoption(small_site(tmp_path / "prefix"), str(where))


def test_a_plan_is_told_and_writes_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    where = copied(tmp_path, "p100")
    text = (folder("templates") / "sites" / "p100-v100-k80.yaml").read_text()
    file = tmp_path / "site.yaml"
    file.write_text(text)
    assert main(["stack", "adopt", str(where), "--dry-run", "--json", "--site", str(file)]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["module"] == "tensorflow/2.20.0-cuda12.6-sm60"
    assert not told["exists"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["p100", "site.yaml"]
