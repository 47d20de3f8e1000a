"""Studies: files checked at the door, plans, missing, acceptance and reports; no cluster here."""

import json
import re
import subprocess
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from unittest.mock import Mock

import jsonschema
import pytest
import yaml

from hpcdl.jobs.spec import Module
from hpcdl.jobs.sweep import point_folder, read_manifest, write_manifest
from hpcdl.jobs.sweep_run import RunStatus
from hpcdl.predict.request import ScalingRequest, answer
from hpcdl.predict.step import IMAGENET, SYNTHETIC
from hpcdl.slurm import client
from hpcdl.system.document import InvalidDocument
from hpcdl.system.errors import BadInput, MissingPrerequisite
from hpcdl.train.options import ARGUMENTS
from hpcdl.workflows.study import run as running
from hpcdl.workflows.study.collect import collect
from hpcdl.workflows.study.forecast import median_error, predict
from hpcdl.workflows.study.judge import judge
from hpcdl.workflows.study.load import load_study, read_study, shipped, study_schema
from hpcdl.workflows.study.model import Panel, matches
from hpcdl.workflows.study.panels import caption, draw
from hpcdl.workflows.study.run import last_run_statuses
from hpcdl.workflows.study.show import show_text
from hpcdl.workflows.study.study_plan import data_folder, make_plan
from hpcdl.workflows.study.study_report import as_data, as_text, make_report, write_report
from tests.unit.conftest import shipped as shipped_site

DOCS = Path(__file__).resolve().parents[2] / "docs"
RUN = {
    "name": "training",
    "over": {"gpus": ["1", "2", "4"], "model": ["resnet50"]},
    "options": {"batch-per-rank": "4", "steps": "20"},
    "predict": [8],
}
SMALL = {
    "shows": "a test",
    "execution": "single-node",
    "runs": [RUN],
    "acceptance": [{"rule": "complete", "says": "all ran"}],
}
VALUES = {
    "schema": 1,
    "name": "try-out",
    "title": "A try",
    "question": "Does it work?",
    "origin": "nobody",
    "found": "nothing",
    "series": ["model"],
    "figure": [{"panel": "rate"}, {"panel": "speedup"}, {"panel": "phases"}],
    "scales": {"small": SMALL, "full": SMALL},
}


RATES = {1: 8.0, 2: 15.0, 4: 16.0}
ALL = {}


def site_in(folder):
    """The embedded site, its work in a directory."""
    found = shipped_site("embedded")
    return replace(found, paths=replace(found.paths, work=folder, datasets=folder / "data"))


def planned(folder, values, small, **how):
    """The plan of a study made of VALUES, others and a changed small scale."""
    path, scales = folder / "study.yaml", {"small": {**SMALL, **small}, "full": SMALL}
    path.write_text(json.dumps({**VALUES, **values, "scales": scales}))
    found = read_study(path)
    return make_plan(site_in(folder), found, found.scales["small"], **how)


def plan_in(folder, **changes):
    """The plan of a study made of VALUES with a changed small scale."""
    return planned(folder, {}, changes)


@pytest.fixture
def study(tmp_path):
    """Plans a study made of VALUES with a changed small scale."""
    return partial(plan_in, tmp_path)


def modules_for(plan):
    return dict.fromkeys(plan.site.partitions, Module(("tensorflow",)))


def full(site, name, *partitions):
    """The plan of a shipped study at scale full."""
    study = load_study(name)
    return make_plan(site, study, study.scales["full"], partitions)


def on_two_cores(plan, load=0):
    """Note the machine that the jobs ran on."""
    (plan.folder / "machine.json").write_text(json.dumps({"schema": 1, "cores": 2, "load": load}))


def a_result(ranks, rate, **changes):
    """A result.json of `ranks` ranks with 20 equal steps."""
    seconds, batch = 4 * ranks / rate, 4 * ranks
    samples = {
        name: [0.0] * 20 for name in ("input", "communication", "update", "checkpoint", "other")
    }
    samples |= {"seconds": [seconds] * 20, "compute": [seconds] * 20}
    return {
        "schema": 2,
        "outcome": {"status": "completed", "message": "", "exit_code": 0},
        "job": {"id": "7"},
        "layout": {
            "ranks": ranks,
            "nodes": ["n1"],
            "ranks_per_node": [ranks],
            "gpu_per_rank": 0,
            "cpus_per_rank": 1,
        },
        "release": "r1",
        "model": "resnet50",
        "precision": "fp32",
        "batch_per_rank": 4,
        "parameters": 25_000_000,
        "global_batch": batch,
        "options": {"warmup_steps": 5},
        "samples": {**samples, "images": [batch] * 20},
        "summary": {"metrics": {}},
        **changes,
    }


def folder_of(plan, cell):
    """Where a cell's job leaves its result; it is made."""
    folder = point_folder(plan.round_folder(cell.run, cell.attempt), cell.point)
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def finish(plan, rates, turn=None, of=ALL, **changes):
    """Leave a result for every cell whose ranks have a rate: in one round, of some values alone."""
    for cell in plan.cells:
        if cell.gpus in rates and matches(cell.values, of) and turn in (None, cell.attempt):
            folder = folder_of(plan, cell)
            result = a_result(cell.gpus, rates[cell.gpus], **changes)
            (folder / "result.json").write_text(json.dumps(result))
            (folder / "exit_code").write_text("0\n")
    return plan


