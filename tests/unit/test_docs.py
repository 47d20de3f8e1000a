"""Pages made from data are up to date, and say what the data says."""

import re
import shutil
import subprocess

import pytest

from hpcdl.cli import GROUPS, MACHINERY
from hpcdl.site.check import site_schema
from hpcdl.system.errors import ExitCode
from tools.docs import DOCS, PAGES
from tools.man import main
from tools.pictures import FIGURES, minute, terminal


@pytest.mark.parametrize("name", PAGES)
def test_the_committed_page_is_the_one_that_would_be_written(name):
    """When this fails: `make docs`."""
    assert (DOCS / name).read_text() == PAGES[name]()


def test_the_picture_of_the_readme_is_what_the_commands_print():
    """When this fails: `make pictures`."""
    assert (FIGURES / "terminal.svg").read_text() == terminal(minute())


ROOT = DOCS.parent
SEEN = [ROOT / "README.md", *(one for one in DOCS.rglob("*.md") if "evidence" not in one.parts)]
TOP = [ROOT / name for name in ("CONTRIBUTING.md", "MAINTAINERS.md", "SECURITY.md")]


def words(page):
    return len(page.read_text().split())


def paragraphs(text):
    """The prose of a page, without code, headings, tables and pictures; items of lists apart."""
    text = re.sub(r"(?ms)^ *```.*?^ *```$|^    .*?$|^ *<!--.*?-->|^#.*?$", "", text)
    for part in re.split(r"\n\s*\n|\n(?= *(?:[-*]|\d+\.) )", text):
        if not re.match(r"\s*(\||!\[)", part):
            yield part.strip().splitlines()


def test_what_users_read_has_35_000_words_and_no_page_has_1_800():
    """Measurements and their conditions belong to docs/evidence."""
    assert sum(map(words, SEEN)) <= 35_000
    assert len((ROOT / "README.md").read_text().splitlines()) <= 90
    assert [page.name for page in SEEN if page.name not in PAGES and words(page) > 1_800] == []


@pytest.mark.parametrize(
    "page", [ROOT / "README.md", *DOCS.rglob("*.md"), *TOP], ids=lambda page: page.name
)
def test_a_paragraph_has_four_lines_at_most(page):
    assert [one[0] for one in paragraphs(page.read_text()) if len(one) > 4] == []


def keys(schema):
    found = set(schema.get("properties", {}))
    for part in [*schema.get("properties", {}).values(), schema.get("additionalProperties")]:
        found |= keys(part) if isinstance(part, dict) else set()
    return found


def test_pages_have_every_key_every_exit_code_and_every_group():
    for key in keys(site_schema()):
        assert f"`{key}`" in PAGES["site-file.md"]()
    for code in {*map(str, map(int, set(ExitCode) - {ExitCode.PREFLIGHT})), "20-29"}:
        assert f"| {code} | " in PAGES["exit-codes.md"]()
    for group in GROUPS.keys() - MACHINERY:
        assert f"## `hpcdl {group}" in PAGES["commands.md"]()


def test_manual_pages_have_every_command_and_no_fault(tmp_path):
    main(tmp_path)
    assert {page.name for page in tmp_path.iterdir()} == {
        "hpcdl.1",
        *(f"hpcdl-{name}.1" for name in GROUPS),
    }
    if shutil.which("groff") is None:
        pytest.skip("groff is not installed")
    groff = ["groff", "-man", "-ww", "-Tascii", "-P-cbou"]
    for page in tmp_path.iterdir():
        shown = subprocess.run([*groff, str(page)], capture_output=True, text=True, check=True)
        assert not shown.stderr
        if page.name == "hpcdl-job.1":
            assert re.search(r"^ +--gpu-model MODEL$", shown.stdout, re.M)
            assert "hpcdl job submit --partition" in shown.stdout
