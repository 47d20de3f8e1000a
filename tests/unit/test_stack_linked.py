"""Libraries that a release loads from elsewhere are found by the loader itself."""

import json
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from hpcdl.stack.linked import (
    claims_not_held,
    library_faults,
    nccl_release,
    prefer_own_libraries,
    read_dynamic,
)
from hpcdl.stack.release import Release
from hpcdl.system.run import run
from tests.make.releases import make_release
from tests.make.sites import small_site

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")
PACKAGES = Path("lib", "python3.11", "site-packages")
TENSORFLOW = Path("tensorflow", "libtensorflow_framework.so.2")
OF_OTHERS = "of another module's LD_LIBRARY_PATH would be loaded instead"
HOROVOD = Path("horovod", "tensorflow", "mpi_lib.so")
NCCL = Path("nvidia", "nccl", "lib", "libnccl.so.2")


def library(path, *options, named=True):
    """A shared object without content, whose SONAME is the name of its file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    source, words = path.with_suffix(".c"), [f"-Wl,-soname,{path.name}"] if named else []
    source.write_text("int nothing;\n")
    subprocess.run(
        ["cc", "-shared", "-fPIC", source, "-o", path, "-Wl,--no-as-needed", *words, *options],
        check=True,
    )
    source.unlink()
    return path


def loader(argv):
    """The module's environment is this one."""
    return run(argv, check=False)


NAMES = ("cudart", "cupti", "cublas", "cudnn", "cufft", "cusolver", "cusparse")


@pytest.fixture(scope="module")
def compiled(tmp_path_factory):
    """TensorFlow that looks into all of NVIDIA's folders, and those folders."""
    place = tmp_path_factory.mktemp("packages")
    for name in NAMES:
        library(place / "nvidia" / name / "lib" / f"lib{name}.so.1")
    library(place / NCCL)
    folders = ":".join(f"$ORIGIN/../nvidia/{name}/lib" for name in (*NAMES, "nccl"))
    library(place / TENSORFLOW, f"-Wl,-rpath,{folders}")
    return place


@pytest.fixture
def packages(tmp_path, compiled):
    """Such packages in a release."""
    place = tmp_path / "prefix" / "releases" / "gpu" / "stack" / PACKAGES
    return Path(shutil.copytree(compiled, place))


@pytest.fixture
def release(tmp_path, packages):
    """A release for GPUs whose record says what is in these packages."""
    module = "tensorflow/2.21.0-cuda12.9-sm60"
    plain = make_release(small_site(tmp_path / "prefix"), "gpu", module=module)
    return replace(plain, versions={**plain.versions, "cuda": "12.9.1", "nccl": "2.32.3"})


def horovod(packages, nccl, runpath="$ORIGIN/../../nvidia/nccl/lib"):
    return library(packages / HOROVOD, nccl, f"-Wl,-rpath,{runpath}", named=False)


def test_a_release_whose_libraries_are_its_own_has_no_fault(packages, release):
    horovod(packages, packages / NCCL)
    (loses,), count = library_faults(release, loader)
    assert (count, loses) == (10, f"libnccl.so.2 {OF_OTHERS}"), "LD_LIBRARY_PATH is before RUNPATH"
    before = read_dynamic(packages / HOROVOD)
    changed = [
        path for name in ("tensorflow", "horovod") for path in prefer_own_libraries(packages / name)
    ]
    assert set(changed) == {packages / TENSORFLOW, packages / HOROVOD}
    assert read_dynamic(packages / HOROVOD) == before
    assert library_faults(release, loader) == ([], 10)
    assert prefer_own_libraries(packages / "horovod") == []


def test_an_nccl_of_the_system_is_named(packages, release, tmp_path):
    other = library(tmp_path / "opt" / "libnccl.so.2")
    horovod(packages, other, str(other.parent))
    faults, _ = library_faults(release, loader)
    assert any(f"mpi_lib.so takes libnccl.so.2 from {other}" in line for line in faults)
    assert any("mpi_lib.so loads" in line and "TensorFlow" in line for line in faults)


def test_tensorflows_own_libraries_need_no_path_to_them(packages, release):
    """Horovod imports TensorFlow first: the loader takes what is loaded under that name."""
    nccl = packages / NCCL
    library(packages / HOROVOD, packages / TENSORFLOW, nccl, f"-Wl,-rpath,{nccl.parent}")
    prefer_own_libraries(packages / "horovod")
    assert library_faults(release, loader)[0] == []


def test_a_library_that_is_not_found_is_named(packages, release):
    horovod(packages, packages / NCCL, "/nowhere")
    assert "mpi_lib.so does not find libnccl.so.2" in library_faults(release, loader)[0]


def test_an_object_of_which_the_loader_says_nothing_is_named(packages, release):
    left_out = horovod(packages, packages / NCCL)

    def others(argv):
        return loader([one for one in argv if one != left_out])

    assert "ldd printed nothing about mpi_lib.so" in library_faults(release, others)[0]


