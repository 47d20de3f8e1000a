"""Data of a user's own: arrays and pipelines, on any ranks, and what may be wrong with them."""

import os
import re
import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests.integration.conftest import small_disk
from tests.integration.train_runs import ROOT, environment
from tests.strangers import as_root

pytestmark = pytest.mark.stack
MINE = """
import numpy as np, tensorflow as tf
draw = np.random.default_rng(1)
CENTRES = draw.random((3, 6, 6, 1), np.float32)

def arrays(split):
    labels = np.arange(240 if split == "train" else 60) % 3
    return CENTRES[labels] + 0.1 * draw.random((len(labels), 6, 6, 1), np.float32), labels

def pipeline(split):
    return tf.data.Dataset.from_tensor_slices(arrays(split))

def as_keras(split):
    images, labels = arrays(split)
    return (images * 200).astype("uint8"), labels.astype("uint8")[:, None]

def as_tfds(split):
    images, labels = as_keras(split)
    return tf.data.Dataset.from_tensor_slices((images, labels[:, 0].astype("int64")))

def columns(split):
    return tf.data.Dataset.from_tensor_slices(as_keras(split))

def noisy(split):
    return pipeline(split).map(lambda x, y: (x + tf.random.normal(x.shape, stddev=0.01), y))

def only_train(split):
    return arrays(split) if split == "train" else None

def short(split):
    return pipeline(split).take(100).apply(tf.data.experimental.assert_cardinality(240))

def unequal(split):
    images, labels = arrays(split)
    return images, labels[:-1]

def onehot(split):
    images, labels = arrays(split)
    return images, np.eye(3, dtype="int64")[labels]

def onehot_pipeline(split):
    return tf.data.Dataset.from_tensor_slices(onehot(split))

def swapped(split):
    return arrays(split)[::-1]

def negative(split):
    images, labels = arrays(split)
    return images, labels - (split == "test")

def breaks(split):
    raise RuntimeError("a mistake of mine")

def breaks_late(split):
    return pipeline(split).map(lambda i, l: (tf.py_function(lambda x: 1 / 0, [i], tf.float32), l)
                               ).map(lambda i, l: (tf.ensure_shape(i, (6, 6, 1)), l))

def of_changing_shape(split):
    def give():
        yield from ((np.zeros((6 - i // 30, 6, 1), "float32"), np.int64(i % 3)) for i in range(48))
    given = (tf.TensorSpec((6, 6, 1)), tf.TensorSpec((), tf.int64))
    data = tf.data.Dataset.from_generator(give, output_signature=given)
    return data.apply(tf.data.experimental.assert_cardinality(48))

def batched(split):
    return pipeline(split).batch(8)

def texts(split):
    return arrays(split)[0], np.array(["a"] * len(arrays(split)[1]))

def bools(split):
    return arrays(split)[0], arrays(split)[1] > 1

def huge(split):
    return arrays(split)[0], arrays(split)[1] * 10**9

def another_order(split):
    return tuple(part[np.random.default_rng().permutation(240)] for part in arrays("train"))

def leaves(split):
    raise SystemExit(0)

class Breaks(tf.keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        raise KeyError("a mistake in a callback")

def mistyped(labels, outputs):
    return outpust - labels

def endless(split):
    return pipeline(split).repeat()

def unbatched(split):
    return pipeline(split).batch(8).unbatch()

def tested_on_others(split):
    return pipeline(split).map(lambda x, y: (x if split == "train" else x[:5], y))

def tested_on_onehot(split):
    return arrays(split) if split == "train" else onehot(split)

def two_outputs(split):
    images, labels = arrays(split)
    return images, (-9.5 * images[:, 0, 0], labels)

def two_outputs_pipeline(split):
    return tf.data.Dataset.from_tensor_slices(two_outputs(split))

def kinds(shape, classes):
    layers = tf.keras.layers
    entry = tf.keras.Input(shape)
    inner = layers.Flatten()(entry)
    outputs = [layers.Dense(1)(inner), layers.Dense(classes)(inner)]
    assert classes == 3, classes
    return tf.keras.Model(entry, outputs)

def of_two_kinds(split):
    return arrays(split) if split == "train" else pipeline(split)

def network(shape, classes):
    layers = tf.keras.layers
    return tf.keras.Sequential([tf.keras.Input(shape), layers.Flatten(), layers.Dense(classes)])
"""


def asked(function, steps="--epochs=5"):
    words = ("--model=mine:network", f"--dataset=mine:{function}", "--global-batch=24", steps)
    return (*words, "--lr=0.05")


@pytest.fixture
def own(runs):
    """Trains on what a function of the user's gives."""
    runs.write("mine.py", MINE)

    def train(function, *more, steps="--epochs=5", **options):
        return runs.train(*asked(function, steps), *more, **options)

    return train


