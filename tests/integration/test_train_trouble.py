"""Trouble: a stuck rank, an exploding loss, a full disk. One clear line, a number, no harm."""

import os
import re
import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests.integration.conftest import small_disk
from tests.integration.train_runs import environment
from tests.strangers import as_root

pytestmark = pytest.mark.stack


def test_a_stuck_rank_ends_the_run_with_all_stacks(runs):
    words = ("--global-batch=48", "--steps=1000000", "--hang-limit=4")
    process = runs.start("--data", str(runs.digits), *words, ranks=3)
    runs.wait_for("progress.json")
    time.sleep(0.5)
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    os.kill(int(children[-1]), signal.SIGSTOP)
    says = [f"error: no step for 4 s on rank {rank}" for rank in (0, 1)]
    done = runs.end(process, timeout=60).must(5, *says, "in fit")  # who waits, by function
    assert "on rank 2" not in done.err, "which is the stuck one"


@as_root
def test_checkpoints_that_another_user_put_there_are_left_alone(runs):
    """A link of his in /tmp led to those of another run, and they were removed as later ones."""
    (runs.folder / "other").mkdir()
    (runs.folder / "other/step-000000099.ckpt").write_text("hours of work")
    link = runs.folder / "job/checkpoints"
    link.parent.mkdir(exist_ok=True)
    link.symlink_to(runs.folder / "other")
    os.chown(link, 65534, 65534, follow_symlinks=False)
    says = "checkpoints cannot be trusted: it belongs to nobody"
    runs.learn("--steps=2", "--checkpoint-every=1", code=3, says=says)
    assert (runs.folder / "other/step-000000099.ckpt").exists()


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
        ("scores_never", (), 2, r"callbacks.py\", line \d+ in evaluate"),
        ("saves_never", ("--checkpoint-every=4",), 1, r"checkpoint.py\", line \d+ in submit"),
        ("saves_never", ("--checkpoint-every=0",), 1, r"checkpoint.py\", line \d+ in wait"),
    ],
    ids=["scoring", "checkpoint", "last-checkpoint"],
)
def test_scoring_and_checkpoints_are_watched_too(runs, model, words, ranks, where):
    runs.write("stuck.py", STUCK)
    logits = "--set=loss.from_logits=true"  # the last layer says nothing
    words = (*words, "--global-batch=48", "--steps=12", "--hang-limit=10", logits)
    done = runs.learn(
        *words, f"--model=stuck:{model}", ranks=ranks, code=5, says="error: no step for 10 s"
    )
    assert re.search(where, done.err), done.err
    assert len(list((done.folder / "checkpoints").glob("*.ckpt"))) == (model == "scores_never")


def test_a_loss_that_explodes_ends_the_run_and_condemns_what_led_to_it(runs):
    runs.learn(
        "--steps=50",
        "--lr=1e30",
        "--checkpoint-every=0",
        job="at-once",
        code=1,
        says="there is no checkpoint yet",
    )
    growing = ("--lr-schedule=exponentialdecay", "--set=schedule.decay_steps=3")
    words = ("--global-batch=64", "--checkpoint-every=1", *growing, "--set=schedule.decay_rate=1e8")
    says = ("the loss", "the run resumes from the checkpoint after step")
    done = runs.learn(*words, "--steps=50", "--lr=1e-3", ranks=2, code=1, says=says)
    assert done.result["outcome"]["status"] == "failed"
    assert list((done.folder / "checkpoints").glob("*.bad"))


def test_a_full_disk_is_said_and_the_last_checkpoint_stays(runs):
    disk = runs.folder / "job"
    words = ("--steps=40", "--checkpoint-every=4", "--global-batch=64")
    with small_disk(disk, "size=240k"):
        runs.learn(*words, code=3, says="no space left on the file system")
        assert {path.suffix for path in (disk / "checkpoints").glob("step-*")} == {".ckpt"}


LIMIT = 8 << 30
IMAGES = ("--model=mlp", "--image-size=512", "--steps=2")  # a megabyte each, and nothing else


def within_limit(runs, *words, job):
    """A run whose process may have LIMIT bytes of address space."""
    start = f"import resource; resource.setrlimit(resource.RLIMIT_AS, ({LIMIT}, {LIMIT}));"
    program = f"{start} import runpy; runpy.run_module('hpcdl.train', run_name='__main__')"
    process = subprocess.Popen(
        [runs.python, "-c", program, "--job-dir", runs.folder / job, *IMAGES, *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=runs.folder,
        env=environment(),
        start_new_session=True,
    )
    return runs.end(process, job, timeout=550)


@pytest.mark.long
def test_out_of_memory_is_said_and_what_was_there_stays(runs):
    within_limit(runs, "--global-batch=16", job="oom").must(0)
    before = {path.name: path.read_bytes() for path in (runs.folder / "oom").rglob("*.ckpt")}
    done = within_limit(runs, "--global-batch=9000", "--fresh", job="oom")
    done.must(3, "error: out of memory with 9000 examples per rank", "--accumulate")
    assert done.result["outcome"]["exit_code"] == 0, "still that of the run before"
    after = {path.name: path.read_bytes() for path in (runs.folder / "oom").rglob("*.ckpt")}
    assert after == before != {}
