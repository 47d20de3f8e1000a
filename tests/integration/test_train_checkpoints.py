"""Killed at any step and resumed, a run ends in the weights of the uninterrupted one."""

import os
import random
import re
import signal
import time
from array import array
from pathlib import Path

import pytest

from tests.integration.train_runs import Done, Runs

pytestmark = pytest.mark.stack
WORDS = ("--deterministic", "--global-batch=64", "--steps=60", "--checkpoint-every=7",
         "--delay-ms=10")  # fmt: skip


def kill_and_resume(runs: Runs, digits: Path, ranks: int, resume_ranks: int) -> Done:
    """Kill all ranks at a random moment after the first checkpoint, then run to the end."""
    words = (*WORDS, "--data", str(digits))
    # Slowed down, so that the moment lies inside the run on a fast machine too.
    process = runs.start(*words, "--delay-ms", "25", ranks=ranks, job="killed")
    runs.wait_for("checkpoints/step-*.ckpt", "killed")
    time.sleep(random.random() * 0.4)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    done = runs.train(*words, ranks=resume_ranks, job="killed")
    assert done.code == 0, done.err
    assert "resumed after step" in done.out
    assert 0 < done.result["samples"]["first_step"] < 60
    return done


@pytest.mark.parametrize("ranks", [1, 4])
def test_killed_and_resumed_is_bitwise_the_same(runs, digits, ranks):
    whole = runs.train(*WORDS, "--data", str(digits), ranks=ranks, job="whole")
    assert kill_and_resume(runs, digits, ranks, ranks).weights == whole.weights


def test_resumed_on_other_numbers_of_ranks_is_equal_within_rounding(runs, digits):
    whole = runs.train(*WORDS, "--data", str(digits), job="whole")
    moved = kill_and_resume(runs, digits, 4, 2)
    ours, theirs = (array("f", done.weights) for done in (moved, whole))
    assert list(ours) == pytest.approx(list(theirs), rel=1e-3, abs=1e-4)


def test_a_damaged_checkpoint_is_skipped_for_the_one_before(runs, digits):
    words = ("--data", str(digits), "--deterministic")
    whole = runs.train(*words, "--steps=30", job="whole")
    runs.train(*words, "--steps=20", "--checkpoint-every=5", job="damaged")
    newest = max((runs.folder / "damaged/checkpoints").glob("*.ckpt"))
    newest.write_bytes(newest.read_bytes()[:-100])
    done = runs.train(*words, "--steps=30", job="damaged")
    assert f"skipped {newest.name}: it holds" in done.out
    assert "resumed after step 15" in done.out
    assert done.weights == whole.weights


def test_checkpoints_of_another_run_are_refused_on_all_ranks(runs, digits):
    runs.train("--data", str(digits), "--steps=2", "--seed=1")
    done = runs.train("--data", str(digits), "--steps=2", "--seed=2", ranks=2)
    assert done.code == 2
    assert "are of another run" in done.err
    assert "--fresh" in done.err
    other = runs.train("--data", str(digits), "--steps=3", "--seed=1", "--precision=fp16")
    assert (other.code, "12 arrays of" in other.err, "13 arrays of" in other.err) == (2, True, True)
    fresh = runs.train("--data", str(digits), "--steps=2", "--seed=2", "--fresh")
    assert fresh.code == 0
    assert (runs.folder / "job/checkpoints.before-1").is_dir()


def test_nothing_that_was_measured_is_lost_when_a_run_resumes(runs, digits):
    words = ("--data", str(digits), "--checkpoint-every=10")
    process = runs.start(*words, "--steps=40", "--delay-ms=1000")
    runs.wait_for("checkpoints/step-000000010.ckpt")
    busy = runs.train(*words, "--steps=40")
    assert (busy.code, "another run works in" in busy.err) == (3, True)
    process.send_signal(signal.SIGUSR1)
    stopped = runs.end(process)
    assert stopped.code == 75
    before = stopped.result["samples"]["loss"]
    said = re.search(r"the run resumes from the checkpoint after step (\d+)", stopped.out)
    assert said, stopped.out
    done = runs.train(*words, "--steps=40", ranks=2)
    assert done.code == 0, done.err
    first, second = done.result["segments"]
    step = int(said[1])
    assert (first["first_step"], first["steps"], first["ranks"]) == (0, step, 1)
    assert (second["first_step"], second["steps"], second["ranks"]) == (step, 40 - step, 2)
    assert min(first["images_per_second"], second["images_per_second"]) > 0
    curve = done.result["curve"]
    assert curve["step"] == list(range(1, 41))
    assert curve["loss"][:step] == before
    assert curve["loss"][step:] == done.result["samples"]["loss"]


def test_a_finished_run_is_not_run_again_unless_told(runs, digits):
    words = ("--data", str(digits), "--steps=20")
    assert runs.train(*words, "--target-accuracy=1").code == 1
    before = (runs.folder / "job/result.json").read_bytes()
    again = runs.train(*words, "--target-accuracy=1", ranks=2)
    assert again.code == 1, "as it ended"
    assert "this run has ended" in again.out
    assert (runs.folder / "job/result.json").read_bytes() == before
    more = runs.train(*words[:2], "--steps=30")
    assert more.result["curve"]["step"] == list(range(1, 31))
    scored = runs.train(*words[:2], "--steps=30", "--warmup-steps=1")
    assert scored.result["samples"] == more.result["samples"], "nothing was done, nothing is lost"