def drawn_by(name, monkeypatch):
    """What the axes are told to draw by a function: its arguments, by number and by name."""
    pytest.importorskip("matplotlib")
    from matplotlib.axes import Axes

    found = []
    draws = getattr(Axes, name)

    def note(axes, *args, **more):
        found.append({**{str(at): one for at, one in enumerate(args)}, **more})
        return draws(axes, *args, **more)

    monkeypatch.setattr(Axes, name, note)
    return found


def described(plan, name, images, size):
    """Leave the description of a data set of two shards where the study looks for it."""
    folder = data_folder(plan.site, plan.scale.data[name])
    folder.mkdir(parents=True)
    shards = [{"bytes": size // 2}, {"bytes": size - size // 2}]
    described = {"splits": {"train": {"examples": images, "shards": shards}}}
    (folder / "dataset.json").write_text(json.dumps(described))


def findings_of(plan):
    return collect(plan, running.run_statuses(plan))


@pytest.mark.parametrize("name", shipped())
def test_a_shipped_study_is_valid_and_small_at_its_small_scale(name):
    """Also by jsonschema; its options are those of the training program."""
    study = load_study(name)
    assert study.name == name
    jsonschema.validate(yaml.safe_load(study.path.read_text()), study_schema())
    known = {argument.flag.removeprefix("--") for argument in ARGUMENTS}
    keys = known | {"gpus", "nodes", "partition", "framework", "environment"}
    for run in (run for scale in study.scales.values() for run in scale.runs):
        assert set(run.options) <= known
        assert set(run.over) <= keys
    small = study.scales["small"]
    assert small.in_turn, "one job at a time"
    assert max(int(count) for run in small.runs for count in run.over["gpus"]) <= 8


@pytest.mark.parametrize("name", shipped())
def test_every_table_and_figure_of_the_originals_is_repeated_or_has_a_reason(name):
    study = load_study(name)
    known = {
        "figure": {panel.panel for panel in study.figure},
        "table": {table.title for table in study.tables},
        "run": {run.name for scale in study.scales.values() for run in scale.runs},
        "rule": {rule.rule for scale in study.scales.values() for rule in scale.acceptance},
        "published": {group.label for group in study.published},
        "command": set(re.findall("^### `(.*)`$", (DOCS / "commands.md").read_text(), re.M)),
        "page": {path.name for path in DOCS.glob("*.md")},
    }
    assert len(study.original) >= 5
    for one in study.original:
        assert one.by or one.note
        for kind, _, what in (text.partition(": ") for text in one.by):
            assert what in known[kind], f"{one.item}: {kind} {what}"


def expected(plan, cell):
    """What `hpcdl predict` says of a cell, from published rows alone."""
    options = {**cell.run.options, **cell.values}
    batch = options.get("batch-per-rank") or int(options["global-batch"]) // cell.gpus
    request = ScalingRequest(
        plan.site.partition(cell.point.spec.partition),
        options["model"],
        str(cell.gpus),
        int(batch),
        "fp32",
        data=SYNTHETIC if cell.data == SYNTHETIC else IMAGENET,
    )
    return answer(request).points[0]


@pytest.mark.parametrize("name", shipped())
def test_the_model_itself_says_that_the_rules_of_scale_full_can_hold(name):
    """A rule that no machine of the shipped site could pass would judge nothing."""
    plan = full(shipped_site("p100-v100-k80"), name)
    for rule in plan.scale.acceptance:
        chosen = [one for one in plan.possible if matches(one.named, rule.where)]
        if rule.rule == "efficiency":
            for cell in (one for one in chosen if one.gpus in rule.gpus):
                assert expected(plan, cell).efficiency >= (rule.at_least or 0), cell.label
        if rule.rule == "agree":
            for gpus in rule.gpus:
                rates = [expected(plan, c).images_per_second for c in chosen if c.gpus == gpus]
                assert max(rates) / min(rates) - 1 <= (rule.at_most or 0)
        if rule.rule == "linear":
            parts = [plan.site.partition(one.point.spec.partition) for one in plan.possible]
            sizes = sorted(data.gigabytes or 0 for data in plan.scale.data.values())
            assert sizes[1] < max(part.memory_gb for part in parts) < sizes[2]


def test_all_faults_of_a_file_are_shown_at_once_with_their_lines(tmp_path):
    text = json.dumps(VALUES, indent=1).replace('"panel": "rate"', '"panel": "rat"')
    (tmp_path / "s.yaml").write_text(text.replace('"title"', '"titel"'))
    with pytest.raises(InvalidDocument) as caught:
        read_study(tmp_path / "s.yaml")
    said = caught.value.render()
    assert "did you mean 'rate'?" in said
    assert "did you mean 'title'?" in said
    assert re.search(r"s\.yaml:\d+:\d+: unknown key 'titel'", said)


REFUSED = {
    "run": [
        ({"over": {"gpus": ["1", "1"]}}, "names a value twice"),
        ({"over": {"model": ["mlp"]}}, "has no 'gpus'"),
        ({"data": "imagnet"}, "no data set 'imagnet'"),
        ({"exclude": [{"modle": "x"}]}, "'modle' is not in the matrix"),
        ({"exclude": [{"model": "resnet5"}]}, "did you mean 'resnet50'?"),
        ({"options": {"model": "mlp"}}, "in the matrix and in the options"),
        ({"over": {"gpus": ["0"]}, "reads": {}}, "'gpus' is '0', not a whole number from 1 on"),
        ({"over": {"gpus": ["\u00b2"]}, "reads": {}}, "'gpus' is '\\xb2', not a whole number"),
        ({"options": {"batch-per-rank": "many"}}, "'batch-per-rank' is 'many', not a whole"),
        ({"options": {"steps": "1.5"}}, "'steps' is '1.5', not a whole number"),
        ({"over": {"gpus": ["1"], "epochs": ["2", "-1"]}}, "'epochs' is '-1', not a whole"),
    ],
    "rule": [
        ({"rule": "agree", "at_most": 0.1}, "'agree' needs 'over'"),
        ({"rule": "input-share"}, "'input-share' has no bound"),
        ({"rule": "linear", "at_most": 0.1, "at_least": 0.1}, "does not look at 'at_least'"),
        ({"rule": "complete", "where": {"gpus": "1"}}, "does not look at 'where'"),
        ({"rule": "one-rank-per-gpu", "where": {"modle": "x"}}, "did you mean 'model'?"),
        ({"rule": "efficiency", "at_least": 0.1, "gpus": [2, 64]}, "no run has 64 GPUs"),
        ({"rule": "share", "part": "comput", "at_least": 0.1}, "did you mean 'compute'?"),
    ],
    "scale": [
        ({"exchange_from": {"modle": "resnet50"}}, "did you mean 'model'?"),
        (
            {"data": {"photos": {"kind": "photos", "options": {"count": "many"}}}},
            "'count' is 'many', not a whole number from 1 on",
        ),
    ],
}


@pytest.mark.parametrize(
    ("kind", "change", "said"), [(kind, *row) for kind, rows in REFUSED.items() for row in rows]
)
def test_what_a_study_cannot_mean_is_refused_at_its_line(study, kind, change, said):
    """A rule says no less and no more than its kind looks at."""
    whole = {
        "run": {"runs": [{**RUN, **change}]},
        "scale": change,
        "rule": {"acceptance": [{"says": "x", **change}]},
    }
    with pytest.raises(InvalidDocument, match="1 fault" if kind == "rule" else None) as caught:
        study(**whole[kind])
    assert said in caught.value.render()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        # By a key that no run has it would draw all lines as one, or none.
        (json.dumps({**VALUES, "series": ["modle"]}), "no matrix has 'modle'"),
        (
            json.dumps({**VALUES, "figure": [{"panel": "rate", "where": {"modle": "resnet50"}}]}),
            "did you mean 'model'?",
        ),
        (
            json.dumps({**VALUES, "figure": [{"panel": "rate"}] * 9}),
            "the figure has 9 panels, more than 8",
        ),
        ("schema: 2\nwhatever: new\n", "schema 2 is newer"),
        (json.dumps({**VALUES, "schema": "\u00b2"}), "'schema' must be a whole number"),
    ],
    ids=["series", "panel", "panels", "later", "no version"],
)
def test_a_file_has_one_fault_where_it_is_wrong_once(tmp_path, text, said):
    (tmp_path / "s.yaml").write_text(text)
    with pytest.raises(InvalidDocument, match="1 fault") as caught:
        read_study(tmp_path / "s.yaml")
    assert said in caught.value.render()


