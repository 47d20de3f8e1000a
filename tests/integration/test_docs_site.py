"""The documentation as a web site, in a real browser, from its files: `make site`."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.browser import axe_core, chromium

pytest.importorskip("mkdocs", reason="mkdocs is not installed (pip install 'hpcdl[site]')")
ROOT = Path(__file__).resolve().parents[2]
PAGES = ("index", "howto", "users", "commands", "lint", "evidence/studies")
SHOWN = (("light", 1280), ("dark", 1280), ("light", 400), ("dark", 768))
AXE = """axe.run(document, {resultTypes: ["violations"]}).then((found) => found.violations.map(
  (one) => `${one.id}: ${one.nodes.map((node) => node.target).join("; ")}`))"""
WIDER = "[...document.querySelectorAll('pre code')].filter(c => c.scrollWidth > c.clientWidth + 1)"


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    target = tmp_path_factory.mktemp("site")
    build = [sys.executable, "-m", "mkdocs", "build", "-q", "-d", str(target)]
    env = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    subprocess.run(build, cwd=ROOT, env=env, check=True)
    return target


@pytest.fixture(scope="module")
def axe(tmp_path_factory):
    return axe_core(tmp_path_factory.mktemp("axe"))


@pytest.fixture(scope="module")
def browser():
    with chromium() as page:
        yield page


@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_readable_at_every_width_and_asks_no_other_host(browser, site, axe, name):
    for colours, width in SHOWN:
        browser.prefer(colours)
        browser.size(width, phone=width < 500)
        browser.open((site / f"{name}.html").as_uri())
        scheme = "default" if colours == "light" else "slate"
        assert browser.do("document.body.dataset.mdColorScheme") == scheme
        assert browser.do("document.documentElement.scrollWidth") == width, "code scrolls inside"
        assert width < 1280 or browser.do(f"{WIDER}.length") == 0, "code fits"
        assert all(url.startswith(("file:", "data:")) for url in browser.requests)
        browser.do(axe)
        assert browser.do(AXE) == [], (colours, width)


def test_a_copied_terminal_is_its_commands_only(browser, site):
    browser.open((site / "users.html").as_uri())
    texts = (
        "[...document.querySelectorAll('[data-clipboard-text]')].map(b => b.dataset.clipboardText)"
    )
    first, second, *_ = browser.do(texts)
    assert first.startswith("module load tensorflow ")
    assert "job 4711" not in first
    assert "$ " not in first
    assert second.count("\n") == 2, "a line that goes on belongs to its command"


def test_the_search_works_from_files(browser, site):
    browser.size(1280)
    browser.open((site / "users.html").as_uri())
    browser.do("document.querySelector('[data-md-toggle=search]').click()")
    browser.do("document.querySelector('.md-search__input').focus()")
    browser.press(*"torchrun")
    found = """new Promise((done, fail) => {
      const end = Date.now() + 20000;
      const look = () => {
        const hits = document.querySelectorAll(".md-search-result__item a[href*=users]").length;
        if (hits || Date.now() > end) done(hits); else setTimeout(look, 100);
      };
      look();
    })"""
    assert browser.do(found) > 0
