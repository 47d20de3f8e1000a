"""The report in a real browser: alone in its file, readable by everyone, and fast to open.

axe-core, the checker of WCAG that browsers use, comes from npm once per machine; HPCDL_AXE names an
axe.min.js of one's own. Without either its tests are left out and counted.
"""

import time

import pytest

from tests.browser import axe_core, chromium
from tests.make import nights
from tests.unit.test_report import hostile_page


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    return nights.page(tmp_path_factory.mktemp("report"))


@pytest.fixture(scope="module")
def browser():
    with chromium() as page:
        yield page


@pytest.fixture
def page(browser, file):
    browser.errors.clear()
    browser.size(1280)
    browser.prefer("light")
    browser.open(file.as_uri())
    return browser


def until(page, question):
    deadline = time.monotonic() + 30
    while not page.do(question):
        assert time.monotonic() < deadline, question
        page.settle()


def drawn(page, figure):
    page.do(f"document.querySelector('{figure}').scrollIntoView({{behavior: 'instant'}})")
    until(page, f"document.querySelector('{figure} canvas') !== null")


def open_all(page):
    page.do("document.querySelector('.open').click()")
    drawn(page, "figure.time")


def test_it_asks_the_network_for_nothing_and_reports_no_error(page, file):
    open_all(page)
    assert (page.requests, page.errors) == ([file.as_uri()], [])


def test_only_figures_near_the_view_are_drawn(page):
    last = "[...document.querySelectorAll('figure.time')].pop()"
    assert page.do(f"{last}.querySelector('canvas')") is None
    page.do(f"{last}.scrollIntoView({{behavior: 'instant'}})")
    until(page, f"{last}.querySelector('canvas') !== null")


