"""The report says what the history holds, and nothing in it can run."""

import json
import re
from datetime import datetime, timedelta, timezone

from hpcdl.cli import main
from hpcdl.regress.answer import Finding, causes_of
from hpcdl.regress.formats import as_markdown
from hpcdl.regress.gate import ask
from hpcdl.regress.history import history_path, open_history
from hpcdl.regress.identity import Series
from hpcdl.regress.report import embedded_json, night_page, rows_of, view_of, when
from hpcdl.system.resources import folder
from tests.make import nights
from tests.make.results import METRIC, result
from tests.make.results import verdict as made_verdict
from tests.make.sites import shipped

SERIES = Series("throughput", "mlp-2x2-digits-fp32", "p100", "images_per_second", unit="images/s")
HOSTILE = "</script><script>alert(1)</script>\"'<img src=x onerror=alert(2)>&{{1234*4321}}\u2028"


def point(night, value=1000.0, **changes):
    own = {"reference": 1000.0, "low": 900.0, "release": "r1", "driver": "580"}
    own |= {"nodes": "p100-[01-02]", **changes}
    return result(nights.END + timedelta(days=night), value, **own)


def test_a_figure_has_a_nights_extremes_what_is_lost_and_where_release_and_bounds_change():
    after = {"release": "r2", "reference": 1200.0}
    points = [
        point(0),
        point(0, 1100.0),
        point(0, 900.0),
        point(1, None),
        point(2, **after),
        point(3, **after),
        point(4, None),
    ]
    values = view_of(SERIES, points, [point(5).time]).values
    assert (values["day"], values["value"]) == ([0, 2, 3], [1000, 1000, 1000])
    assert (values["low"][0], values["high"][0], values["runs"]) == (900, 1100, [3, 1, 1])
    assert values["lost"] == [1, 4, 5]
    assert values["release"] == [[0, "r1"], [1, "r2"]]
    assert values["bound"] == [[0, [1000, 900, None]], [1, [1200, 900, None]]]
    embedded_json(values)


def test_a_drop_that_the_gate_found_parts_the_levels_and_is_told_with_its_release():
    points = [point(n, 1000 + n % 7, release="r1") for n in range(60)]
    points += [point(n, 900 + n % 7, release="r2") for n in range(60, 70)]
    began = (nights.END + timedelta(days=60)).date()
    drop = Finding(SERIES, "drop", "-9.9%; with it: release r1 -> r2", began, -0.099, 903.0)
    values = view_of(SERIES, points, findings=[drop]).values
    assert [level[:3] for level in values["levels"]] == [[0, 59, 1003], [60, 69, 904]]
    change = values["changes"][0]
    assert (change["night"], change["kind"]) == (60, "drop")
    assert "release r1 -> r2" in change["text"]
    assert view_of(SERIES, points).values["levels"][0][:2] == [0, 69], "the page is no second judge"


def test_what_needs_a_person_stands_first():
    states = ["PASS", "STALE", "FAIL", "ERROR", "PASS"]
    verdicts = [made_verdict(status, case=str(n)) for n, status in enumerate(states)]
    found = [row["status"] for row in rows_of(verdicts)]
    assert found == ["ERROR", "FAIL", "STALE", "PASS", "PASS"]
    lines = as_markdown({"verdicts": verdicts}).splitlines()[2:]
    assert [line.split(" | ")[2] for line in lines] == found, "as the page"
    each = [
        made_verdict("PASS", check="storage", case=case, job={"nodes": node})
        for case, node in (("read", "n1"), ("read", "n2"), ("write", "n1"))
    ]
    assert [row["node"] for row in rows_of(each)] == ["n1", "n2", ""], "where a case has several"


def test_the_time_of_a_run_is_in_its_name():
    at = datetime(2026, 11, 21, 3, 10, tzinfo=timezone.utc).astimezone()
    assert when("20261121-031000Z-ab12") == f"{at:%Y-%m-%d %H:%M}"
    assert when("mine") == when("20261341-031000Z-ab12") == ""


def hostile_page(tmp_path):
    names = dict.fromkeys(("check", "case", "partition", "release"), HOSTILE)
    metric = METRIC | dict.fromkeys(("name", "unit", "source"), HOSTILE)
    job, reason = {"nodes": HOSTILE}, HOSTILE + "\ud800"
    verdict = made_verdict("FAIL", reason, **names, metrics=[metric], job=job, log=HOSTILE)
    columns = dict.fromkeys(
        ["check_name", "case_name", "partition", "metric", "unit", "release"], HOSTILE
    )
    with open_history(tmp_path / "h.sqlite") as history:
        history.add(
            result(point(0).time, float(n), **columns, status="FAIL", nodes=HOSTILE + str(n), job=n)
            for n in range(1, 4)
        )
        lost = {**verdict, "status": "ERROR", "metrics": []}
        run = {"run": HOSTILE, "seconds": 1.0, "verdicts": [verdict, lost]}
        answer = ask(history, now=nights.END)
        return night_page(run, history, site=HOSTILE, now=nights.END, answer=answer)


def test_hostile_names_make_no_element_of_the_page(tmp_path):
    text = hostile_page(tmp_path)
    assert text.count("<script>") == 1
    blocks = re.findall(r'<script type="application/json"[^>]*>(.*?)</script>', text, re.S)
    assert len(blocks) == text.count("<script") - 1
    for block in blocks:
        json.loads(block)
    assert "<img" not in text
    assert "5332114" not in text, "1234 * 4321, where a template takes it for an expression"


def test_a_page_names_its_own_script_by_hash_and_nothing_else(tmp_path):
    page = hostile_page(tmp_path)
    (policy,) = re.findall(r'http-equiv="Content-Security-Policy" content="([^"]*)"', page)
    assert policy.startswith("default-src 'none'")
    assert "unsafe" not in policy


def test_the_page_lists_causes_with_their_findings_and_can_be_searched_for_them(tmp_path):
    page = nights.page(tmp_path).read_text()
    with open_history(tmp_path / "history.sqlite", "x") as history:
        answer = ask(history, now=nights.END)
    listed = re.findall(r'<li class="\w+ cause" data-text="([^"]*)"', page)
    closing = [cause for cause in causes_of(answer) if cause.closes]
    assert len(listed) >= len(closing) > 0
    assert any("drop" in text and "release" in text for text in listed)
    assert all(finding.id in page for finding in (*answer.findings, *answer.warnings))
    figures_text = re.findall(r'class="time"[^>]*data-text="([^"]*)"', page)
    assert all(nights.RELEASES[2] in text for text in figures_text)
    assert "uPlot" in page
    assert "The MIT License" in (folder("templates") / "report" / "uplot" / "LICENSE").read_text()


def test_the_command_writes_the_page(tmp_path, capsys):
    site = shipped()
    with open_history(history_path(site), site.name) as history:
        history.add(nights.simulated(3))
    (tmp_path / "verdicts.json").write_text(json.dumps(nights.verdicts(tmp_path)))
    page = tmp_path / "night.html"
    words = ["check", "report", str(tmp_path), "--site", "embedded", "--format", "html"]
    assert main([*words, "--output", str(page)]) == 0
    assert capsys.readouterr().out == ""
    assert "38 of 40 checks pass" in page.read_text()
