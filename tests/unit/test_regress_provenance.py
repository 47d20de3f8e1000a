"""A result counts only for the run that wrote it; nothing of the future counts at all."""

import time
from dataclasses import replace
from datetime import datetime, timedelta, timezone

import pytest

from hpcdl.regress.gate import ask
from hpcdl.regress.history import open_history
from hpcdl.regress.result import Measured, of_this_run, read_result
from hpcdl.regress.verdict import judge
from hpcdl.results.faults import FaultKind, Status
from hpcdl.results.records import RESULT
from hpcdl.slurm.parse import JobRecord
from hpcdl.system.errors import BadInput
from hpcdl.train.result import job_of
from tests.make.results import series

NOW = 1_750_000_000.0
TOKEN = "hpcdl-" + "a" * 32
STARTED, ENDED = (time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(at)) for at in (NOW - 60, NOW))
RECORD = JobRecord(
    *(17, "job", "COMPLETED", "", 0, 0, "p100", "p100-[01-02]", 0),
    *(STARTED, STARTED, ENDED, "10:00", ""),
)
GOOD = {
    "job": {"id": "17", "token": TOKEN},
    "ended": NOW - 1,
    "layout": {"nodes": ["p100-02"], "gpu": "Tesla P100-PCIE-16GB"},
    "summary": {"images_per_second": 900.0},
}


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"job": {}}, "does not say which job"),
        ({"job": {"id": "16"}}, "job 16, not by 17"),
        ({"job": {"id": "17", "token": "hpcdl-" + "b" * 32}}, "another submission"),
        ({"layout": {"nodes": ["v100-01"]}}, "did not have: v100-01"),
        ({"layout": {"gpu": "Tesla K80"}}, "a GPU 'Tesla K80', and the partition has P100"),
        ({"ended": 1_580_000_000.0}, "1968 days before the job began"),
        ({"ended": NOW + 3600}, "3600 s after the job ended"),
        ({"ended": None}, "does not say when"),
    ],
)
def test_a_result_of_another_run_is_no_result(change, word):
    found = of_this_run(Measured({**GOOD, **change}), RECORD, TOKEN, "P100")
    (fault,) = found.faults
    assert (found.values, fault.kind) == ({}, FaultKind.FOREIGN)
    assert fault.kind.status is Status.ERROR
    assert word in fault.text


def test_a_job_finds_its_token_by_the_link_that_its_script_made(tmp_path):
    (tmp_path / ".job-hpcdl-old").symlink_to("16")
    (tmp_path / f".job-{TOKEN}").symlink_to("17")
    said = job_of({"SLURM_JOB_ID": "17", "HPCDL_JOB_DIR": str(tmp_path)})
    assert (said["id"], said["token"]) == ("17", TOKEN)


def test_a_result_in_other_units_is_none(tmp_path):
    file = tmp_path / "result.json"
    RESULT.write(file, GOOD)
    text = file.read_text()
    assert text.count('"images/s"') == 1
    file.write_text(text.replace('"images/s"', '"images/min"'))
    assert [fault.kind for fault in read_result(file).faults] == [FaultKind.UNIT]


def case(value, unit="images/s", most=None, wanted="", **row):
    reference = {
        "value": 1000.0,
        "unit": wanted or unit,
        "lower": -0.1,
        "upper": None,
        "runs": 5,
        "proof": "run",
        "source": "this test",
        **row,
    }
    metric = {"value": value, "unit": unit, "judged": True, "reference": reference, "most": most}
    return {"result": "success", "evidence": {"check": "c", "metrics": {"rate": metric}}}


@pytest.mark.parametrize(
    ("given", "kind"),
    [
        (case(1_400.0), None),
        (case(1_000_000.0), FaultKind.TOO_FAST),
        (case(1_600.0), FaultKind.TOO_FAST),
        (case(1_600.0, proof="published"), None),
        (case(20_000.0, proof="published"), FaultKind.TOO_FAST),
        (case(1_600.0, "GB/s", proof="published"), FaultKind.TOO_FAST),
        (case(1_600.0, machine="another one"), None),
        (case(500.0, lower=None, upper=0.2), FaultKind.TOO_FAST),
        (case(900.0, lower=None, upper=0.2), None),
        (case(1_000.0, unit="GB/s", wanted="images/s"), FaultKind.UNIT),
        (case(1_400.0, most=1_300.0), FaultKind.TOO_FAST),
        (case(1_400.0, most=1_300.0, machine="another one"), FaultKind.TOO_FAST),
        (case(1_200.0, most=1_300.0), None),
    ],
)
def test_what_no_hardware_gives_and_what_cannot_be_compared_is_an_error(given, kind):
    verdict = judge(given)
    assert [fault.kind for fault in verdict.faults] in ([], [kind])
    assert (verdict.status is Status.ERROR) == (kind is not None)


def nights(count, *, last=1000.0):
    levels = [last if count - night <= 5 else 1000.0 for night in range(count)]
    return list(series(levels, datetime.now(timezone.utc), spread=0.001, low=500.0))


def stamp(at):
    return at.isoformat(timespec="seconds")


@pytest.mark.parametrize(
    ("rows", "days", "kind"),
    [
        (nights(60, last=800.0), 2, "drop"),
        (nights(60, last=800.0), 400, "drop"),
        ([*nights(3)[:2], replace(nights(3)[2], status="ERROR", reason="node lost")], 2, "ERROR"),
        (nights(20)[:10], 3650, "old"),
    ],
)
def test_a_date_in_the_future_moves_no_baseline_and_opens_no_gate(tmp_path, rows, days, kind):
    now = datetime.now(timezone.utc)
    late = replace(nights(1)[0], run="later", time=stamp(now + timedelta(days=days)))
    with open_history(tmp_path / "h") as history:
        history.add(rows)
        # Past the refusal, as a clock that was wrong has left it.
        history.as_of(now + timedelta(days=9000)).add([late])
        answer = ask(history, now=now)
    assert [finding.kind for finding in answer.findings] == [kind]
    assert [finding.kind for finding in answer.warnings] == ["future"]


def test_what_is_dated_later_is_refused_and_nothing_of_it_is_added(tmp_path):
    now = datetime.now(timezone.utc)
    soon, late = (
        replace(nights(1)[0], run=f"in {seconds} s", time=stamp(now + timedelta(seconds=seconds)))
        for seconds in (30, 90)
    )
    with open_history(tmp_path / "h") as history:
        with pytest.raises(BadInput, match="dated in the future"):
            history.add([*nights(2), late])
        assert not history.series()
        assert history.add([soon]) == 1


def test_the_numbers_of_an_error_move_no_baseline(tmp_path):
    rows = nights(4)
    with open_history(tmp_path / "h") as history:
        history.add([*rows[:3], replace(rows[3], status="ERROR", value=1e9)])
        (series,) = history.series()
        assert max(night.value for night in history.nights(series)) < 1100
        assert history.points(series)[-1].value is None


def test_a_clock_at_the_limit_is_no_stranger():
    assert of_this_run(Measured(GOOD), RECORD, TOKEN, "P100").values == GOOD
    late = {**GOOD, "ended": time.time() + 30}
    assert not of_this_run(Measured(late), RECORD._replace(ended=""), TOKEN, "P100").faults
