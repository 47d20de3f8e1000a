"""One word per check: nothing passes by being silent; one slow node among many is named."""

import random
from dataclasses import replace
from datetime import datetime

import pytest

from hpcdl.regress import nodes as law
from hpcdl.regress.gate import ask
from hpcdl.regress.history import open_history
from hpcdl.regress.job_state import Watchdog, fault_of
from hpcdl.regress.nodes import find_slow_nodes, joined, key_of, name_slow_nodes, suspicious
from hpcdl.regress.verdict import MetricVerdict, Verdict, judge, waive
from hpcdl.results.faults import FaultKind, JobFault, Status
from hpcdl.slurm.execution import SINGLE_NODE
from hpcdl.slurm.parse import JobRecord
from tests.make.results import result

ROW = {
    "value": 100.0,
    "lower": -0.1,
    "upper": None,
    "runs": 5,
    "proof": "run",
    "source": "measured",
    "release": "r1",
    "machine": "m1",
}


def case(value=100.0, row=ROW, **changes):
    metric = {"value": value, "unit": "images/s", "judged": True}
    if row is not None:
        metric["reference"] = row
    evidence = {
        "check": "throughput",
        "case": "mlp",
        "partition": "p100",
        "faults": [],
        "release": "r1",
        "metrics": {"images_per_second": metric},
    }
    evidence |= changes.pop("evidence", {})
    return {
        "result": "pass",
        "fail_phase": None,
        "fail_reason": None,
        "evidence": evidence,
        **changes,
    }


def fault(kind, **data):
    """A fault as a check leaves it in its evidence."""
    return {"kind": kind, "text": "words", **data}


@pytest.mark.parametrize(
    ("given", "status"),
    [
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
        (case(result="skip"), Status.SKIP),
        (case(result="abort"), Status.ERROR),
        (case(result="xpass"), Status.FAIL),
        (case(result="xfail"), Status.XFAIL),
        ({}, Status.ERROR),
    ],
)
def test_every_ending_has_its_word(given, status):
    assert judge(given).status is status
    assert status is not Status.PASS or judge(given, "m2").status is Status.STALE, "another machine"


@pytest.mark.parametrize(
    ("number", "status", "reason"),
    [
        ([95.0, 100.0, -0.1, None, "MB/s"], Status.PASS, ""),
        ([85.0, 100.0, -0.1, None, "MB/s"], Status.FAIL, "beyond the bound 90"),
        # It closed the gate of a site with checks of its own, of which nobody had measured any.
        ([95.0, 0, None, None, "MB/s"], Status.PASS, "no reference yet for rate"),
        ([None, 0, None, None, "MB/s"], Status.ERROR, "missing metric: rate"),
    ],
)
def test_a_plain_check_needs_a_number_and_no_reference(number, status, reason):
    plain = judge({"name": "bw", "result": "pass", "perfvalues": {"here:gpu:rate": number}})
    assert plain.status is status
    assert reason in plain.reason


@pytest.mark.parametrize(
    "words",
    [
        "insufficient data quality: accuracy 0.1",
        "missing accuracy",
        "node lost: its mind",
        "time-out: none",
        "the job ended in tears",
        "hangs: a picture",
        "no reference for this",
    ],
)
def test_a_checks_own_fault_is_a_failure_whatever_its_words(words):
    verdict = judge(case(evidence={"faults": [words]}))
    assert (verdict.status, verdict.reason) == (Status.FAIL, words)
    assert verdict.faults == (JobFault(FaultKind.CHECK, words),)
    assert [one.ok for one in waive([verdict], ["throughput", "throughput/mlp"])] == [False]


def test_a_fault_keeps_its_numbers():
    (kept,) = judge(case(evidence={"faults": [fault("ranks", wanted=4, got=1.0)]})).faults
    assert kept == JobFault(FaultKind.RANKS, "words", wanted=4, got=1.0)
    assert judge(case(50.0)).faults[0].as_data() == {
        "kind": "bound",
        "metric": "images_per_second",
        "wanted": 90.0,
        "got": 50.0,
        "text": "images_per_second 50 images/s is 50% below its reference 100, beyond the bound 90",
    }


@pytest.mark.parametrize("kind", FaultKind)
def test_only_what_says_nothing_of_the_software_can_be_waived(kind):
    verdict = judge(case(evidence={"faults": [fault(kind.value)]}))
    assert verdict.status is kind.status
    may = kind in {
        FaultKind.FEW_STEPS,
        FaultKind.FEW_RUNS,
        FaultKind.NO_REFERENCE,
        FaultKind.STALE_REFERENCE,
    }
    assert [one.ok for one in waive([verdict], ["throughput"])] == [may]


