"""One word per check: what passes, and that nothing passes by being silent."""

import pytest

from hpcdl.regress.job_state import Watchdog, fault_of
from hpcdl.regress.verdict import judge, judge_tries, waive
from hpcdl.results.faults import Fault, FaultKind, Status
from hpcdl.slurm.parse import JobRecord

ROW = {"value": 100.0, "lower": -0.1, "upper": None, "runs": 5, "proof": "run",
       "source": "measured", "release": "r1", "machine": "m1"}  # fmt: skip


def case(value=100.0, row=ROW, **changes):
    metric = {"value": value, "unit": "images/s", "judged": True}
    if row is not None:
        metric["reference"] = row
    evidence = {"check": "throughput", "case": "mlp", "partition": "p100", "faults": [],
                "release": "r1", "metrics": {"images_per_second": metric}}  # fmt: skip
    evidence |= changes.pop("evidence", {})
    return {"result": "pass", "fail_phase": None, "fail_reason": None, "evidence": evidence,
            **changes}  # fmt: skip


def fault(kind, **data):
    """A fault as a check leaves it in its evidence."""
    return {"kind": kind, "text": "words", **data}


@pytest.mark.parametrize(("given", "status"), [
    (case(), Status.PASS),
    (case(90.0), Status.PASS),
    (case(89.9), Status.FAIL),
    (case(1e9), Status.PASS),
    (case(111.0, {**ROW, "upper": 0.1}), Status.FAIL),
    (case(row=None), Status.NO_REFERENCE),
    (case(row=None, result="fail", fail_phase="performance"), Status.NO_REFERENCE),
    (case(None), Status.ERROR),
    (case(float("nan")), Status.ERROR),
    (case(float("inf")), Status.ERROR),
    (case(row={**ROW, "release": "r0"}), Status.STALE),
    (case(row={**ROW, "driver": "550"}, evidence={"driver": "570"}), Status.STALE),
    (case(row={**ROW, "runs": 2}), Status.INSUFFICIENT),
    (case(50.0, {**ROW, "release": "r0"}), Status.FAIL),
    (case(evidence={"faults": [fault("few-steps")]}), Status.INSUFFICIENT),
    (case(evidence={"faults": [fault("few-steps"), fault("loss")]}), Status.FAIL),
    (case(evidence={"faults": [fault("loss"), fault("no-metric")]}), Status.ERROR),
    (case(evidence={"faults": [fault("loss")]}), Status.FAIL),
    (case(evidence={"faults": [fault("of a later version")]}), Status.FAIL),
    (case(result="fail", fail_phase="run"), Status.ERROR),
    (case(result="fail", fail_phase="setup"), Status.ERROR),
    (case(result="skip"), Status.ERROR),
    (case(result="abort"), Status.ERROR),
    (case(result="xpass"), Status.ERROR),
    ({}, Status.ERROR),
])  # fmt: skip
def test_every_ending_has_its_word(given, status):
    assert judge(given).status is status
    assert status is not Status.PASS or judge(given, "m2").status is Status.STALE, "another machine"


@pytest.mark.parametrize("words", [
    "insufficient data quality: accuracy 0.1", "missing accuracy", "node lost: its mind",
    "time-out: none", "the job ended in tears", "hangs: a picture", "no reference for this",
])  # fmt: skip
def test_a_checks_own_fault_is_a_failure_whatever_its_words(words):
    verdict = judge(case(evidence={"faults": [words]}))
    assert (verdict.status, verdict.reason) == (Status.FAIL, words)
    assert verdict.faults == (Fault(FaultKind.CHECK, words),)
    assert [one.ok for one in waive([verdict], ["throughput", "throughput/mlp"])] == [False]


def test_a_fault_keeps_its_numbers():
    (kept,) = judge(case(evidence={"faults": [fault("ranks", wanted=4, got=1.0)]})).faults
    assert kept == Fault(FaultKind.RANKS, "words", wanted=4, got=1.0)
    assert judge(case(50.0)).faults[0].as_data() == {
        "kind": "bound", "metric": "images_per_second", "wanted": 90.0, "got": 50.0,
        "text": "images_per_second 50 images/s is 50% below its reference 100, beyond the bound 90",
    }  # fmt: skip


