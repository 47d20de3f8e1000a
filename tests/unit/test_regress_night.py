"""The night itself: lost nodes and mistyped names are named, what a killed run left goes."""

import json
from contextlib import nullcontext
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path
from types import SimpleNamespace

import pytest

from hpcdl.regress.estimate import noise_of
from hpcdl.regress.exchange import _time, of_run
from hpcdl.regress.gate import ask
from hpcdl.regress.history import open_history
from hpcdl.regress.job_state import dead_wait, unavailable
from hpcdl.regress.references import edits_of, site_file
from hpcdl.regress.reframe_adapter import process
from hpcdl.regress.reframe_adapter.process import CheckRequest, Session, read_session
from hpcdl.regress.run_directory import RunDirectory, new_run, runs_directory, sweep
from hpcdl.regress.runner import (
    _measured_again,
    _Night,
    _partitions_without,
    _refuse_mistyped,
    _verdicts,
)
from hpcdl.regress.verdict import MetricVerdict, Verdict
from hpcdl.results.faults import FaultKind, JobFault, Status
from hpcdl.slurm import once
from hpcdl.slurm.execution import CLUSTER
from hpcdl.system.errors import BadInput, MissingPrerequisite
from tests.make.results import reference, result
from tests.make.sites import shipped, small_site
from tests.unit.test_regress_verdict import record

NOW = datetime.now(timezone.utc)
BOUND = JobFault(FaultKind.BOUND, "slow")
RATE = MetricVerdict("rate", 50.0, "MB/s", 100.0, 90.0)


@pytest.mark.parametrize(
    ("state", "reason", "node", "given_up"),
    [
        ("PENDING", "Resources", "IDLE+DRAIN", True),
        ("PENDING", "Priority", "DOWN*", True),
        ("PENDING", "ReqNodeNotAvail, UnavailableNodes:p100-02", "IDLE", True),
        ("PENDING", "Resources", "MIXED", False),
        ("RUNNING", "None", "DOWN*", False),
    ],
)
def test_a_job_for_a_node_that_takes_none_is_given_up(state, reason, node, *, given_up):
    fault = unavailable(record(state, reason=reason), {"p100-02": node})
    assert (fault is not None) == given_up
    assert fault is None or "p100-02" in fault.text


def test_what_waits_for_dead_nodes_is_known_from_what_waits_for_busy_ones():
    down = "Nodes required for job are DOWN, DRAINED or reserved for jobs in higher priority"
    assert dead_wait(record("PENDING", reason=down))
    assert not dead_wait(record("PENDING", reason="Resources"))


def rows(nodes, days):
    job = {"check_name": "storage", "case_name": "read", "unit": "MB/s", "low": 50.0}
    return [
        result(NOW - timedelta(days=days), 100.0, metric=metric, nodes=node, job=index, **job)
        for index, node in enumerate(nodes)
        for metric in ("read", "write")
    ]


@pytest.mark.parametrize(
    ("nights", "lost"),
    [
        ([("n1", "n2"), ("n1", "n2", "n3"), ("n1", "n2", "n3")], ["n3"]),
        ([("n1",), ("n2",), ("n3",)], []),  # on one node or another
    ],
)
def test_a_node_without_a_result_beside_the_others_closes_the_gate_once(tmp_path, nights, lost):
    with open_history(tmp_path / "h", "x") as history:
        history.add(row for days, nodes in enumerate(nights) for row in rows(nodes, days))
        found = ask(history, now=NOW).findings
    assert [(one.kind, one.node) for one in found] == [("lost node", node) for node in lost]
    assert all("n3 gave no result" in one.description for one in found)


def run_of(ran, tmp_path, **request):
    """What a run of these checks gives, when ReFrame selected nothing by the names asked for."""
    cases = tuple({"name": name, "display_name": name, "result": "success"} for name in ran)
    session = Session(0, cases, ())
    site = shipped()
    night = _Night(site, {}, CheckRequest(**request), CLUSTER, None, None)
    return _verdicts(night, RunDirectory(tmp_path), session)


@pytest.mark.parametrize("names", [(), ("storage",)])
def test_a_mistyped_name_is_an_error_and_no_night(tmp_path, names):
    found = run_of(names, tmp_path, names=("storge", *names))
    (night,) = run_of((), tmp_path, tags=("nightly",))
    assert night.faults[0].kind is FaultKind.RUN, "a tag that selects nothing went wrong"
    told = [one for one in found if "storge" in one.reason]
    assert [one.faults[0].kind for one in told] == [FaultKind.SELECTION]
    verdicts = [failed(one.reason, faults=[f.as_data() for f in one.faults]) for one in told]
    assert [*of_run({"run": "r", "verdicts": verdicts}, NOW.isoformat())] == []


LOADED = [{"@class": "storage", "tags": ["nightly", "smoke"]}]


@pytest.mark.parametrize(
    ("typed", "loaded", "said"),
    [
        ({"tags": ("smok",)}, LOADED, "no check has the tag smok"),
        ({"names": ("nope",)}, LOADED, "no check has the name nope"),
        ({"paths": (Path("dir"),)}, [], "there is no check in dir"),
        ({"tags": ("smoke",)}, LOADED, ""),  # not on this partition: a night that went wrong
    ],
)
def test_what_nobody_can_have_meant_is_bad_input_and_no_night(
    monkeypatch, tmp_path, typed, loaded, said
):
    monkeypatch.setattr(process, "described", lambda *_: loaded)
    asked = RunDirectory(tmp_path), CheckRequest(**typed)
    with pytest.raises(BadInput, match=said) if said else nullcontext():
        _refuse_mistyped(*asked, Session(0, (), ()))
    for well in (Session(0, (), ("a check file",)), Session(0, ({},), ())):
        _refuse_mistyped(*asked, well)