def measured(value, node="n1", job=1, row=ROW, **changes):
    """A verdict on a run of a case that its check's name selects again."""
    verdict = judge(case(value, row, hashcode="abc", **changes))
    return replace(verdict, job={"id": job, "nodes": node})


@pytest.mark.parametrize(
    ("values", "status"),
    [
        ((50.0, 95.0, 96.0), Status.PASS),
        ((50.0, 55.0, 95.0), Status.FAIL),
        ((95.0, 50.0, 96.0), Status.PASS),
    ],
)
def test_all_runs_of_a_night_are_one_verdict_by_their_median(values, status):
    (verdict,) = joined([measured(value, job=at) for at, value in enumerate(values)])
    assert (verdict.status, verdict.metrics[0].value) == (status, sorted(values)[1])
    assert "median of 3 runs: " in verdict.reason
    assert [run["job"]["id"] for run in verdict.runs] == [0, 1, 2]


def test_what_is_slow_is_measured_again_and_errors_stand():
    slow, well = measured(50.0), measured(100.0)
    wrong = measured(None), measured(50.0, evidence={"faults": [fault("loss")]})
    assert suspicious([slow, well, *wrong], ()) == [slow]
    assert suspicious([slow, well], {key_of(well)}) == [slow, well]
    assert joined([wrong[0], well]) == [wrong[0]], "an error stands, whatever another run gives"


def test_a_further_run_that_went_wrong_is_told_and_counts_for_nothing():
    (verdict,) = joined([measured(50.0), measured(None), measured(95.0), measured(96.0)])
    assert verdict.status is Status.PASS
    assert "a further run: missing metric" in verdict.reason


def test_a_value_that_is_within_its_bound_again_may_still_be_stale():
    old = {**ROW, "release": "r0"}
    runs = [measured(value, row=old) for value in (50.0, 100.0, 100.0)]
    assert joined(runs)[0].status is Status.STALE


@pytest.mark.parametrize(
    ("others", "slow"),
    [((("n1", 52.0), ("n2", 99.0)), True), ((("n1", 99.0), ("n2", 99.0)), False)],
)
def test_a_slow_node_is_told_from_a_slow_release_by_runs_elsewhere(others, slow):
    runs = [measured(50.0), *(measured(value, node) for node, value in others)]
    (verdict,) = name_slow_nodes(joined(runs))
    assert any(one.got == "n1" for one in verdict.faults if one.kind is FaultKind.SLOW_NODE) == slow


def test_it_is_waived_by_its_name_alone():
    verdicts = [judge(case(row=None)), judge(case(1.0)), judge(case(None))]
    for names, waived in ((["throughput/mlp"], True), (["through", "mlp", ""], False)):
        assert [v.ok for v in waive(verdicts, names)] == [waived, False, False]


def record(state, **changes):
    row = JobRecord(1, "j", state, "None", 0, 0, "p", "", 0, "", "", "", "00:10:00", "")
    return row._replace(**changes)


@pytest.mark.parametrize("state", ["PENDING", "RUNNING", "COMPLETING", "COMPLETED", "FAILED"])
def test_a_job_that_goes_on_or_ends_by_itself_is_judged_by_its_output(state):
    assert fault_of(record(state)) is None


@pytest.mark.parametrize(
    ("state", "word"),
    [
        ("TIMEOUT", "time-out"),
        ("NODE_FAIL", "node lost"),
        ("CANCELLED", "cancelled"),
        ("OUT_OF_MEMORY", "memory"),
        ("BOOT_FAIL", "boot"),
        ("DEADLINE", "deadline"),
        ("PREEMPTED", "took its nodes"),
        ("SOMETHING_NEW", "SOMETHING_NEW"),
    ],
)
def test_every_other_ending_is_a_failure_with_its_state(state, word):
    fault = fault_of(record(state))
    assert word in fault.text
    assert (state, fault.kind.status) == (fault.got, Status.ERROR)


def test_a_job_that_slurm_forgot_or_queued_again_is_a_failure():
    assert "has no record of the job" in str(fault_of(None))
    again = str(fault_of(record("PENDING", restarts=1), was_on="p100-02"))
    assert "node lost" in again
    assert "after it ran on p100-02" in again
    assert "nodes p100-02" in str(fault_of(record("NODE_FAIL"), was_on="p100-02"))
    assert fault_of(record("RUNNING", restarts=1), allowed_restarts=1) is None


