"""Libraries that a release loads from elsewhere are found by the loader itself."""

import dataclasses
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from hpcdl.stack.fatbin import read_dynamic
from hpcdl.stack.linked import claims_not_held, library_faults, nccl_release
from hpcdl.stack.release import Release
from hpcdl.system.run import CommandResult, run
from tests.small_release import make_release, small_site

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")
PACKAGES = Path("lib", "python3.11", "site-packages")


def library(path: Path, *options: str | Path, soname: str = "") -> Path:
    """A shared object without content."""
    path.parent.mkdir(parents=True, exist_ok=True)
    words = [f"-Wl,-soname,{soname}"] if soname else []
    source = path.with_suffix(".c")
    source.write_text("int nothing;\n")
    subprocess.run(["cc", "-shared", "-fPIC", source, "-o", path, "-Wl,--no-as-needed", *words,
                    *options], check=True)  # fmt: skip
    source.unlink()
    return path


def loader(argv: Sequence[str | Path]) -> CommandResult:
    """The module's environment is this one."""
    return run(argv, check=False)


@pytest.fixture
def packages(tmp_path: Path) -> Path:
    """TensorFlow that looks into all of NVIDIA's folders, and those folders."""
    place = tmp_path / "prefix" / "releases" / "gpu" / "stack" / PACKAGES
    names = ("cudart", "cupti", "cublas", "cudnn", "cufft", "cusolver", "cusparse")
    for name in names:
        library(place / "nvidia" / name / "lib" / f"lib{name}.so.1", soname=f"lib{name}.so.1")
    library(place / "nvidia" / "nccl" / "lib" / "libnccl.so.2", soname="libnccl.so.2")
    folders = ":".join(f"$ORIGIN/../nvidia/{name}/lib" for name in (*names, "nccl"))
    library(place / "tensorflow" / "libtensorflow_framework.so.2", f"-Wl,-rpath,{folders}",
            soname="libtensorflow_framework.so.2")  # fmt: skip
    return place


@pytest.fixture
def release(tmp_path: Path, packages: Path) -> Release:
    """A release for GPUs whose record says what is in these packages."""
    plain = make_release(
        small_site(tmp_path / "prefix"), "gpu", module="tensorflow/2.21.0-cuda12.9-sm60"
    )
    return dataclasses.replace(
        plain, versions={**plain.versions, "cuda": "12.9.1", "nccl": "2.32.3"}
    )


def horovod(packages: Path, nccl: Path, runpath: str = "$ORIGIN/../../nvidia/nccl/lib") -> Path:
    return library(
        packages / "horovod" / "tensorflow" / "mpi_lib.so", nccl, f"-Wl,-rpath,{runpath}"
    )


def test_a_release_whose_libraries_are_its_own_has_no_fault(packages, release):
    horovod(packages, packages / "nvidia" / "nccl" / "lib" / "libnccl.so.2")
    assert library_faults(release, loader) == ([], 10)


def test_an_nccl_of_the_system_is_named(packages, release, tmp_path):
    other = library(tmp_path / "opt" / "libnccl.so.2", soname="libnccl.so.2")
    horovod(packages, other, str(other.parent))
    faults, _ = library_faults(release, loader)
    assert any(f"mpi_lib.so takes libnccl.so.2 from {other}" in line for line in faults)
    assert any("mpi_lib.so loads" in line and "TensorFlow" in line for line in faults)


def test_tensorflows_own_libraries_need_no_path_to_them(packages, release):
    """Horovod imports TensorFlow first: the loader takes what is loaded under that name."""
    own = packages / "tensorflow" / "libtensorflow_framework.so.2"
    place = packages / "horovod" / "tensorflow" / "mpi_lib.so"
    nccl = packages / "nvidia" / "nccl" / "lib"
    library(place, own, nccl / "libnccl.so.2", f"-Wl,-rpath,{nccl}")
    assert library_faults(release, loader)[0] == []