def test_an_unknown_study_is_refused_with_the_nearest_name():
    with pytest.raises(BadInput) as caught:
        load_study("tsubame-oi")
    assert "tsubame-io" in caught.value.hint


def test_cells_that_a_site_cannot_run_are_named_and_the_rest_stays(study):
    plan = study(runs=[{**RUN, "over": {"gpus": ["2", "512"]}}])
    assert [cell.gpus for cell in plan.possible] == [2]
    assert "p100" in plan.impossible[0].point.problem
    assert "cannot run here" in show_text(plan)


def test_partitions_can_be_replaced_place_for_place(modern):
    plan = full(modern, "sjtu-inception", "a100", "h100")
    assert {cell.point.spec.partition for cell in plan.possible} == {"a100", "h100"}
    assert not plan.impossible


@pytest.mark.parametrize(
    ("partitions", "wanted"),
    [
        ((), {("p100", 1), ("p100", 2), ("v100", 1)}),
        (("v100", "p100"), {("v100", 1), ("v100", 2), ("p100", 1)}),
        (("k80",), {("k80", 1), ("k80", 2)}),
    ],
)
def test_what_is_excluded_of_a_partition_goes_where_it_goes(tmp_path, partitions, wanted):
    over = {**RUN["over"], "partition": ["p100", "v100"], "gpus": ["1", "2"]}
    runs = [{**RUN, "over": over, "exclude": [{"partition": "v100", "gpus": "2"}]}]
    plan = planned(tmp_path, {}, {"runs": runs}, partitions=partitions)
    assert {(cell.point.spec.partition, cell.gpus) for cell in plan.cells} == wanted


