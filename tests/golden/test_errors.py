"""What `hpcdl` says when something is wrong is what it said, command by command."""

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hpcdl.cli import GROUPS
from hpcdl.system.errors import ExitCode
from tests.golden.errors import cases, make, said

CASES = cases()


@pytest.fixture(scope="module")
def tmp() -> Iterator[Path]:
    """The files that commands name, where any user may come: one has no permission."""
    with tempfile.TemporaryDirectory() as made:
        Path(made).chmod(0o755)
        make(Path(made).resolve())
        yield Path(made).resolve()


@pytest.mark.parametrize("case", CASES, ids=[case["name"] for case in CASES])
def test_the_error_is_the_one_that_is_kept(case: dict[str, Any], tmp: Path) -> None:
    """When this fails on purpose: `make golden`, then read the diff."""
    found = said(case["command"], tmp)
    assert {"name": case["name"], "command": case["command"], **found} == case


def test_no_error_is_a_traceback() -> None:
    assert [case["name"] for case in CASES if "traceback" in case] == []


def test_every_error_has_text_and_a_code_of_the_table() -> None:
    codes = {*map(int, ExitCode), *range(20, 30)} - {ExitCode.OK}
    for case in CASES:
        assert case["status"] in codes, case["name"]
        assert case["first_line"], case["name"]


def test_every_group_is_there() -> None:
    lines = [case["command"] for case in CASES]
    assert [group for group in GROUPS if not any(f"hpcdl {group} " in line for line in lines)] == []
    assert len({case["name"] for case in CASES}) == len(CASES)
