"""The rules of studies: what makes a yes, what makes a no, and what is not known."""

from dataclasses import replace
from pathlib import Path

import pytest

from hpcdl.system.errors import BadInput
from hpcdl.workflows.study.collect import shown
from hpcdl.workflows.study.model import Panel
from hpcdl.workflows.study.panels import draw
from hpcdl.workflows.study.study_plan import make_plan
from hpcdl.workflows.study.study_report import as_data, make_report
from tests.unit.test_study import (
    RATES,
    RUN,
    a_result,
    drawn_by,
    findings_of,
    finish,
    plan_in,
    planned,
    verdict,
)


def unknown(plan):
    """Why nobody knows whether the one rule of a study holds."""
    ok, why = verdict(plan)
    assert ok is None
    return why


IMAGES = {"quarter": 20, "half": 40, "whole": 80}


def ruled(folder, rule, **changes):
    """The plan of a study with that one rule."""
    return plan_in(folder, acceptance=[{"says": "x", **rule}], **changes)


def sized(folder, seconds, memory=0.3):
    """A study whose epochs on a quarter, half and whole of a GB take so many seconds."""
    sets = {
        name: {"kind": "given", "path": name, "gigabytes": images / 80, "images": images}
        for name, images in IMAGES.items()
    }
    run = {**RUN, "over": {"gpus": ["1"], "model": ["resnet50"], "data": [*sets]}}
    rule = {"rule": "linear", "at_most": 0.1}
    plan = ruled(folder, rule, runs=[run], data=sets, memory_gigabytes=memory)
    for name, took in seconds.items():
        finish(plan, {1: IMAGES[name] / took}, of={"data": name}, options={"warmup_steps": 0})
    return plan


# A straight line through those below memory, and what comes after it.
@pytest.mark.parametrize(
    ("whole", "ok", "said"),
    [
        (10.0, True, "resnet50 +0%"),
        (11.0, False, "resnet50 +10%"),  # just beyond
        (13.0, False, "resnet50 +30%"),
        (7.0, True, "resnet50 -30%"),
    ],
)
def test_an_epoch_above_memory_lies_on_the_line_through_those_below(tmp_path, whole, ok, said):
    """5 s on half of the data may be 10 on all of it: no epoch may grow faster than its data."""
    found, words = verdict(sized(tmp_path, {"quarter": 3, "half": 5, "whole": whole * 1.001}, 0.6))
    assert found is ok
    assert f"{said} (its epochs " in words  # how far these themselves differ
    assert "at most +10%" in words


@pytest.mark.parametrize(
    ("sizes", "memory", "said"),
    [
        (["quarter", "half", "whole"], 2.0, "no size above memory"),
        (["quarter", "half", "whole"], 0.3, "no line through two sizes below memory"),
        (["quarter", "whole"], 0.6, "no line through two sizes below memory"),
    ],
)
def test_without_a_line_or_a_size_beyond_it_linearity_is_not_known(tmp_path, sizes, memory, said):
    took = {"quarter": 3, "half": 5, "whole": 9}
    assert said in unknown(sized(tmp_path, {name: took[name] for name in sizes}, memory))


def test_the_figure_draws_the_line_that_is_judged_dashed_above_memory(tmp_path, monkeypatch):
    drawn = drawn_by("plot", monkeypatch)
    plan = sized(tmp_path, {"quarter": 3, "half": 5, "whole": 90}, 0.6)
    panels = replace(plan.study, figure=(Panel("time-by-size", {}, "x"),))
    draw(findings_of(replace(plan, study=panels)), ())
    (below, beyond) = [one for one in drawn if "2" in one]
    assert (below["2"], beyond["2"]) == ("-", "--")
    assert below["1"] == pytest.approx([1.0, 5.8])
    assert beyond["1"] == pytest.approx([5.8, 10.5])


# Holes: a cell that a rule would look at, and that is missing, makes no yes.
@pytest.mark.parametrize(
    "rule",
    [
        {"rule": "efficiency", "gpus": [2, 4], "at_least": 0.1},
        {"rule": "one-rank-per-gpu"},
        {"rule": "model", "at_most": 9.0},
        {"rule": "metric", "metric": "auroc", "at_least": 0.5},
        {"rule": "input-share", "at_most": 0.9},
        {"rule": "share", "part": "compute", "at_least": 0.1},
    ],
    ids=lambda rule: str(rule["rule"]),
)
def test_a_missing_cell_makes_no_yes_and_is_named(tmp_path, rule):
    plan, summary = ruled(tmp_path, rule), {"metrics": {"auroc": 0.9}}
    finish(plan, {1: 8.0, 2: 15.0}, summary=summary)
    ok, words = verdict(plan)
    assert (ok, make_report(findings_of(plan)).accepted) == (None, None)
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
def test_partitions_are_compared_round_by_round(tmp_path, turns, ok):
    """What the machine's pace did between turns is in both."""
    run = {**RUN, "over": {"gpus": ["1"], "partition": ["p100", "v100"]}, "repeats": 3}
    plan = ruled(tmp_path, {"rule": "agree", "over": "partition", "at_most": 0.12}, runs=[run])
    for turn, rates in enumerate(turns):
        for name, rate in zip(("p100", "v100"), rates, strict=True):
            finish(plan, {1: rate}, turn, of={"partition": name})
    assert verdict(plan)[0] is ok


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
def test_on_shared_cores_the_fastest_are_judged_and_a_busy_machine_is_unknown(tmp_path, turns, ok):
    run = {**RUN, "over": {"gpus": ["1", "2"]}, "repeats": len(turns)}
    plan = ruled(tmp_path, {"rule": "model", "at_most": 0.3}, runs=[run])
    for turn, rates in enumerate(turns):
        finish(plan, rates, turn)
    found, words = verdict(plan)
    assert found is ok
    assert ("the machine was busy" in words) is (ok is None)


