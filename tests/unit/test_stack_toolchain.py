"""Compilers that do not fit the GPUs, or each other, are refused by the rules of the facts."""

from dataclasses import replace
from pathlib import Path

import pytest

from hpcdl.site import StackRequest
from hpcdl.stack.horovod import broken_by, find_toolchain
from hpcdl.stack.recipe import recipe_of
from hpcdl.system.errors import BadInput, ExitCode, MissingPrerequisite
from tests.make.sites import small_site


@pytest.fixture(autouse=True)
def empty_machine(tmp_path, monkeypatch):
    """A PATH with cmake, make and mpicxx, and no compiler of its own."""
    monkeypatch.setattr("hpcdl.stack.resolve.pythons", lambda: ("3.11",))
    for name in ("CXX", "CUDAHOSTCXX"):
        monkeypatch.delenv(name, raising=False)
    programs = tmp_path / "bin"
    monkeypatch.setenv("PATH", f"{programs}:/usr/bin:/bin")

    def which(name, **_):
        path = programs / name
        return str(path) if path.exists() else None

    monkeypatch.setattr("shutil.which", which)
    for name in ("mpicxx", "cmake", "make"):
        program(programs / name, "")
    return programs


def program(path, said):
    """A program that says something."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\necho '{said}'\n")
    path.chmod(0o755)


def clang(folder, version, name="clang++"):
    program(folder / name, f"Debian clang version {version} (3~deb12u1)")


def wanted(*names, **more):
    """A stack for GPUs of the embedded site; for CPUs without names."""
    stack = StackRequest("tensorflow", "wheels", names, {}, variant=None if names else "cpu")
    stack = replace(stack, **more)
    site = replace(small_site(Path("/nowhere")), stacks={"tensorflow": stack})
    return site, stack, recipe_of(site, stack, names or ("cpu",))


def with_nvcc(machine, version, *names):
    """The same where the site names a toolkit."""
    home = machine / "cuda"
    program(home / "bin" / "nvcc", f"Cuda compilation tools, release {version[:4]}, V{version}")
    return wanted(*names, cuda_home=home)


def test_the_first_gcc_that_nvcc_takes_is_used(empty_machine):
    clang(empty_machine, "19.1.7")
    for name, version in (("g++", "14.2.0"), ("g++-13", "13.3.0"), ("g++-11", "11.4.0")):
        program(empty_machine / name, version)
    tools = find_toolchain(*with_nvcc(empty_machine, "12.4.131", "p100", "v100"))
    assert tools.cxx.path.name == "g++-13"
    assert tools.environment()["CUDAHOSTCXX"] == str(tools.cxx.path)
    assert tools.environment()["CUDACXX"] == str(empty_machine / "cuda" / "bin" / "nvcc")


def test_a_build_for_cpus_takes_the_default_gcc_up_to_14(empty_machine):
    program(empty_machine / "g++", "14.2.0")
    tools = find_toolchain(*wanted())
    assert (tools.cxx.version, tools.nvcc) == ("14.2.0", None)


@pytest.mark.parametrize(
    ("version", "partition", "words"),
    [
        ("12.4.131", "k80", "sm_35 and sm_37 were removed in CUDA 12.0"),
        ("13.0.88", "p100", "CUDA 13.0 removed Maxwell, Pascal and Volta"),
        ("11.8.89", "v100", "NCCL and the libraries of the wheels are of CUDA 12"),
    ],
)
def test_an_nvcc_that_does_not_fit_is_refused_by_its_rule(empty_machine, version, partition, words):
    program(empty_machine / "g++", "11.4.0")
    with pytest.raises(MissingPrerequisite) as caught:
        find_toolchain(*with_nvcc(empty_machine, version, partition))
    told = "\n".join(caught.value.details)
    assert words in told
    assert version in told
    assert "`horovod: none`" in caught.value.hint
    assert caught.value.exit_code == ExitCode.MISSING_PREREQUISITE


@pytest.mark.parametrize(
    ("version", "gcc", "partition"), [("11.8.89", "12.2.0", "k80"), ("12.4.131", "14.2.0", "p100")]
)
def test_a_gcc_that_is_too_new_for_nvcc_is_refused(empty_machine, version, gcc, partition):
    program(empty_machine / "g++", gcc)
    with pytest.raises(MissingPrerequisite, match="no gcc here fits") as caught:
        find_toolchain(*with_nvcc(empty_machine, version, partition))
    assert f"its nvcc refuses gcc {gcc[:2]}" in "\n".join(caught.value.details)


def test_a_gcc_that_nobody_tried_is_refused(empty_machine):
    program(empty_machine / "g++", "15.1.0")
    with pytest.raises(MissingPrerequisite) as caught:
        find_toolchain(*wanted())
    assert "gcc <= 14" in "\n".join(caught.value.details)


def test_a_pinned_gcc_is_the_one_that_compiles(empty_machine):
    """`stack resolve` had the pin, the build took the first g++ on PATH."""
    program(empty_machine / "g++", "12.2.0")
    site, stack, recipe = wanted()
    stack = replace(stack, pins={"gcc": "11"})
    with pytest.raises(MissingPrerequisite) as caught:
        find_toolchain(site, stack, recipe)
    assert f"12.2.0: stack '{stack.name}' pins gcc 11" in "\n".join(caught.value.details)
    program(empty_machine / "g++-11", "11.4.0")
    assert find_toolchain(site, stack, recipe).cxx.version == "11.4.0"


@pytest.mark.parametrize(("partition", "code"), [("k80", "sm_37"), ("p100", "sm_60")])
def test_without_clang_a_line_says_how_to_install_it(empty_machine, partition, code):
    program(empty_machine / "g++", "11.4.0")
    with pytest.raises(MissingPrerequisite, match="and there is none here") as caught:
        find_toolchain(*wanted(partition))
    assert f"Horovod for {code} is compiled by clang" in caught.value.message
    assert "apt install clang-19 (Debian 12, Debian 13)" in caught.value.hint
    assert "22.04" not in caught.value.hint, "its clang 15 is too old"


@pytest.mark.parametrize("partition", ["k80", "p100", "v100"])
def test_clang_compiles_for_every_partition_and_takes_any_gcc_of_horovod(empty_machine, partition):
    clang(empty_machine, "14.0.6")
    clang(empty_machine, "19.1.7", "clang++-19")
    program(empty_machine / "g++", "14.2.0")
    tools = find_toolchain(*wanted(partition))
    assert (tools.clang.path.name, tools.nvcc, tools.cxx.version) == ("clang++-19", None, "14.2.0")
    assert "CUDACXX" not in tools.environment()
    assert str(tools).startswith(f"{empty_machine}/clang++-19 19.1.7 and ")


def test_where_no_wheels_are_locked_for_the_machine_the_site_s_nvcc_is_taken(
    empty_machine, monkeypatch
):
    clang(empty_machine, "19.1.7")
    program(empty_machine / "g++", "13.3.0")
    site, nvcc = wanted("p100"), with_nvcc(empty_machine, "12.4.131", "p100")
    monkeypatch.setattr("platform.machine", lambda: "aarch64")
    with pytest.raises(MissingPrerequisite) as caught:
        find_toolchain(*site)
    assert "NVIDIA's wheels are locked for x86_64 only" in caught.value.details[0]
    assert find_toolchain(*nvcc).nvcc.version == "12.4.131"


def test_a_clang_that_is_too_old_is_refused_by_its_rule(empty_machine):
    clang(empty_machine, "14.0.6")
    program(empty_machine / "g++", "12.2.0")
    with pytest.raises(MissingPrerequisite, match="none that is here fits") as caught:
        find_toolchain(*wanted("p100"))
    assert "clang >= 16 (the first clang that reads the headers" in "\n".join(caught.value.details)


@pytest.mark.parametrize(
    ("version", "computes", "words"),
    [
        ("19.1.7", ["9.0"], []),
        ("19.1.7", ["10.0"], ["the first clang with Blackwell"]),
        ("20.1.8", ["10.0", "12.0"], []),
        ("20.1.8", ["12.1"], ["the first clang with sm_103 and sm_121"]),
    ],
)
def test_blackwell_needs_a_newer_clang(version, computes, words):
    broken = broken_by("clang", version, computes, "12.9.1")
    assert [rule.why for rule in broken] == words


def test_an_nvcc_that_does_not_run_is_named(empty_machine, tmp_path):
    program(empty_machine / "g++", "12.2.0")
    program(tmp_path / "cuda" / "bin" / "nvcc", "cannot load libfoo.so")
    with pytest.raises(MissingPrerequisite, match="none that is here fits") as caught:
        find_toolchain(*wanted("p100", cuda_home=tmp_path / "cuda"))
    assert f"{tmp_path}/cuda/bin/nvcc --version` fails" in caught.value.details[0]


def test_a_cuda_home_without_nvcc_is_named(empty_machine, tmp_path):
    program(empty_machine / "g++", "12.2.0")
    with pytest.raises(BadInput, match="there is no"):
        find_toolchain(*wanted("p100", cuda_home=tmp_path / "nowhere"))


def test_every_missing_command_is_named(empty_machine):
    (empty_machine / "cmake").unlink()
    (empty_machine / "mpicxx").unlink()
    with pytest.raises(MissingPrerequisite, match="no mpicxx, cmake on PATH"):
        find_toolchain(*wanted())