def test_a_module_that_does_not_load_says_why(release):
    fails = run(["sh", "-c", "echo 'Lmod has detected an error' >&2; exit 1"], check=False)
    faults, _ = library_faults(release, lambda _: fails)
    assert faults == ["ldd in the module: Lmod has detected an error"]


def test_horovod_without_nccl_is_named(packages, release):
    library(packages / HOROVOD)
    assert library_faults(release, loader)[0] == ["Horovod does not ask for libnccl.so.2"]


def test_cuda_that_tensorflow_lacks_or_finds_elsewhere_is_named(packages, release, tmp_path):
    horovod(packages, packages / NCCL)
    other = library(tmp_path / "opt" / "libcublas.so.12")
    library(packages / TENSORFLOW, f"-Wl,-rpath,{other.parent}:$ORIGIN/../nvidia/nccl/lib")
    faults, _ = library_faults(release, loader)
    assert f"TensorFlow takes libcublas.so from {other}, not from the release" in faults
    lacks = "TensorFlow does not find libcudnn.so, by the module or by its RUNPATH"
    assert lacks in faults
    folder = str(packages / "nvidia" / "cudnn" / "lib")
    by_module = replace(release, environment={"LD_LIBRARY_PATH": [folder]})
    assert lacks not in library_faults(by_module, loader)[0]


@dataclass(frozen=True)
class View:
    """A release made by Spack: links into a store, with a package each for what is compiled."""

    release: Release
    store: Path

    def link(self):
        """Link all that is in the store now, as Spack's views do: directories are merged."""
        for path in self.store.glob("*/lib/**/*.so*"):
            link = self.release.prefix.joinpath(*path.relative_to(self.store).parts[1:])
            link.parent.mkdir(parents=True, exist_ok=True)
            link.unlink(missing_ok=True)
            link.symlink_to(path)


@pytest.fixture
def view(tmp_path):
    """TensorFlow with CUDA, NCCL and Horovod, a package each; `build` is there to compile only."""
    store, lock = tmp_path / "store", []
    for name in ("py-tensorflow", "cuda", "nccl", "py-horovod", "build"):
        (store / name / ".spack").mkdir(parents=True)
        spec = {"name": name, "hash": f"hash-{name}"}
        (store / name / ".spack" / "spec.json").write_text(json.dumps({"spec": {"nodes": [spec]}}))
        lock.append({**spec, "version": "1", **({} if name == "build" else {"run": "yes"})})
    for name in NAMES:
        library(store / "cuda" / "lib" / f"lib{name}.so.1")
    nccl = library(store / "nccl" / "lib" / "libnccl.so.2")
    tensorflow = store / "py-tensorflow" / PACKAGES / "tensorflow" / "libtensorflow_cc.so.2"
    library(tensorflow, f"-Wl,-rpath,{nccl.parent}")
    horovod(store / "py-horovod" / PACKAGES, nccl, str(nccl.parent))
    release = make_release(
        small_site(tmp_path / "prefix"),
        "adopted",
        backend="spack",
        versions={"tensorflow": "2.20.0", "horovod": "0.28.1", "cuda": "12.6.3", "nccl": "2.29.7"},
        environment={"LD_LIBRARY_PATH": [str(tmp_path / "prefix/releases/adopted/stack/lib")]},
        lock=tuple(lock),
    )
    found = View(release, store)
    found.link()
    return found


def test_packages_of_an_adopted_environment_are_inside(view):
    assert library_faults(view.release, loader) == ([], 10)


def test_a_package_that_the_environment_does_not_run_with_is_outside(view):
    """What is there to build only may be removed at any time."""
    other = library(view.store / "build" / "lib" / "libnccl.so.2")
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
    release = replace(view.release, environment=folders)
    assert any("takes libcudart.so from" in line for line in library_faults(release, loader)[0])
    lock = [
        {**one, "external": str(tmp_path / "opt")} if one["name"] == "cuda" else one
        for one in release.lock
    ]
    assert library_faults(replace(release, lock=tuple(lock)), loader)[0] == []


@pytest.mark.skipif(shutil.which("readelf") is None, reason="no readelf")
@pytest.mark.parametrize("name", ["python", "libstdc++.so.6"])
def test_what_is_read_is_what_readelf_says(name):
    path = [Path(sys.executable), *sorted(Path("/usr/lib").glob(f"*/{name}"))][-1].resolve()
    told = subprocess.check_output(["readelf", "-d", path], text=True)
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
    of_spack = replace(release, versions={**release.versions, "nccl": "2.32.3-1"})
    for one, nccl in ((release, "2.32.3"), (of_spack, "2.32.3-1")):
        assert list(claims_not_held(one, right)) == []
        (said,) = claims_not_held(one, {**right, "nccl": 22203})
        assert said == f"Horovod is built with NCCL 2.22.3, not {nccl}"
    assert len(list(claims_not_held(release, {**right, "nccl": 0, "horovod_cuda": False}))) == 2