@pytest.mark.parametrize(
    ("site", "name", "partitions", "said"),
    [
        ("pi", "aliyun-resnet50", [], "no partition 'v100'"),
        ("a100-h100", "aliyun-resnet50", ["a100", "h100"], "leave out 'h100'"),
        ("a100-h100", "sjtu-inception", ["a100", "a100"], "names a partition twice"),
    ],
    ids=["no cell can run", "more than it compares", "twice"],
)
def test_partitions_on_which_a_study_cannot_run_are_refused(site, name, partitions, said):
    with pytest.raises(BadInput) as caught:
        full(shipped_site(site), name, *partitions)
    assert said in caught.value.render()


def test_the_rate_of_slowed_reads_is_that_of_all_ranks_of_each_job(study):
    plan = study(runs=[{**RUN, "reads": {"megabytes_per_second": 8, "cached": False}}])
    rates = {cell.gpus: cell.point.spec.environment["HPCDL_READS_RATE"] for cell in plan.cells}
    assert rates == {1: "8000000", 2: "4000000", 4: "2000000"}


AROUND = {
    "module": {},
    "plain": {"variables": {"TF_ENABLE_ONEDNN_OPTS": "0"}},
    "image": {"container": True},
}


def surrounded(folder, **how):
    over = {"gpus": ["2"], "environment": [*AROUND]}
    values = {"series": ["environment"], "environments": AROUND}
    return planned(folder, values, {"runs": [{**RUN, "over": over}]}, **how)


def test_an_environment_is_variables_or_an_image_and_jobs_in_one_load_no_module(tmp_path):
    plan = surrounded(tmp_path, image="/images/tf")
    cells = {cell.values["environment"]: cell for cell in plan.cells}
    assert len({cell.point.id for cell in plan.cells}) == len(AROUND)
    assert [cell.point.spec.container for cell in cells.values()] == [None, None, "/images/tf"]
    assert dict(cells["plain"].point.spec.environment) == {"TF_ENABLE_ONEDNN_OPTS": "0"}
    texts = [one.script.text for one in running.check_scripts(plan, modules_for(plan))]
    assert ["module load" in text for text in texts] == [True, True, False]
    assert ["ch-run" in text for text in texts] == [False, False, True]


def test_without_an_image_its_cells_are_left_out_but_a_result_is_found(tmp_path):
    names = [cell.values["environment"] for cell in surrounded(tmp_path).cells]
    assert names == ["module", "plain"]
    plan = surrounded(tmp_path, image="/images/tf")
    (folder_of(plan, plan.cells[2]) / "result.json").write_text("{}")
    assert len(surrounded(tmp_path).possible) == 3


def test_a_changed_study_does_not_take_old_results_for_new(study):
    plans = (study(), study(), study(runs=[{**RUN, "options": {"steps": "21"}}]))
    one, same, changed = ({cell.point.id for cell in plan.cells} for plan in plans)
    assert one == same
    assert not one & changed


@pytest.mark.parametrize("name", shipped())
@pytest.mark.parametrize("scale", ["small", "full"])
def test_every_script_of_every_study_is_clean_under_lint_and_bash(name, scale):
    study = load_study(name)
    site = shipped_site("embedded" if scale == "small" else "p100-v100-k80")
    site = replace(site, container="apptainer")
    plan = make_plan(site, study, study.scales[scale], image="/images/tensorflow.sif")
    # tf.distribute's servers ask nobody for a password: a site must say that it trusts its network.
    assert all("multiworker" in cell.point.problem for cell in plan.impossible)
    checked = running.check_scripts(plan, modules_for(plan))
    assert checked
    assert [one.errors for one in checked] == [()] * len(checked)


def test_more_ranks_are_predicted_no_faster_than_their_data_can_be_read(tmp_path):
    site, study = shipped_site("p100-v100-k80"), load_study("tsubame-io")
    run = study.scales["full"].runs[1]
    slow = replace(run, over={**run.over, "gpus": ("1",)}, predict=(4,))
    site = replace(site, paths=replace(site.paths, work=tmp_path))
    plan = make_plan(site, study, replace(study.scales["full"], runs=(slow,)))
    finish(plan, {1: 1000.0}, model="alexnet", batch_per_rank=64)
    (one,), _ = predict(findings_of(plan))
    assert one.rate < 200e6 / (295.1e9 / 2562334)


# Results.


def test_rates_are_those_of_steps_after_the_warm_up_without_checkpoints(study):
    plan, samples = study(), a_result(1, 8.0)["samples"]
    samples["seconds"][:5] = [99.0] * 5
    samples["seconds"][-1] = 100.5
    samples["checkpoint"][-1] = 100.0
    finish(plan, {1: 8.0}, samples=samples)
    (one,) = findings_of(plan).measured
    assert (one.rate, *one.spread) == pytest.approx((8.0, 8.0, 8.0))


