"""Kernels on TensorFlow's GPU headers: what is compiled, and how a row of facts comes of it."""

import re

import pytest
import yaml

from hpcdl import facts
from tests.unit.test_stack_toolchain import program
from tools import compile_evidence
from tools.compile_evidence import KERNELS, main

SOURCES = sorted(KERNELS.glob("*.cu.cc"))
NAMES = {path.name.partition(".")[0] for path in SOURCES}
ROWS = facts.load("gpu_kernels")["notes"]


def test_there_are_kernels_of_each_part_and_each_is_an_operation_of_its_own():
    parts = {"launch", "atomics", "half", "prims", "reduction", "scan", "random", "gather"}
    assert parts <= NAMES
    assert len(SOURCES) >= 12
    names = [
        re.findall(r'^EVIDENCE_OP\("(\w+)", Run\);$', path.read_text(), re.M) for path in SOURCES
    ]
    assert all(len(one) == 1 for one in names)
    assert len({one[0] for one in names}) == len(SOURCES)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row['when']}")
def test_a_row_says_of_each_kernel_whether_it_compiled(row):
    assert set(row["compiled"]) | set(row["failed"]) <= NAMES
    assert not set(row["compiled"]) & set(row["failed"])
    counts = f"{len(row['compiled'])} of {len(row['compiled']) + len(row['failed'])} kernels"
    assert counts in row["note"]
    assert row["compiler"] in row["note"]
    assert row["proof"] == "compiled"


def environment(folder, tensorflow="2.21.0"):
    """An environment whose TensorFlow is there by name only."""
    packages = folder / "stack" / "lib" / "python3.11" / "site-packages"
    (packages / f"tensorflow-{tensorflow}.dist-info").mkdir(parents=True)
    return folder / "stack"


@pytest.mark.parametrize(
    ("says", "language", "compiler"),
    [
        ("clang version 19.1.7", "cuda", "clang 19.1.7"),
        ("Cuda compilation tools, release 12.4, V12.4.131", "cu", "nvcc 12.4.131"),
    ],
)
def test_what_a_compiler_refuses_is_the_row_s_first_error(
    tmp_path, monkeypatch, capsys, says, language, compiler
):
    """The compiler is a script that gives up as clang does; g++ is the machine's."""
    clang = tmp_path / "bin" / "compiler"
    clang.parent.mkdir()
    program(clang, "")
    clang.write_text(
        f"#!/bin/sh\n[ \"$1\" = --version ] && echo '{says}' && exit\n"
        f"case \"$*\" in *'-x {language} -c'*) ;; *) exit 1;; esac\n"  # .cc is C++ to clang
        "echo '/wheels/tensorflow/a.h:12:3: error: no such thing' >&2; exit 1\n"
    )
    table = tmp_path / "gpu_kernels.yaml"
    old = {"when": {"tensorflow": "2.20.0", "gpu": "6.0"}, "compiler": "gcc", "cuda": "x"}
    table.write_text("# Head.\nschema: 1\n" + yaml.safe_dump({"notes": [old]}))
    monkeypatch.setattr("hpcdl.stack.horovod.clangs", lambda: iter([clang]))
    monkeypatch.setattr(compile_evidence.horovod, "cuda_tree", lambda *_: tmp_path)
    stack = environment(tmp_path)
    argv = [
        str(stack),
        "--cuda",
        "12.9.1",
        "--gpu",
        "6.0",
        "7.0",
        "--kernels",
        "scan",
        *("-w", str(table)),
        *(("--nvcc", str(clang)) if compiler.startswith("nvcc") else ()),
    ]
    for kernel in ("half", "scan", "scan"):  # the third takes the place of the second
        argv[argv.index("--kernels") + 1] = kernel
        assert main(argv) == 1
    assert "scan: a.h:12:3: error: no such thing" in capsys.readouterr().out
    assert table.read_text().startswith("# Head.\nschema: 1\n")
    kept, row = yaml.safe_load(table.read_text())["notes"]
    assert kept == old
    assert row["when"] == {"tensorflow": "2.21.0", "gpu": "6.0,7.0"}
    assert row["failed"] == dict.fromkeys(("half", "scan"), "a.h:12:3: error: no such thing")
    assert (row["compiled"], row["compiler"]) == ([], compiler)
    assert "0 of 2 kernels" in row["note"]
