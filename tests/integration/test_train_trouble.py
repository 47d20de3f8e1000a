"""Trouble: a stuck rank, an exploding loss, a full disk. One clear line, a number, no harm."""

import json
import os
import re
import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests.integration.train_runs import Done, Runs, environment
from tests.trace_format import faults

pytestmark = pytest.mark.stack


def test_a_stuck_rank_ends_the_run_with_all_stacks(runs, digits):
    words = ("--data", str(digits), "--global-batch=48", "--steps=1000000", "--hang-limit=4")
    process = runs.start(*words, ranks=3)
    runs.wait_for("progress.json")
    time.sleep(0.5)
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    os.kill(int(children[-1]), signal.SIGSTOP)
    done = runs.end(process, timeout=60)
    assert done.code == 5
    assert "error: no step for 4 s" in done.err
    assert "no report from rank 2" in done.err
    assert "in step" in done.err, "the stacks name the function that waits"


STUCK = """
import os, time
import tensorflow as tf

class Stuck(tf.keras.layers.Layer):
    def call(self, values, training=None):
        scoring = tf.inside_function() and not training  # a new model is looked at, too
        if not scoring or os.environ.get("OMPI_COMM_WORLD_RANK") != "1":
            return values
        wait = lambda tensor: time.sleep(1e6) or tensor
        return tf.ensure_shape(tf.py_function(wait, [values], values.dtype), values.shape)

def scores_never(shape, classes):
    layers = tf.keras.layers
    return tf.keras.Sequential([tf.keras.Input(shape), layers.Flatten(), layers.Dense(classes),
                                Stuck()])

def saves_never(shape, classes):
    os.fsync = lambda file: time.sleep(1e6)
    layers = tf.keras.layers
    return tf.keras.Sequential([tf.keras.Input(shape), layers.Flatten(), layers.Dense(classes)])
"""


@pytest.mark.long  # scoring is compiled first: it may take six times the limit
@pytest.mark.parametrize(
    ("model", "words", "ranks", "where"),
    [
        ("scores_never", (), 2, r"tasks.py\", line \d+ in evaluate"),
        ("saves_never", ("--checkpoint-every=4",), 1, r"checkpoint.py\", line \d+ in submit"),
        ("saves_never", ("--checkpoint-every=0",), 1, r"checkpoint.py\", line \d+ in wait"),
    ],
    ids=["scoring", "checkpoint", "last-checkpoint"],
)
def test_scoring_and_checkpoints_are_watched_too(runs, digits, model, words, ranks, where):
    (runs.folder / "stuck.py").write_text(STUCK)
    done = runs.train("--data", str(digits), "--global-batch=48", "--steps=12", "--hang-limit=10",
                      f"--model=stuck:{model}", *words, ranks=ranks)  # fmt: skip
    assert done.code == 5, done.err
    assert "error: no step for 10 s" in done.err
    assert re.search(where, done.err), done.err
    kept = list((done.folder / "checkpoints").glob("*.ckpt"))
    assert len(kept) == (model == "scores_never")


def test_a_loss_that_explodes_ends_the_run_and_condemns_what_led_to_it(runs, digits):
    words = ("--data", str(digits), "--global-batch=64", "--checkpoint-every=1")
    assert runs.train(*words, "--steps=3").code == 0
    words = (*words, "--allow-change=lr")
    done = runs.train(*words, "--steps=50", "--lr=1e30", ranks=2)
    assert done.code == 1
    assert "the loss" in done.err
    assert "the run resumes from the checkpoint after step 3" in done.err
    assert "Traceback" not in done.err
    assert done.result["outcome"]["status"] == "failed"
    again = runs.train(*words, "--steps=5", "--lr=0.01")
    assert again.code == 0, again.err
    assert "resumed after step 3" in again.out


def test_a_loss_that_explodes_at_once_leaves_no_checkpoint_and_says_so(runs, digits):
    done = runs.train("--data", str(digits), "--steps=50", "--lr=1e30", "--checkpoint-every=0")
    assert done.code == 1
    assert "there is no checkpoint yet" in done.err


