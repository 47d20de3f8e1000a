"""Studies: files checked at the door, plans, measurements, predictions; no cluster here."""

import json
import re
import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path
from unittest.mock import Mock

import pytest

from hpcdl.api import study as api
from hpcdl.jobs.lint import lint
from hpcdl.jobs.manifest import Manifest, RunStatus
from hpcdl.slurm import client
from hpcdl.system.errors import BadInput, MissingPrerequisite
from hpcdl.train.options import OPTIONS
from hpcdl.workflows.study import cells, running
from hpcdl.workflows.study.cells import look, make_plan, noted_partitions
from hpcdl.workflows.study.declared import load_study, read_study, shipped
from hpcdl.workflows.study.report import unmeasured
from hpcdl.workflows.study.running import collect, last_run_statuses
from tests.make.results import LAYOUT, trained
from tests.make.sites import shipped as shipped_site
from tests.make.studies import RATES, findings_of, finish, jobs, modules_for, on_two_cores, planned
from tests.strangers import STRANGER, as_root

ROOT = Path(__file__).resolve().parents[2]
SHIPPED = pytest.mark.parametrize("name", shipped())


@pytest.fixture
def study(tmp_path):
    """Plans a study of one matrix, with changes of its scale."""
    return partial(planned, tmp_path)


# ---- the shipped studies ----


@SHIPPED
def test_a_shipped_study_is_short_and_small_at_its_small_scale(name):
    """Its options are those of the training program."""
    study = load_study(name)
    assert study.name == name
    assert len(study.path.read_text().splitlines()) <= 120
    known = {option.flag for option in OPTIONS}
    beside = {f"--{key}" for key in ("gpus", "nodes", "layout", "partition")}
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
    plans = [make_plan(site, study, scale) for scale in ("small", "full")]
    every = [unmeasured(plan) for plan in plans]
    parts = [part for results in every for part in study.report(results)]
    known = {
        "figure": {part.title for part in parts if isinstance(part, api.Panel)},
        "table": {part.title for part in parts if isinstance(part, api.ResultTable)},
        "run": {each.name for each in (*study.small.jobs, *study.full.jobs)},
        "rule": {one.rule for results in every for one in results.protocol.verdicts},
        "published": {one.label for one in study.published},
    }
    for tick, item, by, note in rows:
        assert by.strip() or note.strip(" |")
        assert (tick == "| ✓") is bool(by.strip()), item
        for kind, what in re.findall(r"(\w+) \*([^*]+)\*", by):
            assert what in known[kind], f"{item}: {kind} {what}"


@SHIPPED
@pytest.mark.parametrize("scale", ["small", "full"])
def test_every_script_of_every_study_is_clean_under_lint_and_bash(name, scale):
    site = shipped_site("embedded" if scale == "small" else "p100-v100-k80")
    plan = make_plan(site, load_study(name), scale)
    # By the same program two launchers had one cell, and so one result.
    assert len({cell.point.id for cell in plan.cells}) == len(plan.cells)
    # TensorFlow's servers ask nobody for a password: a site must say that it trusts its network.
    left_out = [cell for cell in plan.cells if cell.point.problem]
    assert all("multiworker" in cell.point.problem for cell in left_out)
    texts = [text for _, text in running.scripts(plan, modules_for(plan))]
    assert texts
    for text in texts:
        faults = [
            one
            for one in lint(text, name="x", version=site.slurm.version)
            if one.severity == "error"
        ]
        assert not faults
        assert subprocess.run(["bash", "-n"], input=text, text=True, check=False).returncode == 0


@as_root
def test_nothing_is_written_into_a_study_s_directory_that_another_made(study):
    plan = study()
    plan.folder.mkdir(parents=True)
    shutil.chown(plan.folder, STRANGER)
    with pytest.raises(MissingPrerequisite, match=f"belongs to {STRANGER}"):
        next(running.start(plan, modules_for(plan)))
    assert not [*plan.folder.iterdir()], "a lock, too, is a file"


# ---- a file of a user ----