def test_a_library_that_is_not_found_is_named(packages, release):
    horovod(packages, packages / "nvidia" / "nccl" / "lib" / "libnccl.so.2", "/nowhere")
    faults, _ = library_faults(release, loader)
    assert "mpi_lib.so does not find libnccl.so.2" in faults


def test_an_object_of_which_the_loader_says_nothing_is_named(packages, release):
    left_out = horovod(packages, packages / "nvidia" / "nccl" / "lib" / "libnccl.so.2")
    faults, _ = library_faults(
        release, lambda argv: loader([one for one in argv if one != left_out])
    )
    assert "the loader said nothing of mpi_lib.so" in faults


def test_a_module_that_does_not_load_says_why(release):
    def fails(_: Sequence[str | Path]) -> CommandResult:
        return run(["sh", "-c", "echo 'Lmod has detected an error' >&2; exit 1"], check=False)

    assert library_faults(release, fails)[0] == ["ldd in the module: Lmod has detected an error"]


def test_horovod_without_nccl_is_named(packages, release):
    library(packages / "horovod" / "tensorflow" / "mpi_lib.so")
    assert library_faults(release, loader)[0] == ["Horovod does not ask for libnccl.so.2"]


def test_cuda_that_tensorflow_does_not_find_or_finds_elsewhere_is_named(
    packages, release, tmp_path
):
    horovod(packages, packages / "nvidia" / "nccl" / "lib" / "libnccl.so.2")
    other = library(tmp_path / "opt" / "libcublas.so.12")
    library(packages / "tensorflow" / "libtensorflow_framework.so.2",
            f"-Wl,-rpath,{other.parent}:$ORIGIN/../nvidia/nccl/lib")  # fmt: skip
    faults, _ = library_faults(release, loader)
    assert f"TensorFlow takes libcublas.so from {other}, not from the release" in faults
    lacks = "TensorFlow does not find libcudnn.so, neither by the module nor by its RUNPATH"
    assert lacks in faults
    folder = str(packages / "nvidia" / "cudnn" / "lib")
    by_module = dataclasses.replace(release, environment={"LD_LIBRARY_PATH": [folder]})
    assert lacks not in library_faults(by_module, loader)[0]


@dataclasses.dataclass(frozen=True)
class View:
    """A release made by Spack: links into a store, with a package each for what is compiled."""

    release: Release
    store: Path

    def link(self) -> None:
        """Link all that is in the store now, as Spack's views do: directories are merged."""
        for path in self.store.glob("*/lib/**/*.so*"):
            link = self.release.prefix.joinpath(*path.relative_to(self.store).parts[1:])
            link.parent.mkdir(parents=True, exist_ok=True)
            link.unlink(missing_ok=True)
            link.symlink_to(path)


@pytest.fixture
def view(tmp_path: Path) -> View:
    """TensorFlow with CUDA, NCCL and Horovod, a package each; `build` is there to compile only."""
    store, specs = tmp_path / "store", {}
    for name in ("py-tensorflow", "cuda", "nccl", "py-horovod", "build"):
        (store / name / ".spack").mkdir(parents=True)
        spec = {"name": name, "hash": f"hash-{name}"}
        (store / name / ".spack" / "spec.json").write_text(json.dumps({"spec": {"nodes": [spec]}}))
        specs[spec["hash"]] = {"name": name}
    roots = [{"hash": name, "spec": name} for name in specs if name != "hash-build"]
    names = ("libcudart", "libcupti", "libcublas", "libcudnn", "libcufft", "libcusolver")
    for name in (*names, "libcusparse"):
        library(store / "cuda" / "lib" / f"{name}.so.1", soname=f"{name}.so.1")
    nccl = library(store / "nccl" / "lib" / "libnccl.so.2", soname="libnccl.so.2")
    library(store / "py-tensorflow" / PACKAGES / "tensorflow" / "libtensorflow_cc.so.2",
            f"-Wl,-rpath,{nccl.parent}")  # fmt: skip
    horovod(store / "py-horovod" / PACKAGES, nccl, str(nccl.parent))
    release = make_release(
        small_site(tmp_path / "prefix"), "adopted", backend="spack",
        versions={"tensorflow": "2.20.0", "horovod": "0.28.1", "cuda": "12.6.3", "nccl": "2.29.7"},
        environment={"LD_LIBRARY_PATH": [str(tmp_path / "prefix/releases/adopted/stack/lib")]},
    )  # fmt: skip
    (release.root / "spack").mkdir()
    lock = {"roots": roots, "concrete_specs": specs}
    (release.root / "spack" / "spack.lock").write_text(json.dumps(lock))
    found = View(release, store)
    found.link()
    return found


