"""A series is one thing: site, partition, environment, check, parameters, metric and unit."""

import json
import random
from datetime import datetime, timedelta, timezone

import pytest

from hpcdl.regress.drift import worse
from hpcdl.regress.formats import as_prometheus
from hpcdl.regress.gate import ask
from hpcdl.regress.history import open_history
from hpcdl.regress.identity import Night, better_of, name_of
from hpcdl.regress.nodes import name_slow_nodes
from hpcdl.regress.runner import Plain, with_evidence
from hpcdl.regress.verdict import MetricVerdict, Verdict, judge
from hpcdl.results.faults import FaultKind, Status
from tests.make import results

NOW = datetime(2026, 6, 1, tzinfo=timezone.utc)
KNOWN = Plain(
    jobs={
        "7": {"id": 7, "state": "COMPLETED", "exit_code": 0, "nodes": "p100-01"},
        "8": {"id": 8, "state": "FAILED", "exit_code": 3, "nodes": "p100-02"},
    },
    partitions={"p100": "p100"},
    releases={("p100", "tensorflow"): "r1"},
)


def result(night=0, **changes):
    row = {"check_name": "bw", "case_name": "size=1", "unit": "GB/s", "job": night}
    return results.result(NOW - timedelta(days=99 - night), **row | changes)


def judged(job=7, **changes):
    """The verdict of a check that knows nothing of hpcdl."""
    return judge(
        with_evidence(
            {
                "name": "bw_0",
                "display_name": "bw %size=1 %mode=read",
                "partition": "p100",
                "environ": "tensorflow",
                "jobid": str(job),
                "result": "success",
                "perfvalues": {"s:p100:rate": [42.0, 40.0, -0.1, None, "GB/s", "pass"]},
                **changes,
            },
            KNOWN,
        )
    )


def test_a_plain_check_has_name_parameters_environment_node_and_release():
    verdict = judged()
    assert (verdict.status, verdict.metrics[0].better) == (Status.PASS, "higher")
    assert (verdict.check, verdict.case) == ("bw", "size=1,mode=read")
    assert (verdict.environment, verdict.place) == ("tensorflow", "p100 (tensorflow)")
    assert (verdict.release, verdict.job["nodes"]) == ("r1", "p100-01")
    # What ReFrame adds to repeat or to distribute a check is no parameter.
    odd = "bw %size=1 %.repeat_no=2 %.nid=p100-01 ~s:p100+tensorflow"
    assert judged(display_name=odd).case == "size=1"
    # What -P gives is one: its values are series of their own.
    assert judged(display_name="bw %size=1 %.x=2").case == "size=1,x=2"


def test_the_exit_code_of_a_plain_checks_job_counts():
    verdict = judged(8)
    assert verdict.status is Status.ERROR
    assert [fault.kind for fault in verdict.faults] == [FaultKind.EXIT_CODE]
    assert "exit code 3" in verdict.reason


def test_environments_parameters_units_and_sites_are_series_of_their_own(tmp_path):
    rows = [
        result(),
        result(environment="gnu", job=1),
        result(case_name="size=2", job=2),
        result(unit="MB/s", run="other"),
        result(site="elsewhere", run="third"),
    ]
    with open_history(tmp_path / "h", "here") as history:
        assert history.add(rows) == 5
        assert [name_of(one) for one in history.series()] == [
            "bw/size=1 on p100, rate [GB/s]",
            "bw/size=1 on p100, rate [MB/s]",
            "bw/size=1 on p100 (gnu), rate [GB/s]",
            "bw/size=2 on p100, rate [GB/s]",
        ]
        assert {one.site for one in history.series()} == {"here"}
        assert all(len(history.nights(one)) == 1 for one in history.series())
    with open_history(tmp_path / "h") as history:
        assert len(history.series()) == 5


@pytest.mark.parametrize(
    ("unit", "low", "high", "said", "expected"),
    [
        ("images/s", None, None, "", "higher"),
        ("GFLOPS", 10.0, None, "", "higher"),
        ("percent", None, 12.0, "", "lower"),
        ("s", 1.0, 12.0, "", "lower"),
        ("s", None, None, "", ""),
        ("errors", None, None, "lower", "lower"),
        ("images/s", None, 12.0, "", "lower"),
    ],
)
def test_which_values_are_better(unit, low, high, said, expected):
    assert better_of(unit, low, high, said) == expected


def latency(night, factor=1.0):
    value = 10.0 * factor * (1 + 0.01 * random.Random(night).gauss(0, 1))
    return result(night, check_name="latency", unit="us", value=value, high=20.0)


@pytest.mark.parametrize(("factor", "said"), [(1.5, "rise: +49.4% since"), (0.7, "")])
def test_a_latency_that_grows_inside_its_bound_closes_the_gate(tmp_path, factor, said):
    with open_history(tmp_path / "h", "here") as history:
        history.add(latency(night, factor if night >= 90 else 1.0) for night in range(100))
        found = [f"{one.kind}: {one.description}" for one in ask(history, now=NOW).findings]
    assert [one[: len(said)] for one in found] == [said][: len(said)]


def test_a_failure_in_one_environment_is_not_hidden_by_a_pass_in_another(tmp_path):
    with open_history(tmp_path / "h", "here") as history:
        history.add(
            [
                result(99, environment="foss", status="FAIL", reason="slow", job=1),
                result(99, environment="intel", job=2),
            ]
        )
        (finding,) = ask(history, now=NOW).findings
    assert finding.name == "bw/size=1 on p100 (foss), rate [GB/s]"
    verdict = {"check": "bw", "case": "", "partition": "p100", "metrics": [], "waived": False}
    each = [
        verdict | {"environment": on, "status": status}
        for on, status in (("foss", "FAIL"), ("intel", "PASS"))
    ]
    lines = as_prometheus({"site": "here", "verdicts": each}).splitlines()
    assert [line[-1] for line in lines if line.startswith("hpcdl_check_st")] == ["1", "0"]


def test_a_change_of_times_is_told_in_times():
    start = NOW.date()
    times = [10.0 * (1.5 if n >= 60 else 1.0) + 0.1 * (n % 3) for n in range(70)]
    nights = [Night(start + timedelta(days=n), seconds) for n, seconds in enumerate(times)]
    change = worse(nights, lower=True)
    assert (change.word, change.began) == ("rise", start + timedelta(days=60))
    assert change.before == pytest.approx(10.1, rel=0.01)
    assert change.change == pytest.approx(0.5, abs=0.02)


def test_the_node_with_the_highest_latency_is_the_slow_one():
    def measured(node):
        value = 20.0 if node == 3 else 10.0 + 0.01 * node
        metric = MetricVerdict("half_round_trip", value, "us", high=30.0, better="lower")
        job = {"nodes": f"p100-0{node}"}
        return Verdict("latency", "", "p100", Status.PASS, job=job, metrics=(metric,))

    named = name_slow_nodes([measured(node) for node in range(1, 6)])
    assert [one.job["nodes"] for one in named if one.status is Status.FAIL] == ["p100-03"]


def test_the_history_tells_the_whole_identity(tmp_path, hpcdl, monkeypatch):
    with open_history(tmp_path / "h", "embedded") as history:
        history.add([result(environment="foss")])
    monkeypatch.setenv("HPCDL_HISTORY", str(tmp_path / "h"))
    where = ["--site", "embedded"]
    (shown,) = json.loads(hpcdl("check", "history", "show", "--json", *where).out)
    same = {"check": "bw", "case": "size=1", "partition": "p100", "metric": "rate"}
    assert shown == {**same, "environment": "foss", "unit": "GB/s", "site": "embedded"}