def test_an_epoch_is_timed_without_the_first_which_pays_for_compiling(study):
    sets = {"photos": {"kind": "photos", "options": {"count": "40"}}}
    run = {**RUN, "over": {"gpus": ["1"], "model": ["resnet50"]}, "data": "photos"}
    plan = study(runs=[run], data=sets)
    described(plan, "photos", images=40, size=800)
    samples = a_result(1, 8.0)["samples"]
    samples["seconds"][0] = 60.0
    finish(plan, {1: 8.0}, samples=samples, options={"warmup_steps": 0})
    (one,) = findings_of(plan).measured
    assert one.size == 800
    assert one.epoch_seconds == pytest.approx(40 / 8.0)
    path = data_folder(plan.site, plan.scale.data["photos"]) / "dataset.json"
    path.write_text('{"splits": []}')
    (missing,) = findings_of(plan).missing
    assert missing.reason.startswith(f"{path} is no description of a data set")


def test_jobs_of_many_gpus_may_be_left_out_of_the_repeats(study):
    run = {**RUN, "repeats": 3, "repeat_up_to": 2}
    ran = [(cell.gpus, cell.attempt) for cell in study(runs=[run]).cells]
    assert ran == [(1, 0), (2, 0), (4, 0), (1, 1), (2, 1), (1, 2), (2, 2)]


def test_jobs_that_repeat_run_in_rounds_and_are_one_measurement(study):
    plan = study(runs=[{**RUN, "repeats": 2}])
    assert [part.folder.name for part in plan.rounds] == ["training", "training-2"]
    assert len({cell.point.id for cell in plan.cells}) == 6
    finish(plan, {1: 8.0, 2: 16.0}, turn=0)
    finish(plan, {1: 10.0}, turn=1)
    found = findings_of(plan)
    one, two = found.measured
    assert (one.jobs, two.jobs) == (2, 1)
    assert (one.rate, *one.spread) == pytest.approx((9.0, 8.0, 10.0))
    assert [one.cell.label.replace(" model=resnet50", "") for one in found.missing] == [
        "gpus=4",
        "gpus=2, again (2)",
        "gpus=4, again (2)",
    ]


def test_on_shared_cores_a_step_is_its_computing_and_what_exchanging_costs_another_series(study):
    """t1 x ranks / cores + the exchange, and the few percent that ranks wait for each other."""
    over = {"gpus": ["1", "2", "4"], "model": ["alexnet", "resnet50"]}
    plan = study(runs=[{**RUN, "over": over}], exchange_from={"model": "alexnet"})
    # Two ranks: 8 images in 0.5 s + 1 s of exchanging 100 MB; the other one's are 200 MB.
    finish(plan, {1: 8.0, 2: 8 / 1.5}, of={"model": "alexnet"}, model="alexnet")
    finish(plan, {1: 8.0, 2: 8 / 2.5}, of={"model": "resnet50"}, parameters=50_000_000)
    on_two_cores(plan)
    predicted, gaps = predict(findings_of(plan))
    assert not gaps
    steps = {(one.values["model"], one.gpus): one.gpus * 4 / one.rate for one in predicted}
    assert steps["resnet50", 2] == pytest.approx(0.5 + 2.0, rel=0.03)
    assert steps["resnet50", 4] == pytest.approx(2 * 0.5 + 3 * 2.0, rel=0.03)
    assert {(one.values["model"], one.gpus) for one in predicted if one.error is not None} == {
        ("resnet50", 2)
    }


def test_ranks_of_the_old_pipeline_wait_for_all_their_images_from_one_storage(study):
    """0.5 s of work; 4 images of 100 kB from 1 MB/s take 0.4 s each rank, decoding the rest."""
    run = {
        **RUN,
        "over": {"gpus": ["1", "2", "4"], "model": ["resnet50"], "pipeline": ["old"]},
        "data": "photos",
        "reads": {"megabytes_per_second": 1, "cached": False},
    }
    plan = study(runs=[run], data={"photos": {"kind": "photos", "options": {"count": "100"}}})
    described(plan, "photos", images=100, size=10_000_000)
    waits = {"compute": [0.5] * 20, "input": [0.6] * 20, "seconds": [1.1] * 20}
    finish(plan, {1: 4 / 1.1}, samples={**a_result(1, 1.0)["samples"], **waits})
    on_two_cores(plan)
    predicted, gaps = predict(findings_of(plan))
    assert not gaps
    steps = {one.gpus: one.gpus * 4 / one.rate for one in predicted}
    # On two cores, four ranks compute and decode twice as long.
    assert steps[2] == pytest.approx(0.5 + 0.2 + 2 * 0.4, rel=0.03)
    assert steps[4] == pytest.approx(2 * (0.5 + 0.2) + 4 * 0.4, rel=0.03)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"schema": 1}', "not json"])
def test_an_invalid_result_is_a_missing_result(study, text):
    plan = finish(study(), RATES)
    (folder_of(plan, plan.cells[2]) / "result.json").write_text(text)
    found = findings_of(plan)
    assert len(found.measured) == 2
    assert found.missing[0].state == "unusable"


