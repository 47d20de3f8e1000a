"""A finding is accepted by name and reason, as a diff to review; one command undoes it."""

import json
from dataclasses import replace
from datetime import date, datetime, timedelta, timezone

import pytest
import yaml

from hpcdl.cli import main
from hpcdl.regress.answer import Acceptance, Rulings
from hpcdl.regress.gate import accept, accepted_file, ask, rulings_of
from hpcdl.regress.history import open_history
from hpcdl.regress.identity import Series
from hpcdl.regress.references import edits_of, load_references
from hpcdl.system.errors import BadInput
from tests.make.results import reference, result, series
from tests.make.sites import shipped

NAME = "throughput/resnet50 on p100, rate [images/s]"
WHO = ("--because", "new driver", "--by", "Ada")


@pytest.fixture
def site(tmp_path, monkeypatch):
    monkeypatch.setenv("HPCDL_SITE", "embedded")
    monkeypatch.setenv("HPCDL_HISTORY", str(tmp_path / "h"))
    return shipped()


def ago(**span):
    return (datetime.now(timezone.utc) - timedelta(**span)).isoformat(timespec="seconds")


def fill(site, tmp_path, *, last=0.95):
    """Nights of 1000 images/s, of 95 % of it since 95 nights, and of `last` of it since 3."""
    levels = [1000.0] * 55 + [950.0] * 92 + [1000 * last] * 3
    with open_history(tmp_path / "h", site.name) as history:
        history.add(series(levels, datetime.now(timezone.utc), low=800.0, release="r2"))


@pytest.fixture
def filled(site, tmp_path):
    """A site with such nights and a reference of before."""
    fill(site, tmp_path)
    edits_of(site, [reference()]).write()
    return site


def rate_of(site):
    (row,) = [one for one in load_references(site).values() if one.metric == "rate"]
    return row


def gate(site, tmp_path):
    with open_history(tmp_path / "h", site.name) as history:
        return ask(history, now=datetime.now(timezone.utc), rulings=rulings_of(site))


def test_an_accepted_level_is_normal_and_the_next_loss_is_seen(filled, tmp_path, hpcdl):
    (finding,) = gate(filled, tmp_path).findings
    hpcdl("check", "accept", finding.id, *WHO)
    (listed,) = json.loads(hpcdl("check", "accept", "--json").out)
    assert listed["series"]["check"] == "throughput"
    assert "new driver" in listed["said"]
    again = hpcdl("check", "accept", finding.id, *WHO, code=2).err
    assert f"first: hpcdl check accept {finding.id} --undo" in again
    answer = gate(filled, tmp_path)
    assert answer.open
    (shown,) = answer.accepted
    assert f"accepted by Ada on {date.today()}: new driver" in shown.accepted
    row = rate_of(filled)
    assert row.value == pytest.approx(950, rel=0.01)
    assert (row.lower, row.source) == (-0.2, "accepted by Ada: new driver")
    (tmp_path / "h").unlink()
    fill(filled, tmp_path, last=0.7)
    (finding,) = gate(filled, tmp_path).findings
    assert finding.change == pytest.approx(-0.26, abs=0.03)


@pytest.mark.parametrize(("size", "told"), [(0.9, True), (1.0, False)])
def test_a_loss_soon_after_an_accepted_level_is_seen_by_the_noise_of_before(
    filled, tmp_path, hpcdl, size, told
):
    """Without the nights before it, a level needed 20 nights before anything could be seen."""
    accepted = [Acceptance("x", SERIES, "Ada", "why", str(date.today()), since=day_of(8))]
    with open_history(tmp_path / "again", "site") as history:
        history.add(levels(size))
        answer = ask(history, now=datetime.now(timezone.utc), rulings=Rulings(accepted))
    assert bool([*answer.findings, *answer.warnings]) == told


SERIES = Series("throughput", "resnet50", "p100", "rate", "", "images/s", "site")


def day_of(back):
    return str((datetime.now(timezone.utc) - timedelta(days=back)).date())


def levels(size):
    """80 nights at 1,000, six at 950, which is accepted, and three at a part of that."""
    each = [1000.0] * 81 + [950.0] * 6 + [950 * size] * 3
    yield from series(
        each,
        datetime.now(timezone.utc) - timedelta(seconds=90),
        seed=4,
        spread=0.01,
        site="site",
        low=500.0,
    )


def test_a_renamed_series_is_retired_and_missed_by_no_gate(site, tmp_path, hpcdl):
    with open_history(tmp_path / "h", site.name) as history:
        old = [replace(one, site="", value=1000.0 + n % 7) for n, one in enumerate(levels(1.0))][
            :-10
        ]
        now = [replace(one, check_name="new", time=ago(days=89 - n)) for n, one in enumerate(old)]
        history.add([*old, *now, replace(now[-1], time=ago(hours=1), run="last")])
    assert [one.kind for one in gate(site, tmp_path).findings] == ["old"]
    hpcdl("check", "retire", "throughput/resnet50", *WHO)
    assert gate(site, tmp_path).open
    hpcdl("check", "accept", "throughput/resnet50", "--undo")
    assert not gate(site, tmp_path).open
    said = hpcdl("check", "retire", "throughput/resnet", *WHO, code=2).err
    assert "the history has no series 'throughput/resnet'" in said
    assert "throughput/resnet50" in said


