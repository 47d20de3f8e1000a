"""What goes into a stack is decided by the facts, the site's pins and the Python."""

import dataclasses
from pathlib import Path

import pytest

from hpcdl import facts
from hpcdl.site import StackRequest, find_site_file, load_site
from hpcdl.stack.horovod import apply_edit
from hpcdl.stack.recipe import Edit, Interpreter, choose, digest, find_request
from hpcdl.stack.spack_backend.spack_build import plan_spack
from hpcdl.stack.wheelhouse import wheelhouse_folder
from hpcdl.system.errors import BadInput, MissingPrerequisite
from tests.small_release import small_site

PYTHON = Interpreter(Path("/usr/bin/python3.11"), "3.11.7")
LINE = 'list(APPEND TF_SOURCES "xla_mpi_ops.cc")'


def request(**pins: str) -> StackRequest:
    return StackRequest("tensorflow", "venv", (), pins)


def test_the_newest_row_is_taken() -> None:
    assert choose(request(), PYTHON).tensorflow == facts.load("wheels")["tensorflow"][0]["version"]


def test_rows_are_newest_first_and_carry_source_and_proof() -> None:
    rows = facts.load("wheels")["tensorflow"]
    versions = [tuple(map(int, row["version"].split("."))) for row in rows]
    assert versions == sorted(versions, reverse=True)
    assert all(row["source"] and row["proof"] in facts.PROOFS for row in rows)


@pytest.mark.parametrize("pin", ["2.18", "2.18.1"])
def test_a_pin_chooses_an_older_one(pin: str) -> None:
    recipe = choose(request(tensorflow=pin), PYTHON)
    assert recipe.module == "tensorflow/2.18.1-cpu"
    assert recipe.horovod.edits == ()


def test_a_pin_is_no_prefix_of_digits() -> None:
    with pytest.raises(MissingPrerequisite, match="no TensorFlow wheel"):
        choose(request(tensorflow="2.1"), PYTHON)


def test_pins_of_packages_reach_pip_and_other_components_do_not() -> None:
    found = choose(request(keras="3.15", openmpi="5.0"), PYTHON).requirements
    assert "keras==3.15.*" in found
    assert not any("openmpi" in requirement for requirement in found)


def test_packages_of_the_site_are_locked_with_the_rest() -> None:
    plain = choose(request(), PYTHON)
    more = choose(dataclasses.replace(request(), packages=("pandas", "jupyterlab>=4")), PYTHON)
    assert more.requirements == (*plain.requirements, "pandas", "jupyterlab>=4")
    assert wheelhouse_folder(more, PYTHON) != wheelhouse_folder(plain, PYTHON)
    assert "tensorboard" in plain.requirements


def test_packages_of_a_stack_that_spack_builds_are_refused(tmp_path: Path) -> None:
    site = small_site(tmp_path)
    stack = dataclasses.replace(site.stacks["tensorflow"], packages=("pandas",))
    with pytest.raises(BadInput, match="packages") as caught:
        plan_spack(dataclasses.replace(site, stacks={"tensorflow": stack}))
    assert "backend: venv" in caught.value.hint


@pytest.mark.parametrize(
    ("package", "fine"),
    [("pandas", True), ("jupyterlab>=4,<5", True), ("dask[array]==2026.1", True),
     ("tensorflow-datasets", True), ("tensorflow", False), ("tensorflow-cpu==2.1", False),
     ("horovod", False), ("keras", False), ("--index-url=http://x", False),
     ("x @ http://evil/x.whl", False), ("a; import os", False), ("-r file", False)],
)  # fmt: skip
def test_only_names_and_versions_are_packages(tmp_path: Path, package: str, fine: bool) -> None:
    text = find_site_file("embedded").read_text()
    file = tmp_path / "site.yaml"
    file.write_text(text.replace("backend: venv", f"backend: venv\n    packages: ['{package}']"))
    if fine:
        assert load_site(file).stacks["tensorflow"].packages == (package,)
    else:
        with pytest.raises(BadInput) as caught:
            load_site(file)
        assert package in "\n".join(caught.value.details)


def test_a_python_without_wheels_is_told_why_for_each_row() -> None:
    with pytest.raises(MissingPrerequisite) as caught:
        choose(request(), Interpreter(Path("/usr/bin/python3.14"), "3.14.1"))
    assert len(caught.value.details) == len(facts.load("wheels")["tensorflow"])
    assert "Python 3.10, 3.11, 3.12 or 3.13" in caught.value.hint


def test_an_unknown_stack_gets_the_nearest_name(tmp_path: Path) -> None:
    with pytest.raises(BadInput) as caught:
        find_request(small_site(tmp_path), "tensorflw")
    assert caught.value.hint == "did you mean 'tensorflow'?"


def test_a_digest_sees_every_part_of_a_recipe() -> None:
    recipe = choose(request(), PYTHON)
    assert digest(recipe) == digest(choose(request(), PYTHON))
    assert digest(recipe) != digest(choose(request(tensorflow="2.18"), PYTHON))
    assert len(digest(recipe)) == 8


@pytest.mark.parametrize("content", ["", "nothing here\n", f"{LINE}\n{LINE}\n", f"# {LINE}\n"])
def test_an_edit_that_does_not_fit_exactly_once_is_an_error(tmp_path: Path, content: str) -> None:
    (tmp_path / "CMakeLists.txt").write_text(content)
    with pytest.raises(MissingPrerequisite, match="no-xla-ops"):
        apply_edit(tmp_path, Edit("no-xla-ops", "CMakeLists.txt", LINE, "why"))
    assert (tmp_path / "CMakeLists.txt").read_text() == content


def test_an_edit_takes_out_its_line_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "CMakeLists.txt").write_text(f"before\n  {LINE}\nafter\n")
    apply_edit(tmp_path, Edit("no-xla-ops", "CMakeLists.txt", LINE, "why"))
    assert (tmp_path / "CMakeLists.txt").read_text() == "before\nafter\n"
