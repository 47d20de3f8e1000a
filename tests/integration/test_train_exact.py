"""Every epoch is shuffled anew, each record once; a record that is no example is an error."""

import itertools
import shutil
from pathlib import Path

import pytest

from tests.integration.train_runs import INSIDE

pytest.importorskip("numpy", reason="numpy comes with the stack")
pytest.importorskip("PIL", reason="pillow comes with hpcdl[test]")
from hpcdl.train.data.dataset import Dataset, describe_shard, write_dataset
from tests.make.records import example, picture, walk, write

pytestmark = pytest.mark.stack
USERS = """
import tensorflow as tf
layers = tf.keras.layers

def logits(shape, classes):
    return tf.keras.Sequential([tf.keras.Input(shape), layers.Flatten(), layers.Dense(classes)])
"""


@pytest.fixture
def runs(runs):
    runs.write("users.py", USERS)
    return runs


def frames(shard):
    data = shard.read_bytes()
    return [data[offset + 12 : offset + 12 + length] for offset, length in walk(shard)]


def records(folder, shards, replaced=None):
    """A data set of 48 small pictures, each of a class of its own; some are replaced."""
    folder.mkdir()
    images = [example(picture(8, 8), label) for label in range(48)]
    for at, record in (replaced or {}).items():
        images[at] = record
    each = 48 // shards
    files = [folder / f"train-{shard}.tfrecord" for shard in range(shards)]
    for shard, file in enumerate(files):
        write(file, images[shard * each : (shard + 1) * each])
    described = tuple(describe_shard(file, each) for file in files)
    write_dataset(Dataset(folder, "folder", "jpeg", (8, 8, 3), 48, 1.0, {"train": described}))
    return folder


@pytest.mark.parametrize("shards", [1, 2, 4, 16])
def test_every_epoch_is_shuffled_anew_on_any_ranks_and_where_it_resumes(runs, shards):
    found = runs.script(*INSIDE, "orders", records(runs.folder / "set", shards))
    for ranks in (1, 2, 4):
        whole, halves = found[f"{ranks}-False"], found[f"{ranks}-True"]
        for one, other in itertools.combinations(whole, 2):
            assert one != other
        for epoch, half in zip(whole, halves, strict=True):
            assert sorted(itertools.chain(*epoch)) == list(range(48)), "every record once"
            assert epoch[3:] == half


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_record_that_is_no_example_ends_the_run(runs, ranks):
    folder = records(runs.folder / "set", 2, {31: b"\xff\xfe no example \xc3"})
    words = ("--model=users:logits", "--global-batch=4", "--image-size=8", "--lr=0.001")
    runs.train("--data", str(folder), *words, ranks=ranks, code=2, says="the data cannot be read")


def test_a_raw_record_that_is_no_example_ends_the_run_too(runs, digits):
    copy = Path(shutil.copytree(digits, runs.folder / "set"))
    shard = min(copy.glob("train-*"))
    kept = frames(shard)
    kept[3] = b"\xff" * len(kept[3])
    write(shard, kept)
    runs.train("--data", str(copy), "--steps=5", code=2, says="the data cannot be read")