def test_options_that_no_training_has_are_refused_before_anything_runs(hpcdl):
    words = ("check", "run", "--site", "embedded", "--set", "delay=400")
    assert "did you mean 'delay_ms'" in hpcdl(*words, code=2).err


def test_a_report_is_of_the_newest_run_that_has_verdicts(hpcdl):
    checks = shipped().paths.work / "checks"
    whole, stopped = (checks / "runs" / f"2026110{day}-010000Z-0000" for day in (1, 2))
    for run in (whole, stopped):
        run.mkdir(parents=True)
    text = json.dumps({"schema": 2, "run": str(whole), "verdicts": []})
    (whole / "verdicts.json").write_text(text)
    (checks / "latest").symlink_to(stopped)
    told = hpcdl("check", "report", "--site", "embedded", "--format", "json").out
    assert json.loads(told)["run"] == str(whole)


@pytest.mark.parametrize("text", ["", "{", "{}", "[]", "null", '{"runs": null}'])
def test_a_report_that_reframe_did_not_finish_holds_no_case(tmp_path, text):
    run = RunDirectory(tmp_path)
    run.report.write_text(text)
    assert read_session(run, 1).cases == ()


def failed(reason, **changes):
    return {
        "check": "(run)",
        "case": "",
        "partition": "",
        "status": "ERROR",
        "waived": False,
        "reason": reason,
        "metrics": [],
        "faults": [],
        **changes,
    }


def test_two_problems_of_a_night_without_a_job_are_both_kept():
    broken = [failed("a.py: SyntaxError"), *[failed("b.py: ImportError")] * 2]
    (one,) = of_run({"run": "r", "verdicts": broken}, NOW.isoformat())
    assert one.reason == "a.py: SyntaxError; b.py: ImportError"
    tried = {"run": "r", "verdicts": broken, "settings": ["delay_ms=400"]}
    assert [*of_run(tried, NOW.isoformat())] == [], "with other settings it is no night"


def test_a_copied_verdict_file_is_of_its_own_night(tmp_path):
    run = {"schema": 2, "run": "/work/checks/runs/20260601-020000Z-abcd"}
    (tmp_path / "verdicts.json").write_text("{}")
    assert _time(tmp_path / "verdicts.json", run) == "2026-06-01T02:00:00+00:00"


def test_groups_of_a_partition_s_nodes_are_that_partition(tmp_path):
    site = shipped("mixed")
    name = next(name for name, one in site.partitions.items() if len(one.gpu_groups) > 1)
    labels = [part.label for part in site.by_groups([name])]
    found = [Verdict("throughput", "mlp", label, Status.PASS) for label in labels[1:]]
    told = _partitions_without(site, CheckRequest(partitions=(name,)), found)
    assert [one.partition for one in told] == labels[:1]


@pytest.mark.parametrize("value", [1e-300, 1e300])
def test_a_value_that_no_measurement_has_is_refused_and_ends_no_gate(value):
    metric = {"name": "rate", "value": value, "unit": "1/s"}
    with pytest.raises(BadInput, match="larger or smaller than any measurement"):
        list(of_run({"run": "r", "verdicts": [failed("", metrics=[metric])]}, NOW.isoformat()))
    assert noise_of([value] * 30, [], 0.0) is None


@pytest.fixture
def site(tmp_path, monkeypatch):
    monkeypatch.setattr(once, "by_token", lambda _: {})
    site = small_site(tmp_path / "prefix")
    return replace(site, paths=replace(site.paths, work=tmp_path / "work"))


def test_halves_of_files_of_killed_runs_go_and_those_of_a_living_run_stay(site):
    with new_run(site) as killed:
        (killed.path / ".settings.py.abcd1234").touch()
        (killed.path / ".verdicts.json.abcd1234").touch()
        (killed.path / "rfm.log").touch()
    with new_run(site) as living:
        (living.path / ".settings.py.abcd1234").touch()
        sweep(site)
        assert sorted(one.name for one in killed.path.iterdir()) == ["rfm.log"]
        assert (living.path / ".settings.py.abcd1234").exists()
    assert len(list(runs_directory(site).iterdir())) == 2


def test_half_a_file_of_references_goes_with_the_next_measurement(site):
    part = next(iter(site.partitions.values()))
    path = site_file(site, part.reference_set)
    path.parent.mkdir(parents=True)
    left = path.with_name(f".{path.name}.abcd1234")
    left.touch()
    edits_of(site, [reference(partition=part.name)]).write()
    assert path.exists()
    assert not left.exists()


@pytest.mark.parametrize("fault", [MissingPrerequisite("Slurm does not answer"), None])
def test_what_cannot_be_measured_again_is_told_and_ends_nothing(monkeypatch, fault):
    """Slurm that is away ends the further runs at once, and so does the end of the budget."""
    slow = Verdict("c", "x", "p100", Status.FAIL, faults=(BOUND,), metrics=(RATE,), hashcode="h")
    budget = SimpleNamespace(runs=3, minutes=10.0 if fault else -1.0)
    tried = []

    def again(*_):
        tried.append(1)
        raise fault

    night = SimpleNamespace(
        site=SimpleNamespace(remeasure=budget),
        request=CheckRequest(),
        execution=CLUSTER,
        again=again,
    )
    verdicts, notes = _measured_again(night, None, [slow], None)
    assert verdicts == [slow]
    assert notes == [
        "not measured again, "
        + ("Slurm does not answer" if fault else "-1 minutes are over")
        + ": c/x on p100"
    ]
    assert len(tried) == bool(fault)