@pytest.mark.parametrize("width", [360, 768, 1280])
def test_nothing_is_wider_than_the_screen(page, width):
    drawn(page, "figure.time")
    page.size(width, phone=width < 500)
    page.do("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
    page.do("document.querySelectorAll('.open').forEach((one) => one.click())")
    drawn(page, "figure.time")
    page.settle()
    assert page.do("document.documentElement.scrollWidth") <= width


def test_the_switch_wins_over_the_system(page):
    page.prefer("dark")
    page.do("document.querySelector('[name=theme][value=light]').click()")
    assert page.do("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    page.do("document.querySelector('[name=theme][value=auto]').click()")
    assert page.do("getComputedStyle(document.body).backgroundColor") != "rgb(255, 255, 255)"


def test_a_row_opens_to_its_reason_and_names_its_log(page):
    page.do("document.querySelector('tr.row .open').focus()")
    page.press("Enter")
    detail = "document.querySelector('tr.detail:not([hidden])')"
    assert "13% below" in page.do(f"{detail}.querySelector('.reason').textContent")
    assert ".log" in page.do(f"{detail}.querySelector('.facts').textContent")


def test_everything_can_be_reached_by_key(page):
    page.press("Tab")
    assert page.do("document.activeElement.className") == "skip"
    assert page.do("document.activeElement.getBoundingClientRect().top >= 0")
    page.press("Enter", "Tab")
    reached = page.do("document.activeElement.closest('main') !== null")
    assert reached, "the skip link leads past the navigation"
    page.press("/", "r", "e", "s", "n", "e", "t")
    assert page.do("document.querySelectorAll('tr.row:not([hidden])').length") == 10
    assert page.do("[...document.querySelectorAll('figure.time:not([hidden])')].length") == 10
    assert page.do("document.querySelector('.shown').textContent") == "10 of 40 checks"
    page.do("document.querySelector('tr.row:not([hidden]) .open').focus()")
    page.press("ArrowDown")
    assert page.do("document.activeElement.getAttribute('aria-controls')") == page.do(
        "document.querySelectorAll('tr.row:not([hidden]) .open')[1].getAttribute('aria-controls')"
    )


def test_what_has_the_focus_is_seen_to_have_it(page):
    drawn(page, "figure.time")
    for chosen in ("tr.row .open", "figure.time .plot", "#search", ".chip", ".attention a"):
        page.do(f"document.querySelector('{chosen}').focus()")
        page.press("Home")
        width = "parseFloat(getComputedStyle(document.activeElement).outlineWidth)"
        assert page.do(width) >= 1, chosen


def test_a_figure_is_read_with_the_arrow_keys(page):
    drawn(page, "figure.time")
    page.do("document.querySelector('figure.time .plot').focus()")
    said = "document.activeElement.getAttribute('aria-valuetext')"
    assert page.do(said).startswith("21 Nov 2026: ")
    page.press("ArrowLeft")
    assert page.do(said).startswith("20 Nov 2026: ")
    page.press("Home")
    assert page.do(said).startswith("3 Sep 2026: ")
    assert "release tensorflow-2.20.0" in page.do(said)


@pytest.mark.parametrize("words", ["drop", "7dc6c03b", "p100-05"])
def test_the_filter_finds_words_releases_and_nodes(page, words):
    page.do("document.querySelector('#search').focus()")
    page.press(*words)
    shown = page.do(
        "document.querySelectorAll('figure:not([hidden]), li.cause:not([hidden])').length"
    )
    every = page.do("document.querySelectorAll('figure, li.cause').length")
    assert 0 < shown <= every


def test_each_figure_has_its_values_as_a_table(page):
    drawn(page, "figure.time")
    page.do("document.querySelector('figure.time details').open = true")
    until(page, "document.querySelectorAll('figure.time details tbody tr').length > 1")
    assert page.do("document.querySelectorAll('figure.time details thead th').length") > 2


def test_the_range_of_nights_can_be_chosen(page):
    drawn(page, "figure.time")
    most = "document.querySelector('figure.time .plot').getAttribute('aria-valuemax')"
    assert page.do(most) == "79"
    page.do("document.querySelector('[name=range][value=\"30\"]').click()")
    until(page, f"{most} === '29'")


def test_a_link_leads_to_the_figure_of_its_series(page):
    page.do("document.querySelector('.attention a[href^=\"#s\"]').click()")
    until(page, "document.activeElement.classList.contains('plot')")


def test_hostile_names_run_nothing(browser, tmp_path):
    (tmp_path / "hostile.html").write_text(hostile_page(tmp_path))
    browser.errors.clear()
    watch = "window.alert = () => { window.ran = 1; }"
    browser.call("Page.addScriptToEvaluateOnNewDocument", source=watch)
    browser.open((tmp_path / "hostile.html").as_uri())
    browser.do("document.querySelectorAll('.open').forEach((one) => one.click())")
    browser.do("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
    drawn(browser, "figure.time")
    browser.do("document.querySelector('figure.time .plot').focus()")
    browser.press("ArrowLeft")
    assert browser.do("window.ran") is None
    assert (browser.do("document.images.length"), browser.errors) == (0, [])


def test_a_script_from_elsewhere_is_refused(browser, file, tmp_path):
    """The policy holds even where escaping would have failed."""
    torn = file.read_text().replace("</main>", "<script>window.ran = 2</script></main>")
    (tmp_path / "torn.html").write_text(torn)
    browser.open((tmp_path / "torn.html").as_uri())
    assert browser.do("window.ran") is None
    browser.errors.clear()


def test_a_printed_page_has_every_figure(page):
    page.do("window.dispatchEvent(new Event('beforeprint'))")
    drawn = "[...document.querySelectorAll('figure .plot')].filter((one) => one.children.length)"
    all_of_them = page.do("document.querySelectorAll('figure .plot').length")
    assert page.do(f"{drawn}.length") == all_of_them > 40


AXE = """
axe.run(document, {resultTypes: ["violations"]}).then((found) => found.violations.map(
  (one) => `${one.impact} ${one.id}: ${one.help}: ${one.nodes.map((n) => n.target).join("; ")}`))
"""


@pytest.fixture(scope="module")
def axe(tmp_path_factory):
    return axe_core(tmp_path_factory.mktemp("axe"))


@pytest.mark.parametrize(("colours", "width"), [("light", 360), ("dark", 1280)])
def test_axe_finds_nothing_that_keeps_anybody_out(page, axe, colours, width):
    """Contrast is among what it asks for."""
    page.prefer(colours)
    page.size(width, phone=width < 500)
    open_all(page)
    shade = page.do("getComputedStyle(document.body).backgroundColor")
    assert (shade == "rgb(255, 255, 255)") is (colours == "light")
    page.do(axe)
    assert page.do(AXE) == []
