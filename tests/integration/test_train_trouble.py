"""Trouble: a stuck rank, an exploding loss, a full disk. One clear line, a number, no harm."""

import json
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests.integration.train_runs import Runs

pytestmark = pytest.mark.stack


def test_a_stuck_rank_ends_the_run_with_all_stacks(runs: Runs, digits: Path) -> None:
    words = ("--data", str(digits), "--global-batch=48", "--steps=1000000", "--hang-limit=4")
    process = runs.start(*words, ranks=3)
    runs.wait_for("progress.json")
    time.sleep(0.5)
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    os.kill(int(children[-1]), signal.SIGSTOP)
    done = runs.end(process, timeout=60)
    assert done.code == 5
    assert "error: no step for 4 s" in done.err
    assert "no word from rank 2" in done.err
    assert "in step" in done.err, "the stacks name the function that waits"


def test_a_loss_that_explodes_ends_the_run_and_condemns_what_led_to_it(
    runs: Runs, digits: Path
) -> None:
    words = ("--data", str(digits), "--global-batch=64", "--checkpoint-every=1")
    assert runs.train(*words, "--steps=3").code == 0
    done = runs.train(*words, "--steps=50", "--lr=1e30", ranks=2)
    assert done.code == 1
    assert "the loss" in done.err
    assert "Traceback" not in done.err
    assert done.result["outcome"]["status"] == "failed"
    again = runs.train(*words, "--steps=5", "--lr=0.01")
    assert again.code == 0, again.err
    assert "resumed after step 3" in again.out


def test_a_full_disk_is_said_and_the_last_checkpoint_stays(runs: Runs, digits: Path) -> None:
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
        assert "no room left on the file system" in done.err
        assert "Traceback" not in done.err
        kept = sorted(path.name for path in (disk / "checkpoints").iterdir())
        assert kept
        assert all(name.endswith(".ckpt") for name in kept)
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def test_timeline_and_scalars_are_written_for_the_usual_viewers(runs: Runs, digits: Path) -> None:
    words = ("--data", str(digits), "--steps=20", "--global-batch=64")
    done = runs.train(*words, "--profile", "--tensorboard", ranks=2)
    assert done.code == 0, done.err
    drawn = json.loads((done.folder / "timeline.json").read_text())["traceEvents"]
    assert {event["pid"] for event in drawn} == {0, 1}
    assert {"compute", "communication"} <= {e["name"] for e in drawn if e["ph"] == "X"}
    written = next((done.folder / "tensorboard").glob("events.out.tfevents.*")).read_bytes()
    for name in (b"loss", b"learning_rate", b"images_per_second", b"scalars"):
        assert name in written