def test_undone_by_one_command_all_is_as_before(filled, tmp_path):
    before = load_references(filled)
    assert main(["check", "accept", NAME, *WHO]) == 0
    assert load_references(filled) != before
    assert main(["check", "accept", NAME, "--undo"]) == 0
    assert load_references(filled) == before
    assert [one.name for one in gate(filled, tmp_path).findings] == [NAME]
    assert yaml.safe_load(accepted_file(filled).read_text())["accepted"] == []


def test_of_two_at_once_none_is_lost(filled, tmp_path):
    answer = gate(filled, tmp_path)
    given = Acceptance("", answer.findings[0].series, "Ada", "why", str(date.today()))
    with open_history(tmp_path / "h", filled.name) as history:
        late = accept(filled, history, answer, NAME, given)
    assert main(["check", "accept", NAME, *WHO, "--until", "2999-01-01"]) == 0
    with pytest.raises(BadInput, match="was changed meanwhile"):
        late.write()
    (row,) = yaml.safe_load(accepted_file(filled).read_text())["accepted"]
    assert row["until"] == "2999-01-01"


def test_a_finding_sleeps_until_its_day(filled, tmp_path):
    tomorrow = str(date.today() + timedelta(days=1))
    assert main(["check", "accept", NAME, *WHO, "--until", tomorrow]) == 0
    assert gate(filled, tmp_path).open
    with open_history(tmp_path / "h", filled.name) as history:
        later = datetime.now(timezone.utc) + timedelta(days=2)
        assert not ask(history, now=later, rulings=rulings_of(filled)).open


@pytest.mark.parametrize(
    ("day", "value", "answers"),
    [
        (str(date.today()), 1000.0, False),  # of the level before
        ("2020-01-01", 950.0, False),  # measured before
        (str(date.today()), 950.0, True),
    ],
)
def test_a_reference_of_the_new_level_answers_the_alarm(site, tmp_path, day, value, answers):
    fill(site, tmp_path)
    edits_of(site, [reference(date=day, value=value)]).write()
    answer = gate(site, tmp_path)
    assert answer.open == answers
    said = f"answered by the reference of {day}"
    assert [one.accepted.startswith(said) for one in answer.accepted] == [True] * answers


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["nobody", *WHO], "there is no finding 'nobody'"),
        ([NAME.replace("rate", "rat"), *WHO], NAME),
        ([NAME, "--by", "Ada"], "--because is missing"),
        ([NAME, "--because", "x"], "--by is missing"),
        ([NAME, *WHO, "--until", "2020-01-01"], "--until 2020-01-01 has passed"),
        ([NAME, "--undo"], "is not accepted"),
    ],
)
def test_what_cannot_be_accepted_is_said_in_a_line(filled, tmp_path, hpcdl, words, said):
    assert said in hpcdl("check", "accept", *words, code=2).err
    assert not accepted_file(filled).exists()


def test_of_a_thousand_findings_some_are_named(site, tmp_path, hpcdl):
    row = result(ago(), 1.0, status="FAIL")
    with open_history(tmp_path / "h", site.name) as history:
        history.add(replace(row, case_name=f"x{n}") for n in range(1000))
    told = hpcdl("check", "accept", "zzz", *WHO, code=2).err
    assert "and 1960 more" in told
    assert len(told) < 3000


def test_a_silent_series_has_no_level_to_accept(site, tmp_path, hpcdl):
    row = result(ago(days=10), 1.0, low=0.5)
    with open_history(tmp_path / "h", site.name) as history:
        history.add([row])
    assert "--until" in hpcdl("check", "accept", NAME, *WHO, code=2).err
    day = str(date.today() + timedelta(days=3))
    assert main(["check", "accept", NAME, *WHO, "--until", day]) == 0
    assert gate(site, tmp_path).open


def test_a_broken_file_is_refused_with_its_place(site):
    accepted_file(site).parent.mkdir(parents=True)
    accepted_file(site).write_text("schema: 1\naccepted:\n- {id: x, by: y}\n")
    with pytest.raises(BadInput, match="fault"):
        rulings_of(site)


def test_what_was_measured_anew_since_stays_when_an_acceptance_is_undone(filled, hpcdl):
    assert main(["check", "accept", NAME, *WHO]) == 0
    edits_of(filled, [reference(value=940.0, source="measured in June")]).write()
    assert "was set anew since, and stays" in hpcdl("check", "accept", NAME, "--undo").out
    row = rate_of(filled)
    assert (row.value, row.source) == (940.0, "measured in June")