LAYOUT = a_result(1, 8.0)["layout"]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"schema": 7}, "version 7; this hpcdl reads version 2"),
        ({"layout": None}, "layout has no value"),
        ({"layout": {**LAYOUT, "ranks": 0}}, "layout.ranks is 0, below its minimum of 1"),
        (
            {"layout": {**LAYOUT, "ranks_per_node": ["x", 2]}},
            "layout.ranks_per_node[0] must be a whole number, not 'x'",
        ),
        ({"layout": {**LAYOUT, "nodes": 3}}, "layout.nodes must be a list, not '3'"),
        ({"options": {"warmup_steps": float("inf")}}, "must be a whole number, not 'inf'"),
        ({"global_batch": 10**400}, "global_batch must be a whole number"),
        ({"parameters": "many"}, "parameters must be a whole number, not 'many'"),
        ({"model": None}, "model has no value"),
        ({"summary": {}}, "lacks summary.metrics"),
        ({"job": {}}, "'id'"),
        (
            {"samples": {**a_result(1, 8.0)["samples"], "seconds": [float("nan")] * 20}},
            "samples.seconds[0] must be a number, not 'nan'",
        ),
        (
            {"samples": {**a_result(1, 8.0)["samples"], "compute": [0.0] * 20}},
            "does not split the time of any step",
        ),
    ],
    ids=lambda value: str(value)[:40] if isinstance(value, str) else "",
)
def test_a_result_that_lacks_what_a_report_needs_is_one_missing_result(study, change, said):
    plan = finish(study(), {1: 8.0, 4: 16.0})
    finish(plan, {2: 15.0}, **change)
    found = findings_of(plan)
    assert [one.ranks for one in found.measured] == [1, 4]
    (missing_result,) = found.missing
    assert said in missing_result.reason
    assert "`study run` runs it again" in missing_result.reason
    assert as_data(make_report(found))["accepted"] is False


def test_a_score_that_is_no_number_is_none_and_its_cell_stays(study):
    plan = finish(study(), {1: 8.0}, summary={"metrics": {"auroc": float("nan"), "accuracy": 0.5}})
    (one,) = findings_of(plan).measured
    assert one.metrics == {"accuracy": 0.5}


def test_a_failed_job_is_a_missing_result_with_its_own_message(study):
    plan = finish(study(), {1: 8.0, 2: 15.0})
    *_, cell = plan.cells
    states = [RunStatus(one.point, "done") for one in plan.cells[:2]]
    logs = plan.round_folder(cell.run, cell.attempt) / "logs"
    logs.mkdir(parents=True)
    (logs / "9_0.log").write_text("starting\nerror: rank 2: no space left on the device\nbye\n")
    (missing,) = collect(plan, [*states, RunStatus(cell.point, "missing", 9, 0)]).missing
    assert "job 9 failed: error: rank 2: no space left on the device" in missing.reason


@pytest.mark.parametrize("silent", [False, True], ids=["no Slurm", "a silent one"])
def test_results_outlive_the_cluster(study, monkeypatch, tmp_path, silent):
    plan = finish(study(), RATES)
    rows = [{"id": plan.cells[0].point.id, "job_id": 3, "task": 0}]
    manifest = plan.round_folder(plan.cells[0].run) / "sweep.json"
    manifest.write_text(json.dumps({"schema": 2, "points": rows}))
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin" if silent else str(tmp_path))
    if silent:
        (tmp_path / "scontrol").touch(mode=0o755)
        (tmp_path / "scontrol").write_text("#!/bin/sh\nexec sleep 60\n")
        monkeypatch.setattr(client, "_ANSWER_SECONDS", 0.2)
    assert {one.state for one in running.last_run_statuses(plan)} == {"done"}


@pytest.mark.parametrize(("silences", "goes_on"), [(3, True), (1000, False)])
def test_a_restart_of_slurm_ends_no_study_its_end_does(study, monkeypatch, silences, goes_on):
    naps, away = [], MissingPrerequisite("Slurm does not answer")
    monkeypatch.setattr(running, "run_statuses", Mock(side_effect=[away] * silences + [()]))
    monkeypatch.setattr(running.time, "sleep", naps.append)
    if goes_on:
        assert list(running.wait(study())) == [()]
    else:
        with pytest.raises(MissingPrerequisite, match="went away") as caught:
            list(running.wait(study()))
        assert "the same command resumes" in caught.value.hint
        assert sum(naps) >= 60


def test_what_did_not_run_is_predicted_from_the_one_rank_run(study):
    predicted, gaps = predict(findings_of(finish(study(), {1: 8.0, 2: 15.0})))
    assert not gaps
    assert {one.gpus: one.measured for one in predicted} == {2: 15.0, 4: None, 8: None}
    assert median_error(predicted) is not None


@pytest.mark.parametrize("second", [12.0, 6.0], ids=["slower than measured", "quicker"])
def test_on_shared_cores_predictions_are_as_unsure_as_the_worst_that_ran(study, second):
    plan = finish(study(), {1: 8.0, 2: second})
    predicted, _ = predict(findings_of(plan))
    (ran,) = [one for one in predicted if one.measured]
    worst = max(ran.rate / second, second / ran.rate)
    for one in predicted:
        assert (one.low, one.high) == pytest.approx((one.rate / worst, one.rate * worst))
    assert "the model's largest error on cells that ran too" in caption(findings_of(plan))


def test_without_a_cell_that_ran_predictions_on_shared_cores_have_no_bounds(study, tmp_path):
    plan = finish(study(), {1: 8.0})
    predicted, _ = predict(findings_of(plan))
    assert {(one.low, one.high) for one in predicted} == {(None, None)}
    assert as_data(make_report(findings_of(plan)))["predicted"][0]["low"] is None
    pytest.importorskip("matplotlib")
    write_report(make_report(findings_of(plan)), tmp_path / "report")