def test_silence_counts_from_the_last_sign_of_life():
    dog = Watchdog(limit=600)
    assert dog.silence("a", now=0.0) == 0
    assert dog.silence("a", now=20.0) == 20
    assert dog.silence("b", now=25.0) == 0
    assert dog.fault(dog.silence("b", now=60.0), lambda: False) is None
    assert "node lost" in str(dog.fault(35.0, lambda: True))
    assert "hangs" in str(dog.fault(601.0, lambda: False))


def verdict(node, value, status=Status.PASS):
    metric = MetricVerdict("images_per_second", value, "images/s", 100.0, 90.0)
    return Verdict("throughput", "mlp", "p100", status, metrics=(metric,), job={"nodes": node})


def nodes(count, scatter, seed=1):
    dice = random.Random(seed)
    return {f"n{index:02d}": dice.gauss(100.0, scatter) for index in range(count)}


def slower_than_the_rest(each):
    return law.slower_than_the_rest({node: (value,) for node, value in each.items()})


@pytest.mark.parametrize("count", [3, 4, 8, 40])
@pytest.mark.parametrize("seed", range(20))
def test_a_node_at_half_its_speed_is_found_among_any_number(count, seed):
    assert slower_than_the_rest(nodes(count, 2.0, seed) | {"n01": 50.0}) == ("n01",)


def test_among_many_a_node_slower_by_an_eighth_is_found_and_so_are_two():
    found = [slower_than_the_rest(nodes(16, 1.0, seed) | {"n07": 88.0}) for seed in range(50)]
    assert found.count(("n07",)) >= 48
    assert set(slower_than_the_rest(nodes(8, 1.0) | {"n02": 60.0, "n05": 55.0})) == {"n02", "n05"}


@pytest.mark.parametrize("count", [2, 3, 5, 10, 40])
def test_healthy_nodes_are_rarely_accused(count):
    accused = sum(bool(slower_than_the_rest(nodes(count, 2.0, seed))) for seed in range(1000))
    assert accused <= 5, f"{accused} of 1000 nights"


@pytest.mark.parametrize(
    ("each", "slow"),
    [
        ({}, ()),
        ({"a": 1.0}, ()),
        ({"a": 100.0, "b": 90.0}, ()),
        ({"a": 100.0, "b": 80.0}, ("b",)),
        ({"a": 0.0, "b": 0.0, "c": 0.0}, ()),
        ({"a": 100.0, "b": 100.0, "c": 99.0}, ()),
    ],
)
def test_few_nodes_need_a_clear_difference(each, slow):
    assert slower_than_the_rest(each) == slow


def test_a_slow_nodes_verdict_fails_and_names_it():
    night = [verdict("n1", 100.0), verdict("n2", 101.0), verdict("n3", 60.0), verdict("n4", 99.0)]
    named = name_slow_nodes(night)
    assert [v.status.value for v in named] == ["PASS", "PASS", "FAIL", "PASS"]
    said = "slow node: n3 is 40% slower than the others, 3 of them (images_per_second)"
    assert named[2].reason == said


def test_on_a_single_node_less_is_blamed_on_a_node():
    night = [verdict(f"n{n}", value) for n, value in enumerate([100.0, 100.0, 75.0])]
    assert [v.ok for v in name_slow_nodes(night)] == [True, True, False]
    assert all(v.ok for v in name_slow_nodes(night, SINGLE_NODE))


def test_jobs_on_several_nodes_and_nights_that_went_wrong_accuse_nobody():
    assert find_slow_nodes([verdict("n[1-2]", 10.0), verdict("n3", 100.0)]) == {}
    wrong = [verdict("n1", 100.0), verdict("n2", 100.0), verdict("n3", None, Status.ERROR)]
    assert name_slow_nodes(wrong) == wrong


def test_the_gate_sees_the_slow_node_whichever_result_is_last(tmp_path):
    row = result(nodes="n1", job=1)
    slow = replace(row, value=50.0, status="FAIL", reason="slow node: n2", nodes="n2", job=2)
    for number, order in enumerate(([row, slow], [replace(slow, job=1), replace(row, job=2)])):
        with open_history(tmp_path / f"{number}.sqlite") as history:
            history.add(order)
            answer = ask(history, now=datetime.fromisoformat(row.time))
        assert "slow node: n2" in [finding.description for finding in answer.findings]


def test_a_metric_of_which_nobody_knows_the_better_side_accuses_no_node():
    def warm(node, value):
        metric = MetricVerdict("temperature", value, "C", 50.0, 40.0, 60.0)
        return Verdict("heat", "", "p100", Status.PASS, metrics=(metric,), job={"nodes": node})

    assert find_slow_nodes([warm(f"n{n}", 50.0 - 5.0 * (n == 5)) for n in range(6)]) == {}
