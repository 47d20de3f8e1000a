"""What `hpcdl` says when something is wrong is what it said, command by command."""

import tempfile
from pathlib import Path

import pytest

from hpcdl.cli import GROUPS
from hpcdl.system.errors import ExitCode
from tests.golden.errors import TRACEBACK, cases, make, said

CASES = cases()


@pytest.fixture(scope="module")
def tmp():
    """The files that commands name, where any user may come: one has no permission."""
    with tempfile.TemporaryDirectory() as made:
        Path(made).chmod(0o755)
        make(Path(made).resolve())
        yield Path(made).resolve()


@pytest.mark.parametrize(("command", "text"), [c[1:] for c in CASES], ids=[c[0] for c in CASES])
def test_the_error_is_the_one_that_is_kept(command, text, tmp):
    """When this fails on purpose: `make golden`, then read the diff."""
    found = said(command, tmp)
    if "no wheels fit" in found and "no wheels fit" not in text:
        pytest.skip("TensorFlow has no wheels for this Python")
    assert found == text


def test_every_error_has_text_and_a_code_of_the_table_and_is_no_traceback():
    """And nine of ten tell the next step apart; the others have it in their one line."""
    codes = {*map(int, ExitCode), *range(20, 30)} - {ExitCode.OK}
    for name, _, text in CASES:
        status, _, line = text.partition(" ")
        assert int(status) in codes, name
        assert line, name
        assert TRACEBACK not in text, name
    assert sum("(no next step)" in text for _, _, text in CASES) <= len(CASES) / 9.7


def test_every_group_is_there():
    lines = [command for _, command, _ in CASES]
    assert [group for group in GROUPS if not any(f"hpcdl {group} " in line for line in lines)] == []
    assert len({name for name, _, _ in CASES}) == len(CASES)
