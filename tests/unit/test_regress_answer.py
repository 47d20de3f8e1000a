"""One answer everywhere: terminal, page, JSON, JUnit, Markdown, Prometheus and the gate."""

import json
import re
import xml.etree.ElementTree as ET
from dataclasses import replace
from datetime import datetime, timedelta, timezone

import pytest

from hpcdl.cli import main
from hpcdl.regress.answer import GateAnswer
from hpcdl.regress.gate import ask
from hpcdl.regress.history import open_history
from hpcdl.regress.verdict import WHOLE_RUN
from tests.make.results import METRIC, result, run_file, series, verdict

DROP, NIGHTS = 200, 330


def rows():
    """A series that lost 5 % of late and one that did so 130 nights ago; both pass tonight."""
    for case, since in (("recent", NIGHTS - 10), ("old", DROP)):
        levels = [950.0 if night >= since else 1000.0 for night in range(NIGHTS)]
        named = {"run": "r{}".format, "case_name": case, "low": 900.0, "reference": 1000.0}
        yield from series(levels, datetime.now(timezone.utc), **named)


@pytest.fixture
def told(tmp_path, monkeypatch):
    """What each output says of one history and one run."""
    monkeypatch.setenv("HPCDL_HISTORY", str(tmp_path / "h"))
    monkeypatch.setenv("HPCDL_SITE", "embedded")
    with open_history(tmp_path / "h", "embedded") as history:
        history.add(rows())
    metric = METRIC | {"name": "rate", "value": 950.0, "reference": 1000.0, "low": 900.0}
    each = [verdict("PASS", case=case, metrics=[metric], job={}) for case in ("recent", "old")]
    named = {"run": str(tmp_path / "20261120-010000Z-0000"), "site": "embedded"}
    run_file(tmp_path, *each, **named, time=1_790_000_000.5)
    found = {}
    for name in ("markdown", "junit", "prometheus", "json", "html"):
        words = ["check", "report", str(tmp_path), "--format", name, "--output"]
        assert main([*words, str(tmp_path / name)]) == 0
        found[name] = (tmp_path / name).read_text()
    return found


def test_every_output_tells_the_gates_finding_with_the_same_words_date_and_size(told, hpcdl):
    answer = json.loads(hpcdl("check", "gate", "--json", code=1).out)
    terminal = hpcdl("check", "gate", code=1).out
    (finding,) = answer["findings"]
    assert finding["name"] == "throughput/recent on p100, rate [images/s]"
    assert finding["change"] == pytest.approx(-0.05, abs=0.005)
    assert terminal.startswith("Gate closed: 1 finding in 2 series\n")
    assert finding["description"] in terminal
    assert json.loads(told["json"])["gate"] == answer
    assert "**Gate closed: 1 finding in 2 series**" in told["markdown"]
    assert finding["description"] in told["markdown"].replace("\\", "")
    page = told["html"].replace("&gt;", ">").replace("&#43;", "+")
    assert "<title>embedded: Gate closed: 1 finding in 2 series</title>" in page
    assert finding["description"] in page
    assert finding["id"] in page


def test_junit_fails_for_what_closes_the_gate(told):
    suite = ET.fromstring(told["junit"])
    assert [suite.get(name) for name in ("tests", "failures", "errors")] == ["3", "1", "0"]
    assert suite.find(".//failure").get("type") == "drop"


def test_prometheus_has_gate_findings_time_and_what_was_waived(told):
    lines = told["prometheus"].splitlines()
    assert 'hpcdl_check_gate_open{site="embedded"} 0' in lines
    assert 'hpcdl_check_timestamp_seconds{site="embedded"} 1790000000.5' in lines
    finding = re.compile(r'hpcdl_check_finding\{.*case="recent".*kind="drop".*\} 1')
    assert any(map(finding.match, lines))
    assert sum('waived="false"' in line for line in lines) == 2


def test_a_change_before_the_gates_window_alarms_nowhere(told):
    attention = told["html"].partition('class="attention"')[2].partition("</section>")[0]
    assert "throughput/recent on p100" in attention
    assert "throughput/old" not in attention


def test_the_night_of_a_run_that_went_wrong_does_not_end_a_series(tmp_path):
    now = datetime.now(timezone.utc)
    failed = {"metric": "", "unit": "", "status": "ERROR", "reason": "lost"}
    error = result(now - timedelta(days=60), None, case_name="recent", **failed)
    with open_history(tmp_path / "h", "x") as history:
        history.add([*rows(), error, replace(error, check_name=WHOLE_RUN, case_name="")])
        assert ask(history, now=now).ended == ()


@pytest.mark.parametrize(
    ("answer", "headline"),
    [
        (GateAnswer(0, (), 0), "Gate closed: there is no history"),
        (GateAnswer(0, (), 4), "Gate closed: there is no recent series"),
        (GateAnswer(4, (), 4), "Gate open: 4 series"),
    ],
)
def test_the_answer_in_a_few_words(answer, headline):
    assert answer.headline == headline