(TEXT,) = re.findall("```python\n(.*?)```", (ROOT / "docs" / "studies.md").read_text(), re.S)
FAULTS = [
    ("from hpcdl", "\0", r"is no Python file: it has a zero byte"),
    ("from hpcdl", "\udcff", r"SyntaxError"),
    ("from hpcdl", "import nothing_here\nfrom hpcdl", r"mine\.py:1: ModuleNotFoundError"),
    (".efficiency(4)", ".efficienzy(4)", r"mine\.py:7: AttributeError"),
    ("where(model=", "where(modle=", r"mine\.py:7: unknown key of cells 'modle'"),
    ("gpus=1,2,4 ", "gpus=0 ", "have no counts of GPUs"),
    ("gpus=1,2,4 ", "gpus=1,1 ", "names a value twice"),
    ("gpus=1,2,4 ", "gpus ", r"'gpus' has no value"),
    ("--steps=200", "--model=mlp", "'model' is in the matrix and in the options"),
    ('"--steps=200"', '"", ["modle=mlp"]', "'modle', which is not in the matrix"),
    ("gpus=1,2,4 ", "gpus=1,4 data=imagnet ", "unknown data set 'imagnet'"),
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
    assert ["p100" in cell.point.problem for cell in plan.cells] == [False, True]


@pytest.mark.parametrize("over", ["gpus=1,2 partition=p100,v100", "gpus=1,2"])
def test_partitions_take_part_instead_of_the_study_s_own(study, over):
    for partitions in (("k80", "v100", "p100"), ("k80",)):
        plan = study(jobs(over), partitions=partitions)
        several = partitions if "partition" in over else partitions[:1]
        wanted = {(name, gpus) for name in several for gpus in (1, 2)}
        assert {(cell.point.spec.partition, cell.gpus) for cell in plan.cells} == wanted


def test_a_changed_study_does_not_take_old_results_for_new(study):
    plans = (study(), study(), study(jobs(options="--steps=21")))
    one, same, changed = ({cell.point.id for cell in plan.cells} for plan in plans)
    assert (one, one & changed) == (same, set())


def test_jobs_in_several_ways_have_names_launchers_and_programs_whatever_python(study):
    ways = {
        "horovod": {},
        "plain": {"environment": {"TF_ENABLE_ONEDNN_OPTS": "0"}},
        "torch": {"launcher": "torch", "program": [api.PYTHON, "x.py"]},
    }
    matrix = jobs("gpus=1").each("framework", ways)
    plan = study(*matrix, pythons={"torch": "/my/python"})
    specs = {cell.values["framework"]: cell.point.spec for cell in plan.cells}
    assert (specs["torch"].launcher, specs["torch"].program[0]) == ("torch", "/my/python")
    assert specs["horovod"].program[:2] == ("hpcdl", "train")
    assert dict(specs["plain"].environment) == {"TF_ENABLE_ONEDNN_OPTS": "0"}
    ids = [cell.point.id for cell in plan.cells]
    assert ids == [cell.point.id for cell in study(*matrix).cells]
    assert len({*ids}) == len(ways)
    with pytest.raises(BadInput, match="unknown framework 'jacks'"):
        study(*matrix, pythons={"jacks": "/my/python"})


@pytest.mark.parametrize("option", ["--data", "--records"])
def test_a_program_gets_the_directory_of_a_data_set_wherever_it_names_it(study, option):
    made = {"tiny": api.DataSet(["python", "make.py"])}
    matrix = jobs("gpus=1 data=tiny", program=["python", "x.py", option, "{data}"])
    (cell,) = study(matrix, data=made).cells
    words = cell.point.spec.program
    assert re.fullmatch(r"/.*/studies/data/tiny-[0-9a-f]+", words[words.index(option) + 1])
    assert cell.data == "tiny"


# ---- measurements ----


SUMMARY = trained(1, 8.0)["summary"]
SAMPLES = trained(1, 8.0)["samples"]


def test_rates_are_those_of_steps_after_the_warm_up_without_checkpoints(study):
    """One in fifteen steps of half a second wrote a checkpoint for 100 s."""
    written = {"seconds": [9.0] * 5 + [0.5] * 14 + [100.5], "checkpoint": [0.0] * 19 + [100.0]}
    parts = {"compute": 0.06977, "checkpoint": 0.93023}
    slow = {"images_per_second_p05": 2.8, "images_per_second_mean": 0.558, "phases": parts}
    samples, summary = {**SAMPLES, **written}, {**SUMMARY, **slow}
    (one,) = findings_of(finish(study(), {1: 8.0}, samples=samples, summary=summary)).measured
    assert (one.rate, *one.spread, one.mean_rate) == pytest.approx((8.0,) * 4)
    assert one.seconds["compute"] == pytest.approx(0.5)


def test_steps_that_a_server_hands_out_are_known_by_their_mean_alone(study):
    rates = zip(("", "_p05", "_p95", "_mean"), (12.0, 5.0, 16.0, 8.0), strict=True)
    summary = {**SUMMARY, **{f"images_per_second{end}": rate for end, rate in rates}}
    plan = finish(study(), {1: 8.0}, summary=summary, asynchronous={"workers": 1})
    (one,) = findings_of(plan).measured
    assert (one.rate, *one.spread, one.mean_rate) == (8.0,) * 4


def test_the_cores_are_those_of_the_machine_that_the_study_was_started_on(study, monkeypatch):
    """Not of who reports: a short job, or `--no-wait`, leaves no other note."""
    plan = study()
    monkeypatch.setattr(running.sweep, "submit", Mock())
    monkeypatch.setattr(cells.os, "sched_getaffinity", lambda _: range(6))
    assert not [*running.start(plan, modules_for(plan))]
    finish(plan, {1: 8.0})
    (plan.cells[0].results / "others").unlink()
    monkeypatch.setattr(cells.os, "sched_getaffinity", lambda _: range(1))
    found = findings_of(plan)
    assert found.cores == 6
    assert "nobody watched" in found.busy


UNUSABLE = [
    ({"schema": 7}, "version 7; this hpcdl reads version 2"),
    ({"layout": {**LAYOUT, "ranks": 0}}, "layout.ranks is 0, below its minimum of 1"),
    ({"global_batch": float("inf")}, "lacks global_batch"),
    ({"model": None}, "model has no value"),
    ({"summary": {}}, "lacks summary.phases"),
    ({"job": {}}, "'id'"),
    (
        {"summary": {**SUMMARY, "phases": {"compute": 0.5, "checkpoint": 0.5}}, "samples": {}},
        "lacks samples.images",
    ),
    (
        {
            "summary": {**SUMMARY, "phases": {"compute": 0.5, "checkpoint": 0.5}},
            "samples": {**SAMPLES, "checkpoint": SAMPLES["seconds"]},
        },
        "holds no measured step",
    ),
    ({"summary": {**SUMMARY, "phases": {}}}, "holds no measured step"),
    ({"summary": {**SUMMARY, "images_per_second_p05": 0}}, "holds no measured step"),
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
    plan = finish(study(), {1: 8.0}, metrics={"auroc": float("nan"), "accuracy": 0.5})
    (one,) = findings_of(plan).measured
    assert one.metrics == {"accuracy": 0.5}


@pytest.mark.parametrize(
    ("log", "said"),
    [
        (
            "starting\nerror: rank 2: no space left\nsrun: error: n1: task 2: Exited\n",
            "error: rank 2: no space left",
        ),
        ("the last words\n\n  \n", "the last words"),
        ("\nsrun: error: n1: task 2: Exited\n", "srun: error: n1: task 2: Exited"),
        ("", "its log is empty"),
        (None, "it left no log"),
    ],
)
def test_a_failed_job_is_a_missing_result_with_its_own_message(study, log, said):
    plan = finish(study(), {1: 8.0, 2: 15.0})
    *_, cell = plan.cells
    logs = cell.folder / "logs"
    logs.mkdir(parents=True)
    if log is not None:
        (logs / "9_0.log").write_text(log)
    run = RunStatus(cell.point.id, {}, str(cell.results), state="missing", job_id=9, task=0)
    missing = look(cell, run)
    assert f"job 9 failed: {said} (log: " in missing.reason
    assert missing.reason.endswith("logs/9_0.log)")


@pytest.mark.parametrize("silent", [False, True], ids=["no Slurm", "a silent one"])
def test_results_outlive_the_cluster(study, monkeypatch, tmp_path, silent):
    plan = finish(study(), RATES)
    point = plan.cells[0].point
    row = RunStatus(point.id, {}, "x", job_id=3, task=0)
    Manifest(plan.folder, {point.id: row}).write()
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin" if silent else str(tmp_path))
    if silent:
        (tmp_path / "scontrol").touch(mode=0o755)
        (tmp_path / "scontrol").write_text("#!/bin/sh\nexec sleep 60\n")
        monkeypatch.setattr(client, "_ANSWER_SECONDS", 0.2)
    assert {one.state for one in last_run_statuses(plan)} == {"done"}


def test_jobs_of_a_slurm_that_is_not_asked_are_queued_and_not_failed(study, monkeypatch):
    plan = study()
    rows = [
        RunStatus(
            cell.point.id,
            dict(cell.point.values),
            str(cell.results),
            job_id=7,
            task=task,
            token="t",
            cluster="0123abcd",
        )
        for task, cell in enumerate(plan.cells)
    ]
    plan.folder.mkdir(parents=True)
    Manifest(plan.folder, {row.id: row for row in rows}).write()
    monkeypatch.delenv("SLURM_CONF", raising=False)
    monkeypatch.setenv("PATH", "/nowhere")
    assert {one.state for one in last_run_statuses(plan)} == {"queued"}
    found = collect(plan, last_run_statuses(plan))
    assert found.answer == "unfinished"
    assert "job 7 has not ended" in found.missing[0].reason


@pytest.mark.parametrize(("silences", "goes_on"), [(3, True), (1000, False)])
def test_a_restart_of_slurm_ends_no_study_its_end_does(study, monkeypatch, silences, goes_on):
    naps, away = [], MissingPrerequisite("Slurm does not answer")
    answers = Mock(side_effect=[away] * silences + [()])
    monkeypatch.setattr(running.sweep, "run_statuses", answers)
    monkeypatch.setattr(running.time, "sleep", naps.append)
    if goes_on:
        assert list(running.wait(study())) == [()]
    else:
        with pytest.raises(MissingPrerequisite, match="went away") as caught:
            list(running.wait(study()))
        assert "the same command resumes" in caught.value.hint
        assert sum(naps) >= 60


# ---- predictions ----


def test_what_did_not_run_is_predicted_from_the_one_rank_run(study):
    found = findings_of(finish(study(single_node=False), {1: 8.0, 2: 15.0}))
    assert not found.not_predicted
    assert {one.gpus: one.measured for one in found.predicted} == {2: 15.0, 4: None, 8: None}
    assert found.predicted[0].error is not None
    assert all(one.low < one.rate < one.high for one in found.predicted)


def test_on_shared_cores_predictions_start_from_two_ranks(study):
    """t1 x ranks / cores, and what two ranks lost by exchanging: more ranks lose no less."""
    half = {"compute": 0.5, "communication": 0.5}
    summary = {**SUMMARY, "phases": half}
    plan = finish(study(), {1: 8.0, 2: 8.0}, summary=summary)
    on_two_cores(plan)
    found = findings_of(plan)
    four, eight = (one.rate for one in found.predicted)
    assert [one.gpus for one in found.predicted] == [4, 8]
    # Half of a step of 1 s was the exchange: 4 ranks do 1.5 to 2 times as much by half of a core.
    assert four == pytest.approx(4 * 4 / (0.5 * 2 + 0.5 * 2 * 1.75), rel=0.05)
    assert 4.0 < eight < four


@pytest.mark.parametrize(
    ("matrix", "changes", "said"),
    [
        (jobs(program=["python", "old.py"]), {}, "the model is of `hpcdl train`"),
        (jobs(), {"precision": "int8"}, "names no precision that a run can have"),
    ],
    ids=["another program", "a precision that no model knows"],
)
def test_what_cannot_be_predicted_says_why(study, matrix, changes, said):
    found = findings_of(finish(study(matrix), {1: 4.0}, **changes))
    assert not found.predicted
    assert said in found.not_predicted[0]


# ---- the command ----


def test_the_list_and_a_study_can_be_read_by_machines(hpcdl):
    assert len(json.loads(hpcdl("study", "list", "--json").out)["studies"]) == len(shipped())
    words = ["study", "show", "aliyun-resnet50", "--scale", "full", "--site", "p100-v100-k80"]
    asked = json.loads(hpcdl(*words, "--json").out)
    assert (len(asked["missing"]), "machine" in asked) == (30, False)
    shown = hpcdl("study", "show", "tsubame-io", "--site", "embedded").out
    assert "- training: storage=slow model=alexnet data=whole gpus=2: not run yet" in shown
    assert "] the slowed storage costs time" in shown


def test_a_dry_run_at_full_scale_shows_scripts_and_leaves_out_what_cannot_run(hpcdl):
    words = ["study", "run", "sjtu-inception", "--scale", "full", "--dry-run", "--json"]
    shown = json.loads(hpcdl(*words, "--site", "p100-v100-k80").out)
    assert (shown["cells"], shown["left_out"]) == (6, {})
    assert sum(one["jobs"] for one in shown["scripts"]) == 6
    left_out = json.loads(hpcdl(*words, "--site", "pi", code=6).out)["left_out"]
    assert all("no partition 'v100'" in problem for problem in left_out.values())


def test_a_report_is_of_the_partitions_that_the_study_was_run_on(study, tmp_path):
    """Those that `study run --partition` named, without being named again."""
    plan = study(jobs("gpus=1 partition=p100,v100"), partitions=("v100", "k80"))
    plan.folder.mkdir(parents=True)
    assert noted_partitions(plan.folder) == ()
    (plan.folder / "partitions").write_text(",".join(plan.partitions))
    assert noted_partitions(plan.folder) == ("v100", "k80")
