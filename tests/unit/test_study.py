"""Studies: files checked at the door, plans, measurements, predictions; no cluster here."""

import json
import re
import subprocess
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from unittest.mock import Mock

import pytest

from hpcdl.api import study as api
from hpcdl.jobs.manifest import read_manifest, write_manifest
from hpcdl.jobs.sweep import RunStatus
from hpcdl.predict.request import ScalingRequest, answer
from hpcdl.predict.step import IMAGENET, SYNTHETIC
from hpcdl.slurm import client
from hpcdl.system.errors import BadInput, MissingPrerequisite
from hpcdl.train.options import OPTIONS
from hpcdl.workflows.study import running
from hpcdl.workflows.study.cells import data_folder, make_plan
from hpcdl.workflows.study.findings import Results
from hpcdl.workflows.study.load import load_study, read_study, shipped
from hpcdl.workflows.study.measurements import look
from hpcdl.workflows.study.report import rules_of
from hpcdl.workflows.study.running import collect, last_run_statuses
from tests.studies import (
    LAYOUT,
    RATES,
    a_result,
    all_ran,
    described,
    findings_of,
    finish,
    jobs,
    modules_for,
    on_two_cores,
    planned,
)
from tests.unit.conftest import shipped as shipped_site

ROOT = Path(__file__).resolve().parents[2]
SHIPPED = pytest.mark.parametrize("name", shipped())


@pytest.fixture
def study(tmp_path):
    """Plans a study of one matrix, with changes of its scale."""
    return partial(planned, tmp_path)


def full(site, name, *partitions):
    return make_plan(site, load_study(name), "full", partitions)


# ---- the shipped studies ----


@SHIPPED
def test_a_shipped_study_is_short_and_small_at_its_small_scale(name):
    """Its options are those of the training program."""
    study = load_study(name)
    assert study.name == name
    assert len(study.path.read_text().splitlines()) <= 130
    known = {option.flag for option in OPTIONS}
    beside = {
        f"--{key}" for key in ("gpus", "nodes", "layout", "partition", "framework", "environment")
    }
    for each in (*study.small.jobs, *study.full.jobs):
        words = (word.partition("=")[0] for word in each.options.split())
        assert set(words) <= known
        assert {f"--{key}" for key in each.matrix} <= known | beside
    assert study.small.single_node, "one job at a time"
    assert max(int(count) for each in study.small.jobs for count in each.matrix["gpus"]) <= 8


@SHIPPED
def test_every_table_and_figure_of_the_originals_is_repeated_or_has_a_reason(name):
    """What docs/evidence/studies.md says a study repeats, its file has."""
    study, site = load_study(name), shipped_site("p100-v100-k80")
    docs = (ROOT / "docs" / "evidence" / "studies.md").read_text()
    (text,) = re.findall(rf"### `{name}`: the original's.*?\n\n(.*?)\n\n", docs, re.S)
    rows = [line.split(" | ") for line in text.splitlines()[2:]]
    assert len(rows) >= 5
    plans = [make_plan(site, study, scale, image="/i") for scale in ("small", "full")]
    every = [Results(plan, plan.cells, (), (), (), 2, 0.0) for plan in plans]
    parts = [part for results in every for part in study.report(results)]
    known = {
        "figure": {part.title for part in parts if isinstance(part, api.Panel)},
        "table": {part.title for part in parts if isinstance(part, api.ResultTable)},
        "run": {each.name for each in (*study.small.jobs, *study.full.jobs)},
        "rule": {rule["rule"] for plan in plans for rule in rules_of(plan)},
        "published": {one.label for one in study.published},
    }
    for tick, item, by, note in rows:
        assert by.strip() or note.strip(" |")
        assert (tick == "| ✓") is bool(by.strip()), item
        for kind, what in re.findall(r"(\w+) \*([^*]+)\*", by):
            assert what in known[kind], f"{item}: {kind} {what}"


def expected(plan, cell):
    """What `hpcdl predict` says of a cell, from published rows alone."""
    words = dict(word.partition("=")[::2] for word in cell.jobs.options.split())
    options = {**{key.removeprefix("--"): value for key, value in words.items()}, **cell.values}
    batch = options.get("batch-per-rank") or int(options["global-batch"]) // cell.gpus
    request = ScalingRequest(
        plan.site.partition(cell.point.spec.partition),
        options["model"],
        str(cell.gpus),
        int(batch),
        "fp32",
        data=SYNTHETIC if cell.data == SYNTHETIC else IMAGENET,
    )
    return answer(request).points[0].images_per_second


