"""NVIDIA's wheels as a CUDA tree: what goes where, and how clang calls fatbinary."""

import subprocess
import zipfile
from pathlib import Path

import pytest

from hpcdl import facts
from hpcdl.stack import horovod
from hpcdl.stack.recipe import running_interpreter
from hpcdl.system.errors import MissingPrerequisite
from hpcdl.system.run import CommandFailed
from tests.unit.test_stack_toolchain import program

FILES = {
    "nvidia/__init__.py": "",
    "nvidia/cuda_runtime/include/cuda.h": "#define CUDA_VERSION 12090",
    "nvidia/cuda_runtime/lib/libcudart.so.12": "runtime",
    "nvidia/cuda_nvcc/bin/ptxas": "assembler",
    "nvidia/cuda_nvcc/include/crt/host_defines.h": "",
    "nvidia/cuda_nvcc/nvvm/libdevice/libdevice.10.bc": "bitcode",
    "nvidia/cu13/bin/fatbinary": "packer",
    "nvidia/cu13/bin/ptxas": "of CUDA 13",
    "nvidia/cu13/include/crt/host_defines.h": "of CUDA 13",
}


def lay_out(folder):
    """A tree of small wheels, as they are installed."""
    for path, text in FILES.items():
        (folder / "fetched" / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / "fetched" / path).write_text(text)
    tree = folder / "tree"
    horovod._lay_out(folder / "fetched", tree)
    return tree


def test_the_tree_is_of_its_cuda_and_has_only_fatbinary_of_the_newer(tmp_path):
    tree = lay_out(tmp_path)
    files = {str(path.relative_to(tree)) for path in tree.rglob("*") if not path.is_dir()}
    assert files == {
        "bin/fatbinary",
        "bin/ptxas",
        "include/crt/host_defines.h",
        "include/cuda.h",
        "lib64/libcudart.so",
        "lib64/libcudart.so.12",
        "libexec/fatbinary",
        "nvvm/libdevice/libdevice.10.bc",
    }
    assert (tree / "bin/ptxas").read_text() == "assembler"
    assert (tree / "lib64/libcudart.so").read_text() == "runtime"
    for name in ("bin/ptxas", "bin/fatbinary", "libexec/fatbinary"):
        assert (tree / name).stat().st_mode & 0o111 == 0o111, name


def test_clangs_words_for_fatbinary_become_those_of_cuda_13(tmp_path):
    tree = lay_out(tmp_path)
    program(tree / "libexec" / "fatbinary", "")
    (tree / "libexec" / "fatbinary").write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    said = subprocess.run(
        [
            tree / "bin" / "fatbinary",
            "-64",
            "--create",
            "/tmp/a b.fatbin",
            "--image=profile=sm_90a,file=/tmp/a b.o",  # as clang 19 calls it
            "-image=profile=compute_90,file=/tmp/c.s",
        ],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert said.splitlines() == [
        "--compress-mode=none",
        "-64",
        "--create",
        "/tmp/a b.fatbin",
        "--image3=kind=elf,sm=90a,file=/tmp/a b.o",
        "--image3=kind=ptx,sm=90,file=/tmp/c.s",
    ]


@pytest.mark.parametrize("cuda", facts.load("nvidia_wheels")["toolkits"])
def test_every_cuda_release_of_the_facts_has_locked_wheels_to_compile_with(cuda):
    wheels = horovod.cuda_wheels(cuda)
    major = cuda.partition(".")[0]
    names = {name.partition("==")[0] for name in wheels}
    parts = ("cuda-runtime", "cuda-nvcc", "curand", "cuda-cccl")
    assert names == {*(f"nvidia-{part}-cu{major}" for part in parts), "nvidia-cuda-nvcc"}
    assert all(len(digest) == 64 for digests in wheels.values() for digest in digests.values())


def test_a_cuda_without_wheels_is_refused_with_those_that_have_some():
    with pytest.raises(MissingPrerequisite, match=r"no NVIDIA wheels are listed for CUDA 12.4.1"):
        horovod.cuda_wheels("12.4.1")


def test_a_wheel_with_another_digest_leaves_no_tree(tmp_path, monkeypatch):
    """The index serves a package of that name with other content."""
    monkeypatch.setenv("HPCDL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HPCDL_HOME", str(tmp_path / "home"))
    index = tmp_path / "index"
    index.mkdir()
    info = "nvidia_cuda_nvcc-13.5.37"
    with zipfile.ZipFile(index / f"{info}-py3-none-any.whl", "w") as archive:
        for name, text in {"METADATA": "Name: nvidia-cuda-nvcc\nVersion: 13.5.37\n"}.items():
            archive.writestr(f"{info}.dist-info/{name}", f"Metadata-Version: 2.1\n{text}")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(index))
    wheels = {"nvidia-cuda-nvcc==13.5.37": {"any": "0" * 64}}
    monkeypatch.setattr(horovod, "cuda_wheels", lambda _: wheels)
    with pytest.raises(CommandFailed):
        horovod.cuda_tree("12.9.1", running_interpreter(), lambda _: None)
    assert not list((tmp_path / "cache" / "wheels").glob("cuda-*"))


def test_the_command_has_the_machine_code_of_each_gpu_and_the_ptx_of_the_newest(tmp_path):
    gxx = tmp_path / "g++"
    program(gxx, "/usr/lib/gcc/x86_64-linux-gnu/12/libgcc.a")
    argv = horovod.compile_argv(Path("clang++-19"), tmp_path, gxx, ["60", "100"], "c++14")
    assert [one for one in argv if "sm_" in one] == [
        "--cuda-gpu-arch=sm_60",
        "--cuda-gpu-arch=sm_100",
        "--cuda-include-ptx=sm_100",
    ]
    assert "--gcc-install-dir=/usr/lib/gcc/x86_64-linux-gnu/12" in argv