def test_a_full_disk_is_said_and_the_last_checkpoint_stays(runs, digits):
    disk = runs.folder / "job"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=240k", "tmpfs", str(disk)],
                             capture_output=True, check=False)  # fmt: skip
    if mounted.returncode:
        pytest.skip("mounting a small disk needs root")
    try:
        words = ("--data", str(digits), "--steps=40", "--checkpoint-every=4", "--global-batch=64")
        done = runs.train(*words, "--keep-checkpoints=9")
        assert done.code == 3
        assert "no space left on the file system" in done.err
        assert "Traceback" not in done.err
        kept = [path.name for path in (disk / "checkpoints").glob("step-*")]
        assert kept
        assert all(name.endswith(".ckpt") for name in kept)
    finally:
        subprocess.run(["umount", str(disk)], check=True)


LIMIT = 8 << 30
IMAGES = ("--model=mlp", "--image-size=512", "--steps=2")  # a megabyte each, and nothing else


def within_limit(
    runs: Runs, *words: str, job: str, ranks: int = 1, module: str = "hpcdl.train"
) -> Done:
    """A run of which every process may have LIMIT bytes of address space."""
    start = f"import resource; resource.setrlimit(resource.RLIMIT_AS, ({LIMIT}, {LIMIT}));"
    program = f"{start} import sys; import runpy; runpy.run_module('{module}', run_name='__main__')"
    mpirun = ["mpirun", "--oversubscribe", "--bind-to", "none", "-np", str(ranks)]
    process = subprocess.Popen(
        [*(mpirun if ranks > 1 else []), str(runs.python), "-c", program, "--job-dir",
         str(runs.folder / job), *IMAGES, *words],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=runs.folder,
        env=environment(), start_new_session=True,
    )  # fmt: skip
    return runs.end(process, job, timeout=550)


@pytest.mark.long  # a minute of trials
@pytest.mark.timeout(1800)
def test_out_of_memory_names_the_search_that_measures_what_fits(runs):
    assert within_limit(runs, "--global-batch=16", job="oom").code == 0
    before = {path.name: path.read_bytes() for path in (runs.folder / "oom").rglob("*.ckpt")}
    done = within_limit(runs, "--global-batch=9000", "--fresh", job="oom")
    assert done.code == 3
    assert "error: out of memory with 9000 images per rank" in done.err
    assert "--find-batch" in done.err
    assert "Traceback" not in done.err
    assert done.result["outcome"]["exit_code"] == 3
    after = {path.name: path.read_bytes() for path in (runs.folder / "oom").rglob("*.ckpt")}
    assert after == before != {}


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_the_largest_batch_is_found_on_request(runs):
    found = within_limit(runs, job="found", module="hpcdl.measure.find_batch")
    assert found.code == 0, found.err
    said = re.search(r"the largest that fits: (\d+) per rank \((\d+) does not\)", found.out)
    assert said, found.out
    fits, fails = map(int, said.groups())
    assert 16 < fits < fails <= 9000
    advised = re.search(r"--batch-per-rank (\d+) leaves headroom", found.out)
    assert advised, found.out
    again = within_limit(runs, f"--global-batch={advised[1]}", job="again")
    assert again.code == 0, again.err


def test_the_command_line_trains_in_this_process_where_tensorflow_is(runs):
    command = [str(runs.python), "-m", "hpcdl", "train", "--steps=2", "--job-dir=out"]
    done = subprocess.run(command, cwd=runs.folder, env=environment(), text=True,
                          capture_output=True, timeout=300, check=False)  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert (runs.folder / "out/result.json").is_file()


def test_timeline_and_scalars_are_written_for_the_usual_viewers(runs, digits):
    words = ("--data", str(digits), "--steps=20", "--global-batch=64")
    done = runs.train(*words, "--profile", "--tensorboard", ranks=2)
    assert done.code == 0, done.err
    drawn = json.loads((done.folder / "timeline.json").read_text())["traceEvents"]
    assert faults({"traceEvents": drawn}) == []
    assert {event["pid"] for event in drawn} == {0, 1}
    assert {"compute", "communication"} <= {e["name"] for e in drawn if e["ph"] == "X"}
    written = next((done.folder / "tensorboard").glob("events.out.tfevents.*")).read_bytes()
    for name in (b"loss", b"learning_rate", b"images_per_second", b"scalars"):
        assert name in written
