"""A trained model's results on the test set: predictions, and areas under ROC curves.

Outputs and labels of all ranks are put into the order of the test set, so that areas are exact.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from hpcdl.system.errors import BadInput
from hpcdl.system.files import write_atomic
from hpcdl.train.data.dataset import FINDINGS
from hpcdl.train.ranks import Floats, Ranks
from hpcdl.train.training import TrainingProgress


def check_predictable(training: TrainingProgress) -> None:
    """Refuse predictions of what has no test set, several outputs, or outputs for places."""
    fitting = training.fitting
    outputs = tf.nest.flatten(fitting.model(fitting.recipe.example()))
    if not fitting.source.tested:
        raise BadInput(
            "--predict needs a test set, and the data have none",
            hint="leave it out, or train on data with a test split",
        )
    if len(outputs) > 1 or outputs[0].shape.rank != 2:
        raise BadInput("--predict is for models that give one row of numbers per example")


def predictions(training: TrainingProgress) -> tuple[Floats, Floats]:
    """Return outputs and labels of the test set, a row each, in its order; on all ranks."""
    fitting, source = training.fitting, training.fitting.source
    model, ranks = fitting.model, fitting.ranks

    @tf.function(autograph=False, reduce_retracing=True)  # type: ignore[untyped-decorator,unused-ignore]
    def forward(inputs: Any) -> Any:
        outputs = model(source.prepare(inputs), training=False)
        return fitting.probabilities(tf.cast(outputs, tf.float32))

    outputs: list[Floats] = []
    labels: list[Floats] = []
    for inputs, wanted, *_ in source.test():
        outputs.append(np.asarray(forward(inputs), np.float64))
        labels.append(np.asarray(wanted, np.float64).reshape(len(outputs[-1]), -1))
        training.watchdog.step(training.step_number)
    # Ranks take test examples in turn.
    order = np.arange(sum(map(len, outputs)), dtype=np.float64) * ranks.size + ranks.rank
    return _gathered(ranks, order, outputs), _gathered(ranks, order, labels)


def _gathered(ranks: Ranks, order: Floats, parts: list[Floats]) -> Floats:
    """The ranks' rows in the order of the test set."""
    mine = parts[0].shape[1] if parts else 0
    width = ranks.sum_on_host(np.eye(1, ranks.size, ranks.rank)[0] * mine).max()
    rows = np.concatenate([np.zeros((0, int(width))), *parts])
    whole = ranks.gather_rows(np.concatenate([order[:, None], rows], axis=1))
    return np.asarray(whole[np.argsort(whole[:, 0])][:, 1:])


def areas_of(outputs: Floats, labels: Floats) -> dict[str, float]:
    """Return AUROC per finding that has both answers, and their mean."""
    names = FINDINGS if labels.shape[1] == len(FINDINGS) else range(labels.shape[1])
    areas = {
        f"auroc/{name}": area(outputs[:, column], labels[:, column])
        for column, name in enumerate(names)
    }
    known = {name: value for name, value in areas.items() if value == value}
    if not known:
        return {}
    return {"auroc": float(np.mean(list(known.values()))), **known}


def area(scores: Floats, labels: Floats) -> float:
    """Area under the ROC curve, ties counting half (Mann and Whitney); NaN for one answer only."""
    positive = labels > 0.5
    count = int(positive.sum())
    others = len(labels) - count
    if not count or not others:
        return float("nan")
    _, place, counts = np.unique(scores, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    ranks = (ends - (counts - 1) / 2.0)[place]
    return float((ranks[positive].sum() - count * (count + 1) / 2) / (count * others))


def write_predictions(path: Path, outputs: Floats, labels: Floats) -> None:
    """Write a table of the test set: place, labels, and the outputs."""
    whole = bool(np.all(labels == np.round(labels)))
    kept = labels.astype(int) if whole else labels
    several = kept.shape[1] > 1
    columns: dict[str, Any] = {"index": np.arange(len(kept))}
    columns |= {f"label_{k}" if several else "label": row for k, row in enumerate(kept.T)}
    columns |= {f"p_{k}": row for k, row in enumerate(outputs.T)}
    shown = [[f"{x:.6g}" if isinstance(x, float) else f"{x}" for x in c] for c in columns.values()]
    lines = [columns, *zip(*shown, strict=True)]
    write_atomic(path, "".join(",".join(line) + "\n" for line in lines))
