"""The rules of studies, and their reports: what makes a yes, a no, and what is not decided."""

import json
import re

import pytest

from hpcdl.api import study as api
from hpcdl.system.chart import svg
from hpcdl.workflows.study.report import as_data, as_text, write_report
from tests.studies import (
    LAYOUT,
    RATES,
    a_result,
    findings_of,
    finish,
    jobs,
    judged_by,
    on_two_cores,
    planned,
    verdict,
)

IMAGES = {"quarter": 20, "half": 40, "whole": 80}
PAIR = "gpus=1 partition=p100,v100"


@pytest.fixture
def ruled(tmp_path):
    """Plans a study with one rule, a function of its results."""

    def make(holds, *matrices, **changes):
        return planned(tmp_path, *matrices, judge=judged_by(holds), **changes)

    return make


@pytest.fixture
def sized(ruled):
    """A study whose epochs on a quarter, half and whole of a GB take so many seconds."""

    def make(seconds, memory=0.3, **changes):
        sets = {
            name: api.given(name, gigabytes=images / 80, images=images)
            for name, images in IMAGES.items()
        }
        matrix = jobs(f"gpus=1 model=resnet50 data={','.join(sets)}")
        rule = lambda results: results.growth_above_memory() <= 0.1  # noqa: E731
        plan = ruled(rule, matrix, data=sets, memory_gigabytes=memory, **changes)
        for name, took in seconds.items():
            warm = {"options": {"warmup_steps": 0}}
            finish(plan, {1: IMAGES[name] / took}, of={"data": name}, **warm)
        return plan

    return make


# A straight line through those below memory, and what comes after it.
@pytest.mark.parametrize(
    ("whole", "ok", "said"),
    [
        (10.0, True, "+0.1%"),
        (11.0, False, "+10.1%"),  # just beyond
        (13.0, False, "+30.1%"),
        (7.0, True, "-29.9%"),
    ],
)
def test_an_epoch_above_memory_lies_on_the_line_through_those_below(sized, whole, ok, said):
    """5 s on half of the data may be 10 on all of it: no epoch may grow faster than its data."""
    answer, words = verdict(sized({"quarter": 3, "half": 5, "whole": whole * 1.001}, 0.6))
    assert answer is ok
    assert f"{said} (resnet50, its epochs " in words  # how far these themselves differ
    assert "at most +10.0%" in words


@pytest.mark.parametrize(
    ("sizes", "memory", "said"),
    [
        (["quarter", "half", "whole"], 2.0, "a size above memory"),
        (["quarter", "half", "whole"], 0.3, "a line through two sizes below memory"),
        (["quarter", "whole"], 0.6, "a line through two sizes below memory"),
    ],
)
def test_without_a_line_or_a_size_beyond_it_linearity_is_not_decided(sized, sizes, memory, said):
    took = {"quarter": 3, "half": 5, "whole": 9}
    ok, words = verdict(sized({name: took[name] for name in sizes}, memory))
    assert ok is None
    assert said in words or "none is known" in words


def test_the_figure_draws_the_line_that_is_judged_dashed_above_memory(sized):
    found = findings_of(sized({"quarter": 3, "half": 5, "whole": 90}, 0.6))
    curves = {curve.style: curve for curve in api.time_by_size(found).curves if not curve.name}
    assert [y for _, y in curves["ideal"].points] == pytest.approx([1.0, 5.8])
    assert [y for _, y in curves["bound"].points] == pytest.approx([5.8, 10.5])


# Holes: a cell that a rule would look at, and that is missing, makes no yes.
RULES = {
    "efficiency": lambda results: results.efficiency(2, 4) >= 0.1,
    "one rank": lambda results: results.one_rank_per_gpu(),
    "model": lambda results: results.prediction_error() <= 9.0,
    "metric": lambda results: results.metric("auroc") >= 0.5,
    "input": lambda results: results.share("input") <= 0.9,
    "compute": lambda results: results.share("compute") >= 0.1,
}


