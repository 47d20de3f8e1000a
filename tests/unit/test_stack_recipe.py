"""What goes into a stack is decided by the facts, the site's pins and the Python."""

import shutil
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from hpcdl import facts
from hpcdl.results.gpus import GpuFigures
from hpcdl.site import StackRequest, find_site_file, load_site
from hpcdl.stack.build import plan_stack
from hpcdl.stack.horovod import apply_edit, first_complaint, tell_objects
from hpcdl.stack.recipe import Interpreter, lock_file, recipe_of
from hpcdl.stack.release import digest
from hpcdl.stack.resolve import find_request
from hpcdl.stack.resolve_facts import conditions, known
from hpcdl.system.errors import BadInput, MissingPrerequisite
from tests.make.sites import small_site

LINE = 'list(APPEND TF_SOURCES "xla_mpi_ops.cc")\n'


@pytest.fixture(autouse=True)
def python_3_11(monkeypatch):
    """Whichever Python runs the tests."""
    monkeypatch.setattr("hpcdl.stack.resolve.pythons", lambda: ("3.11",))


def recipe(wanted, *names):
    """The recipe of that stack for partitions of the embedded site."""
    return recipe_of(with_stack(small_site(Path("/nowhere")), wanted), wanted, names)


def cpu(*packages, **pins):
    """The recipe of the embedded site, whose stack is for CPUs."""
    stack = small_site(Path("/nowhere")).stacks["tensorflow"]
    wanted = replace(stack, pins=pins, packages=packages)
    return recipe(wanted, "p100", "v100", "k80", "cpu")


def gpu(*names):
    """The recipe for GPUs of the embedded site's partitions."""
    return recipe(StackRequest("tensorflow", "wheels", names, {}), *names)


def with_stack(site, wanted):
    return replace(site, stacks={"tensorflow": wanted})


def for_gpu(**changes):
    """The recipe for one partition whose GPU differs from a P100 in some facts."""
    site, wanted = small_site(Path("/nowhere")), StackRequest("tensorflow", "wheels", (), {})
    p100 = site.partitions["p100"]
    parts = {"x": replace(p100, name="x", gpu=p100.gpu._replace(**changes))}
    return recipe_of(replace(with_stack(site, wanted), partitions=parts), wanted, ("x",))


def test_rows_of_what_was_tried_carry_source_and_proof():
    for row in facts.load("wheels")["tried"]:
        assert row["source"]
        assert row["proof"] in facts.PROOFS
        assert row["variant"] in facts.load("wheels")["packages"]
        assert ("compute" in row) == (row["variant"] == "cuda")


@pytest.mark.parametrize("pin", ["2.18", "2.18.1"])
def test_a_pin_chooses_an_older_one(pin):
    older = cpu(tensorflow=pin)
    assert older.module == "tensorflow/2.18.1-cpu"
    assert "no-xla-ops" not in [edit["name"] for edit in older.horovod["edits"]]


def test_a_pin_is_no_prefix_of_digits():
    with pytest.raises(BadInput, match=r"TensorFlow 2\.1, which is not listed"):
        cpu(tensorflow="2.1")


def test_pins_of_packages_reach_pip_and_other_components_do_not():
    found = cpu(keras="3.15", openmpi="5.0").requirements
    assert "keras==3.15.1" in found
    assert not any("openmpi" in requirement for requirement in found)


def test_packages_of_the_site_are_locked_with_the_rest():
    more, python = cpu("pandas", "jupyterlab>=4"), Interpreter(Path("/usr/bin/python3"), "3.11.7")
    assert more.requirements == (*cpu().requirements, "pandas", "jupyterlab>=4")
    assert lock_file(more, python) != lock_file(cpu(), python)
    assert "tensorboard" in cpu().requirements


def test_packages_of_a_stack_that_spack_builds_are_refused(tmp_path):
    site = small_site(tmp_path)
    stack = replace(site.stacks["tensorflow"], packages=("pandas",), backend="spack")
    _, (blocked,) = plan_stack(with_stack(site, stack))
    assert "packages" in blocked.fault.message
    assert "backend: wheels" in blocked.fault.hint


@pytest.mark.parametrize(
    ("package", "fine"),
    [
        ("pandas", True),
        ("jupyterlab>=4,<5", True),
        ("dask[array]==2026.1", True),
        ("tensorflow-datasets", True),
        ("tensorflow", False),
        ("tensorflow-cpu==2.1", False),
        ("horovod", False),
        ("keras", False),
        ("--index-url=http://x", False),
        ("x @ http://evil/x.whl", False),
        ("a; import os", False),
        ("-r file", False),
    ],
)
def test_only_names_and_versions_are_packages(tmp_path, package, fine):
    text = find_site_file("embedded").read_text()
    file = tmp_path / "site.yaml"
    file.write_text(
        text.replace("backend: wheels", f"backend: wheels\n    packages: ['{package}']")
    )
    if fine:
        assert load_site(file).stacks["tensorflow"].packages == (package,)
    else:
        with pytest.raises(BadInput) as caught:
            load_site(file)
        assert package in "\n".join(caught.value.details)


