"""The networks as they are built, and those that a user brings."""

import json
import subprocess

import pytest

from hpcdl import facts
from tests.integration.train_runs import ROOT, environment

pytestmark = pytest.mark.stack
MODULE = """
import tensorflow as tf
layers = tf.keras.layers

def nothing(shape, classes):
    return None

def breaks(shape, classes):
    raise RuntimeError("a mistake of mine")

def three(shape, classes):
    return tf.keras.Sequential([tf.keras.Input(shape), layers.Flatten(), layers.Dense(3)])

def spare(shape, classes):
    entry = tf.keras.Input(shape)
    values = layers.BatchNormalization()(layers.Conv2D(8, 3)(entry))
    values = layers.Flatten()(layers.Dropout(0.2)(layers.ReLU()(values)))
    layers.Dense(7)(values)  # leads nowhere
    return tf.keras.Model(entry, layers.Dense(classes)(values))

class Own(tf.keras.Model):
    def __init__(self, classes):
        super().__init__()
        self.flat, self.dense = layers.Flatten(), layers.Dense(classes)

    def call(self, images, training=None):
        return self.dense(self.flat(images))

def subclass(shape, classes):
    return Own(classes)
"""


@pytest.mark.long  # builds them all
def test_every_network_has_the_parameters_that_its_facts_say(train_python):
    command = [str(train_python), "-m", "tests.integration.train_inside", "parameters"]
    done = subprocess.run(
        command, cwd=ROOT, env=environment(), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    rows = facts.load("models")["models"]
    assert found == {name: [row["params"], row["params_total"]] for name, row in rows.items()}


@pytest.mark.parametrize("function", ["spare", pytest.param("subclass", marks=pytest.mark.long)])
def test_a_users_network_of_any_kind_trains(runs, digits, function):
    (runs.folder / "own.py").write_text(MODULE)
    words = ("--data", str(digits), "--epochs=3", "--lr=0.05")
    done = runs.train(*words, f"--model=own:{function}")
    assert done.code == 0, done.err
    assert done.result["summary"]["metrics"]["accuracy"] > 0.6


@pytest.mark.parametrize("strategy", ["horovod", "multiworker"])
def test_a_users_network_that_draws_numbers_trains_on_two_ranks(runs, digits, strategy):
    (runs.folder / "own.py").write_text(MODULE)
    words = ("--data", str(digits), "--steps=3", "--model=own:spare", f"--strategy={strategy}")
    done = runs.train(*words, ranks=2)
    assert done.code == 0, done.err


@pytest.mark.parametrize(
    ("function", "said"),
    [
        ("three", "gives (None, 3), but (None, 10) is wanted"),
        pytest.param("nothing", "it gives NoneType, no Keras model", marks=pytest.mark.long),
        pytest.param("breaks", "RuntimeError: a mistake of mine", marks=pytest.mark.long),
    ],
)
def test_a_users_network_that_cannot_be_is_said(runs, digits, function, said):
    (runs.folder / "own.py").write_text(MODULE)
    done = runs.train("--data", str(digits), f"--model=own:{function}")
    assert (done.code, said in done.err, "Traceback" in done.err) == (2, True, False), done.err


def test_images_too_small_for_a_network_are_refused(runs):
    done = runs.train("--model=resnet50", "--image-size=16", "--global-batch=2", "--steps=1")
    assert done.code == 2
    assert "the model 'resnet50' cannot be made for images of 16 x 16 x 3" in done.err
    assert "Traceback" not in done.err