@pytest.mark.parametrize("rule", RULES)
def test_a_missing_cell_makes_no_yes_and_is_named(ruled, rule):
    plan, summary = ruled(RULES[rule]), {"metrics": {"auroc": 0.9}}
    assert verdict(plan) == (None, "nothing was measured")
    finish(plan, {1: 8.0, 2: 15.0}, summary=summary)
    ok, words = verdict(plan)
    assert (ok, findings_of(plan).accepted) == (None, None)
    assert "training: gpus=4 model=resnet50" in words
    finish(plan, RATES, summary=summary)
    assert verdict(plan)[0] is True


@pytest.mark.parametrize(
    ("turns", "ok"),
    [
        ([(10.0, 10.5), (20.0, 19.0), (30.0, 30.6)], True),
        ([(10.0, 14.0), (20.0, 28.0), (30.0, 31.0)], None),
        ([(10.0, 14.0), (20.0, 29.0), (30.0, 41.0)], None),
        ([(10.0, 40.0), (11.0, 42.0), (12.0, 45.0)], False),
        ([(10.0, 40.0), (11.0, 10.0), (12.0, 45.0)], None),
    ],
    ids=["alike in each turn", "in one turn", "the pace changed as much", "always", "turned once"],
)
def test_partitions_are_compared_round_by_round(ruled, turns, ok):
    """What the machine's pace did between turns is in both."""
    plan = ruled(lambda results: results.gap("partition") <= 0.12, jobs(PAIR, repeats=3))
    for turn, rates in enumerate(turns):
        for name, rate in zip(("p100", "v100"), rates, strict=True):
            finish(plan, {1: rate}, turn, of={"partition": name})
    assert verdict(plan)[0] is ok


def test_a_gap_that_noise_could_make_is_not_decided(ruled):
    plan = ruled(lambda results: results.gap("partition") <= 0.12, jobs(PAIR))
    finish(plan, {1: 8.0})
    samples = a_result(1, 4.0)["samples"]
    samples["seconds"][::4] = [0.4] * 5
    finish(plan, {1: 4.0}, of={"partition": "v100"}, samples=samples)
    ok, words = verdict(plan)
    assert (ok, "spread" in words) == (None, True)


@pytest.mark.parametrize(
    ("turns", "ok"),
    [
        ([{1: 8.0, 2: 15.0}], True),
        ([{1: 8.0, 2: 15.0}, {1: 8.0, 2: 5.0}, {1: 3.0, 2: 6.0}], True),
        ([{1: 8.0, 2: 6.0}, {1: 8.1, 2: 6.1}, {1: 8.2, 2: 4.0}], False),
        ([{1: 8.0, 2: 6.0}, {1: 3.0, 2: 4.0}, {1: 3.1, 2: 2.0}], None),
    ],
    ids=["one round", "the fastest are quiet", "even and wrong", "uneven and wrong"],
)
def test_on_shared_cores_the_fastest_are_judged_and_a_busy_machine_decides_nothing(
    ruled, turns, ok
):
    matrix = jobs("gpus=1,2 model=resnet50", repeats=len(turns))
    plan = ruled(lambda results: results.prediction_error() <= 0.3, matrix)
    for turn, rates in enumerate(turns):
        finish(plan, rates, turn)
    on_two_cores(plan)
    answer, words = verdict(plan)
    assert answer is ok
    assert ("busy machine" in words) is (ok is None)


@pytest.mark.parametrize(
    "rule",
    [
        lambda results: results.gap("partition") <= 0.5,
        lambda results: results.ratio("partition", "v100", "p100") >= 0.5,
    ],
    ids=["gap", "ratio"],
)
def test_a_missing_half_of_a_pair_makes_no_yes(ruled, rule):
    """And a cell that has no other half in the matrix is nothing to wait for."""
    matrix = jobs("gpus=1,2,4 partition=p100,v100", exclude=["gpus=4 partition=p100"])
    plan = finish(ruled(rule, matrix), {1: 8.0})
    ok, words = verdict(plan)
    assert ok is None
    assert "gpus=2 partition=p100" in words
    assert "gpus=4" not in words
    finish(plan, {1: 8.0, 2: 15.0})
    assert verdict(plan)[0] is True


