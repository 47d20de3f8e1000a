"""Pages made from data are up to date, and say what the data says."""

import pytest

from hpcdl.cli import GROUPS
from hpcdl.site.schema import site_schema
from hpcdl.system.errors import ExitCode
from tools.docs import DOCS, PAGES


@pytest.mark.parametrize("name", PAGES)
def test_the_committed_page_is_the_one_that_would_be_written(name: str) -> None:
    """When this fails: `make docs`."""
    assert (DOCS / name).read_text() == PAGES[name]()


def keys(schema: dict) -> set[str]:  # type: ignore[type-arg]
    found = set(schema.get("properties", {}))
    for part in [*schema.get("properties", {}).values(), schema.get("additionalProperties")]:
        found |= keys(part) if isinstance(part, dict) else set()
    return found


def test_the_page_of_the_site_file_has_every_key() -> None:
    for key in keys(site_schema()):
        assert f"`{key}`" in PAGES["site-file.md"]()


def test_the_page_of_exit_codes_has_every_code() -> None:
    for code in set(ExitCode) - {ExitCode.PREFLIGHT}:
        assert f"| {int(code)} | " in PAGES["exit-codes.md"]()
    assert "| 20-29 | " in PAGES["exit-codes.md"]()


@pytest.mark.parametrize("group", GROUPS)
def test_the_page_of_commands_has_every_group(group: str) -> None:
    assert f"## `hpcdl {group}" in PAGES["commands.md"]()


@pytest.mark.parametrize("name", PAGES)
def test_pages_are_tidy_markdown(name: str) -> None:
    text = PAGES[name]()
    assert text.endswith("\n")
    assert "\n\n\n" not in text
    for row in (line for line in text.splitlines() if line.startswith("|")):
        assert row.replace("\\|", "").count("|") >= 3
