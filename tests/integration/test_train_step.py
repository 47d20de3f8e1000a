"""Options of the step, on the mlp and the digits: each trains, and equal things are equal."""

from pathlib import Path

import pytest

from tests.integration.train_runs import Runs

pytestmark = pytest.mark.stack
STEPS = ("--steps=60", "--global-batch=64")


def losses(runs: Runs, digits: Path, *words: str, ranks: int = 1) -> list[float]:
    job = "-".join([*words, str(ranks)]).replace("--", "").replace("=", "")
    done = runs.train("--data", str(digits), *STEPS, *words, ranks=ranks, job=job)
    assert done.code == 0, done.err
    found: list[float] = done.result["samples"]["loss"]
    return found


def test_parts_of_a_batch_add_up_to_the_batch(runs, digits):
    whole = losses(runs, digits)
    assert losses(runs, digits, "--accumulate=4")[:20] == pytest.approx(whole[:20], rel=1e-4)
    assert losses(runs, digits, "--xla")[:20] == pytest.approx(whole[:20], rel=1e-4)


@pytest.mark.parametrize("strategy", ["horovod", "multiworker"])
def test_both_strategies_give_the_same_on_two_ranks(runs, digits, strategy):
    words = (f"--strategy={strategy}",)
    assert losses(runs, digits, *words, ranks=2)[-1] == pytest.approx(0.0773, abs=0.004)


@pytest.mark.parametrize(
    "words",
    [
        ("--precision=fp16", "--compress"),
        ("--precision=bf16",),
        ("--optimizer=lars", "--lr=2", "--weight-decay=0.0001"),
        ("--label-smoothing=0.1", "--lr-warmup-steps=5", "--lr-schedule=cosine", "--scale-lr"),
    ],
    ids=lambda words: words[0].strip("-"),
)
def test_every_option_trains(runs, digits, words):
    found = losses(runs, digits, *words, ranks=2 if "--compress" in words else 1)
    assert found[0] == pytest.approx(2.31, abs=0.05)
    assert sum(found[-5:]) / 5 < 1.1


def test_a_users_own_model_trains(runs, digits):
    (runs.folder / "mine.py").write_text(
        "import tensorflow as tf\n"
        "def network(shape, classes):\n"
        "    layers = tf.keras.layers\n"
        "    return tf.keras.Sequential([tf.keras.Input(shape), layers.Flatten(),\n"
        "        layers.Dense(32), layers.BatchNormalization(), layers.ReLU(),\n"
        "        layers.Dense(classes)])\n"
    )
    words = ("--data", str(digits), "--model=mine:network", "--epochs=3", "--lr=0.1")
    done = runs.train(*words)
    assert done.code == 0, done.err
    assert done.result["summary"]["metrics"]["accuracy"] > 0.85
    wrong = runs.train("--data", str(digits), "--model=mine:other")
    assert (wrong.code, "cannot be imported" in wrong.err) == (2, True)
