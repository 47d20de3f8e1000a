"""What a job is told after it has ended."""

from dataclasses import replace

import pytest

from hpcdl.jobs.job_report import advise, as_text, summarize
from hpcdl.jobs.watch import Snapshot, describe
from hpcdl.slurm.parse import Usage

DONE = Snapshot(7, "COMPLETED", "it is done", 0, "p100-[01-02]", 1, None)
RESULT = {
    "layout": {"ranks": 4},
    "samples": {"seconds": [0.5, 0.5, 0.5]},
    "summary": {
        "images_per_second": 1234.5, "images_per_second_p05": 1200.0,
        "images_per_second_p95": 1250.0,
        "phases": {"input": 0.41, "compute": 0.5, "communication": 0.05, "other": 0.04},
    },
}  # fmt: skip


def test_an_input_bound_job_gets_the_advice_to_ask_for_more_cpus():
    report = summarize(DONE, RESULT, {"layout": {"cpus_per_task": 4}})
    said = "input-bound: 41% of each step waits for data; raise --cpus-per-task from 4 to 8"
    assert report.advice == said
    text = as_text(report)
    assert "1,234.5 images/s (1,200 to 1,250), 4 ranks" in text
    assert ", requeued once" in text


@pytest.mark.parametrize(("tasks", "now", "said"), [
    (2, 14, "its ranks have all CPUs of their nodes"),
    (1, 14, "raise --cpus-per-task from 14 to 28"), (2, 10, "raise --cpus-per-task from 10 to 14"),
])  # fmt: skip
def test_no_more_cpus_are_advised_than_a_node_has(tasks, now, said):
    layout = {"cpus_per_task": now, "tasks_per_node": tasks}
    assert said in summarize(DONE, RESULT, {"layout": layout}, node_cpus=28).advice


def test_the_loss_of_the_whole_run_is_drawn_with_what_earlier_starts_reached():
    curve = {"step": list(range(1, 41)), "loss": [None, *[4.0] * 19, *[1.0] * 20]}
    assert summarize(DONE, {**RESULT, "curve": curve}, {}).curve == (*[4.0] * 19, *[1.0] * 20)


def test_communication_is_named_when_it_is_the_worst_and_a_job_that_computes_gets_no_advice():
    assert advise({"input": 0.1, "communication": 0.3}, {}).startswith("communication-bound: 30%")
    assert advise({"input": 0.02, "compute": 0.9, "communication": 0.08}, {}) == ""


@pytest.mark.parametrize("usage", [None, Usage({}, 0, 0.0, None, "")])
def test_a_job_without_a_result_is_reported_by_its_state(usage):
    report = summarize(DONE, None, {}, usage)
    assert report.images_per_second is None
    assert as_text(report) == "job 7: it is done, requeued once"


def test_of_a_job_that_failed_its_log_is_named():
    failed = replace(DONE, state="FAILED", exit_code=1)
    assert "`hpcdl job log 7`" in as_text(summarize(failed, RESULT, {}))
    assert "job log" not in as_text(summarize(replace(failed, state="RUNNING"), None, {}))


def test_loss_scores_and_the_learning_curve_are_said():
    losses = [8.0 - step / 100 for step in range(800)]
    result = {**RESULT, "samples": {"seconds": [1.0] * 800, "loss": losses},
              "summary": {"loss": 0.01, "metrics": {"accuracy": 0.9512}}}  # fmt: skip
    text = as_text(summarize(DONE, result, {}))
    assert "  loss 0.01, accuracy 0.9512\n" in text
    (curve,) = [line.split() for line in text.splitlines() if "▁" in line]
    assert (curve[0], curve[1], curve[3]) == ("loss", "7.905", "0.105")
    assert len(curve[2]) == 40
    assert sorted(curve[2], reverse=True) == list(curve[2])


@pytest.mark.parametrize("losses", [[], [None], [1.0], [float("2"), None]])
def test_a_curve_of_less_than_two_points_is_none(losses):
    result = {**RESULT, "samples": {"seconds": [1.0], "loss": losses}}
    assert "▁" not in as_text(summarize(DONE, result, {}))


@pytest.mark.parametrize("said", ["139: its program crashed (SIGSEGV)", "3", "7"])
def test_a_failure_is_named(said):
    code = int(said.partition(":")[0])
    assert describe("FAILED", code=code) == f"it failed with exit code {said}"


def test_what_accounting_knows_is_said_as_text():
    had = {"cpu": "8", "gres/gpu:p100": "2", "gres/gpu": "2", "mem": "60000M"}
    text = as_text(summarize(DONE, None, {}, Usage(had, 100, 400.0, 1536.0, "p100-02")))
    assert "had cpu 8, gpu:p100 2, mem 60000M for 1 min 40 s\n" in text
    assert "used 50% of its CPUs' time, at most 1,536 MB in one task (p100-02)" in text