def test_an_unknown_stack_gets_the_nearest_name(tmp_path):
    with pytest.raises(BadInput) as caught:
        find_request(small_site(tmp_path), "tensorflw")
    assert caught.value.hint == "did you mean 'tensorflow'?"


def test_a_digest_sees_every_part_of_a_recipe():
    assert digest(cpu()) == digest(cpu())
    assert digest(cpu()) != digest(cpu(tensorflow="2.18"))
    assert digest(gpu("p100")) != digest(gpu("v100"))
    assert len(digest(cpu())) == 8


def test_p100_and_v100_get_nvidia_s_wheels_as_resolved_and_code_for_both():
    both = gpu("p100", "v100")
    assert both.module == "tensorflow/2.21.0-cuda12.9-sm60-sm70"
    assert {
        "tensorflow==2.21.0",
        "nvidia-cudnn-cu12==9.10.2.21",
        "nvidia-nccl-cu12==2.32.3",
        "nvidia-cuda-runtime-cu12==12.9.79",
    } <= set(both.requirements)
    wanted = {
        "HOROVOD_BUILD_CUDA_CC_LIST": "60,70",
        "HOROVOD_GPU_OPERATIONS": "NCCL",
        "HOROVOD_NCCL_LINK": "SHARED",
    }
    assert wanted.items() <= both.horovod["environment"].items()
    assert {"no-xla-ops", "own-stream-value"} < {edit["name"] for edit in both.horovod["edits"]}
    assert both.needs["driver"] == {"from": "525.60.13", "branch": 580}
    assert {"P40", "P100", "V100", "T4", "P4"} <= set(both.needs["gpus"])
    assert "cuda_nvcc" in both.environment["XLA_FLAGS"]


def test_a_k80_gets_cuda_11_8_without_tensorrt_and_without_the_edits_of_newer_ones():
    k80 = gpu("k80")
    assert k80.module == "tensorflow/2.14.1-cuda11.8-sm37"
    assert {
        "tensorflow==2.14.1",
        "nvidia-cudnn-cu11==8.7.0.84",
        "nvidia-nccl-cu11==2.16.5",
        "keras==2.14.0",
    } <= set(k80.requirements)
    assert not any("tensorrt" in one for one in k80.requirements)
    assert not {"no-xla-ops", "own-stream-value"} & {edit["name"] for edit in k80.horovod["edits"]}
    assert k80.needs["driver"]["branch"] == 470


def test_an_a100_is_not_held_to_the_cudnn_of_older_gpus():
    a100 = for_gpu(model="A100-SXM4-40GB", compute="8.0")
    assert a100.versions["cudnn"] > "9.2"
    assert a100.module == "tensorflow/2.21.0-cuda12.9-sm80"


def test_a_gpu_model_of_the_site_s_own_is_among_those_that_a_build_is_for():
    own = for_gpu(model="X1", figures=GpuFigures(driver_name="X1"))
    assert "X1" in own.needs["gpus"]


TO_PYTHON_3_11 = pytest.mark.skipif(
    sys.version_info >= (3, 12) and not shutil.which("python3.11"),
    reason="a K80's TensorFlow has no wheels for this Python",
)


@TO_PYTHON_3_11
def test_a_stack_without_partitions_serves_none_that_another_stack_claims(tmp_path):
    site = small_site(tmp_path)
    site = with_stack(site, replace(site.stacks["tensorflow"], horovod=False))
    ((alone,), _) = plan_stack(site)
    assert alone.partitions == ()
    stacks = site.stacks | {"legacy": replace(site.stacks["tensorflow"], name="legacy")}
    partitions = site.partitions | {"k80": replace(site.partitions["k80"], stack="legacy")}
    both = replace(site, stacks=stacks, partitions=partitions)
    ((beside,), _) = plan_stack(both, "tensorflow")
    assert set(beside.partitions) == set(site.partitions) - {"k80"}


@TO_PYTHON_3_11
def test_wheels_for_a_stack_that_names_spack_are_resolved_for_all_its_partitions(tmp_path):
    site = small_site(tmp_path)
    stack = replace(site.stacks["tensorflow"], variant=None, horovod=False)
    found, wanted = (
        [(one.partitions, one.release_id) for one in plan_stack(each, backend="wheels")[0]]
        for each in (with_stack(site, replace(stack, backend="spack")), with_stack(site, stack))
    )
    assert found == wanted
    assert {name for names, _ in found for name in names} == set(site.partitions)