def test_a_precision_that_the_model_lacks_is_no_other_one(study):
    plan = finish(study(execution="cluster"), {1: 8.0}, precision="int8")
    predicted, (gap, *_) = predict(findings_of(plan))
    assert not predicted
    assert "unknown precision 'int8'" in gap


def test_on_gpus_predictions_have_the_bounds_of_the_model(study):
    plan = finish(study(execution="cluster"), {1: 8.0})
    predicted, _ = predict(findings_of(plan))
    assert all(one.low and one.high and one.low < one.rate < one.high for one in predicted)
    assert "eight times in ten" in caption(findings_of(plan))


def test_the_caption_names_the_cells_that_predictions_are_taught_by(study):
    said = caption(findings_of(finish(study(exchange_from={"model": "resnet50"}), {1: 8.0})))
    assert "what exchanging gradients costs on shared cores (model=resnet50)" in said


def verdict(plan):
    found = findings_of(plan)
    (one,) = judge(found, predict(found)[0])
    return one.ok, one.evidence


def test_complete_means_no_missing_results(study):
    plan = finish(study(), {1: 8.0, 2: 15.0})
    assert verdict(plan)[0] is False
    finish(plan, {4: 16.0})
    assert verdict(plan)[0] is True


def test_a_gap_that_noise_could_make_is_not_known(study):
    rule = {"rule": "agree", "says": "x", "over": "partition", "at_most": 0.12}
    run = {**RUN, "over": {"gpus": ["1"], "partition": ["p100", "v100"]}}
    plan = finish(study(runs=[run], acceptance=[rule]), {1: 8.0})
    samples = a_result(1, 4.0)["samples"]
    samples["seconds"][::4] = [0.4] * 5
    finish(plan, {1: 4.0}, of={"partition": "v100"}, samples=samples)
    ok, words = verdict(plan)
    assert (ok, "spread" in words) == (None, True)


@pytest.mark.parametrize(("waited", "said"), [(0.9, "storage-bound"), (0.0, "not storage-bound")])
def test_storage_bound_or_not_follows_from_what_ranks_wait_for(study, waited, said):
    rule = {"rule": "input-share", "says": "x", "where": {"gpus": "1"}, "at_least": 0.15}
    samples = {**a_result(1, 8.0)["samples"], "input": [waited] * 20}
    ok, words = verdict(finish(study(acceptance=[rule]), {1: 8.0}, samples=samples))
    assert ok is (waited > 0)
    assert words.endswith(f": {said} (beyond 15%)")


def test_a_report_shows_its_figure_its_missing_results_and_needs_nothing_else(study, tmp_path):
    pytest.importorskip("matplotlib")
    report = make_report(findings_of(finish(study(), {1: 8.0, 2: 15.0})))
    paths = write_report(report, tmp_path / "report")
    page = paths["html"].read_text()
    assert "<svg" in page
    assert not re.search(r'(src|href)="(?!#)', page)
    assert "Missing results" in page
    assert "gpus=4 model=resnet50" in page
    assert "it has not been submitted" in paths["md"].read_text()
    assert paths["png"].read_bytes().startswith(b"\x89PNG")
    assert json.loads(paths["json"].read_text())["missing"][0]["values"]["gpus"] == "4"
    assert (as_data(report)["accepted"], as_data(report)["answer"]) == (None, "unfinished")
    assert "cells without a measurement" in as_text(report)
    assert "Accepted: **unfinished**" in paths["md"].read_text()


def test_a_busy_machine_decides_no_rule_that_compares_times(study):
    rule = {"rule": "efficiency", "says": "x", "gpus": [2], "at_least": 0.99}
    found = findings_of(finish(study(acceptance=[rule]), {1: 8.0, 2: 9.0, 4: 9.0}))
    quiet, busy = (make_report(replace(found, cores=4, load=load)) for load in (0.0, 4.0))
    assert (quiet.answer, busy.answer) == ("no", "not decided")
    assert "the machine was busy" in busy.verdicts[0].evidence


def test_jobs_of_a_slurm_that_is_not_asked_are_queued_and_not_failed(study, monkeypatch):
    plan = study()
    (part,) = plan.rounds
    rows = tuple(
        {
            "id": point.id,
            "values": dict(point.values),
            "state": "queued",
            "job_id": 7,
            "task": task,
            "token": "t",
            "cluster": "0123abcd",
            "directory": str(point_folder(part.folder, point)),
        }
        for task, point in enumerate(part.points)
    )
    part.folder.mkdir(parents=True)
    write_manifest(part.folder, replace(read_manifest(part.folder), rows=rows))
    monkeypatch.delenv("SLURM_CONF", raising=False)
    monkeypatch.setenv("PATH", "/nowhere")
    states = {one.state for one in last_run_statuses(plan)}
    assert states == {"queued"}
    report = make_report(collect(plan, last_run_statuses(plan)))
    assert report.answer == "unfinished"
    assert "job 7 has not ended" in report.findings.missing[0].reason


