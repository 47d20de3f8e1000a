"""What a network is trained for: the loss, and how well it does on the test set.

`classes`: one label per image, softmax cross-entropy, accuracy. `findings` (CheXNet): several
yes-or-no labels per image, sigmoid cross-entropy, the area under the ROC curve of each label and
their mean. Scores are reduced over all ranks exactly, not averaged from the ranks' own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from hpcdl.train.communicate import Communicator, Floats, compiled
from hpcdl.train.data.source import Source
from hpcdl.train.models import Network

FINDINGS = (
    "Atelectasis", "Cardiomegaly", "Effusion", "Infiltration", "Mass", "Nodule", "Pneumonia",
    "Pneumothorax", "Consolidation", "Edema", "Emphysema", "Fibrosis", "Pleural_Thickening",
    "Hernia",
)  # fmt: skip
"""The 14 labels of ChestX-ray14, in the order of arXiv 1705.02315."""


@dataclass(frozen=True)
class Task:
    """`loss(logits, labels)` is this rank's mean; `name` is `classes` or `findings`."""

    name: str
    loss: Callable[[Any, Any], Any]


def make_task(tf: Any, name: str, smoothing: float) -> Task:
    """The task, with labels smoothed: each moves by `smoothing` towards ignorance."""

    def classes(logits: Any, labels: Any) -> Any:
        logits = tf.cast(logits, tf.float32)
        if not smoothing:
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
        else:
            count = logits.shape[-1]
            wanted = tf.one_hot(labels, count, 1.0 - smoothing + smoothing / count,
                                smoothing / count)  # fmt: skip
            losses = tf.nn.softmax_cross_entropy_with_logits(wanted, logits)
        return tf.reduce_mean(losses)

    def findings(logits: Any, labels: Any) -> Any:
        wanted = tf.cast(labels, tf.float32) * (1.0 - smoothing) + smoothing / 2
        losses = tf.nn.sigmoid_cross_entropy_with_logits(wanted, tf.cast(logits, tf.float32))
        return tf.reduce_mean(losses)

    return Task(name, {"classes": classes, "findings": findings}[name])


def evaluate(
    tf: Any, task: Task, network: Network, source: Source, ranks: Communicator,
    alive: Callable[[], None],
) -> dict[str, float]:  # fmt: skip
    """The task's metrics on the test set, over all ranks; empty where there is none.

    `alive` is called after every batch.
    Every rank scores with rank 0's moving averages, the ones that checkpoints hold.
    """
    ranks.broadcast(network.state)
    predict = _predictor(tf, task, network, source)
    logits, labels, sums = [], [], np.zeros(3)
    for images, wanted in source.test_batches():
        batch, loss = predict(images, wanted)
        count = len(batch)
        right = np.sum(np.argmax(batch, axis=1) == np.asarray(wanted)) if _one(task) else 0
        sums += right, loss * count, count
        alive()
        if not _one(task):
            logits.append(batch)
            labels.append(np.asarray(wanted, np.float64))
    right, loss, count = ranks.sum_on_host(sums)
    if not count:
        return {}
    shared = {"test_loss": loss / count, "test_images": count}
    if _one(task):
        return {"accuracy": right / count, **shared}
    width = network_width(network)
    empty = np.zeros((0, width))
    return {
        **_areas(
            ranks.gather_rows(np.concatenate([empty, *logits])),
            ranks.gather_rows(np.concatenate([empty, *labels])),
        ),
        **shared,
    }


def network_width(network: Network) -> int:
    """Outputs of the network: the length of its last bias."""
    return int(network.trainable[-1].shape[-1])


def _one(task: Task) -> bool:
    return task.name == "classes"


def _predictor(
    tf: Any, task: Task, network: Network, source: Source
) -> Callable[[Any, Any], tuple[Floats, float]]:
    def body(images: Any, labels: Any) -> Any:
        logits = tf.cast(network.forward(source.prepare(images), False), tf.float32)
        return logits, network.penalized(task.loss(logits, labels))

    function = compiled(tf, body)

    def predict(images: Any, labels: Any) -> tuple[Floats, float]:
        pixels = tf.nest.map_structure(tf.convert_to_tensor, images)
        logits, loss = function(pixels, tf.convert_to_tensor(labels))
        return np.asarray(logits, np.float64), float(loss)

    return predict


def _areas(logits: Floats, labels: Floats) -> dict[str, float]:
    """AUROC per finding that has both answers, and their mean."""
    names = FINDINGS if labels.shape[1] == len(FINDINGS) else range(labels.shape[1])
    areas = {
        f"auroc/{name}": area(logits[:, column], labels[:, column])
        for column, name in enumerate(names)
    }
    known = {name: value for name, value in areas.items() if value == value}
    if not known:
        return {}
    return {"auroc": float(np.mean(list(known.values()))), **known}


def area(scores: Floats, labels: Floats) -> float:
    """Area under the ROC curve; NaN where only one answer occurs.

    The chance that a positive scores above a negative, ties counting half (Mann and Whitney).
    """
    positive = labels > 0.5
    count = int(positive.sum())
    others = len(labels) - count
    if not count or not others:
        return float("nan")
    _, place, counts = np.unique(scores, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    ranks = (ends - (counts - 1) / 2.0)[place]
    return float((ranks[positive].sum() - count * (count + 1) / 2) / (count * others))
