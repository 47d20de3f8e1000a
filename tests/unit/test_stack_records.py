"""What a publish must be able to show, and what stops it."""

import datetime
from dataclasses import replace

import pytest

from hpcdl import facts
from hpcdl.stack.publish import publish
from hpcdl.stack.records import (
    Records,
    Waiver,
    accept,
    open_questions,
    read_records,
    waive,
    waiver_of,
)
from hpcdl.stack.release import current_id
from hpcdl.system.errors import BadInput, CheckFailed
from tests.small_release import make_release, passing, silent, small_site

TODAY = datetime.date(2026, 11, 21)
CVE = "CVE-2024-10190"
GOOD = Waiver(CVE, "elastic jobs are not run at this site", "Ada", "2027-01-31")


@pytest.fixture
def site(tmp_path, monkeypatch):
    monkeypatch.setattr("hpcdl.stack.records.today", lambda: TODAY)
    return small_site(tmp_path)


def lock(*names):
    return tuple({"name": name, "version": "0.28.1"} for name in names)


def questions(site, *names, today=TODAY):
    release = make_release(site, "-".join(("r", *names)), lock=lock(*names))
    return list(open_questions(release, read_records(site), today))


def test_cpu_wheels_need_no_agreement_and_spack_s_horovod_is_as_vulnerable(site):
    assert questions(site, "tensorflow-cpu", "horovod") == []
    assert questions(site, "py-horovod", today=datetime.date(2030, 1, 1)) != []


@pytest.mark.parametrize(
    ("package", "agreement"),
    [
        ("cuda", "cuda"),
        ("nvidia-cudnn-cu12", "cudnn"),
        ("nvidia-cublas-cu12", "cuda"),
    ],
)
def test_nvidia_s_libraries_need_an_accepted_agreement(site, package, agreement):
    (question,) = questions(site, package)
    assert f"hpcdl stack accept-eula {agreement}" in question
    accept(site, agreement, "Ada")
    assert questions(site, package, "numpy") == []
    assert read_records(site).acceptances[0].by == "Ada"


def test_an_expired_waiver_stops_a_publish(site):
    waive(site, replace(GOOD, until=f"{TODAY}"))
    assert questions(site, "horovod") == []
    (question,) = questions(site, "horovod", "numpy", today=TODAY + datetime.timedelta(1))
    assert "expired on 2026-11-21" in question
    assert "hpcdl stack waive" in question


def test_the_release_with_an_open_question_is_not_published(site):
    make_release(site, "gpu", lock=lock("nvidia-cudnn-cu12"))
    with pytest.raises(CheckFailed, match="1 answer is missing") as caught:
        publish(site, "gpu", passing, say=silent)
    assert "cuDNN" in caught.value.details[0]
    assert current_id(site) is None


def test_hpcdl_s_own_waiver_is_dated_owned_and_true_of_the_recipe(site):
    waiver = waiver_of(CVE, Records())
    assert waiver.owner
    assert datetime.date.fromisoformat(waiver.until)
    assert "horovodrun" in waiver.because
    assert "bin/horovodrun" in facts.load("wheels")["horovod"]["leave_out"]
    waive(site, GOOD)
    assert waiver_of(CVE, read_records(site)).owner == "Ada", "the site's own counts instead"


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"weakness": "CVE-2024-1019"}, "unknown vulnerability"),
        ({"because": "no"}, "--because"),
        ({"because": "line one\nline two of the reason"}, "--because"),
        ({"owner": " "}, "--owner"),
        ({"kind": "not-reachable"}, "no kind of waiver"),
        ({"until": "soon"}, "not a day"),
        ({"until": "2026-02-31"}, "2026-02-31"),
        ({"until": "2026-11-20"}, "already past"),
        ({"until": "2036-01-01"}, "too far"),
    ],
)
def test_a_poor_waiver_is_refused(site, changes, complaint):
    with pytest.raises(BadInput, match=complaint):
        waive(site, replace(GOOD, **changes))
    assert read_records(site) == Records()


def test_an_unknown_agreement_gets_the_nearest_name(site):
    with pytest.raises(BadInput) as caught:
        accept(site, "cudn", "Ada")
    assert caught.value.hint == "did you mean 'cudnn'?"


def test_damaged_records_stop_a_publish_rather_than_count_as_none(site):
    waive(site, GOOD)
    path = site.paths.prefix / "records.json"
    make_release(site, "r")
    good = path.read_text()
    for text in (good.replace(GOOD.until, "for ever"), good.replace(GOOD.kind, "never"), "{}"):
        path.write_text(text)
        with pytest.raises(CheckFailed, match="is damaged"):
            publish(site, "r", passing, say=silent)


def test_a_dry_run_notes_nothing(site):
    accept(site, "cuda", "Ada", dry_run=True)
    waive(site, GOOD, dry_run=True)
    assert read_records(site) == Records()


def test_every_row_has_a_source():
    rows = [facts.load("records")[kind] for kind in ("agreements", "weaknesses")]
    assert all(row["source"] for table in rows for row in table.values())