@pytest.mark.parametrize("kind", FaultKind)
def test_only_what_says_nothing_of_the_software_can_be_waived(kind):
    verdict = judge(case(evidence={"faults": [fault(kind.value)]}))
    assert verdict.status is kind.status
    may = kind in {FaultKind.FEW_STEPS, FaultKind.FEW_RUNS, FaultKind.NO_REFERENCE,
                   FaultKind.STALE_REFERENCE}  # fmt: skip
    assert [one.ok for one in waive([verdict], ["throughput"])] == [may]


def test_a_rate_that_was_too_slow_may_be_measured_again_and_both_are_told():
    verdict = judge_tries([case(50.0), case(95.0)], any_fault=False)
    assert (verdict.status, verdict.metrics[0].value) == (Status.PASS, 95.0)
    assert "try 2; the first was FAIL: images_per_second 50 images/s is 50% below" in verdict.reason
    again = judge_tries([case(50.0), case(55.0)], any_fault=False)
    assert again.status is Status.FAIL
    assert again.reason.startswith("images_per_second 55 ")


@pytest.mark.parametrize("first", [
    case(evidence={"faults": [fault("loss")]}),
    case(50.0, evidence={"faults": [fault("loss")]}),
    case(None),
    case(result="fail", fail_phase="run"),
    case(result="abort"),
])  # fmt: skip
def test_whatever_else_went_wrong_once_stands_unless_somebody_asked_for_retries(first):
    alone = judge(first)
    assert judge_tries([first, case()], any_fault=False) == alone
    assert alone.status in {Status.FAIL, Status.ERROR}
    assert judge_tries([first, case()]).status is Status.PASS


@pytest.mark.parametrize(("names", "waived"), [
    (["throughput"], True), (["throughput/mlp"], True), (["through", "mlp", ""], False),
])  # fmt: skip
def test_only_what_lacks_a_fresh_reference_can_be_waived_and_only_by_its_name(names, waived):
    verdicts = [judge(case(row=None)), judge(case(1.0)), judge(case(None))]
    assert [v.ok for v in waive(verdicts, names)] == [waived, False, False]


def record(state, **changes):
    row = JobRecord(id=1, name="j", state=state, reason="None", exit_code=0, signal=0,
                    partition="p", nodes="", restarts=0, submitted="", started="", ended="",
                    time_limit="00:10:00", script="")  # fmt: skip
    return row._replace(**changes)


@pytest.mark.parametrize("state", ["PENDING", "RUNNING", "COMPLETING", "COMPLETED", "FAILED"])
def test_a_job_that_goes_on_or_ends_by_itself_is_judged_by_its_output(state):
    assert fault_of(record(state)) is None


@pytest.mark.parametrize(("state", "word"), [
    ("TIMEOUT", "time-out"),
    ("NODE_FAIL", "node lost"),
    ("CANCELLED", "cancelled"),
    ("OUT_OF_MEMORY", "memory"),
    ("BOOT_FAIL", "boot"),
    ("DEADLINE", "deadline"),
    ("PREEMPTED", "preempted"),
    ("SOMETHING_NEW", "SOMETHING_NEW"),
])  # fmt: skip
def test_every_other_ending_is_a_failure_with_its_state(state, word):
    fault = fault_of(record(state))
    assert word in fault.text
    assert (state, fault.kind.status) == (fault.got, Status.ERROR)


def test_a_job_that_slurm_forgot_or_queued_again_is_a_failure():
    assert "does not know" in str(fault_of(None))
    again = str(fault_of(record("PENDING", restarts=1), was_on="p100-02"))
    assert "node lost" in again
    assert "after it ran on p100-02" in again
    assert "(p100-02)" in str(fault_of(record("NODE_FAIL"), was_on="p100-02"))
    assert fault_of(record("RUNNING", restarts=1), allowed_restarts=1) is None


def test_silence_counts_from_the_last_sign_of_life():
    dog = Watchdog(limit=600)
    assert dog.silence("a", now=0.0) == 0
    assert dog.silence("a", now=20.0) == 20
    assert dog.silence("b", now=25.0) == 0
    assert dog.fault(dog.silence("b", now=60.0), lambda: False) is None
    assert "node lost" in str(dog.fault(35.0, lambda: True))
    assert "hangs" in str(dog.fault(601.0, lambda: False))