def test_a_measured_cell_that_breaks_a_rule_is_a_no_whatever_is_missing(ruled):
    """But not before all jobs have ended."""
    plan = ruled(lambda results: results.efficiency(2, 4) >= 0.99, single_node=False)
    finish(plan, {1: 8.0, 2: 8.0})
    assert verdict(plan)[0] is None
    (plan.cells[2].results).mkdir(parents=True)
    for name, text in (("result.json", "{}"), ("exit_code", "0\n")):
        (plan.cells[2].results / name).write_text(text)
    assert verdict(plan)[0] is False


@pytest.mark.parametrize("asked", [{"gpus": (1, 2)}, {"gpus": 2}])
def test_a_missing_result_that_a_rule_does_not_look_at_changes_nothing(ruled, asked):
    plan = ruled(lambda results: results.where(**asked).one_rank_per_gpu())
    assert verdict(finish(plan, {1: 8.0, 2: 15.0}))[0] is True


def test_of_jobs_that_repeat_one_is_a_measurement(ruled):
    plan = ruled(lambda results: results.one_rank_per_gpu(), jobs(repeats=2))
    assert verdict(finish(plan, RATES, turn=0))[0] is True


@pytest.mark.parametrize(
    ("single_node", "opened", "ok"),
    [(True, 0, True), (False, 0, False), (False, 1, True), (False, 4, False)],
)
def test_ranks_open_one_gpu_each_or_on_a_single_node_none(ruled, single_node, opened, ok):
    plan = ruled(lambda results: results.where(gpus=1).one_rank_per_gpu(), single_node=single_node)
    finish(plan, RATES, layout={**LAYOUT, "gpu_per_rank": opened})
    assert verdict(plan)[0] is ok


def test_a_series_without_its_one_rank_run_has_no_efficiency_to_say_yes_of(ruled):
    matrix = jobs("gpus=1,2 model=alexnet,resnet50", exclude=["model=alexnet gpus=1"])
    plan = ruled(lambda results: results.efficiency(2) >= 0.1, matrix)
    ok, words = verdict(finish(plan, {1: 8.0, 2: 15.0}))
    assert ok is None
    assert "nothing is known of training: gpus=2 model=alexnet" in words


def test_a_result_without_the_metric_makes_no_yes(ruled):
    plan = ruled(lambda results: results.metric("auroc") >= 0.5)
    finish(plan, {2: 15.0, 4: 16.0}, summary={"metrics": {"auroc": 0.9}})
    ok, words = verdict(finish(plan, {1: 8.0}))
    assert ok is None
    assert "nothing is known of training: gpus=1" in words


@pytest.mark.parametrize(("waited", "ok"), [(0.9, True), (0.0, False)])
def test_storage_bound_or_not_follows_from_what_ranks_wait_for(ruled, waited, ok):
    plan = ruled(lambda results: results.where(gpus=1).share("input") >= 0.15, jobs("gpus=1"))
    samples = {**a_result(1, 8.0)["samples"], "input": [waited] * 20}
    assert verdict(finish(plan, {1: 8.0}, samples=samples))[0] is ok


@pytest.mark.parametrize(
    ("rule", "ok"),
    [
        (lambda results: results.share("compute") >= 0.9, False),
        (lambda results: results.where(gpus=2).share("compute") >= 0.9, True),
        (lambda results: results.prediction_error() <= 0.3, False),
        (lambda results: results.where(model="alexnet").prediction_error() <= 0.3, False),
        (lambda results: results.where(model="resnet50").prediction_error() <= 0.3, True),
        (lambda results: all(one.rate >= 8 for one in results.where(gpus=1).measured), True),
    ],
)
def test_a_rule_judges_the_cells_that_it_chooses(ruled, rule, ok):
    """AlexNet that computes half of each step and is slow on 2, ResNet-50 that does all well."""
    matrix = jobs("gpus=1,2 model=alexnet,resnet50", predict=(4,))
    plan = ruled(rule, matrix, single_node=False)
    samples = a_result(1, 8.0)["samples"]
    samples["input"] = samples["compute"]
    for name, second in (("alexnet", 1.0), ("resnet50", 15.0)):
        more = {"samples": samples} if name == "alexnet" else {}
        finish(plan, {2: second}, of={"model": name}, model=name)
        finish(plan, {1: 8.0}, of={"model": name}, model=name, **more)
    assert verdict(plan)[0] is ok