def test_packages_of_an_adopted_environment_are_inside(view):
    assert library_faults(view.release, loader) == ([], 10)


def test_a_package_that_the_environment_does_not_run_with_is_outside(view):
    """What is there to build only may be removed at any time."""
    other = library(view.store / "build" / "lib" / "libnccl.so.2", soname="libnccl.so.2")
    horovod(view.store / "py-horovod" / PACKAGES, other, str(other.parent))
    faults, _ = library_faults(view.release, loader)
    own = view.release.prefix / "lib" / "libnccl.so.2"
    assert faults == [
        f"mpi_lib.so takes libnccl.so.2 from {other}, not from the release",
        f"mpi_lib.so loads {other}, TensorFlow {own}",
    ]


def test_what_an_environment_declares_as_external_is_inside(view, tmp_path):
    """But not all of /usr."""
    shutil.move(view.store / "cuda" / "lib", tmp_path / "opt")
    folders = {"LD_LIBRARY_PATH": [str(tmp_path / "opt"), str(view.store / "nccl" / "lib")]}
    release = dataclasses.replace(view.release, environment=folders)
    assert any("takes libcudart.so from" in line for line in library_faults(release, loader)[0])
    lock = ({"name": "cuda", "hash": "hash-cuda", "external": str(tmp_path / "opt")},)
    assert library_faults(dataclasses.replace(release, lock=lock), loader)[0] == []


@pytest.mark.skipif(shutil.which("readelf") is None, reason="no readelf")
@pytest.mark.parametrize("name", ["python", "libstdc++.so.6"])
def test_what_is_read_is_what_readelf_says(name):
    path = [Path(sys.executable), *sorted(Path("/usr/lib").glob(f"*/{name}"))][-1].resolve()
    told = subprocess.run(
        ["readelf", "-d", path], capture_output=True, text=True, check=True
    ).stdout
    found = read_dynamic(path)
    assert list(found.needed) == re.findall(r"\(NEEDED\).*\[(.*)\]", told)
    assert found.soname == "".join(re.findall(r"\(SONAME\).*\[(.*)\]", told))


def test_what_is_no_elf_file_needs_nothing(tmp_path):
    for content in (b"", b"#!/bin/sh\n" * 20, b"\x7fELF\x02\x01\x01" + b"\0" * 20):
        (tmp_path / "x.so").write_bytes(content)
        assert read_dynamic(tmp_path / "x.so").needed == ()


@pytest.mark.parametrize(("code", "text"), [(22703, "2.27.3"), (21605, "2.16.5"), (0, ""), (1, "")])
def test_nccl_s_number_is_its_release(code, text):
    assert nccl_release(code) == text


def test_claims_that_horovod_does_not_hold(release):
    right = {"horovod": "0.28.1", "horovod_cuda": True, "nccl": 23203}
    assert list(claims_not_held(release, right)) == []
    assert list(claims_not_held(release, {**right, "nccl": 22203})) == [
        "Horovod is built with NCCL 2.22.3, not 2.32.3"
    ]
    of_spack = dataclasses.replace(release, versions={**release.versions, "nccl": "2.32.3-1"})
    assert list(claims_not_held(of_spack, right)) == []
    assert list(claims_not_held(of_spack, {**right, "nccl": 22203})) == [
        "Horovod is built with NCCL 2.22.3, not 2.32.3-1"
    ]
    assert len(list(claims_not_held(release, {**right, "nccl": 0, "horovod_cuda": False}))) == 2
