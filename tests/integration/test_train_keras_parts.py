"""Keras' own optimizers, schedules, losses and metrics by name: as Keras computes them."""

import pytest

pytestmark = pytest.mark.stack
MINE = """
import keras
class Stop(keras.callbacks.Callback):
    def __init__(self, after):
        super().__init__()
        self.after = after
    def on_epoch_end(self, epoch, logs):
        told = {"loss", "accuracy", "val_loss", "val_accuracy"} <= set(logs)
        self.model.stop_training = told and epoch + 1 == self.after
def number():
    return 3
"""


def test_an_optimizer_of_keras_resumes_to_the_same_bits(runs):
    words = ("--optimizer=adamw", "--deterministic", "--lr=0.01")
    whole = runs.learn(*words, "--steps=20", job="whole")
    runs.learn(*words, "--steps=9", job="parts")
    assert runs.learn(*words, "--steps=20", job="parts").weights == whole.weights


def test_a_name_that_is_none_gets_the_nearest_one(runs):
    runs.write("mine.py", MINE)
    runs.refused(
        (("--optimizer=adanw",), "did you mean 'adamw'"),
        (
            ("--optimizer=adamw", "--set=optimizer.weight_decy=1"),
            "arguments of Keras' class: learning_rate, weight_decay",
        ),
        (("--set=optimiser.momentum=1",), "it begins with one of"),
        (("--lr-schedule=exponentialdecy",), "did you mean 'exponentialdecay'"),
        (("--loss=hingee",), "did you mean 'hinge'"),
        (("--loss=mine:nothing",), "cannot be imported"),
        (("--metrics=top_k_categorical_acuracy",), "did you mean 'topkcategoricalaccuracy'"),
        (("--callback=csvloger",), "did you mean 'csvlogger'"),
        (("--callback=backupandrestore",), "the same command resumes from the newest checkpoint"),
        (
            ("--callback=csvlogger", "--set=callback.csvloger.filename=x"),
            "this run has no callback 'csvloger'",
        ),
        (("--callback=mine:number",), "it gives int, no callback of Keras"),
        (('--set=fit.class_weight={"10": 2}',), "the data have the classes 0 to 9"),
        (("--set=fit.class_weight=[1, 2]",), "not a weight for each class"),
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
