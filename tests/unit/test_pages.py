"""The pages: links lead somewhere, commands exist, and nothing names a machine it was made on."""

import re
from pathlib import Path

import pytest

from hpcdl.cli import GROUPS, load_group
from hpcdl.cli.framework import Group

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")])


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\((?!https?:|#)([^)#\s]+)", page.read_text()):
        assert (page.parent / target).exists(), f"{name(page)} links to {target}"


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_commands_on_a_page_exist(page: Path) -> None:
    for group, command in re.findall(r"`(?:\$ )?hpcdl ([a-z]+) ?([a-z-]*)", page.read_text()):
        assert group in GROUPS, f"{name(page)}: hpcdl {group}"
        found = load_group(group)
        if isinstance(found, Group) and command and not command.startswith("-"):
            known = {one.name for one in found.commands}
            assert command in known or found.default, f"{name(page)}: hpcdl {group} {command}"


def test_every_page_is_reached_from_the_readme_or_another_page() -> None:
    linked = {
        (page.parent / target).resolve()
        for page in PAGES
        for target in re.findall(r"\]\((?!https?:|#)([^)#\s]+)", page.read_text())
    }
    lost = [name(page) for page in ROOT.glob("docs/*.md") if page.resolve() not in linked]
    assert not lost, f"no page links to {lost}"