@pytest.mark.parametrize(
    "rule",
    [
        {"rule": "agree", "at_most": 0.5},
        {"rule": "faster", "better": "v100", "worse": "p100", "at_least": 0.5},
    ],
)
def test_a_missing_half_of_a_pair_makes_no_yes(tmp_path, rule):
    """And a cell that has no other half in the matrix is nothing to wait for."""
    over = {"gpus": ["1", "2", "4"], "partition": ["p100", "v100"]}
    run = {**RUN, "over": over, "exclude": [{"gpus": "4", "partition": "p100"}]}
    plan = finish(ruled(tmp_path, {**rule, "over": "partition"}, runs=[run]), {1: 8.0})
    ok, words = verdict(plan)
    assert ok is None
    assert "gpus=2 partition=p100" in words
    assert "gpus=4" not in words
    finish(plan, {1: 8.0, 2: 15.0})
    assert verdict(plan)[0] is True


def test_a_measured_cell_that_breaks_a_rule_is_a_no_whatever_is_missing(tmp_path):
    rule = {"rule": "efficiency", "gpus": [2, 4], "at_least": 0.99}
    assert verdict(finish(ruled(tmp_path, rule, execution="cluster"), {1: 8.0, 2: 8.0}))[0] is False


@pytest.mark.parametrize("asked", [{"gpus": [1, 2]}, {"where": {"gpus": "2"}}])
def test_a_missing_result_that_a_rule_does_not_look_at_changes_nothing(tmp_path, asked):
    plan = finish(ruled(tmp_path, {"rule": "one-rank-per-gpu", **asked}), {1: 8.0, 2: 15.0})
    assert verdict(plan)[0] is True


def test_of_jobs_that_repeat_one_is_a_measurement(tmp_path):
    plan = ruled(tmp_path, {"rule": "one-rank-per-gpu"}, runs=[{**RUN, "repeats": 2}])
    finish(plan, RATES, turn=0)
    assert verdict(plan)[0] is True


@pytest.mark.parametrize(
    ("execution", "opened", "ok"),
    [
        ("single-node", 0, True),
        ("cluster", 0, False),
        ("cluster", 1, True),
        ("cluster", 4, False),
    ],
)
def test_ranks_open_one_gpu_each_or_on_a_single_node_none(tmp_path, execution, opened, ok):
    plan = ruled(tmp_path, {"rule": "one-rank-per-gpu", "gpus": [1]}, execution=execution)
    finish(plan, RATES, layout={**a_result(1, 8.0)["layout"], "gpu_per_rank": opened})
    assert verdict(plan)[0] is ok


def test_a_series_without_its_one_rank_run_has_no_efficiency_to_say_yes_of(tmp_path):
    over = {"gpus": ["1", "2"], "model": ["alexnet", "resnet50"]}
    run = {**RUN, "over": over, "exclude": [{"model": "alexnet", "gpus": "1"}]}
    plan = ruled(tmp_path, {"rule": "efficiency", "gpus": [2], "at_least": 0.1}, runs=[run])
    finish(plan, {1: 8.0, 2: 15.0})
    assert "no one-rank run beside gpus=2 model=alexnet" in unknown(plan)


def test_a_result_without_the_metric_makes_no_yes(tmp_path):
    plan = ruled(tmp_path, {"rule": "metric", "metric": "auroc", "at_least": 0.5})
    finish(plan, {2: 15.0, 4: 16.0}, summary={"metrics": {"auroc": 0.9}})
    finish(plan, {1: 8.0})
    assert "without it: gpus=1" in unknown(plan)


# Every cell that a rule chooses counts, and no other.
def two_networks(folder, rule):
    """AlexNet that computes half of each step and is slow on 2, ResNet-50 that does all well."""
    run = {**RUN, "over": {"gpus": ["1", "2"], "model": ["alexnet", "resnet50"]}, "predict": [4]}
    plan = ruled(folder, rule, runs=[run], execution="cluster")
    samples = a_result(1, 8.0)["samples"]
    samples["input"] = samples["compute"]
    for name, second in (("alexnet", 1.0), ("resnet50", 15.0)):
        more = {"samples": samples} if name == "alexnet" else {}
        finish(plan, {2: second}, of={"model": name}, model=name)
        finish(plan, {1: 8.0}, of={"model": name}, model=name, **more)
    return plan


