"""The parts of the training program that need no TensorFlow, and progress as people see it."""

import argparse
import json
import re
import subprocess
import sys
from types import SimpleNamespace

import pytest

from hpcdl import facts
from hpcdl.cli import main
from hpcdl.cli import train as cli_train
from hpcdl.system.errors import BadInput, MissingPrerequisite
from hpcdl.train.options import (
    OPTIONS,
    TrainOptions,
    check_target,
    global_batch,
    make_numbers,
    parse,
    to_argv,
)
from hpcdl.train.result import Samples, job_of, summarize, summary_line
from hpcdl.train.startup import place, slurm_tasks_on_node

SLURM = {
    "SLURM_PROCID": "3",
    "SLURM_STEP_NUM_TASKS": "6",
    "SLURM_LOCALID": "1",
    "SLURM_NODEID": "2",
    "SLURM_STEP_TASKS_PER_NODE": "1(x2),2(x2)",
    "SLURM_NTASKS": "6",
}
BATCH = {"SLURM_PROCID": "0", "SLURM_NTASKS": "6", "SLURM_LOCALID": "0"}


def mpirun(size):
    return {
        "OMPI_COMM_WORLD_RANK": "0",
        "OMPI_COMM_WORLD_SIZE": f"{size}",
        "OMPI_COMM_WORLD_LOCAL_RANK": "0",
        "OMPI_COMM_WORLD_LOCAL_SIZE": f"{size}",
    }


@pytest.mark.parametrize(
    ("environ", "found"),
    [(SLURM, (3, 6, 1, 2)), (BATCH, (0, 1, 0, 1)), ({**SLURM, **mpirun(2)}, (0, 2, 0, 2))],
    ids=["step", "batch script", "mpirun in an allocation"],
)
def test_a_place_is_read_from_its_launcher(environ, found):
    here = place(environ, affinity=4, host="n3")
    assert (here.rank, here.size, here.local_rank, here.local_size) == found


@pytest.mark.parametrize(
    ("environ", "affinity", "threads"),
    [
        ({"SLURM_CPUS_PER_TASK": "8"}, 4, 4),
        ({"SLURM_CPUS_PER_TASK": "2"}, 4, 2),
        ({"SLURM_CPUS_PER_TASK": "0"}, 4, 4),
        ({"SLURM_CPUS_PER_TASK": "many"}, 4, 4),
        (mpirun(4), 8, 2),
        (mpirun(4), 2, 2),
    ],
)
def test_threads_are_what_slurm_gives_or_part_of_the_mask(environ, affinity, threads, monkeypatch):
    monkeypatch.setattr("os.cpu_count", lambda: 8)
    assert place(environ, affinity, "n").cpus == threads


@pytest.mark.parametrize(("node", "tasks"), [(0, 2), (2, 2), (3, 1), (9, 1)])
def test_slurms_short_form_of_tasks_per_node(node, tasks):
    assert slurm_tasks_on_node("2(x3),1", node) == tasks


def test_options_survive_the_way_through_a_command_line():
    options = TrainOptions(epochs=3, lr=0.5, fresh=True, settings=("loss.a=1", "b.c=x"), json=True)
    assert parse(to_argv(options)) == options
    assert to_argv(TrainOptions()) == []
    assert {one.name for one in OPTIONS} | {"json"} == set(vars(TrainOptions()))


@pytest.mark.parametrize(
    "argv", [["--epochs=1", "--steps=2"], ["--global-batch=8", "--batch-per-rank=8"]]
)
def test_options_that_exclude_each_other_are_refused(argv):
    with pytest.raises(BadInput, match="exclude each other"):
        parse(argv)


@pytest.mark.parametrize(
    ("argument", "said"),
    [
        ("--seed=-5", "--seed is -5, below its minimum of 0"),
        ("--steps=many", "--steps must be a whole number"),
        ("--lr=fast", "--lr must be a number, not 'fast'"),
        ("--target-accuracy=1.5", "--target-accuracy is 1.5, above its maximum of 1"),
        ("--precision=fp8", "--precision is 'fp8', not fp32, fp16 or bf16"),
        ("--bogus", "unrecognized arguments: --bogus"),
    ],
)
def test_a_value_that_cannot_be_is_refused_with_its_range(argument, said):
    with pytest.raises(BadInput, match=said):
        parse([argument])


def test_help_needs_no_tensorflow(capsys):
    with pytest.raises(SystemExit) as stop:
        main(["train", "--help"])
    assert stop.value.code == 0
    text = capsys.readouterr().out
    assert "example: hpcdl train" in text
    assert len(re.findall(r"^  --(?!json|help|site|no-color)[a-z-]+", text, re.M)) <= 30, text


MODEL = {"global_batch": 64, "epochs": 3, "lr": 0.1}


def test_a_batch_that_ranks_cannot_share_names_the_nearest_that_can():
    with pytest.raises(BadInput) as refused:
        global_batch(TrainOptions(global_batch=10), MODEL, 4)
    assert "--global-batch 8 or 12 can" in refused.value.hint
    assert global_batch(TrainOptions(), MODEL, 48) == 96
    assert global_batch(TrainOptions(batch_per_rank=5), MODEL, 4) == 20


def test_steps_come_from_epochs_and_positions_from_steps():
    assert make_numbers(TrainOptions(epochs=0), MODEL, 64, steps_per_epoch=22).steps == 0
    plan = make_numbers(TrainOptions(), MODEL, 64, steps_per_epoch=22)
    assert (plan.steps, plan.lr, plan.checkpoint_every) == (66, 0.1, 22)
    assert plan.position(45) == (2, 1)
    endless = make_numbers(TrainOptions(steps=7, lr=0.0), MODEL, 64, steps_per_epoch=0)
    assert (endless.steps, endless.lr, endless.position(5)) == (7, 0.0, (0, 5))
    with pytest.raises(BadInput, match="has no epochs"):
        make_numbers(TrainOptions(epochs=3), MODEL, 64, steps_per_epoch=0)