@pytest.mark.parametrize(
    ("execution", "parts"), [("single-node", [100, 94, 50]), ("cluster", [100, 94, 25])]
)
def test_efficiency_is_drawn_with_bars_and_reported(study, monkeypatch, execution, parts):
    """Of GPUs, or of the two cores that all ranks share."""
    drawn = drawn_by("errorbar", monkeypatch)
    plan = study(execution=execution)
    samples = a_result(2, 15.0)["samples"]
    samples["seconds"][::4] = [1.0] * 5
    finish(plan, {1: 8.0, 4: 8.0})
    finish(plan, {2: 15.0}, samples=samples)
    on_two_cores(plan)
    panel = replace(plan.study, figure=(Panel("efficiency", {}, "x"),))
    found = findings_of(replace(plan, study=panel))
    draw(found, predict(found)[0])
    measured, hollow = drawn
    assert measured["1"] == pytest.approx(parts, abs=0.5)
    assert measured["yerr"][0][1] > 0
    assert len(hollow["1"]) == 1
    assert hollow["yerr"][0][0] > 0
    told = [one["efficiency"] for one in as_data(make_report(found))["measured"]]
    assert told == pytest.approx([part / 100 for part in parts], abs=0.005)


def test_a_timeline_with_threads_is_drawn(study):
    """Traced threads stand in the same file as the parts of the steps, which alone are drawn."""
    pytest.importorskip("matplotlib")
    from hpcdl.train.timeline import write_timeline

    plan = study()
    panels = replace(plan.study, figure=(Panel("timeline", {}, "A job"),))
    plan = finish(replace(plan, study=panels), {1: 8.0})
    rows = [{"name": "thread 1", "events": [("op", 0.0, 0.1)]}]
    rank = {"host": "n1", "columns": a_result(1, 8.0)["samples"], "rows": rows, "traced": 2}
    path = folder_of(plan, plan.cells[0]) / "timeline.json"
    write_timeline(path, [rank])
    assert b"rank 0" in draw(findings_of(plan), ())["svg"]
    for damaged in ('{"traceEvents": [', "[" * 100_000):
        path.write_text(damaged)
        assert b"timeline.json is damaged" in draw(findings_of(plan), ())["svg"]


@pytest.mark.parametrize("noted", ["{", "{}", "[]", "[" * 100_000, '{"cores": "many", "load": 0}'])
def test_a_damaged_note_of_the_machine_is_no_other_machine(study, noted):
    plan = finish(study(), {1: 8.0})
    (plan.folder / "machine.json").write_text(noted)
    with pytest.raises(BadInput, match=r"machine\.json is damaged"):
        findings_of(plan)


def test_a_busy_machine_is_reported(study):
    plan = finish(study(), {1: 8.0})
    for load, said in ((0.1, False), (9.0, True)):
        on_two_cores(plan, load)
        assert ("a load of 9 on 2 cores" in as_text(make_report(findings_of(plan)))) is said


def test_slowed_reads_keep_to_their_rate_and_others_are_left_alone(tmp_path):
    """The library that studies of storage preload: real reads of a real program."""
    source, library = Path(running.__file__).with_name("slow_reads.c"), tmp_path / "slow.so"
    if subprocess.call(["cc", "-shared", "-fPIC", "-o", library, source, "-ldl"]):
        pytest.skip("no C compiler")
    paths = [tmp_path / "data" / "slow", tmp_path / "fast"]
    paths[0].parent.mkdir()
    for path in paths:
        path.write_bytes(bytes(30_000))
    reader = (
        "import os, sys, time; fd = os.open(sys.argv[1], os.O_RDONLY); start = time.monotonic()\n"
        "for at in range(0, 30000, 10000): os.pread(fd, 10000, at)\n"
        "print(time.monotonic() - start)"
    )
    env = {
        "LD_PRELOAD": str(library),
        "HPCDL_READS_BELOW": str(tmp_path / "data"),
        "HPCDL_READS_RATE": "100000",
        "HPCDL_READS_CACHED": "0",
    }
    argv = [sys.executable, "-c", reader]
    slow, fast = (float(subprocess.check_output([*argv, path], env=env)) for path in paths)
    assert slow >= 0.29
    assert fast < slow


def test_the_list_and_a_study_can_be_read_by_machines(hpcdl):
    assert len(json.loads(hpcdl("study", "list", "--json").out)["studies"]) == len(shipped())
    words = ["study", "show", "aliyun-resnet50", "--scale", "full", "--site", "p100-v100-k80"]
    assert len(json.loads(hpcdl(*words, "--json").out)["cells"]) == 33


def test_what_the_report_needs_is_asked_for_before_the_jobs_run(hpcdl, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    words = ["study", "run", "sjtu-inception", "--scale", "full", "--site", "p100-v100-k80"]
    assert "pip install 'hpcdl[plots]'" in hpcdl(*words, code=3).err
    hpcdl(*words, "--dry-run")


def test_a_dry_run_at_full_scale_checks_scripts_and_leaves_out_what_cannot_run(hpcdl):
    words = ["study", "run", "sjtu-inception", "--scale", "full", "--dry-run", "--json"]
    checked = json.loads(hpcdl(*words, "--site", "p100-v100-k80").out)
    assert checked["cells"] == 6
    assert all(not one["errors"] for one in checked["scripts"])
    (left_out, *_) = json.loads(hpcdl(*words, "--site", "pi", code=6).out)["left_out"]
    assert "no partition 'v100'" in left_out["problem"]
