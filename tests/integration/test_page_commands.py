"""README and the pages: every command is run as a page has it, and prints what the page says.

What needs minutes is run by `make test-long`, which takes every page whole.
"""

import re

import pytest

from hpcdl.system.resources import cache
from tests.followed_pages import ROOT, SCENES, follow, newcomer
from tests.homes import short_home
from tests.integration.conftest import clean_environment
from tests.shell_pages import matches, steps

PAGES = sorted(
    str(page.relative_to(ROOT))
    for page in [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]
    if list(steps(page.read_text()))
)


@pytest.fixture
def shell(release):
    """A newcomer's shell: a home and a cluster of its own, and the tests' release."""
    prefix = cache("tests", "prefix")
    with short_home() as home, newcomer(home, clean_environment(), prefix) as shell:
        yield shell


def test_every_page_with_commands_is_taken():
    assert set(PAGES) == set(SCENES)
    for page in [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]:
        for language, block in re.findall(
            r"^ *```(\w*)\n(.*?)^ *```", page.read_text(), re.M | re.S
        ):
            other = language == "console" or not re.search(r"^\s*(\$ )?hpcdl ", block, re.M)
            assert other, f"{page.name} has commands in a block that nobody runs:\n{block}"


@pytest.mark.cluster
@pytest.mark.stack
@pytest.mark.timeout(600)
@pytest.mark.parametrize("page", PAGES)
def test_a_page_is_true(page, shell):
    follow(shell, page, whole=False)


@pytest.mark.long
@pytest.mark.stack
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(
    "page", [page for page in PAGES if any(step.long for step in steps((ROOT / page).read_text()))]
)
def test_a_page_is_true_to_its_end(page, shell):
    follow(shell, page, whole=True)


def test_what_a_page_may_leave_open():
    first = "$ first   # exits with status 3\njob ... is   done\n...\nend\n"
    page = f"```console\n{first}$ a \\\n> b\n```\n<!-- long -->\n```console\n$ c\n```\n"
    one, two, three = steps(page)
    assert (one.line, one.status, two.command, two.expected) == (2, 3, "a \\\nb", "")
    assert (three.expected, one.long, three.long) == (None, False, True)
    for said in ("job 7 is done\nend\n", "job 7, 8 is done\nmore\n\nmore\nend\n"):
        assert matches(one.expected, said)
    for said in ("job 7 is done\n", "job 7 is done\nend\nmore\n", "a job 7 is done\nend\n", ""):
        assert not matches(one.expected, said)