@pytest.mark.parametrize("name", ["aliyun-resnet50", "dell-chexnet", "sjtu-inception"])
def test_the_model_itself_says_that_the_rules_of_scale_full_can_hold(name, tmp_path):
    """A rule that no machine of the shipped site could pass would judge nothing."""
    site = shipped_site("p100-v100-k80")
    site = replace(site, paths=replace(site.paths, work=tmp_path))
    plan = full(site, name)
    for cell in plan.possible:
        slow = 2.5 if cell.values.get("framework") == "old" else 1.0
        model = cell.values.get("model") or "mlp"
        rate = 1000.0 if "mlp" in cell.jobs.options or model == "mlp" else 0.0
        rate = rate if "mlp" in cell.jobs.options else expected(plan, cell) / slow
        changes = {
            "layout": {**LAYOUT, "ranks": cell.gpus, "gpu_per_rank": 1},
            "summary": {"metrics": {"accuracy": 0.95, "auroc": 0.85}},
        }
        finish(plan, {cell.gpus: rate}, of=cell.named, **changes)
    answers = {one.says: one for one in findings_of(plan).protocol.verdicts}
    # tf.distribute's servers ask nobody for a password: this site does not trust its network.
    assert {one.rule for one in answers.values() if one.ok is False} <= {"complete"}
    assert not [one for one in answers.values() if one.rule == "efficiency" and not one.ok]


@SHIPPED
@pytest.mark.parametrize("scale", ["small", "full"])
def test_every_script_of_every_study_is_clean_under_lint_and_bash(name, scale):
    site = shipped_site("embedded" if scale == "small" else "p100-v100-k80")
    site = replace(site, container="apptainer")
    plan = make_plan(site, load_study(name), scale, image="/images/tensorflow.sif")
    # tf.distribute's servers ask nobody for a password: a site must say that it trusts its network.
    assert all("multiworker" in cell.point.problem for cell in plan.impossible)
    checked = tuple(running.check_scripts(plan, modules_for(plan)))
    assert checked
    assert [one.errors for one in checked] == [()] * len(checked)


# ---- a file of a user ----

(TEXT,) = re.findall("```python\n(.*?)```", (ROOT / "docs" / "studies.md").read_text(), re.S)
FAULTS = [
    ("title=", "titel=", r"mine\.py:21: TypeError: .*'titel'"),
    ("def judge(", "def judge((", r"mine\.py:4: SyntaxError"),
    ("from hpcdl", "\0", r"is no Python file: it has a zero byte"),
    ("from hpcdl", "\udcff", r"SyntaxError"),
    ("from hpcdl", "import nothing_here\nfrom hpcdl", r"mine\.py:1: ModuleNotFoundError"),
    (".efficiency(4)", ".efficienzy(4)", r"mine\.py:7: AttributeError"),
    ("where(model=", "where(modle=", r"mine\.py:7: no cell has a 'modle'"),
    ('where(model="alexnet")', "where(gpus=64)", r"mine\.py:7: no cell has gpus=64"),
    ("gpus=1,2,4 ", "", r"mine\.py:18: the jobs 'speed' have no counts of GPUs"),
    ("gpus=1,2,4 ", "gpus=0 ", "have no counts of GPUs"),
    ("gpus=1,2,4 ", "gpus=1,1 ", "names a value twice"),
    ("gpus=1,2,4 ", "gpus ", r"'gpus' has no value"),
    ("--steps=200", "--model=mlp", "'model' is in the matrix and in the options"),
    ('"--steps=200"', '"", ["modle=mlp"]', "'modle', which is not in the matrix"),
    ("gpus=1,2,4 ", "gpus=1,4 data=imagnet ", "unknown data set 'imagnet'"),
    ("gpus=1,2,4 ", "gpus=1,4 framework=jacks ", "unknown framework 'jacks'"),
    ("STUDY =", "OTHER =", r"makes no study.*STUDY = study\.Study"),
    ("STUDY =", "exit(3)\nSTUDY =", r"mine\.py:21: SystemExit: 3"),
    ("yield study.rate(", "yield 1 / 0, (", r"mine\.py:11: ZeroDivisionError"),
]


