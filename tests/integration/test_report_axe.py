"""The report's page by axe-core, the checker of WCAG that browsers' own tools use.

It comes from npm once per machine and is kept in the cache; HPCDL_AXE names an axe.min.js of
one's own. Without either this is left out and counted.
"""

import os
from pathlib import Path

import pytest

from tests.integration import test_report_page
from tests.integration.test_report_page import drawn
from tests.npm import unpack

file, browser, page = test_report_page.file, test_report_page.browser, test_report_page.page
VERSION = "4.10.3"
RUN = """
axe.run(document, {resultTypes: ["violations"]}).then((found) => found.violations.map(
  (one) => `${one.impact} ${one.id}: ${one.help}: ${one.nodes.map((n) => n.target).join("; ")}`))
"""


@pytest.fixture(scope="module")
def axe(tmp_path_factory) -> str:
    """The source of axe-core."""
    if own := os.environ.get("HPCDL_AXE"):
        return Path(own).read_text()
    folder = unpack("axe-core", VERSION, tmp_path_factory.mktemp("axe"))
    return (folder / "axe.min.js").read_text()


@pytest.mark.parametrize(("colours", "width"), [("light", 360), ("dark", 1280)])
def test_axe_finds_nothing_that_keeps_anybody_out(page, axe, colours, width):
    page.prefer(colours)
    page.size(width, phone=width < 500)
    page.do("document.querySelector('.open').click()")
    for figure in ("figure.heat", "figure.lines", "figure.time"):
        drawn(page, figure)
    page.do(axe + "; 0")
    assert page.do(RUN) == []


def test_axe_sees_a_fault(page, axe):
    page.do("document.querySelector('button').replaceChildren()")
    page.do("document.querySelector('button').removeAttribute('aria-label')")
    page.do(axe + "; 0")
    assert any("button-name" in found for found in page.do(RUN))