@pytest.mark.parametrize(
    ("rule", "ok"),
    [
        ({"rule": "share", "part": "compute", "at_least": 0.9}, False),
        ({"rule": "share", "part": "compute", "at_least": 0.9, "gpus": [2]}, True),
        ({"rule": "model", "at_most": 0.3}, False),
        ({"rule": "model", "at_most": 0.3, "where": {"model": "alexnet"}}, False),
        ({"rule": "model", "at_most": 0.3, "where": {"model": "resnet50"}}, True),
    ],
)
def test_a_rule_judges_the_cells_that_it_chooses(tmp_path, rule, ok):
    assert verdict(two_networks(tmp_path, rule))[0] is ok


# Frameworks side by side.
FRAMEWORKS = {
    "horovod": {"launcher": "horovod"},
    "torch": {"launcher": "torch", "program": ["{python}", "{programs}/torch_networks.py"]},
}


def side_by_side(folder, *models):
    """A study of two frameworks on one and two ranks, with one table and the rule of weights."""
    over = {"framework": [*FRAMEWORKS], "gpus": ["1", "2"], "model": [*models] or ["resnet50"]}
    run = {"name": "speed", "over": over, "options": {"steps": "20"}}
    rule = {"rule": "equal", "says": "x", "over": "framework", "metric": "parameters"}
    table = {"title": "All", "columns": "framework", "where": {"run": "speed"}}
    values = {"frameworks": FRAMEWORKS, "tables": [table]}
    scale = {"runs": [run], "acceptance": [rule]}
    return planned(folder, values, scale, pythons={"torch": "/my/python"})


HOROVOD, TORCH = {"framework": "horovod"}, {"framework": "torch"}


def test_each_framework_has_its_launcher_and_program_whatever_python_it_was_given(tmp_path):
    plan = side_by_side(tmp_path)
    specs = {cell.values["framework"]: cell.point.spec for cell in plan.cells}
    spec = specs["torch"]
    assert (spec.launcher, spec.program[0]) == ("torch", "/my/python")
    assert Path(spec.program[1]).is_file()
    assert specs["horovod"].program[:2] == ("hpcdl", "train")
    again = make_plan(plan.site, plan.study, plan.scale)
    assert [cell.point.id for cell in again.cells] == [cell.point.id for cell in plan.cells]
    with pytest.raises(BadInput, match="no framework 'jacks'"):
        make_plan(plan.site, plan.study, plan.scale, (), {"jacks": "/my/python"})


def test_a_framework_that_is_not_installed_leaves_its_column_empty(tmp_path):
    found = findings_of(finish(side_by_side(tmp_path), {1: 8.0, 2: 15.0}, of=HOROVOD))
    rows = [("gpus 1, resnet50", "8", "-"), ("gpus 2, resnet50", "15", "-")]
    table = {"title": "All", "head": ("", "horovod", "torch"), "rows": rows}
    assert as_data(make_report(found))["tables"] == [table]
    assert len(found.missing) == 2


def test_a_job_without_an_accuracy_has_none_in_a_table_of_accuracies(tmp_path):
    plan = side_by_side(tmp_path)
    table = replace(plan.study.tables[0], value="accuracy")
    plan = replace(plan, study=replace(plan.study, tables=(table,)))
    finish(plan, {1: 8.0, 2: 15.0}, of=HOROVOD)
    rows = as_data(make_report(findings_of(plan)))["tables"][0]["rows"]
    assert {cell for row in rows for cell in row[1:]} == {"-"}


@pytest.mark.parametrize(
    ("other", "names"),
    [
        ("resnet50", ["net", "resnet50"]),
        ("theirs:net", ["my.models:net", "theirs:net"]),
    ],
)
def test_a_model_of_a_module_has_its_short_name_where_that_is_no_others(tmp_path, other, names):
    found = findings_of(finish(side_by_side(tmp_path, "my.models:net", other), {1: 8.0, 2: 15.0}))
    rows = as_data(make_report(found))["tables"][0]["rows"]
    assert sorted(row[0] for row in rows) == [f"gpus {n}, {name}" for n in (1, 2) for name in names]
    assert {shown(found, "model", one.values["model"]) for one in found.measured} == set(names)


@pytest.mark.parametrize(("parameters", "ok"), [(25_000_000, True), (25_000_001, False)])
def test_a_network_has_as_many_weights_in_every_framework(tmp_path, parameters, ok):
    plan = finish(side_by_side(tmp_path), {1: 8.0, 2: 15.0}, of=HOROVOD)
    finish(plan, {1: 7.0, 2: 13.0}, of=TORCH, parameters=parameters)
    assert verdict(plan)[0] is ok


def test_rates_of_different_kinds_of_gpus_do_not_compare(tmp_path):
    run = {**RUN, "over": {"gpus": ["1"], "partition": ["p100", "v100"]}}
    rule = {"rule": "agree", "over": "partition", "at_most": 0.12}
    plan = finish(ruled(tmp_path, rule, runs=[run], execution="cluster"), {1: 8.0})
    assert "GPUs of one kind" in unknown(plan)
