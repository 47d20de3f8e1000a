"""Libraries that a release loads from elsewhere are found by the loader itself."""

from __future__ import annotations

import dataclasses
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from hpcdl.stack.elf import read_dynamic
from hpcdl.stack.linked import claims_not_held, library_faults, nccl_release
from hpcdl.stack.release import Release
from hpcdl.system.run import CommandResult, run
from tests.small_release import make_release, small_site

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")


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
    place = tmp_path / "prefix" / "releases" / "gpu" / "stack" / "lib" / "python3.11"
    place = place / "site-packages"
    names = ("cuda_runtime", "cuda_cupti", "cublas", "cudnn", "cufft", "cusolver", "cusparse")
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


def test_a_release_whose_libraries_are_its_own_has_no_fault(
    packages: Path, release: Release
) -> None:
    horovod(packages, packages / "nvidia" / "nccl" / "lib" / "libnccl.so.2")
    assert library_faults(release, loader) == ([], 10)


def test_an_nccl_of_the_system_is_named(packages: Path, release: Release, tmp_path: Path) -> None:
    other = library(tmp_path / "opt" / "libnccl.so.2", soname="libnccl.so.2")
    horovod(packages, other, str(other.parent))
    faults, _ = library_faults(release, loader)
    assert any(f"mpi_lib.so takes libnccl.so.2 from {other}" in line for line in faults)
    assert any("mpi_lib.so loads" in line and "TensorFlow" in line for line in faults)


def test_a_library_that_is_not_found_is_named(packages: Path, release: Release) -> None:
    horovod(packages, packages / "nvidia" / "nccl" / "lib" / "libnccl.so.2", "/nowhere")
    faults, _ = library_faults(release, loader)
    assert "mpi_lib.so does not find libnccl.so.2" in faults


def test_an_object_of_which_the_loader_says_nothing_is_named(
    packages: Path, release: Release
) -> None:
    left_out = horovod(packages, packages / "nvidia" / "nccl" / "lib" / "libnccl.so.2")
    faults, _ = library_faults(
        release, lambda argv: loader([one for one in argv if one != left_out])
    )
    assert "the loader said nothing of mpi_lib.so" in faults


def test_horovod_without_nccl_is_named(packages: Path, release: Release) -> None:
    library(packages / "horovod" / "tensorflow" / "mpi_lib.so")
    assert library_faults(release, loader)[0] == ["Horovod does not ask for libnccl.so.2"]


def test_a_folder_that_tensorflow_does_not_look_into_is_named(
    packages: Path, release: Release
) -> None:
    horovod(packages, packages / "nvidia" / "nccl" / "lib" / "libnccl.so.2")
    library(packages / "tensorflow" / "libtensorflow_framework.so.2", "-Wl,-rpath,$ORIGIN")
    shutil.rmtree(packages / "nvidia" / "cudnn")
    faults, _ = library_faults(release, loader)
    assert f"TensorFlow does not look into {packages}/nvidia/cublas/lib" in faults
    assert f"there are no libraries in {packages}/nvidia/cudnn/lib" in faults


@pytest.mark.skipif(shutil.which("readelf") is None, reason="no readelf")
@pytest.mark.parametrize("name", ["python", "libstdc++.so.6"])
def test_what_is_read_is_what_readelf_says(name: str) -> None:
    there = [Path(sys.executable), *sorted(Path("/usr/lib").glob(f"*/{name}"))]
    path = there[-1].resolve()
    told = subprocess.run(
        ["readelf", "-d", path], capture_output=True, text=True, check=True
    ).stdout
    found = read_dynamic(path)
    assert list(found.needed) == re.findall(r"\(NEEDED\).*\[(.*)\]", told)
    assert found.soname == "".join(re.findall(r"\(SONAME\).*\[(.*)\]", told))


def test_what_is_no_elf_file_needs_nothing(tmp_path: Path) -> None:
    for content in (b"", b"#!/bin/sh\n" * 20, b"\x7fELF\x02\x01\x01" + b"\0" * 20):
        (tmp_path / "x.so").write_bytes(content)
        assert read_dynamic(tmp_path / "x.so").needed == ()


@pytest.mark.parametrize(("code", "text"), [(22703, "2.27.3"), (21605, "2.16.5"), (0, ""), (1, "")])
def test_nccl_s_number_is_its_release(code: int, text: str) -> None:
    assert nccl_release(code) == text


def test_claims_that_horovod_does_not_hold(release: Release) -> None:
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
