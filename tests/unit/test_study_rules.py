"""The rules of studies, and their reports: what makes a yes, a no, and what is not decided."""

import json
import re
from dataclasses import replace

import pytest

from hpcdl.api import study as api
from hpcdl.system.chart import svg
from hpcdl.system.errors import BadInput
from hpcdl.workflows.study.report import as_data, as_text, write_report
from tests.make.results import LAYOUT, trained
from tests.make.studies import (
    RATES,
    findings_of,
    finish,
    jobs,
    judged_by,
    on_two_cores,
    planned,
    verdict,
)

SUMMARY = trained(1, 8.0)["summary"]
HALF_INPUT = {**SUMMARY, "phases": {"compute": 0.5, "input": 0.5}}
PAIR = "gpus=1 partition=p100,v100"
TWO = "gpus=1,2 model=alexnet,resnet50"
ALONE = [jobs(TWO, exclude=["model=alexnet gpus=1"])]
ALEXNET = {"model": "alexnet"}
SCORE = {"metrics": {"auroc": 0.9}}
ONE = {1: 8.0}
LATE, LATER = (ONE, {"summary": HALF_INPUT}), (ONE, {"of": ALEXNET, "summary": HALF_INPUT})


@pytest.fixture
def ruled(tmp_path):
    """Plans a study with one rule, a function of its results."""

    def make(holds, *matrices, **changes):
        return planned(tmp_path, *matrices, judge=judged_by(holds), **changes)

    return make


# What a study of some jobs measured, as calls of `finish`; the answer, and words of its evidence.
# A cell that a rule would look at, and that is missing, makes no yes.
HOLES = {
    "efficiency": lambda results: results.efficiency(2, 4) >= 0.1,
    "one rank": lambda results: results.one_rank_per_gpu(),
    "model": lambda results: results.prediction_error() <= 9.0,
    "metric": lambda results: results.metric("auroc") >= 0.5,
    "input": lambda results: results.share("input") <= 0.9,
}


@pytest.mark.parametrize("rule", HOLES)
def test_a_missing_cell_makes_no_yes_and_is_named(ruled, rule):
    plan = ruled(HOLES[rule])
    ok, words = verdict(plan)
    assert (ok, words.partition(";")[0]) == (None, "nothing was measured")
    finish(plan, {1: 8.0, 2: 15.0}, **SCORE)
    ok, words = verdict(plan)
    assert (ok, findings_of(plan).accepted) == (None, None)
    assert "training: gpus=4 model=resnet50" in words
    assert verdict(finish(plan, RATES, **SCORE))[0] is True


def case(rule, ok, words, *measured, over=""):
    """A rule, its answer and words of its evidence; what cells measured, and their matrix."""
    return rule, ok, words, measured, [jobs(over)] if isinstance(over, str) and over else over