@pytest.mark.parametrize(
    ("given", "task", "tested", "said"),
    [
        ({"data": "photos"}, "classes", 0, "no images to test with in photos"),
        ({}, "classes", 0, "no images to test with in synthetic data"),
        ({"data": "chest"}, "findings", 32, "findings are scored by areas"),
    ],
)
def test_a_target_that_nothing_is_measured_for_is_refused(given, task, tested, said):
    check_target(TrainOptions(**given), task, tested=False)
    check_target(TrainOptions(data="photos", target_accuracy=0.8), "classes", tested=True)
    with pytest.raises(BadInput, match=said):
        check_target(TrainOptions(**given, target_accuracy=0.8), task, tested=bool(tested))


def samples(count):
    kept = Samples()
    for step in range(count):
        slow = 1.0 if step == 0 else 0.1
        kept.add(10, [1.0 / (step + 1)], seconds=slow, input=slow / 2, compute=slow / 4)
    return kept


def test_throughput_is_the_median_after_the_warm_up():
    summary = summarize(samples(11), warmup=1)
    assert (summary["steps_measured"], summary["images_per_second"]) == (10, pytest.approx(100))
    phases = summary["phases"]
    assert (phases["input"], phases["other"]) == pytest.approx((0.5, 0.25))
    assert summarize(samples(3), warmup=5)["steps_measured"] == 3, "shorter than its warm-up"
    assert summarize(Samples(), warmup=5) == {"steps_measured": 0, "images_per_second": 0.0}


@pytest.mark.parametrize(("rates", "low", "high"), [([3, 1, 2], 1.1, 2.9), ([7], 7, 7)])
def test_the_range_of_throughput_is_interpolated(rates, low, high):
    kept = Samples()
    for rate in rates:
        kept.add(rate, [1.0], seconds=1.0)
    summary = summarize(kept, warmup=0)
    found = summary["images_per_second_p05"], summary["images_per_second_p95"]
    assert found == pytest.approx((low, high))


def test_a_loss_that_is_no_number_is_null_in_json():
    kept = Samples()
    kept.add(1, [float("nan"), float("inf")], seconds=1.0)
    assert json.loads(json.dumps(kept.as_json(), allow_nan=False))["loss"] == [None, None]


def test_the_last_line_is_stable():
    summary = {"images_per_second": 12.3456, "loss": None, "metrics": {}}
    assert summary_line({"summary": summary, "layout": {"ranks": 4}}, "/r.json") == (
        "hpcdl-train: images_per_second=12.35 loss=nan accuracy=none world_size=4 result=/r.json"
    )


def test_the_job_is_read_from_slurms_environment():
    job = job_of({"SLURM_JOB_ID": "7", "SLURM_RESTART_COUNT": "2", "HPCDL_QUEUE_WAIT": "1.5"})
    assert (job["id"], job["restarts"], job["queue_wait_seconds"]) == ("7", 2, 1.5)
    assert job_of({})["id"] is None


def test_every_model_has_its_numbers_and_a_source():
    wanted = {"builder", "input", "classes", "params", "lr", "source", "proof"}
    for name, row in facts.load("models")["models"].items():
        assert wanted <= row.keys(), name
        assert row["proof"] in facts.PROOFS


PROGRAM = """
import sys
from pathlib import Path
from hpcdl.train import result
from hpcdl.train.result import Reporter
result.LINE_SECONDS = 0.0
reporter = Reporter(Path(sys.argv[1]), 50, silent=False)
reporter.say("[start-up] 1.0 s")
for step in range(1, 51):
    reporter.step(step, 0, 1.0 / step, 64)
reporter.end(50, 0, 0.02, "completed")
print("afterwards")
"""


def test_a_run_prints_plain_lines_and_keeps_its_progress(tmp_path):
    argv = [sys.executable, "-c", PROGRAM, str(tmp_path)]
    done = subprocess.run(argv, capture_output=True, text=True, check=True)
    lines = done.stdout.splitlines()
    assert lines[0] == "[start-up] 1.0 s"
    assert lines[1].startswith("epoch 1  step 1/50  loss 1.0000")
    assert lines[-2].startswith("epoch 1  step 50/50  loss 0.0200")
    kept = json.loads((tmp_path / "progress.json").read_text())
    assert (kept["step"], kept["outcome"]["status"]) == (50, "completed")


def test_a_release_that_lacks_tensorflow_does_not_start_itself_for_ever(monkeypatch, tmp_path):
    python = tmp_path / "bin/python"
    python.parent.mkdir()
    python.touch()
    release = SimpleNamespace(id="tensorflow-2.21.0-cpu-00000001", python=python)
    started = []
    monkeypatch.setattr("hpcdl.stack.release.current_release", lambda site: release)
    monkeypatch.setattr(cli_train, "the_site", lambda args: None)
    monkeypatch.setattr(cli_train.os, "execv", lambda *argv: started.append(argv))
    monkeypatch.setenv("HPCDL_RELEASE", "another")  # a module that is loaded sets it, too
    cli_train.in_release("hpcdl", [], argparse.Namespace())
    assert started
    monkeypatch.setattr(cli_train.sys, "executable", str(python))
    with pytest.raises(MissingPrerequisite, match="damaged: its Python has no TensorFlow"):
        cli_train.in_release("hpcdl", [], argparse.Namespace())
    assert len(started) == 1
