"""The tutorials: every command is run as the page has it, and prints what the page says.

What needs no TensorFlow is run each time; the whole pages, of minutes, by `make test-long`.
"""

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from hpcdl.system.resources import cache
from tests.homes import short_home
from tests.integration.conftest import clean_environment
from tests.shell_pages import Shell, matches, steps

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGES = ["user", "admin", "operations"]


@pytest.fixture
def shell() -> Iterator[Shell]:
    """A newcomer's shell: a home and a cluster of its own, the cache of this machine."""
    with short_home() as home:
        env = {
            **clean_environment(),
            "HOME": str(home), "HPCDL_HOME": str(home), "HPCDL_CACHE": str(cache()),
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        }  # fmt: skip
        place = home / "empty"
        place.mkdir()
        with Shell(env, place) as shell:
            yield shell


def follow(shell: Shell, page: str, text: str) -> None:
    for step in steps(text):
        said, status = shell(step.command)
        told = f"docs/{page}:{step.line}: $ {step.command}\nexits with status {status}:\n{said}"
        assert status == step.status, told
        assert matches(step.expected, said), f"{told}\nthe page says:\n{step.expected}"


@pytest.mark.cluster
@pytest.mark.parametrize("name", PAGES)
def test_the_first_steps_of_a_tutorial(name, shell):
    page = f"tutorial-{name}.md"
    begin, mark, rest = (DOCS / page).read_text().partition("<!-- long -->")
    assert mark
    assert list(steps(rest))
    follow(shell, page, begin)


@pytest.mark.long
@pytest.mark.stack
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", PAGES)
def test_a_tutorial_to_its_end(name, shell):
    page = f"tutorial-{name}.md"
    text = (DOCS / page).read_text()
    if name != "admin":  # what the page asks for before it begins
        for words in ("stack build", "stack publish --partition p100", "data make digits $DIGITS"):
            said, status = shell(
                f"DIGITS=$HPCDL_HOME/embedded/datasets/digits; export HPCDL_SITE=embedded; "
                f'hpcdl cluster up >/dev/null; eval "$(hpcdl cluster env)"; hpcdl {words}'
            )
            assert status == 0, said
    follow(shell, page, text)


def test_what_a_page_may_leave_open():
    first = "$ first   # exits with status 3\njob ... is   done\n...\nend\n"
    one, two = steps(f"```console\n{first}$ a \\\n> b\n```\n")
    assert (one.line, one.status, two.command, two.expected) == (2, 3, "a \\\nb", "")
    for said in ("job 7 is done\nend\n", "job 7, 8 is done\nmore\n\nmore\nend\n"):
        assert matches(one.expected, said)
    for said in ("job 7 is done\n", "job 7 is done\nend\nmore\n", "a job 7 is done\nend\n", ""):
        assert not matches(one.expected, said)
