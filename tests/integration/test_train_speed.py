"""What makes the program fast is still there, seen without a clock."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.integration.train_runs import Runs, environment

pytestmark = pytest.mark.stack
ROOT = Path(__file__).resolve().parents[2]


def inside(python: Path, *words: object) -> Any:
    """What train_inside.py finds, run where TensorFlow is."""
    command = [str(python), "-m", "tests.integration.train_inside", *map(str, words)]
    done = subprocess.run(
        command, cwd=ROOT, env=environment(), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_steps_in_one_call_end_in_the_bits_of_steps_one_by_one(train_python: Path) -> None:
    found = inside(train_python, "groups")
    assert found["8"]["weights"] == found["1"]["weights"]
    assert found["8"]["losses"] == found["1"]["losses"]
    assert len(set(found["8"]["losses"])) == 8, "each step had a batch of its own"
    assert found["8"]["least"] > 0, "each step has a compute time of its own"


def test_normalisation_is_one_operation_and_gives_the_same(train_python: Path) -> None:
    found = inside(train_python, "normalization")
    assert any(name.startswith("FusedBatchNorm") for name in found["operations"])
    # The moving variance is that of a sample: 378 values of each channel, so 1/377 away at most.
    assert found["away"] < 0.02


def test_images_are_cut_while_they_are_decoded_and_mapped_into_batches(runs: Runs) -> None:
    photos = runs.folder / "photos"
    words = ("--count=8", "--size=96x72", "--bytes=5000")
    assert runs.data("make", "photos", str(photos), *words).code == 0
    found = inside(runs.python, "operations", photos)
    assert "DecodeAndCropJpeg" in found
    assert "DecodeJpeg" not in found, "nothing is decoded as a whole"
    assert "PrefetchDataset" in found


def test_compute_is_most_of_a_big_networks_step(runs: Runs) -> None:
    words = ("--model=googlenet", "--image-size=64", "--batch-per-rank=2", "--steps=8")
    done = runs.train(*words, "--checkpoint-every=0", "--lr=0.0001")
    assert done.code == 0, done.err
    samples = done.result["samples"]
    compute = sum(samples["compute"][1:])
    rest = sum(sum(samples[part][1:]) for part in ("input", "communication", "other"))
    assert compute > rest
