"""`hpcdl train` beside plain `fit` on the same batches: equal, or refused before training.

like_keras.py has the rows. One process trains all of them, one pair of ranks all but NOT_ON_RANKS.
"""

import json
import subprocess

import pytest

from tests.integration.train_runs import MPIRUN, ROOT, environment

pytestmark = [pytest.mark.stack, pytest.mark.timeout(1500)]
LOSS = 1e-5
HALF = 5e-3  # of what is computed in 16 bits, in another order
REFUSED = {
    "labels that are fractions": "choose the loss",
    "labels of a pipeline that are fractions": "choose the loss",
    "fractions and a loss of classes": "takes the numbers of classes, integers",
    "reshuffled pipeline": "its elements in another order each time",
    "one-hot and a loss of numbers": "choose the loss",
    "sigmoid and a loss of classes": "the model ends in 'sigmoid'",
    "relu at the end": "the model ends in 'relu'",
    "a model that says nothing": "--set loss.from_logits=true (the model gives logits), or",
    "numbers and a loss of shares": "compares them one by one",
    "several outputs and one loss": "--loss names 1 losses",
    "an optimizer of its own": "does not update by `self.optimizer`",
    "a step without a loss": "returns no 'loss'",
    "setting that nobody uses": "this run has no schedule to set",
}
# Keras averages over the replicas of tf.distribute only: on ranks each would go its own way.
REFUSED_ON_RANKS = {
    "batch normalisation over all ranks": "is to normalise over all ranks",
    **REFUSED,
}
# Their last checkpoint has the raw weights, or those of the last epoch; scores are of the others.
NOT_THE_LAST = {"moving averages", "moving averages put in place", "best weights"}
# On ranks each has its own masks, and statistics of its part of a batch; of refused rows some do.
NOT_ON_RANKS = {
    "batch normalisation",
    "batch normalisation twice",
    "batch normalisation of images",
    "batch normalisation of images twice",
    "batch normalisation of single pixels",
    "batch normalisation of images by twos",
    "batch normalisation of all images",
    "batch normalisation of images, decayed",
    "batch normalisation of images in bf16",
    "dropout",
    *(REFUSED.keys() - {"labels that are fractions", "reshuffled pipeline"}),
}


@pytest.fixture(scope="module")
def trained(train_python, tmp_path_factory):
    """What all rows gave, by the number of ranks."""
    folder, found = tmp_path_factory.mktemp("like-keras"), {}
    for ranks, left_out in ((1, ()), (2, NOT_ON_RANKS)):
        start = [*MPIRUN, str(ranks)] if ranks > 1 else []
        done = subprocess.run(
            [*start, train_python, "-m", "tests.integration.like_keras", *left_out],
            cwd=folder,
            env=environment() | {"PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            timeout=900,
            check=False,
        )
        assert done.returncode == 0, done.stderr[-3000:]
        found[ranks] = json.loads((folder / f"found-{ranks}.json").read_text())
    return found


def flat(weights):
    return [value for array in weights for value in array]


@pytest.mark.parametrize("ranks", [1, 2])
def test_training_is_that_of_keras_or_refused(trained, ranks):
    assert len(trained[ranks]) >= 40
    for name, row in trained[ranks].items():
        ours, theirs = row["ours"], row.get("theirs")
        refused = REFUSED if ranks == 1 else REFUSED_ON_RANKS
        if name in refused:
            assert (ours["code"], refused[name] in ours["error"]) == (2, True), (name, ours)
            continue
        assert ours["code"] == 0, (name, ours["error"])
        near = HALF if name.endswith(("fp16", "bf16")) else LOSS
        assert len(ours["losses"]) == len(theirs["losses"]), name
        assert ours["losses"] == pytest.approx(theirs["losses"], rel=near, abs=near), name
        metrics = {key: ours["metrics"][key] for key in theirs["metrics"]}
        assert metrics == pytest.approx(theirs["metrics"], rel=near, abs=near), name
        if name not in NOT_THE_LAST:
            assert flat(ours["weights"]) == pytest.approx(flat(theirs["weights"]), abs=near), name
    assert set(REFUSED) <= set(trained[1])