def test_rates_of_different_kinds_of_gpus_do_not_compare(ruled):
    plan = ruled(lambda results: results.gap("partition") <= 0.12, jobs(PAIR), single_node=False)
    ok, words = verdict(finish(plan, {1: 8.0}))
    assert ok is None
    assert "on GPUs of one kind they differ by: none is known" in words


# ---- frameworks side by side, and the report ----

PROGRAMS = {"horovod": api.Program(), "torch": api.Program("torch", [api.PYTHON, "x.py"])}
HOROVOD, TORCH = {"framework": "horovod"}, {"framework": "torch"}


@pytest.fixture
def side_by_side(ruled):
    """A study of two frameworks on one and two ranks, with the rule of weights."""

    def make(models="resnet50"):
        return ruled(
            lambda results: results.equal("parameters", over="framework"),
            jobs(f"framework=horovod,torch gpus=1,2 model={models}", predict=()),
            frameworks=PROGRAMS,
            series=["framework", "model"],
        )

    return make


def rows_of(plan, value="rate"):
    return api.table(findings_of(plan), "All", "framework", value).rows


def test_a_framework_that_is_not_installed_leaves_its_column_empty(side_by_side):
    plan = finish(side_by_side(), {1: 8.0, 2: 15.0}, of=HOROVOD)
    assert rows_of(plan) == [
        {"cell": "gpus 1", "horovod": "8", "torch": "-"},
        {"cell": "gpus 2", "horovod": "15", "torch": "-"},
    ]
    assert len(findings_of(plan).missing) == 2
    values = {row[name] for row in rows_of(plan, "accuracy") for name in ("horovod", "torch")}
    assert values == {"-"}, "no accuracy was measured"


@pytest.mark.parametrize(
    ("other", "names"),
    [("resnet50", {"net", "resnet50"}), ("theirs:net", {"my.models:net", "theirs:net"})],
)
def test_a_model_of_a_module_has_its_short_name_where_that_is_no_others(side_by_side, other, names):
    found = findings_of(finish(side_by_side(f"my.models:net,{other}"), {1: 8.0, 2: 15.0}))
    assert {found.shown("model", one.values["model"]) for one in found.measured} == names


@pytest.mark.parametrize(("parameters", "ok"), [(25_000_000, True), (25_000_001, False)])
def test_a_network_has_as_many_weights_in_every_framework(side_by_side, parameters, ok):
    plan = finish(side_by_side(), {1: 8.0, 2: 15.0}, of=HOROVOD)
    finish(plan, {1: 7.0, 2: 13.0}, of=TORCH, parameters=parameters)
    assert verdict(plan)[0] is ok


def test_a_report_shows_its_figure_its_missing_results_and_needs_nothing_else(tmp_path):
    plan = planned(tmp_path, report=lambda results: [api.rate(results), api.speedup(results)])
    found = findings_of(finish(plan, {1: 8.0, 2: 15.0}))
    paths = write_report(found, tmp_path / "report")
    text, figure = paths["report.md"].read_text(), paths["figure.svg"].read_text()
    assert figure.startswith("<svg")
    assert not re.search(r'(src|href)="', figure)
    assert text.index("## Missing results") < text.index("## Acceptance")
    assert "gpus=4 model=resnet50" in text
    assert "it has not been submitted" in text
    assert json.loads(paths["report.json"].read_text())["missing"][0]["values"]["gpus"] == "4"
    assert (found.accepted, as_data(found)["answer"]) == (None, "unfinished")
    assert "cells without a measurement" in as_text(found)
    assert "Accepted: **unfinished**" in text


