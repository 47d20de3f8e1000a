"""Killed at any step and resumed, a run ends in the weights of the uninterrupted one."""

import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from functools import cache

import pytest

from tests.integration.train_runs import MPIRUN, ROOT, Runs, environment

pytestmark = pytest.mark.stack
WORDS = "--deterministic --global-batch=64 --steps=60 --checkpoint-every=7 --delay-ms=10"


@pytest.fixture(scope="module")
def whole(train_python, digits, tmp_path_factory):
    runs = Runs(train_python, tmp_path_factory.mktemp("whole"), digits)
    return cache(lambda ranks: runs.learn(*WORDS.split(), ranks=ranks, job=f"of-{ranks}"))


@pytest.mark.parametrize(("ranks", "resume_ranks"), [(1, 1), (4, 4), (4, 2)])
def test_killed_and_resumed_is_the_same_bits(runs, whole, ranks, resume_ranks):
    """On another number of ranks it is equal within rounding."""
    # Slowed down, so that the moment lies inside the run on a fast machine too.
    words = ("--data", str(runs.digits), *WORDS.split())
    temporary = runs.folder / "tmp"
    temporary.mkdir()
    env = {"TMPDIR": str(temporary)} if ranks == 1 else {}
    process = runs.start(*words, "--delay-ms", "25", ranks=ranks, job="killed", env=env)
    runs.wait_for("checkpoints/step-*.ckpt", "killed")
    time.sleep(random.random() * 0.4)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    assert ranks > 1 or any(temporary.iterdir()), "TensorFlow's own modules, of a killed run"
    done = runs.train(*words, ranks=resume_ranks, job="killed", says="resumed after step", **env)
    assert not [*temporary.iterdir()], "and of one that ended"
    assert 0 < done.result["samples"]["first_step"] < 60
    assert not [one for one in done.folder.rglob("*") if one.stat().st_mode & 0o022], (
        "whatever umask"
    )
    if ranks == resume_ranks:
        assert done.weights == whole(ranks).weights
    else:
        assert done.variables == pytest.approx(whole(1).variables, rel=1e-3, abs=1e-4)


def a_moment(runs, number):
    """Wait for one of 20 moments: in the imports, in a checkpoint, behind one, in a step."""
    if number % 4 == 0:
        time.sleep(0.2 + number * 0.25)
        return
    folder = runs.folder / "killed/checkpoints"
    before = set(folder.glob("step-*"))
    pattern = "step-*.part" if number % 4 == 1 else "step-*.ckpt"
    deadline = time.monotonic() + 120
    while not set(folder.glob(pattern)) - before and time.monotonic() < deadline:
        time.sleep(0.0005)
    if number % 4 == 3:
        time.sleep(0.013 * number)


@pytest.mark.long
@pytest.mark.parametrize("ranks", [1, 2])
def test_killed_at_twenty_moments_all_arrays_and_losses_are_the_same_bits(runs, ranks):
    words = (*WORDS.split()[:2], "--steps=500", "--checkpoint-every=11", "--delay-ms=10")
    whole = runs.learn(*words, ranks=ranks, job="whole")
    for number in range(20):
        process = runs.start("--data", str(runs.digits), *words, ranks=ranks, job="killed")
        a_moment(runs, number)
        assert process.poll() is None, f"it ended before moment {number}"
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
    done = runs.learn(*words, ranks=ranks, job="killed", says="resumed after step")
    assert done.weights == whole.weights, "the last array are the losses of all steps"
    assert done.result["curve"] == whole.result["curve"]


def test_a_damaged_checkpoint_is_skipped_for_the_one_before(runs):
    whole = runs.learn("--deterministic", "--steps=30", job="whole")
    runs.learn("--deterministic", "--steps=20", "--checkpoint-every=5", job="damaged")
    newest = max((runs.folder / "damaged/checkpoints").glob("*.ckpt"))
    newest.write_bytes(newest.read_bytes()[:-100])
    says = (f"skipped {newest.name}: File is not a zip file", "resumed after step 15")
    done = runs.learn("--deterministic", "--steps=30", job="damaged", says=says)
    assert done.weights == whole.weights


def test_checkpoints_of_another_run_are_refused_on_all_ranks(runs):
    runs.learn("--steps=2", "--seed=1")
    runs.learn("--steps=2", "--seed=2", ranks=2, code=2, says=("are of another run", "--fresh"))
    says = "precision: fp32 in the checkpoint, fp16 now"
    runs.learn("--steps=3", "--seed=1", "--precision=fp16", code=2, says=says)
    runs.learn("--steps=2", "--seed=2", "--fresh")
    assert (runs.folder / "job/checkpoints.before-1").is_dir()


def test_nothing_that_was_measured_is_lost_when_a_run_resumes(runs):
    words = ("--checkpoint-every=10", "--steps=40")
    process = runs.start("--data", str(runs.digits), *words, "--delay-ms=1000")
    runs.wait_for("checkpoints/step-000000010.ckpt")
    runs.learn(*words, code=3, says="another run works in")
    process.send_signal(signal.SIGUSR1)
    stopped = runs.end(process).must(75)
    before = stopped.losses
    said = re.search(r"the run resumes from the checkpoint after step (\d+)", stopped.out)
    assert said, stopped.out
    done = runs.learn(*words, ranks=2)
    step = int(said[1])
    assert done.result["samples"]["first_step"] == step
    curve = done.result["curve"]
    assert curve["step"] == list(range(1, 41))
    assert curve["loss"] == [*before, *done.losses]
    assert len(before) == step


def test_a_finished_run_is_not_run_again_unless_told(runs):
    missed = ("--steps=20", "--target-accuracy=1")
    runs.learn(*missed, code=1, says="is below the target 1")
    before = (runs.folder / "job/result.json").read_bytes()
    runs.learn(*missed, ranks=2, code=1, says="this run has ended")  # as it ended
    assert (runs.folder / "job/result.json").read_bytes() == before
    assert b'"missed-target"' in before
    more = runs.learn("--steps=30").result
    assert more["curve"]["step"] == list(range(1, 31))
    scored = runs.learn("--steps=30", "--warmup-steps=1").result
    assert scored["samples"] == more["samples"], "nothing was done, nothing is lost"


STOPPED_EARLY = """
import os, signal, sys, time
from hpcdl.train import program
from hpcdl.train.stop_signals import StopSignals
write = program.write_result

def slowly(options, place, *rest, **more):
    time.sleep(0 if place.rank else 5.0)
    return write(options, place, *rest, **more)

program.write_result = slowly
program.prepare = lambda *_: os.kill(os.getpid(), signal.SIGUSR1)
signals = StopSignals()
signals.listen()
sys.exit(program.train(["--job-dir=early"], signals))
"""


def test_ranks_that_are_stopped_before_training_leave_after_rank_0_has_written(tmp_path):
    """Found by reading: they waited 3 s, and mpirun ended a rank 0 that took longer."""
    (tmp_path / "early.py").write_text(STOPPED_EARLY)
    env = environment() | {"PYTHONPATH": str(ROOT)}
    command = [*MPIRUN, "2", sys.executable, "early.py"]
    assert subprocess.run(command, cwd=tmp_path, env=env, check=False).returncode == 75
    values = json.loads((tmp_path / "early/result.json").read_text())
    assert values["outcome"]["status"] == "requeue"
