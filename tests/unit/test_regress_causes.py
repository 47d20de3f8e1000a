"""The gate speaks of causes, worst first, and sees what many series say together."""

import random
from dataclasses import replace
from datetime import date, datetime, timedelta, timezone
from types import SimpleNamespace

import pytest

from hpcdl.regress import gate
from hpcdl.regress.answer import (
    POOLED,
    Acceptance,
    Finding,
    GateAnswer,
    Rulings,
    causes_of,
    gate_text,
    pooled,
    tonight,
)
from hpcdl.regress.gate import ask
from hpcdl.regress.history import open_history
from hpcdl.regress.identity import Series
from hpcdl.regress.notify import notice_of
from tests.make.results import series as series_of

NIGHT, NOW = date(2026, 11, 20), datetime(2026, 11, 20, 4, tzinfo=timezone.utc)


def series(number, partition="p100"):
    return Series("throughput", f"case-{number}", partition, "rate", "", "images/s", "site")


def finding(number, kind="drop", **more):
    return Finding(series(number), kind, f"what {kind} says", **more)


def night_of_many(rng, lower, size, count=100, with_it="release r1 -> r2"):
    """What `count` series of a night say, of which some are lower by so much."""
    found = []
    for number in range(count):
        values = [1 + 0.02 * rng.gauss(0, 1) for _ in range(60)]
        runs = [(1 - size * (number < lower)) * (1 + 0.02 * rng.gauss(0, 1)) for _ in range(4)]
        # On the first night of a release, what is among the lowest ninth is measured again.
        runs = runs if runs[0] < 1 - 1.35 * 0.02 else runs[:1]
        values.append(sum(runs) / len(runs))
        found.append(tonight(series(number), values, len(runs), with_it, lower=False))
    return found


@pytest.mark.parametrize(("size", "least"), [(0.05, 20), (0.04, 18), (0.03, 9)])
def test_ten_of_100_series_that_drop_with_a_release_are_told_the_same_night(size, least):
    told = [pooled(night_of_many(random.Random(seed), 10, size), 0.05, NIGHT) for seed in range(20)]
    assert sum(bool(found) for found in told) >= least
    (first,) = next(found for found in told if found)
    assert first.kind == POOLED
    assert first.suspects == ("release r1 -> r2",)
    assert "of 100 series are lower tonight" in first.description
    assert first.description.endswith("; with it: release r1 -> r2")


def test_a_healthy_night_of_many_series_is_hardly_ever_told():
    """One night in 1,000 by the threshold."""
    told = [
        pooled(night_of_many(random.Random(f"h{n}"), 0, 0.0, with_it=""), 0.05, NIGHT)
        for n in range(150)
    ]
    assert sum(map(bool, told)) <= 2


def bad_night():
    """100 series on one night: a release, a node, a lost night, old references, failures."""
    release = [
        finding(n, began=NIGHT, change=-0.05 - n / 1000, suspects=("release r1 -> r2",))
        for n in range(40)
    ]
    node = [finding(n, "slow node", node="p100-03") for n in range(40, 45)]
    node.append(Finding(series(45), "FAIL", "slow node: p100-03 is 40% slower", node=""))
    rest = [Finding(series(n), "old", "the last result is of 2026-11-14") for n in range(50, 90)]
    rest += [Finding(series(n), "STALE", f"case {n}: measured with r0") for n in range(90, 96)]
    rest += [Finding(series(n), "ERROR", "node lost: p100-07") for n in range(96, 100)]
    return GateAnswer(100, (*rest, *node, *release), 100)


def test_a_bad_night_of_100_series_is_a_few_lines_worst_first():
    lines = gate_text(bad_night()).splitlines()
    assert len(lines) <= 12
    assert lines[0] == "Gate closed: 96 findings in 100 series"
    assert lines[1] == "ERROR of 4 series: node lost: p100-07"
    assert lines[2].startswith("node p100-03: 6 series, ")
    assert lines[3].startswith("drop of 40 series with release r1 -> r2, about -7.0%; most: ")
    assert "case-39" in lines[3], "the worst of them"
    assert "no results of 40 series: the last result is of 2026-11-14" in lines
    assert any(line.startswith("STALE: 6 series") for line in lines)
    assert len(gate_text(bad_night(), every=True).splitlines()) > 90


def test_a_line_fits_the_terminal_and_keeps_its_id(monkeypatch):
    monkeypatch.setattr("sys.stdout", SimpleNamespace(isatty=lambda: True))
    monkeypatch.setenv("COLUMNS", "70")
    one = replace(finding(1), description="a reason that is far too long " * 5)
    lines = [*gate_text(bad_night()).splitlines(), gate_text(GateAnswer(1, (one,), 1))]
    assert max(len(line) for text in lines for line in text.splitlines()) <= 70
    assert lines[-1].endswith(f"... [{one.id}]")


def test_every_finding_has_one_cause():
    causes = causes_of(bad_night())
    assert sum(len(one.findings) for one in causes) == 96


def test_a_snoozed_finding_is_not_over():
    one = finding(1, began=NIGHT, change=-0.05)
    before = {one.id: one.name, "gone": "throughput/gone"}
    answer = GateAnswer(2, (), 2, accepted=(one,))
    assert notice_of("site", answer, before, "")["over"] == [
        f"snoozed: {one.name}",
        "over: throughput/gone",
    ]


def results(nights=60, count=40, lower=8, size=0.04):
    """A history whose last night has a new release, with which some series are a bit slower."""
    new = ["r1", "r2"]
    for number in range(count):
        levels = [1000.0] * (nights - 1) + [1000 * (1 - size * (number < lower))]
        more = {"case_name": f"case-{number}", "run": "r{}".format, "low": 500.0}
        more |= {"release": lambda night: new[night == nights - 1]}
        yield from series_of(levels, NOW - timedelta(hours=1), seed=number, spread=0.02, **more)


@pytest.mark.parametrize(("lower", "told"), [(12, True), (0, False)])
def test_the_gate_and_its_notices_tell_what_is_lower_together(tmp_path, lower, told):
    with open_history(tmp_path / "h", "site") as history:
        history.add(results(lower=lower))
        answer = ask(history, now=NOW, rulings=Rulings())
    assert answer.open
    found = [one for one in answer.warnings if one.kind == POOLED]
    assert [one.suspects for one in found] == [("release r1 -> r2",)] * told
    assert (
        any("lower tonight" in line for line in notice_of("site", answer, {}, "")["lines"]) == told
    )


def test_the_gates_quick_reading_finds_what_the_full_one_does(tmp_path, monkeypatch):
    """Also of rows that somebody edited: the gate keeps nothing beside the history."""
    with open_history(tmp_path / "h", "site") as history:
        history.add(results(nights=80, lower=10, size=0.1))
        for edit in (0.9, 0.95):
            history._connection.execute(
                "UPDATE results SET value = value * ? WHERE case_name = 'case-30' AND time > ?",
                (edit, str(NIGHT - timedelta(days=6))),
            )
            quick = ask(history, now=NOW)
            with monkeypatch.context() as patch:
                patch.setattr(gate, "may_be_worse", lambda *_, **__: True)
                full = ask(history, now=NOW)
            assert quick.findings == full.findings
            assert "case-30" in {finding.series.case for finding in quick.findings}


def test_an_acceptance_is_no_cause():
    accepted = Acceptance("x", series(1), "Ada", "why", "2026-11-01", since="2026-11-01")
    assert causes_of(GateAnswer(1, (), 1, accepted=tuple(Rulings((accepted,)).levels(NIGHT)))) == []