def test_hostile_names_are_text_in_report_and_figure(tmp_path):
    over = "gpus=1 'model=<script>x</script>|[a](b)\x1b[31m'"
    report = lambda results: [api.rate(results), api.table(results, "T", "model")]  # noqa: E731
    plan = finish(planned(tmp_path, jobs(over, predict=()), report=report), {1: 8.0})
    paths = write_report(findings_of(plan), tmp_path / "report")
    for name in ("report.md", "figure.svg"):
        text = paths[name].read_text()
        assert "<script>" not in text
        assert "\x1b" not in text


def test_a_busy_machine_decides_no_rule_that_compares_times(ruled):
    """Facts such as one rank per GPU do not depend on it."""
    plan = ruled(lambda results: results.efficiency(2) >= 0.99)
    finish(plan, {1: 8.0, 2: 9.0, 4: 9.0})
    answers = []
    for load in (0.1, 9.0):
        on_two_cores(plan, load)
        found = findings_of(plan)
        answers.append(found.answer)
        assert ("a load of 9 on 2 cores" in as_text(found)) is (load > 1)
    assert answers == ["no", "not decided"]
    assert "the machine was busy" in found.protocol.verdicts[0].evidence
    wrong = ruled(lambda results: results.one_rank_per_gpu())
    finish(wrong, RATES, layout={**LAYOUT, "gpu_per_rank": 4})
    assert findings_of(wrong).answer == "no"


@pytest.mark.parametrize(("single_node", "parts"), [(True, [100, 94, 50]), (False, [100, 94, 25])])
def test_efficiency_is_drawn_with_bars_and_reported(tmp_path, single_node, parts):
    """Of GPUs, or of the two cores that all ranks share."""
    plan = planned(tmp_path, single_node=single_node)
    samples = a_result(2, 15.0)["samples"]
    samples["seconds"][::4] = [1.0] * 5
    finish(plan, {1: 8.0, 4: 8.0})
    finish(plan, {2: 15.0}, samples=samples)
    on_two_cores(plan)
    found = findings_of(plan)
    measured, _, hollow, *_ = api.efficiency(found).curves
    assert [y for _, y in measured.points] == pytest.approx(parts, abs=0.5)
    assert measured.low[1] < measured.points[1][1]
    assert (hollow.style, len(hollow.points)) == ("predicted", 1)
    assert hollow.low[0] < hollow.points[0][1]
    told = [one["efficiency"] for one in as_data(found)["measured"]]
    assert told == pytest.approx([part / 100 for part in parts], abs=0.005)


def test_a_timeline_is_drawn_of_profiled_jobs(tmp_path):
    plan = finish(planned(tmp_path), {1: 8.0})
    assert api.timeline(findings_of(plan)).rows == ["no timeline"]
    (plan.cells[0].results / "profile").mkdir()
    panel = api.timeline(findings_of(plan))
    assert panel.rows == ["resnet50"]
    assert {span.part for span in panel.spans if span.length} == {"computing"}


def test_a_chart_without_anything_measured_is_drawn_all_the_same(tmp_path):
    found = findings_of(planned(tmp_path))
    panels = [
        chart(found)
        for chart in (
            api.rate,
            api.speedup,
            api.efficiency,
            api.learning,
            api.phases,
            api.shares,
            api.time_by_size,
            api.timeline,
        )
    ]
    assert svg(panels, "nothing yet").count("<g ") == len(panels)


def test_learning_is_accuracy_over_the_seconds_of_training(tmp_path):
    plan = planned(tmp_path, jobs("gpus=1 model=mlp"))
    marks = [{"step": 10, "accuracy": 0.5}, {"step": 20, "accuracy": 0.9}, {"step": 99}]
    finish(plan, {1: 8.0}, validations=marks)
    (curve,) = api.learning(findings_of(plan)).curves
    assert curve.points == [(pytest.approx(5.0), 0.5), (pytest.approx(10.0), 0.9)]
