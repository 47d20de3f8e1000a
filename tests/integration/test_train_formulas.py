"""The step's arithmetic against formulas written down a second time, in NumPy."""

import math

import pytest

from tests.integration.train_runs import Runs

pytestmark = pytest.mark.stack
# One process for all formulas: TensorFlow's import is the dearest of it.
PROGRAM = """
import json, os
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
import numpy as np, tensorflow as tf
from hpcdl.train.communicate import Communicator
from hpcdl.train.data.source import Group
from hpcdl.train.models import Network
from hpcdl.train.optimizers import make_loss_scale, make_optimizer
from hpcdl.train.step import RankSignal, StepParts, make_step
from hpcdl.train.tasks import make_task
found = {}
random = np.random.RandomState(3)
START = [random.randn(5, 4).astype("f4"), random.randn(4).astype("f4")]
GRADIENTS = [[random.randn(5, 4).astype("f4"), random.randn(4).astype("f4")] for _ in range(4)]

def network(start=START):
    weights, bias = (tf.Variable(value) for value in start)
    forward = lambda x, training: tf.cast(x, tf.float32) @ weights + bias
    return Network("linear", forward, (weights, bias), ())

for kind in ("sgd", "lars"):
    made = network()
    optimizer = make_optimizer(made, kind, 0.9, 0.01)
    for gradients in GRADIENTS:
        optimizer.apply(made.trainable, [tf.constant(g) for g in gradients], tf.constant(0.1))
    found[kind] = [v.numpy().tolist() for v in made.trainable]
found["start"] = [value.tolist() for value in START]
found["gradients"] = [[value.tolist() for value in row] for row in GRADIENTS]

def step_of(made, **more):
    task = make_task("classes", 0.0)
    optimizer = make_optimizer(made, "sgd", 0.9, 0.0)
    return make_step(StepParts(made, task, optimizer, Communicator(), lambda x: x, **more))

images = random.randn(1, 32, 5).astype("f4")
labels = random.randint(0, 4, (1, 32))
for parts in (1, 4):
    made = network()
    step = step_of(made, accumulate=parts)
    for number in range(3):
        loss = step(Group(images, labels, 1), [0.5], RankSignal(), number)[0].loss
    found[f"accumulate-{parts}"] = [loss, [v.numpy().tolist() for v in made.trainable]]

scale = make_loss_scale()
made = network()
step = step_of(made, scale=scale, precision="fp16")
states, weights = [], []
for number, factor in enumerate((1.0, 6e4, 1.0)):
    step(Group(images * factor, labels, 1), [0.01], RankSignal(), number)
    states.append(scale.state.numpy().tolist())
    weights.append(made.trainable[0].numpy().tolist())
scale.state.assign([1024.0, 1999.0])
step(Group(images, labels, 1), [0.01], RankSignal(), 3)
found["scale"] = {"states": states, "weights": weights, "doubled": scale.state.numpy().tolist()}

logits = random.randn(6, 4).astype("f4")
wanted = random.randint(0, 4, 6)
several = random.randint(0, 2, (6, 4))
found["logits"], found["wanted"], found["several"] = (
    logits.tolist(), wanted.tolist(), several.tolist())
found["smooth-classes"] = float(make_task("classes", 0.1).loss(tf.constant(logits), wanted))
found["smooth-findings"] = float(make_task("findings", 0.1).loss(tf.constant(logits), several))
print(json.dumps(found))
"""


def reference(found, kind):
    """Momentum SGD with L2 on kernels; LARS as equation 6 of arXiv 1708.03888 has it."""
    np = pytest.importorskip("numpy", reason="numpy comes with the stack")
    weights = [np.array(value, np.float64) for value in found["start"]]
    velocities = [np.zeros_like(weight) for weight in weights]
    for row in found["gradients"]:
        for index, gradient in enumerate(np.array(value, np.float64) for value in row):
            weight, rate = weights[index], 1.0
            if weight.ndim > 1:
                norm, steep = np.linalg.norm(weight), np.linalg.norm(gradient)
                if kind == "lars":
                    rate = 0.001 * norm / (steep + 0.01 * norm)
                gradient = rate * (gradient + 0.01 * weight)
            velocities[index] = 0.9 * velocities[index] + gradient
            weights[index] = weight - 0.1 * velocities[index]
    return [weight.tolist() for weight in weights]


@pytest.fixture(scope="module")
def found(train_python, tmp_path_factory):
    return Runs(train_python, tmp_path_factory.mktemp("formulas")).script("-c", PROGRAM)


@pytest.mark.parametrize("kind", ["sgd", "lars"])
def test_an_optimizer_follows_its_formula(found, kind):
    for ours, theirs in zip(found[kind], reference(found, kind), strict=True):
        assert flat(ours) == pytest.approx(flat(theirs), rel=1e-5, abs=1e-6)


def test_four_parts_of_eight_are_a_batch_of_32(found):
    (loss, weights), (whole_loss, whole) = found["accumulate-4"], found["accumulate-1"]
    assert loss == pytest.approx(whole_loss, rel=1e-5)
    for ours, theirs in zip(weights, whole, strict=True):
        assert flat(ours) == pytest.approx(flat(theirs), rel=1e-4, abs=1e-6)


def test_a_step_that_overflows_is_left_out_and_halves_the_loss_scale(found):
    states, weights = found["scale"]["states"], found["scale"]["weights"]
    assert states == [[32768.0, 1.0], [16384.0, 0.0], [16384.0, 1.0]]
    assert weights[1] == weights[0]
    assert weights[2] != weights[1]
    assert found["scale"]["doubled"] == [2048.0, 0.0], "after two thousand good steps"


def test_smoothed_labels_move_towards_ignorance(found):
    expected = 0.0
    for row, wanted in zip(found["logits"], found["wanted"], strict=True):
        whole = math.log(sum(map(math.exp, row)))
        shares = [0.1 / 4 + (0.9 if k == wanted else 0.0) for k in range(4)]
        expected += sum(share * (whole - x) for share, x in zip(shares, row, strict=True)) / 6
    assert found["smooth-classes"] == pytest.approx(expected, rel=1e-5)
    expected = 0.0
    for row, answers in zip(found["logits"], found["several"], strict=True):
        for x, answer in zip(row, answers, strict=True):
            share = 0.9 * answer + 0.05
            yes = 1 / (1 + math.exp(-x))
            expected -= (share * math.log(yes) + (1 - share) * math.log(1 - yes)) / 24
    assert found["smooth-findings"] == pytest.approx(expected, rel=1e-5)


def flat(values):
    return [x for value in values for x in flat(value)] if isinstance(values, list) else [values]
