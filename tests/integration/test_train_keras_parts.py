"""Keras' own optimizers, schedules, losses and metrics by name: as Keras computes them."""

import pytest

pytestmark = pytest.mark.stack
STEPS = ("--steps=60", "--global-batch=64")
MINE = """
import keras
import tensorflow as tf
def focal(labels, outputs):
    chances = tf.nn.softmax(outputs)
    right = tf.gather(chances, labels, batch_dims=1)
    return -(1.0 - right) ** 2 * tf.math.log(right)
def confidence(labels, outputs):
    return tf.reduce_max(tf.nn.softmax(outputs), axis=-1)
class Stop(keras.callbacks.Callback):
    def __init__(self, after):
        super().__init__()
        self.after = after
    def on_epoch_end(self, epoch, logs):
        told = set(logs) == {"loss", "learning_rate"}
        self.model.stop_training = told and epoch + 1 == self.after
"""


@pytest.mark.parametrize(
    ("words", "ranks"),
    [
        (("--optimizer=adamw", "--set=optimizer.weight_decay=0.05", "--lr=0.003"), 2),
        (("--optimizer=lamb", "--set=optimizer.global_clipnorm=1.0", "--lr=0.02"), 1),
        (
            (
                "--optimizer=sgd",
                "--set=optimizer.use_ema=true",
                "--set=optimizer.momentum=0.9",
                "--set=optimizer.ema_momentum=0.9",
            ),
            1,
        ),
        (("--optimizer=adam", "--strategy=multiworker", "--lr=0.003"), 2),
        (
            (
                "--lr-schedule=exponentialdecay",
                "--set=schedule.decay_steps=10",
                "--set=schedule.decay_rate=0.9",
            ),
            1,
        ),
        (("--loss=CategoricalFocalCrossentropy", "--set=loss.gamma=1.0", "--lr=0.3"), 1),
        (
            (
                "--loss=mine:focal",
                "--metrics=mine:confidence,sparse_top_k_categorical_accuracy",
                "--lr=0.3",
            ),
            2,
        ),
    ],
    ids=["adamw", "lamb-clipped", "ema", "adam-multiworker", "schedule", "loss", "own-loss"],
)
def test_parts_of_keras_train(runs, words, ranks):
    runs.write("mine.py", MINE)
    metrics = runs.learn(*STEPS, *words, ranks=ranks).metrics
    assert metrics["accuracy"] > 0.8
    if "mine:focal" in words[0]:
        assert metrics["sparse_top_k_categorical_accuracy"] > metrics["accuracy"]
        assert 0.3 < metrics["confidence"] < 1.0


def test_an_optimizer_of_keras_and_augmentation_resume_to_the_same_bits(runs):
    words = ("--optimizer=adamw", "--deterministic", "--lr=0.01", "--augment=mixup,cutmix")
    whole = runs.learn(*words, "--steps=20", job="whole")
    runs.learn(*words, "--steps=9", job="parts")
    assert runs.learn(*words, "--steps=20", job="parts").weights == whole.weights


def test_a_name_that_is_none_gets_the_nearest_one(runs):
    runs.write("mine.py", MINE)
    runs.refused(
        (("--optimizer=adanw",), "did you mean 'adamw'"),
        (("--optimizer=adamw", "--set=optimizer.weight_decy=1"), "did you mean 'weight_decay'"),
        (("--set=optimiser.momentum=1",), "it begins with one of"),
        (("--lr-schedule=exponentialdecy",), "did you mean 'exponentialdecay'"),
        (("--augment=mixup,cutmx",), "did you mean 'cutmix'"),
        (("--loss=hingee",), "did you mean 'hinge'"),
        (("--loss=mine:nothing",), "cannot be imported"),
        (("--metrics=top_k_categorical_acuracy",), "did you mean 'top_k_categorical_accuracy'"),
        (("--callback=csvloger",), "did you mean 'csvlogger'"),
    )


def test_callbacks_are_told_and_end_all_ranks_together(runs):
    runs.write("mine.py", MINE)
    done = runs.learn(
        "--epochs=6",
        "--callback=mine:Stop",
        "--set=callback.after=2",
        "--checkpoint-every=0",
        ranks=2,
    )
    assert done.result["steps"]["done"] == 44
    (kept,) = (done.folder / "checkpoints").glob("*.ckpt")
    assert kept.name == "step-000000044.ckpt"
    runs.learn(
        "--epochs=2",
        "--callback=csvlogger",
        "--set=callback.filename=log.csv",
        "--validate-every=1",
        job="two",
    )
    lines = (runs.folder / "log.csv").read_text().splitlines()
    assert len(lines) == 3
    assert {"loss", "learning_rate", "val_accuracy"} < set(lines[0].split(","))
