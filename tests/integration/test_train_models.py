"""The networks as they are built, and those that a user brings."""

import subprocess

import pytest
import yaml

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

"""


@pytest.mark.long  # builds them all
def test_every_network_has_the_parameters_that_its_facts_say(runs):
    found = runs.script("-m", "tests.integration.train_inside", "parameters")
    rows = facts.load("models")["models"]
    assert found == {name: [row["params"], row["params_total"]] for name, row in rows.items()}


def test_the_sums_of_the_facts_are_those_of_the_real_keras_models(train_python):
    argv = [train_python, "-m", "tools.networks", "alexnet", "googlenet", "resnet50", "mlp"]
    env = environment() | {"PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": ""}
    said = subprocess.run(argv, env=env, capture_output=True, text=True, check=True).stdout
    known = facts.load("networks")["networks"]
    assert all(known[name] == row for name, row in yaml.safe_load(said).items())


def test_a_users_network_that_draws_numbers_trains_on_two_ranks(runs):
    runs.write("own.py", MODULE)
    done = runs.learn("--epochs=3", "--lr=0.05", "--model=own:spare", ranks=2)
    assert done.metrics["accuracy"] > 0.6


def test_a_network_that_cannot_be_is_said(runs):
    runs.write("own.py", MODULE)
    runs.refused(
        (("--model=own:three",), "gives (None, 3), but 10 classes are in the labels"),
        (("--model=own:nothing",), "it gives NoneType, no Keras model"),
        (("--model=own:breaks",), "RuntimeError: a mistake of mine"),
        (
            ("--model=resnet50", "--data=synthetic", "--image-size=16", "--global-batch=2"),
            "the model 'resnet50' cannot be made for inputs of 16 x 16 x 3",
        ),
    )
