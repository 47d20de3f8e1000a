"""Libraries that a process has from elsewhere than the release are faults."""

import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from hpcdl.stack.linked import (
    library_faults,
    opened_by_name,
    prefer_own_libraries,
    read_device_code,
    taken_from_elsewhere,
)
from hpcdl.system.run import run
from tests.make.releases import make_release
from tests.make.sites import small_site

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")
PACKAGES = Path("lib", "python3.11", "site-packages")
TENSORFLOW = Path("tensorflow", "libtensorflow_framework.so.2")
HOROVOD = Path("horovod", "tensorflow", "mpi_lib.so")
NCCL = Path("nvidia", "nccl", "lib", "libnccl.so.2")
CUDNN = Path("nvidia", "cudnn", "lib", "libcudnn.so.9")


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


@pytest.fixture
def release(tmp_path):
    """A release for GPUs: TensorFlow and Horovod that find its NCCL, and a cuDNN."""
    module = "tensorflow/2.21.0-cuda12.9-sm60"
    plain = make_release(small_site(tmp_path / "prefix"), "gpu", module=module)
    packages = plain.prefix / PACKAGES
    nccl = library(packages / NCCL)
    library(packages / CUDNN)
    library(packages / TENSORFLOW)
    library(packages / HOROVOD, nccl, "-Wl,-rpath,$ORIGIN/../../nvidia/nccl/lib", named=False)
    return replace(plain, versions={**plain.versions, "cuda": "12.9.1", "nccl": "2.32.3"})


def loaded(release, *more, without=()):
    """What the gate's program has seen: libraries of the release, of the machine, and others."""
    own = [release.prefix / PACKAGES / one for one in (NCCL, CUDNN, TENSORFLOW, HOROVOD)]
    every = [*(one for one in own if one.name not in without), *more]
    mapped = [*map(str, every), "/lib/x86_64-linux-gnu/libc.so.6", "/opt/mpi/lib/libmpi.so.40"]
    return {"mapped": mapped, "not_found": {}}


def test_libraries_of_the_release_and_of_the_machine_are_no_fault(release):
    assert library_faults(release, loaded(release)) == []


def test_a_library_from_elsewhere_is_named_and_so_is_a_second_nccl(release, tmp_path):
    cudnn = library(tmp_path / "opt" / "libcudnn.so.9.11.0")
    (said,) = library_faults(release, loaded(release, cudnn, without=[CUDNN.name]))
    assert said == f"libcudnn.so.9.11.0 comes from {cudnn}, not from the release"
    nccl = library(tmp_path / "opt" / "libnccl.so.2")
    comes, both = library_faults(release, loaded(release, nccl))
    assert comes == f"libnccl.so.2 comes from {nccl}, not from the release"
    assert both.startswith("one NCCL is to be loaded, not 2: ")
    lacks = library_faults(release, loaded(release, without=["libnccl.so.2"]))
    assert lacks == ["one NCCL is to be loaded, not 0: none"]


def test_what_tensorflow_does_not_find_is_named(release):
    seen = {**loaded(release), "not_found": {"libcublas.so": "no such file"}}
    assert library_faults(release, seen) == ["TensorFlow does not find libcublas.so: no such file"]


def test_tensorflow_is_asked_for_what_the_release_has_by_its_name_there(release):
    names = opened_by_name(release)
    assert {"libnccl.so.2", "libcudnn.so.9", "libcublas.so"} <= set(names)
    assert opened_by_name(replace(release, versions={"tensorflow": "2.21.0"})) == []
    kepler = replace(release, versions={"tensorflow": "2.14.1", "cuda": "11.8.0"})
    assert [*opened_by_name(kepler), "libnccl.so.2"] == names, "it has an NCCL of its own inside"


def test_a_file_system_of_tensorflow_io_needs_no_path_to_tensorflow(release):
    """It is loaded behind TensorFlow: the gate refused every K80 release for it."""
    library(release.prefix / PACKAGES / "tensorflow_io_gcs_filesystem/libtensorflow_io_gcs.so")
    elsewhere = "/opt/x/libtensorflow_io_gcs.so"
    assert library_faults(release, loaded(release, Path(elsewhere))) == []


def test_links_and_externals_of_a_release_by_spack_are_its_own(release, tmp_path):
    """Its view has links into the store; an external package lies elsewhere."""
    store = library(tmp_path / "store" / "libcufft.so.11.2")
    (release.prefix / "lib" / "libcufft.so.11").symlink_to(store)
    outside = library(tmp_path / "opt" / "cuda" / "lib64" / "libcudart.so.12.4")
    seen = loaded(release, store, outside)
    (said,) = library_faults(release, seen)
    assert "libcudart" in said
    row = {"name": "cuda", "version": "12.4", "hash": "h", "external": str(tmp_path / "opt/cuda")}
    assert library_faults(replace(release, lock=({**row, "run": "yes"},)), seen) == []


def test_other_modules_libraries_are_taken_unless_the_release_is_before_them(release):
    """LD_LIBRARY_PATH is before RUNPATH and behind RPATH: the loader itself says so."""
    said = taken_from_elsewhere(release, loader)
    assert said == ["libnccl.so.2 of another module's LD_LIBRARY_PATH would be loaded instead"]
    packages = release.prefix / PACKAGES
    assert prefer_own_libraries(packages / "horovod") == [packages / HOROVOD]
    assert taken_from_elsewhere(release, loader) == []
    assert prefer_own_libraries(packages / "horovod") == []


def test_a_module_that_does_not_load_says_why(release):
    fails = run(["sh", "-c", "echo 'Lmod has detected an error' >&2; exit 1"], check=False)
    assert taken_from_elsewhere(release, lambda _: fails) == [
        "ldd in the module: Lmod has detected an error"
    ]


def test_what_is_no_elf_file_stays_as_it_is(tmp_path):
    for content in (b"", b"#!/bin/sh\n" * 20, b"\x7fELF\x02\x01\x01" + b"\0" * 20):
        (tmp_path / "x.so").write_bytes(content)
        assert prefer_own_libraries(tmp_path) == []
        assert read_device_code(tmp_path / "x.so") == ()