@pytest.mark.parametrize(("old", "new", "said"), FAULTS, ids=[new for _, new, _ in FAULTS])
def test_a_fault_of_a_study_file_is_one_error_with_its_own_line(hpcdl, tmp_path, old, new, said):
    """Also one in its rules, or its figure: without the lines of hpcdl that called it."""
    path = tmp_path / "mine.py"
    assert old in TEXT
    path.write_text(TEXT.replace(old, new, 1), errors="surrogateescape")
    err = hpcdl("study", "report", str(path), "--site", "embedded", code=2).err
    assert re.search(said, err, re.S), err
    assert "Traceback" not in err
    assert "workflows/study" not in err


def test_a_study_is_named_after_its_file_and_the_nearest_name_is_offered(tmp_path):
    path = tmp_path / "my_own.py"
    path.write_text(TEXT)
    assert read_study(path).name == "my-own"
    with pytest.raises(BadInput) as caught:
        load_study("tsubame-oi")
    assert "tsubame-io" in caught.value.hint


def test_python_without_asserts_judges_nothing(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(TEXT)
    words = [sys.executable, "-O", "-m", "hpcdl", "study", "show", path, "--site", "embedded"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 3
    assert "without -O" in done.stderr


# ---- plans ----


def test_cells_that_a_site_cannot_run_are_named_and_the_rest_stays(study):
    plan = study(jobs("gpus=2,512 model=resnet50"))
    assert [cell.gpus for cell in plan.possible] == [2]
    assert "p100" in plan.impossible[0].point.problem


@pytest.mark.parametrize(
    ("partitions", "wanted"),
    [
        ((), {("p100", 1), ("p100", 2), ("v100", 1)}),
        (("v100", "p100"), {("v100", 1), ("v100", 2), ("p100", 1)}),
        (("k80",), {("k80", 1), ("k80", 2)}),
    ],
)
def test_partitions_are_replaced_place_for_place_also_in_what_is_excluded(
    study, partitions, wanted
):
    matrix = jobs("gpus=1,2 partition=p100,v100", exclude=["partition=v100 gpus=2"])
    plan = study(matrix, partitions=partitions)
    assert {(cell.point.spec.partition, cell.gpus) for cell in plan.cells} == wanted


@pytest.mark.parametrize(
    ("site", "name", "partitions", "said"),
    [
        ("pi", "aliyun-resnet50", [], "no partition 'v100'"),
        ("a100-h100", "aliyun-resnet50", ["a100", "h100"], "leave out 'h100'"),
        ("a100-h100", "sjtu-inception", ["a100", "a100"], "names a partition twice"),
    ],
)
def test_partitions_on_which_a_study_cannot_run_are_refused(site, name, partitions, said):
    with pytest.raises(BadInput) as caught:
        full(shipped_site(site), name, *partitions)
    assert said in caught.value.render()


def test_the_rate_of_slowed_reads_is_that_of_all_ranks_of_each_job(study):
    plan = study(jobs("gpus=1,2,4", reads=api.Reads(8)))
    rates = {cell.gpus: cell.point.spec.environment["HPCDL_READS_RATE"] for cell in plan.cells}
    assert rates == {1: "8000000", 2: "4000000", 4: "2000000"}


AROUND = {
    "module": api.Surroundings(),
    "plain": api.Surroundings({"TF_ENABLE_ONEDNN_OPTS": "0"}),
    "image": api.Surroundings(container=True),
}


def surrounded(study, **how):
    return study(jobs("gpus=2 environment=module,plain,image"), environments=AROUND, **how)


def test_an_environment_is_variables_or_an_image_and_jobs_in_one_load_no_module(study):
    plan = surrounded(study, image="/images/tf")
    cells = {cell.values["environment"]: cell for cell in plan.cells}
    assert len({cell.point.id for cell in plan.cells}) == len(AROUND)
    assert [cell.point.spec.container for cell in cells.values()] == [None, None, "/images/tf"]
    assert dict(cells["plain"].point.spec.environment) == {"TF_ENABLE_ONEDNN_OPTS": "0"}
    texts = [one.script.text for one in running.check_scripts(plan, modules_for(plan))]
    assert ["module load" in text for text in texts] == [True, True, False]
    assert ["ch-run" in text for text in texts] == [False, False, True]


def test_without_an_image_its_cells_are_left_out_but_a_result_is_found(study):
    assert [one.values["environment"] for one in surrounded(study).cells] == ["module", "plain"]
    folder = surrounded(study, image="/images/tf").cells[2].results
    folder.mkdir(parents=True)
    (folder / "result.json").write_text("{}")
    assert len(surrounded(study).possible) == 3


def test_a_changed_study_does_not_take_old_results_for_new(study):
    plans = (study(), study(), study(jobs(options="--steps=21")))
    one, same, changed = ({cell.point.id for cell in plan.cells} for plan in plans)
    assert (one, one & changed) == (same, set())


def test_jobs_that_repeat_run_in_rounds_and_are_one_measurement(study):
    plan = study(jobs(repeats=2, repeat_up_to=2))
    ran = [(cell.gpus, cell.attempt) for cell in plan.cells]
    assert ran == [(1, 0), (2, 0), (4, 0), (1, 1), (2, 1)]
    assert [folder.name for folder in plan.rounds] == ["training", "training-2"]
    assert len({cell.point.id for cell in plan.cells}) == 5
    finish(plan, {1: 8.0, 2: 16.0}, turn=0)
    finish(plan, {1: 10.0}, turn=1)
    found = findings_of(plan)
    one, two = found.measured
    assert ([*one.rounds], [*two.rounds]) == ([0, 1], [0])
    assert (one.rate, *one.spread) == pytest.approx((9.0, 8.0, 10.0))
    assert [gap.cell.name.split()[1] for gap in found.missing] == ["gpus=4", "gpus=2"]
    assert found.missing[1].cell.name.endswith("again (2)")


PROGRAMS = {
    "horovod": api.Program(),
    "torch": api.Program("torch", [api.PYTHON, api.example("frameworks/torch_networks.py")]),
}


def test_each_framework_has_its_launcher_and_program_whatever_python_it_was_given(study):
    matrix = jobs("framework=horovod,torch gpus=1")
    plan = study(matrix, frameworks=PROGRAMS, pythons={"torch": "/my/python"})
    specs = {cell.values["framework"]: cell.point.spec for cell in plan.cells}
    spec = specs["torch"]
    assert (spec.launcher, spec.program[0]) == ("torch", "/my/python")
    assert Path(spec.program[1]).is_file()
    assert specs["horovod"].program[:2] == ("hpcdl", "train")
    again = study(matrix, frameworks=PROGRAMS)
    assert [cell.point.id for cell in again.cells] == [cell.point.id for cell in plan.cells]
    with pytest.raises(BadInput, match="unknown framework 'jacks'"):
        study(matrix, frameworks=PROGRAMS, pythons={"jacks": "/my/python"})


# ---- measurements ----


def test_rates_are_those_of_steps_after_the_warm_up_without_checkpoints(study):
    plan, samples = study(), a_result(1, 8.0)["samples"]
    samples["seconds"][:5] = [99.0] * 5
    samples["seconds"][-1] = 100.5
    samples["checkpoint"][-1] = 100.0
    finish(plan, {1: 8.0}, samples=samples)
    (one,) = findings_of(plan).measured
    assert (one.rate, *one.spread) == pytest.approx((8.0, 8.0, 8.0))


def test_an_epoch_is_timed_without_the_first_which_pays_for_compiling(study):
    plan = study(jobs("gpus=1", data="photos"), data={"photos": api.made("photos", "count=40")})
    described(plan, "photos", images=40, size=800)
    samples = a_result(1, 8.0)["samples"]
    samples["seconds"][0] = 60.0
    finish(plan, {1: 8.0}, samples=samples, options={"warmup_steps": 0})
    (one,) = findings_of(plan).measured
    assert one.size == 800
    assert one.epoch_seconds == pytest.approx(40 / 8.0)
    path = Path(data_folder(plan.site, plan.scale, "photos")) / "dataset.json"
    path.write_text('{"splits": []}')
    (missing,) = findings_of(plan).missing
    assert missing.reason.startswith(f"{path} is no description of a data set")


ZERO = {**a_result(1, 8.0)["samples"], "compute": [0.0] * 20}
UNUSABLE = [
    ({"schema": 7}, "version 7; this hpcdl reads version 2"),
    ({"layout": {**LAYOUT, "ranks": 0}}, "layout.ranks is 0, below its minimum of 1"),
    ({"options": {"warmup_steps": float("inf")}}, "must be a whole number, not 'inf'"),
    ({"model": None}, "model has no value"),
    ({"summary": {}}, "lacks summary.metrics"),
    ({"job": {}}, "'id'"),
    ({"samples": ZERO}, "does not split the time of any step"),
    ("not json", "not JSON"),
    ("[]", "no mapping"),
]


@pytest.mark.parametrize(("change", "said"), UNUSABLE, ids=[said for _, said in UNUSABLE])
def test_a_result_that_lacks_what_a_report_needs_is_one_missing_result(study, change, said):
    plan = finish(study(), RATES)
    if isinstance(change, str):
        (plan.cells[1].results / "result.json").write_text(change)
    else:
        finish(plan, {2: 15.0}, **change)
    found = findings_of(plan)
    assert [one.ranks for one in found.measured] == [1, 4]
    (missing_result,) = found.missing
    assert said in missing_result.reason
    assert "`study run` runs it again" in missing_result.reason
    assert (found.accepted, missing_result.state) == (False, "unusable")


def test_a_score_that_is_no_number_is_none_and_its_cell_stays(study):
    plan = finish(study(), {1: 8.0}, summary={"metrics": {"auroc": float("nan"), "accuracy": 0.5}})
    (one,) = findings_of(plan).measured
    assert one.metrics == {"accuracy": 0.5}


def test_a_failed_job_is_a_missing_result_with_its_own_message(study):
    plan = finish(study(), {1: 8.0, 2: 15.0})
    *_, cell = plan.cells
    logs = cell.folder / "logs"
    logs.mkdir(parents=True)
    (logs / "9_0.log").write_text("starting\nerror: rank 2: no space left on the device\nbye\n")
    missing = look(plan, cell, RunStatus(cell.point, "missing", 9, 0))
    assert "job 9 failed: error: rank 2: no space left on the device" in missing.reason


@pytest.mark.parametrize("silent", [False, True], ids=["no Slurm", "a silent one"])
def test_results_outlive_the_cluster(study, monkeypatch, tmp_path, silent):
    plan = finish(study(), RATES)
    rows = [{"id": plan.cells[0].point.id, "job_id": 3, "task": 0}]
    (plan.cells[0].folder / "sweep.json").write_text(json.dumps({"schema": 2, "points": rows}))
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin" if silent else str(tmp_path))
    if silent:
        (tmp_path / "scontrol").touch(mode=0o755)
        (tmp_path / "scontrol").write_text("#!/bin/sh\nexec sleep 60\n")
        monkeypatch.setattr(client, "_ANSWER_SECONDS", 0.2)
    assert {one.state for one in last_run_statuses(plan)} == {"done"}


def test_jobs_of_a_slurm_that_is_not_asked_are_queued_and_not_failed(study, monkeypatch):
    plan = study()
    ((folder, points),) = plan.rounds.items()
    rows = tuple(
        {
            "id": cell.point.id,
            "values": dict(cell.point.values),
            "state": "queued",
            "job_id": 7,
            "task": task,
            "token": "t",
            "cluster": "0123abcd",
            "directory": str(cell.results),
        }
        for task, cell in enumerate(plan.cells)
    )
    assert len(rows) == len(points)
    folder.mkdir(parents=True)
    write_manifest(folder, replace(read_manifest(folder), rows=rows))
    monkeypatch.delenv("SLURM_CONF", raising=False)
    monkeypatch.setenv("PATH", "/nowhere")
    assert {one.state for one in last_run_statuses(plan)} == {"queued"}
    found = collect(plan, last_run_statuses(plan))
    assert found.answer == "unfinished"
    assert "job 7 has not ended" in found.missing[0].reason


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


@pytest.mark.parametrize("noted", ["{", "{}", "[]", "[" * 100_000, '{"cores": "many", "load": 0}'])
def test_a_damaged_note_of_the_machine_is_no_other_machine(study, noted):
    plan = finish(study(), {1: 8.0})
    (plan.folder / "machine.json").write_text(noted)
    with pytest.raises(BadInput, match=r"machine\.json is damaged"):
        findings_of(plan)


# ---- predictions ----


def test_what_did_not_run_is_predicted_from_the_one_rank_run(study):
    found = findings_of(finish(study(), {1: 8.0, 2: 15.0}))
    assert not found.not_predicted
    assert {one.gpus: one.measured for one in found.predicted} == {2: 15.0, 4: None, 8: None}
    assert found.predicted[0].error is not None


@pytest.mark.parametrize("second", [12.0, 6.0], ids=["slower than measured", "quicker"])
def test_on_shared_cores_predictions_are_as_unsure_as_the_worst_that_ran(study, second):
    predicted = findings_of(finish(study(), {1: 8.0, 2: second})).predicted
    (ran,) = [one for one in predicted if one.measured]
    worst = max(ran.rate / second, second / ran.rate)
    for one in predicted:
        assert (one.low, one.high) == pytest.approx((one.rate / worst, one.rate * worst))
    alone = findings_of(finish(study(jobs("gpus=1,2 model=mlp")), {1: 8.0})).predicted
    assert {(one.low, one.high) for one in alone} <= {(None, None)}


def test_on_gpus_predictions_have_the_bounds_of_the_model_and_its_precisions(study):
    plan = finish(study(single_node=False), {1: 8.0})
    predicted = findings_of(plan).predicted
    assert all(one.low and one.high and one.low < one.rate < one.high for one in predicted)
    found = findings_of(finish(plan, {1: 8.0}, precision="int8"))
    assert not found.predicted
    assert "unknown precision 'int8'" in found.not_predicted[0]


def test_on_shared_cores_a_step_is_its_computing_and_what_exchanging_costs_another_series(study):
    """t1 x ranks / cores + the exchange, and the few percent that ranks wait for each other."""
    plan = study(jobs("gpus=1,2,4 model=alexnet,resnet50"), exchange_from="model=alexnet")
    # Two ranks: 8 images in 0.5 s + 1 s of exchanging 100 MB; the other one's are 200 MB.
    finish(plan, {1: 8.0, 2: 8 / 1.5}, of={"model": "alexnet"}, model="alexnet")
    finish(plan, {1: 8.0, 2: 8 / 2.5}, of={"model": "resnet50"}, parameters=50_000_000)
    on_two_cores(plan)
    predicted = findings_of(plan).predicted
    steps = {(one.values["model"], one.gpus): one.gpus * 4 / one.rate for one in predicted}
    assert steps["resnet50", 2] == pytest.approx(0.5 + 2.0, rel=0.03)
    assert steps["resnet50", 4] == pytest.approx(2 * 0.5 + 3 * 2.0, rel=0.03)
    judged = {(one.values["model"], one.gpus) for one in predicted if one.error is not None}
    assert judged == {("resnet50", 2)}


def test_more_ranks_are_predicted_no_faster_than_their_data_can_be_read(tmp_path):
    site = shipped_site("p100-v100-k80")
    site = replace(site, paths=replace(site.paths, work=tmp_path))
    whole = load_study("tsubame-io")
    slow = replace(whole.full.jobs[1], over="model=alexnet data=imagenet-2x gpus=1", predict=(4,))
    plan = make_plan(
        site, replace(whole, full=replace(whole.full, jobs=[slow], judge=all_ran)), "full"
    )
    layout = {**LAYOUT, "gpu_per_rank": 1}
    finish(plan, {1: 1000.0}, model="alexnet", batch_per_rank=64, layout=layout)
    (one,) = findings_of(plan).predicted
    assert one.rate < 200e6 / (295.1e9 / 2562334)


def test_another_program_than_hpcdl_train_is_not_predicted(study):
    matrix = jobs("gpus=1,2 model=resnet50 framework=old")
    plan = study(matrix, frameworks={"old": api.Program("horovod", ["python", "old.py"])})
    (gap,) = findings_of(finish(plan, {1: 4.0})).not_predicted
    assert "the model is of `hpcdl train`" in gap


# ---- the library of slow reads, and the command ----


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
    shown = hpcdl("study", "show", "tsubame-io", "--site", "embedded").out
    assert "  slow: 1 job: model=alexnet data=whole gpus=2; reads " in shown
    assert "  the slowed storage costs time" in shown


def test_a_dry_run_at_full_scale_checks_scripts_and_leaves_out_what_cannot_run(hpcdl):
    words = ["study", "run", "sjtu-inception", "--scale", "full", "--dry-run", "--json"]
    checked = json.loads(hpcdl(*words, "--site", "p100-v100-k80").out)
    assert checked["cells"] == 6
    assert all(not one["errors"] for one in checked["scripts"])
    (left_out, *_) = json.loads(hpcdl(*words, "--site", "pi", code=6).out)["left_out"]
    assert "no partition 'v100'" in left_out


@pytest.mark.parametrize(
    ("states", "said"),
    [
        (("IDLE", "DOWN*"), []),
        (("DOWN*", "IDLE+DRAIN"), ["no node of 'p100' can run jobs now (2 nodes: fan failed)"]),
    ],
    ids=["one is left", "all are down"],
)
def test_a_partition_without_a_node_is_named_with_slurm_s_reason(study, monkeypatch, states, said):
    plan = study()
    nodes = [
        Mock(partitions=("p100",), state=state, reason="" if state == "IDLE" else "fan failed")
        for state in states
    ]
    monkeypatch.setattr(client, "nodes", lambda: nodes)
    assert [line.split(";")[0] for line in running.nodes_down(plan)] == said
