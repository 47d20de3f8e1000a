"""`--model-parallel`: a model's layers on the devices of a node; here two parts of its CPUs."""

import json
import subprocess

import pytest

from tests.integration.train_runs import environment

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
from hpcdl.train.ranks import this_place
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


def test_a_model_on_two_devices_trains_as_on_one(runs, digits):
    (runs.folder / "mine.py").write_text(NETWORK)
    words = ("--model=mine:network", "--data", str(digits), "--epochs=2", "--optimizer=adamw",
             "--lr=0.003", "--accumulate=2")  # fmt: skip
    one, two = (
        runs.train(*words, f"--model-parallel={count}", job=f"on-{count}") for count in (1, 2)
    )
    assert (one.code, two.code) == (0, 0), one.err + two.err
    assert two.result["samples"]["loss"] == pytest.approx(one.result["samples"]["loss"], rel=1e-3)
    held = two.result["parameters_by_device"]
    assert set(held) == {"CPU:0", "CPU:1"}
    assert sum(held.values()) == one.result["parameters"]
    assert max(held.values()) < 0.6 * sum(held.values())


def test_what_belongs_to_a_layer_is_where_the_layer_is(runs, digits):
    (runs.folder / "mine.py").write_text(NETWORK)
    for optimizer, slots in (("adamw", 2), ("sgd", 1)):
        done = subprocess.run(
            [str(runs.python), "-c", PLACES, "--model=mine:network", "--data", str(digits),
             "--model-parallel=2", "--steps=1", "--job-dir=job", f"--optimizer={optimizer}"],
            cwd=runs.folder, env=environment(), text=True, capture_output=True, timeout=300,
            check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr[-3000:]
        found = json.loads(done.stdout.splitlines()[-1])
        assert set(found["products"]) == {"CPU:0", "CPU:1"}, "forward and backward, placed all"
        for device in ("CPU:0", "CPU:1"):
            assert found["kept"].count(device) == slots * found["weights"].count(device) > 0


def test_layers_that_cannot_be_divided_are_refused(runs):
    done = runs.train("--model=mlp", "--model-parallel=4", "--steps=1")
    assert (done.code, "cannot be divided among 4 devices" in done.err) == (2, True), done.err
