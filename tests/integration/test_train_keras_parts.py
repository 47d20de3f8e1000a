"""Keras' own optimizers, schedules, losses and metrics by name: as Keras computes them."""

import pytest

pytestmark = pytest.mark.stack
STEPS = ("--steps=60", "--global-batch=64")
MINE = """
import keras
import tensorflow as tf
def focal(labels, outputs):
    chances = tf.nn.softmax(outputs)
    right = tf.gather(chances, tf.cast(labels, tf.int64), batch_dims=1)
    return -(1.0 - right) ** 2 * tf.math.log(right)
def confidence(labels, outputs):
    return tf.reduce_max(tf.nn.softmax(outputs), axis=-1)
class Stop(keras.callbacks.Callback):
    def __init__(self, after):
        super().__init__()
        self.after = after
    def on_epoch_end(self, epoch, logs):
        told = {"loss", "accuracy", "val_loss", "val_accuracy"} <= set(logs)
        self.model.stop_training = told and epoch + 1 == self.after
"""


def test_parts_of_keras_train_on_two_ranks(runs):
    runs.write("mine.py", MINE)
    words = (
        "--optimizer=adamw",
        "--set=optimizer.weight_decay=0.05",
        "--lr=0.003",
        "--loss=mine:focal",
        "--metrics=mine:confidence,sparse_top_k_categorical_accuracy,accuracy",
    )
    metrics = runs.learn(*STEPS, *words, ranks=2).metrics
    assert metrics["sparse_top_k_categorical_accuracy"] > 0.95
    assert 0.1 < metrics["confidence"] < 1.0


def test_an_optimizer_of_keras_resumes_to_the_same_bits(runs):
    words = ("--optimizer=adamw", "--deterministic", "--lr=0.01")
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
        (("--loss=hingee",), "did you mean 'hinge'"),
        (("--loss=mine:nothing",), "cannot be imported"),
        (("--metrics=top_k_categorical_acuracy",), "did you mean 'topkcategoricalaccuracy'"),
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
        job="two",
    )
    lines = (runs.folder / "log.csv").read_text().splitlines()
    assert len(lines) == 3
    assert {"loss", "val_loss", "val_accuracy"} < set(lines[0].split(","))