TWO_RAN = {1: 8.0, 2: 15.0}
CASES = {
    "too little": case(lambda r: r.efficiency(2) >= 0.99, False, "at least 99.0%", (RATES, {})),
    "what is not looked at": case(
        lambda r: r.where(gpus=(1, 2)).one_rank_per_gpu(), True, "2 of 2 jobs", (TWO_RAN, {})
    ),
    "no one-rank run": case(
        lambda r: r.efficiency(2) >= 0.1,
        None,
        "nothing is known of training: gpus=2 model=alexnet",
        (TWO_RAN, {}),
        over=ALONE,
    ),
    "without the metric": case(
        lambda r: r.metric("auroc") >= 0.5,
        None,
        "nothing is known of training: gpus=1",
        ({2: 15.0, 4: 16.0}, SCORE),
        (ONE, {}),
    ),
    "storage-bound": case(
        lambda r: r.share("input") >= 0.15, True, "input takes 50.0%", LATE, over="gpus=1"
    ),
    "two that differ": case(
        lambda r: r.gap("partition") <= 0.12,
        False,
        "they differ by 100.0%",
        (ONE, {}),
        ({1: 4.0}, {"of": {"partition": "v100"}}),
        over=PAIR,
    ),
    "half of a pair": case(
        lambda r: r.ratio("partition", "v100", "p100") >= 0.5,
        None,
        "gpus=2 partition=p100",
        (ONE, {}),
        over="gpus=1,2 partition=p100,v100",
    ),
    "both of a pair": case(
        lambda r: r.ratio("partition", "v100", "p100") >= 0.5,
        True,
        "v100 over p100, times 1.00",
        (ONE, {}),
        over=PAIR,
    ),
    "one of two computes little": case(
        lambda r: r.share("compute") >= 0.9, False, "50.0%", (TWO_RAN, {}), LATER, over=TWO
    ),
    "the other one": case(
        lambda r: r.where(model="resnet50").share("compute") >= 0.9,
        True,
        "100.0%",
        (TWO_RAN, {}),
        LATER,
        over=TWO,
    ),
    "an assert of one's own": case(
        lambda r: all(one.rate >= 8 for one in r.measured), True, "", (RATES, {})
    ),
    "an assert of one's own, of some": case(
        lambda r: all(one.rate >= 8 for one in r.measured), None, "training: gpus=2", (ONE, {})
    ),
    "other weights": case(
        lambda r: r.equal("parameters", over="model"),
        False,
        "0 of 1 pairs",
        (ONE, {}),
        (ONE, {"of": ALEXNET, "parameters": 25_000_001}),
        over="gpus=1 model=alexnet,resnet50",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_a_rule_answers_by_what_was_measured(ruled, case):
    rule, ok, words, measured, matrices = CASES[case]
    plan = ruled(rule, *matrices)
    for rates, how in measured:
        finish(plan, rates, **how)
    answer, evidence = verdict(plan)
    assert answer is ok, evidence
    assert words in evidence


def test_one_judge_may_ask_for_what_the_other_scale_has(tmp_path):
    """What neither has is a mistake all the same."""
    plan = planned(tmp_path)
    full = replace(plan.scale, jobs=[jobs("gpus=4,8 model=resnet50 nodes=2")])
    found = findings_of(replace(plan, study=replace(plan.study, full=full)))
    assert [one.gpus for one in found.where(gpus=(4, 8)).missing] == [4]
    assert not found.where(nodes=2).cells
    with pytest.raises(BadInput, match="unknown gpus '16'"):
        found.where(gpus=16)


# ---- a busy machine ----


@pytest.mark.parametrize(("two", "ok"), [(15.0, True), (2.0, False)])
def test_predictions_are_judged_by_their_median_error(ruled, two, ok):
    plan = ruled(lambda results: results.prediction_error() <= 0.2, single_node=False)
    finish(plan, {1: 8.0, 2: two, 4: 30.0 if ok else 4.0})
    assert verdict(plan)[0] is ok


def test_a_busy_machine_decides_no_rule_that_compares_times(ruled):
    """Facts such as one rank per GPU do not depend on it."""
    plan = finish(ruled(lambda results: results.efficiency(2) >= 0.99), {1: 8.0, 2: 9.0, 4: 9.0})
    for others, answer, words in (
        ((0.02, 0.09), "no", ""),
        ((0.02, 0.34), "not decided", "had up to 34% of its cores (1 of 3 jobs)"),
    ):
        on_two_cores(plan, *others)
        found = findings_of(plan)
        assert (found.answer, found.busy[-len(words) :] if words else found.busy) == (answer, words)
        assert words in as_text(found)
        assert words in found.protocol.verdicts[0].evidence
    for cell in plan.cells:
        (cell.results / "others").write_text("nonsense")
    assert "nobody watched the machine" in as_text(findings_of(plan))
    wrong = ruled(lambda results: results.one_rank_per_gpu())
    finish(wrong, RATES, layout={**LAYOUT, "gpu_per_rank": 4})
    assert findings_of(wrong).answer == "no"


def test_a_measured_cell_that_breaks_a_rule_is_a_no_once_all_jobs_have_ended(ruled):
    plan = finish(ruled(lambda results: results.efficiency(2, 4) >= 0.99), {1: 8.0, 2: 8.0})
    on_two_cores(plan)
    assert verdict(plan)[0] is None
    plan.cells[2].results.mkdir(parents=True)
    for name, text in (("result.json", "{}"), ("exit_code", "0\n")):
        (plan.cells[2].results / name).write_text(text)
    assert verdict(plan)[0] is False


@pytest.mark.parametrize(
    ("single_node", "opened", "ok"),
    [(True, 0, True), (False, 0, False), (False, 1, True), (False, 4, False)],
)
def test_ranks_open_one_gpu_each_or_on_a_single_node_none(ruled, single_node, opened, ok):
    plan = ruled(lambda r: r.where(gpus=1).one_rank_per_gpu(), single_node=single_node)
    finish(plan, RATES, layout={**LAYOUT, "gpu_per_rank": opened})
    assert verdict(plan)[0] is ok


# ---- the report ----


def test_a_framework_that_is_not_installed_leaves_its_column_empty(tmp_path):
    ways = {"horovod": {}, "torch": {"launcher": "torch", "program": [api.PYTHON, "x.py"]}}
    plan = planned(tmp_path, *jobs("gpus=1,2", predict=()).each("framework", ways))
    found = findings_of(finish(plan, {1: 8.0, 2: 15.0}, of={"framework": "horovod"}))
    assert api.table(found, "All", "framework").rows == [
        {"cell": "gpus 1", "horovod": "8", "torch": "-"},
        {"cell": "gpus 2", "horovod": "15", "torch": "-"},
    ]
    scores = api.table(found, "All", "framework", lambda one: one.metrics.get("accuracy"))
    assert scores.rows[0] == {"cell": "gpus 1", "horovod": "-", "torch": "-"}


def test_a_report_shows_its_figure_its_missing_results_and_needs_nothing_else(tmp_path):
    plan = planned(tmp_path, report=lambda results: [api.rate(results), api.speedup(results)])
    found = findings_of(finish(plan, {1: 8.0, 2: 15.0}))
    paths = write_report(found, tmp_path / "report")
    text, figure = paths["report.md"].read_text(), paths["figure.svg"].read_text()
    assert figure.startswith("<svg")
    assert not re.search(r'(src|href)="', figure)
    assert text.index("Missing results:") < text.index("Acceptance rules:")
    assert "gpus=4 model=resnet50" in text
    assert "it has not been submitted" in text
    assert json.loads(paths["report.json"].read_text())["missing"][0]["values"]["gpus"] == "4"
    assert (found.accepted, as_data(found)["answer"]) == (None, "unfinished")
    assert "Missing results" in as_text(found)
    assert "accepted: unfinished" in text


def test_hostile_names_are_text_in_report_and_figure(tmp_path):
    over = "gpus=1 'model=<script>x</script>|[a](b)\x1b[31m'"
    report = lambda results: [api.rate(results), api.table(results, "T", "model")]  # noqa: E731
    plan = finish(planned(tmp_path, jobs(over, predict=()), report=report), {1: 8.0})
    paths = write_report(findings_of(plan), tmp_path / "report")
    for name in ("report.md", "figure.svg"):
        text = paths[name].read_text()
        assert "<script>" not in text
        assert "\x1b" not in text


@pytest.mark.parametrize(("single_node", "parts"), [(True, [100, 94, 50]), (False, [100, 94, 25])])
def test_efficiency_is_of_gpus_or_of_the_cores_that_all_ranks_share(tmp_path, single_node, parts):
    plan = finish(planned(tmp_path, single_node=single_node), {1: 8.0, 2: 15.0, 4: 8.0})
    on_two_cores(plan)
    found = findings_of(plan)
    told = [one["efficiency"] for one in as_data(found)["measured"]]
    assert told == pytest.approx([part / 100 for part in parts], abs=0.005)
    measured, predicted, *_ = api.speedup(found).curves
    assert [y for _, y in measured.points] == pytest.approx([1, 15 / 8, 1])
    assert predicted.style == "predicted"


def test_every_chart_is_drawn_also_of_nothing(tmp_path):
    """Phases are a row of parts for each cell."""
    plan = planned(tmp_path, jobs("gpus=1 model=mlp"))
    for _ in range(2):
        found = findings_of(plan)
        assert svg([api.rate(found), api.speedup(found)], "a caption").count("<g ") == 2
        finish(plan, {1: 8.0})
    (row,) = api.phases(findings_of(plan)).rows
    assert (row["cell"], row["compute (ms)"]) == ("training: gpus=1 model=mlp", "500 (100%)")