def test_the_edits_for_a_cpu_need_no_cuda():
    assert "own-stream-value" not in [edit["name"] for edit in cpu().horovod["edits"]]
    assert not any("NCCL" in name for name in cpu().horovod["environment"])
    assert cpu().environment == {}


def test_every_cuda_of_wheels_that_a_tensorflow_can_have_has_its_list():
    """Each toolkit that the rules of the wheels name has a row; every row has a source."""
    table = facts.load("nvidia_wheels")
    assert set(table["toolkits"]) == set(table["source"]) == set(table["proof"])
    offered = known().components["cuda"].versions["wheels"]
    for row in facts.load("tensorflow")["rules"]:
        if row["when"].get("backend") == "wheels" and "cuda" in row["needs"]:
            (need,) = conditions({"cuda": row["needs"]["cuda"]})
            newest = next(version for version in offered if need.range.allows(version))
            assert newest in table["toolkits"], row


@pytest.mark.parametrize(
    ("tensorflow", "cuda", "wanted"),
    [
        ("2.21.0", "12.9.1", ["libcusolver.so.11"]),
        ("2.20.0", "12.9.1", []),
        ("2.14.1", "11.8.0", ["libcupti.so.11.8"]),
    ],
)
def test_some_tensorflows_need_a_link_to_a_library(tensorflow, cuda, wanted):
    """TensorFlow 2.21's own TryDlopenCUDALibraries found none, and it registered no GPU."""
    values = {"tensorflow": tensorflow, "cuda": cuda}
    rows = [
        row
        for row in facts.load("nvidia_wheels")["links"]
        if all(one.holds(values) for one in conditions(row["when"]))
    ]
    assert [Path(row["to"]).name for row in rows] == wanted
    assert [Path(row["link"]).name for row in rows] == wanted


def an_edit(replacement):
    return {"name": "no-xla-ops", "file": "CMakeLists.txt", "find": LINE, "replace": replacement}


@pytest.mark.parametrize("content", ["", "nothing here\n", LINE * 2, LINE[1:]])
def test_an_edit_that_does_not_fit_exactly_once_is_an_error(tmp_path, content):
    (tmp_path / "CMakeLists.txt").write_text(content)
    with pytest.raises(MissingPrerequisite, match="no-xla-ops"):
        apply_edit(tmp_path, an_edit(""))
    assert (tmp_path / "CMakeLists.txt").read_text() == content


def test_an_edit_changes_its_text_and_nothing_else(tmp_path):
    (tmp_path / "CMakeLists.txt").write_text(f"before\n{LINE}after\n")
    apply_edit(tmp_path, an_edit("other\n"))
    assert (tmp_path / "CMakeLists.txt").read_text() == "before\nother\nafter\n"


@pytest.mark.parametrize(
    ("said", "first"),
    [
        (
            "  [ 3%] Building\n    /s/a.h:343:18: error: 'logic_error' is not a member of 'std'\n"
            "  error: subprocess-exited-with-error\n",
            "/s/a.h:343:18: error: 'logic_error' is not a member of 'std'",
        ),
        ("k.cu(12): error: `x` is undefined\n", "k.cu(12): error: `x` is undefined"),
        ("x.cc:1:10: fatal error: mpi.h: No such\n", "x.cc:1:10: fatal error: mpi.h: No such"),
        ("-- ok\nCMake Error at CMakeLists.txt:3:\n", "CMake Error at CMakeLists.txt:3:"),
        (
            "nvcc fatal   : Unsupported gpu architecture 'compute_37'\n",
            "nvcc fatal   : Unsupported gpu architecture 'compute_37'",
        ),
        (
            "clang++-19: error: unsupported CUDA gpu architecture: sm_120\nmake: *** [k.o]\n",
            "clang++-19: error: unsupported CUDA gpu architecture: sm_120",
        ),
        ("warning: -Werror=x is odd\nall well\n", ""),
    ],
)
def test_a_compiler_s_first_complaint_is_found_in_its_log(tmp_path, said, first):
    (tmp_path / "log").write_text(said)
    assert first_complaint(tmp_path / "log") == first


def test_a_build_says_how_many_of_the_files_that_cmake_names_are_compiled(tmp_path):
    """CMake compiles small programs of its own first: 2 of 1 files were compiled."""
    for place, rules, objects in (("core.dir", 3, 2), ("CMakeFiles/cmTC_1.dir", 1, 1)):
        folder = tmp_path / place
        folder.mkdir(parents=True)
        lines = (f"core/{n}.cc.o: core/flags.make\n\tc++ {n}.cc\n" for n in range(rules))
        (folder / "build.make").write_text("".join(lines))
        for number in range(objects):
            (folder / f"{number}.cc.o").touch()
    told = []
    tell_objects(tmp_path, told.append)
    assert told == ["2 of 3 files are compiled"]