@pytest.mark.parametrize("function", ["arrays", "pipeline"])
def test_own_data_trains_the_same_on_one_rank_and_on_two(own, function):
    one, two = (own(function, ranks=n, job=f"of-{n}") for n in (1, 2))
    assert len(one.losses) == 50
    assert one.losses == pytest.approx(two.losses, rel=1e-3, abs=1e-5)
    assert two.metrics["accuracy"] > 0.95
    assert two.metrics["test_images"] == 60


@pytest.mark.parametrize("function", ["as_keras", "as_tfds", "columns"])
def test_bytes_and_a_column_of_labels_are_taken_as_keras_and_tfds_give_them(own, function):
    done = own(function, "--lr=0.00001", steps="--steps=3")
    assert len(done.losses) == 3
    assert done.metrics["test_images"] == 60


@pytest.mark.parametrize("function", ["two_outputs", "two_outputs_pipeline"])
def test_numbers_to_be_met_are_no_classes_beside_labels_that_are(own, function):
    losses = "--loss=mse,sparsecategoricalcrossentropy"
    done = own(function, losses, "--model=mine:kinds", "--lr=0.001", steps="--steps=3")
    assert len(done.losses) == 3


def test_a_pipeline_resumes_inside_an_epoch(own):
    whole = own("pipeline", "--deterministic", job="whole")
    own("pipeline", "--deterministic", steps="--steps=13", job="parts")
    rest = own("pipeline", "--deterministic", steps="--steps=50", job="parts")
    assert rest.weights == whole.weights


def test_random_changes_of_inputs_are_no_other_order(own):
    assert own("noisy").metrics["accuracy"] > 0.9


def test_data_without_a_test_set_trains(own):
    assert own("only_train").metrics == {}


def test_what_is_wrong_with_own_data_is_said(runs, own):
    says = {
        "short": "was expected to contain 240 elements",
        "unequal": "240 inputs, but 239 labels",
        "negative": "a label is -1",
        "onehot": "choose the loss",
        "onehot_pipeline": "choose the loss",
        "swapped": "choose the loss",
        "breaks": "a mistake of mine",
        "breaks_late": "division by zero",
        "of_changing_shape": "of shape (5, 6, 1) where an element of shape (6, 6, 1) was expected",
        "batched": "give single examples, not batches",
        "texts": "is not numbers",
        "bools": "choose the loss",
        "huge": "classes count from 0",
        "endless": "leave out .repeat(), or add .take(n)",
        "unbatched": "its length is not known",
        "tested_on_others": "inputs to train and to test with differ in shape",
        "tested_on_onehot": "labels to train and to test with differ in shape",
        "of_two_kinds": "a pipeline for the other",
        "nothing": "cannot be imported",
    }
    runs.refused(*((asked(name), said) for name, said in says.items()))


def test_what_own_code_does_to_a_run_is_said(own):
    own("another_order", ranks=2, code=2, says="the ranks were given different data")
    own("leaves", code=1, says="called sys.exit(0)")
    own("arrays", "--callback=mine:Breaks", code=2, says="a mistake in a callback")
    own("arrays", "--loss=mine:mistyped", code=2, says="NameError: name 'outpust'")


@pytest.fixture
def transformers(runs):
    runs.write("transformers.py", (ROOT / "examples/transformers.py").read_text())


@pytest.mark.usefixtures("transformers")
def test_a_small_gpt_learns_the_text_of_pythons_library(runs):
    runs.write(
        "text.py",
        "from transformers import corpus\n"
        "def some(split):\n"
        "    return tuple(part[:40] for part in corpus(split)) if split == 'train' else None\n",
    )
    words = "--model=transformers:gpt --dataset=text:some --optimizer=adamw --lr=0.001"
    more = "--set=optimizer.global_clipnorm=1.0 --global-batch=4 --steps=8 --warmup-steps=2"
    done = runs.train(*words.split(), *more.split(), timeout=500)
    assert done.losses[0] == pytest.approx(5.5, abs=0.6), "the logarithm of 256 bytes"
    assert done.losses[-1] < done.losses[0] - 1.0
    rate = done.result["summary"]["images_per_second"]
    assert done.result["summary"]["tokens_per_second"] == pytest.approx(256 * rate, rel=0.01)


@pytest.mark.usefixtures("transformers")
def test_a_vit_has_the_parameters_of_vit_s16(runs):
    words = "--model=transformers:vit_s16 --global-batch=2 --steps=2 --optimizer=adamw"
    done = runs.train(*words.split(), timeout=500)
    assert done.result["parameters"] == 22_049_896, "timm's 22,050,664 less a token and its place"


# Trouble: a stuck rank, an exploding loss, a full disk. One clear line, a number, no harm.


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
    done.must(3, "error: out of memory with 9000 examples per rank", "gradient_accumulation_steps")
    assert done.result["outcome"]["exit_code"] == 0, "still that of the run before"
    after = {path.name: path.read_bytes() for path in (runs.folder / "oom").rglob("*.ckpt")}
    assert after == before != {}
