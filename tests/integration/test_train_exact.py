"""What is trained is what was asked for: every loss counts, every epoch and every rank differs."""

import itertools
import shutil
from pathlib import Path

import pytest

from tests.integration.train_runs import INSIDE

pytest.importorskip("numpy", reason="numpy comes with the stack")
pytest.importorskip("PIL", reason="pillow comes with the plots' matplotlib")
from hpcdl.train.data.dataset import Dataset, describe_shard, write_dataset
from hpcdl.train.data.tfrecord import read, walk
from tests.records import example, picture, write

pytestmark = pytest.mark.stack
USERS = """
import tensorflow as tf
layers = tf.keras.layers

class Busy(layers.Layer):
    def call(self, x):
        self.add_loss(0.01 * tf.reduce_mean(tf.square(x)))
        return x

def penalized(shape, classes):
    return tf.keras.Sequential([tf.keras.Input(shape), layers.Flatten(),
        layers.Dense(5, kernel_regularizer=tf.keras.regularizers.L2(0.5)), Busy(),
        layers.Dense(classes)])

def synchronized(shape, classes):
    return tf.keras.Sequential([penalized(shape, 6), layers.BatchNormalization(synchronized=True),
        layers.Dense(classes)])

def drops(shape, classes):
    return tf.keras.Sequential([tf.keras.Input(shape), layers.Flatten(), layers.Dropout(0.5),
        layers.Dense(classes)])

def logits(shape, classes):
    return tf.keras.Sequential([tf.keras.Input(shape), layers.Flatten(), layers.Dense(classes)])

def softmax(shape, classes):
    return tf.keras.Sequential([logits(shape, classes), layers.Softmax()])
"""


@pytest.fixture
def runs(runs):
    runs.write("users.py", USERS)
    return runs


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
    write_dataset(
        Dataset(folder, "folder", "jpeg", (8, 8, 3), 48, 1.0, 1, "test", {"train": described})
    )
    return folder


def test_regularizers_and_add_loss_count_as_in_keras_also_in_parts(runs):
    for ours, theirs in runs.script(*INSIDE, "penalties").values():
        assert ours == pytest.approx(theirs, rel=2e-4, abs=1e-5)


def test_regularizers_and_synchronized_normalisation_count_the_same_on_two_ranks(runs):
    words = ("--model=users:synchronized", "--steps=6", "--global-batch=32", "--lr=0.05")
    one, *others = (
        runs.learn(*words, *more, ranks=ranks, job=f"{ranks}{more}")
        for ranks, more in ((1, ()), (2, ()), (2, ("--strategy=multiworker",)))
    )
    for two in others:
        assert one.losses == pytest.approx(two.losses, rel=1e-3)
    runs.learn(*words, "--xla", ranks=2, job="xla", code=2, says="cannot be had with --xla")


def test_mixed_images_have_the_shares_of_their_labels_and_can_be_repeated(runs):
    found = runs.script(*INSIDE, "augmented")
    first, other_rank, other_step, again = found["mixed"]
    for mixed in found["mixed"]:
        for image, (_, one, two) in enumerate(mixed["shares"]):
            bright = mixed["bright"][image * 16 : image * 16 + 16]
            assert bright == pytest.approx([one * 0.5 + two] * 16, abs=1e-5)
        assert [sum(shares) for shares in mixed["shares"]] == pytest.approx([1.0] * 12)
        assert any(0.05 < max(shares) < 0.95 for shares in mixed["shares"])
    assert first == again
    assert first != other_rank != other_step != first
    assert [text.partition(":")[0] for text in found["refused"]] == [
        "--set augment.cutmix.factor",
        "--augment centercrop does not take images of 4 x 4 x 1",
        "--loss SparseCategoricalCrossentropy takes no labels that are mixed",
        "--augment is for images; an example here has the shape (12,)",
    ]


def test_a_users_dropout_differs_by_rank_step_and_part_and_can_be_repeated(runs):
    first, other_rank, other_step, again = runs.script(*INSIDE, "users_dropout")
    assert first == again
    assert first != other_rank != other_step != first


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


def test_a_softmax_trains_and_scores_as_its_logits_do(runs):
    words = ("--epochs=3", "--lr=0.2")
    ours, theirs = (
        runs.learn(*words, f"--model=users:{model}", job=model) for model in ("logits", "softmax")
    )
    assert ours.losses == pytest.approx(theirs.losses, rel=1e-3)
    assert theirs.metrics["accuracy"] > 0.85


def test_a_record_that_is_no_example_is_skipped_and_named_by_whatever_rank_reads_it(runs):
    folder = records(runs.folder / "set", 2, {31: b"\xff\xfe no example \xc3"})
    words = ("--model=users:logits", "--global-batch=4", "--image-size=8", "--lr=0.001")
    says = (f"skipped a damaged record: {folder}/train-1.tfrecord at byte", "it is no tf.Example")
    for ranks in (1, 2):
        done = runs.train("--data", str(folder), *words, ranks=ranks, job=f"{ranks}", says=says)
        assert done.result["damaged_records"] == 1


def test_a_raw_record_that_is_no_example_is_skipped_too(runs, digits):
    copy = Path(shutil.copytree(digits, runs.folder / "set"))
    shard = min(copy.glob("train-*"))
    kept = [read(shard, r.offset, r.length) for r in walk(shard, check_data=False)]
    kept[3] = b"\xff" * len(kept[3])
    write(shard, kept)
    said = f"skipped a damaged record: {shard} at byte"
    done = runs.train("--data", str(copy), "--steps=5", ranks=2, says=said)
    assert done.result["damaged_records"] == 1, "both ranks read it, and it is one"
