"""`--model-parallel`: a model's layers on the devices of a node; here two parts of its CPUs."""

import pytest

pytestmark = pytest.mark.stack
# Branches, sums between layers, normalisation and dropout: all that a stage must keep together.
NETWORK = """
import tensorflow as tf
def network(shape, classes):
    layers = tf.keras.layers
    inputs = tf.keras.Input(shape)
    x = layers.ReLU()(layers.BatchNormalization()(layers.Conv2D(16, 3)(inputs)))
    x = layers.Flatten()(layers.MaxPooling2D()(x))
    for number in range(4):
        x = layers.Dense(96, "relu")(x) if not number else x + layers.Dense(96, "relu")(x)
        x = layers.LayerNormalization()(layers.Dropout(0.1)(x))
    return tf.keras.Model(inputs, layers.Dense(classes, kernel_regularizer="l2")(x))
"""
# Where the gradients of kernels are computed, and where the optimizer keeps what it remembers.
PLACES = """
import json, sys
from hpcdl.train.options import parse
from hpcdl.train.program import prepare
from hpcdl.train.startup import this_place
from hpcdl.train.startup import StartupClock
run = prepare(parse(sys.argv[1:]), this_place(), StartupClock())
parts = run._prepare().parts
import tensorflow as tf
from hpcdl.train.step import make_backward
step = tf.function(make_backward(parts), autograph=False)
graph = step.get_concrete_function(tf.zeros((8, 8, 8, 1)), tf.zeros(8, tf.int64)).graph
part = lambda name: name[-5:]
print(json.dumps({
    "products": [part(one.device) for one in graph.get_operations() if one.type == "MatMul"],
    "weights": [part(one.device) for one in parts.network.trainable],
    "kept": [part(one.device) for one in parts.optimizer.velocities if len(one.shape)],
}))
"""


@pytest.fixture
def runs(runs):
    runs.write("mine.py", NETWORK)
    return runs


def test_a_model_on_two_devices_trains_as_on_one(runs):
    words = (
        "--model=mine:network",
        "--epochs=2",
        "--optimizer=adamw",
        "--lr=0.003",
        "--accumulate=2",
    )
    one, two = (runs.learn(*words, f"--model-parallel={n}", job=f"on-{n}") for n in (1, 2))
    assert two.losses == pytest.approx(one.losses, rel=1e-3)
    held = two.result["parameters_by_device"]
    assert set(held) == {"CPU:0", "CPU:1"}
    assert sum(held.values()) == one.result["parameters"]
    assert max(held.values()) < 0.6 * sum(held.values())


def test_what_belongs_to_a_layer_is_where_the_layer_is(runs):
    words = (
        "--model=mine:network",
        "--data",
        runs.digits,
        "--model-parallel=2",
        "--steps=1",
        "--job-dir=job",
    )
    for optimizer, slots in (("adamw", 2), ("sgd", 1)):
        found = runs.script("-c", PLACES, *words, f"--optimizer={optimizer}")
        assert set(found["products"]) == {"CPU:0", "CPU:1"}, "forward and backward, placed all"
        for device in ("CPU:0", "CPU:1"):
            assert found["kept"].count(device) == slots * found["weights"].count(device) > 0


def test_layers_that_cannot_be_divided_are_refused(runs):
    said = "cannot be divided among 4 devices"
    runs.train("--model=mlp", "--model-parallel=4", "--steps=1", code=2, says=said)
