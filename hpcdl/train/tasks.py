"""What a network is trained for: the loss, and how well it does on the test set.

`classes`: one label per image, softmax cross-entropy, accuracy. `findings` (CheXNet): several
yes-or-no labels per image, sigmoid cross-entropy, the area under the ROC curve of each label and
their mean. Scores are reduced over all ranks exactly, not averaged from the ranks' own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from hpcdl.system.errors import BadInput
from hpcdl.system.files import write_atomic
from hpcdl.train.communicate import Communicator, Floats, compiled
from hpcdl.train.data.dataset import FINDINGS
from hpcdl.train.data.source import Source
from hpcdl.train.models import Network
from hpcdl.train.options import TrainOptions


@dataclass(frozen=True)
class Task:
    """`loss(logits, labels)` is this rank's mean, `metrics` are functions of (labels, logits)."""

    name: str
    loss: Callable[[Any, Any], Any]
    metrics: Mapping[str, Callable[[Any, Any], Any]] = field(default_factory=dict)


def make_task(name: str, smoothing: float) -> Task:
    """The task, with labels smoothed: each moves by `smoothing` towards ignorance."""

    def classes(logits: Any, labels: Any) -> Any:
        logits, labels = tf.cast(logits, tf.float32), tf.convert_to_tensor(labels)
        if labels.dtype.is_integer and not smoothing:
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
        else:
            count = logits.shape[-1]
            wanted = tf.one_hot(labels, count) if labels.dtype.is_integer else labels
            wanted = wanted * (1.0 - smoothing) + smoothing / count
            losses = tf.nn.softmax_cross_entropy_with_logits(wanted, logits)
        return tf.reduce_mean(losses)

    def findings(logits: Any, labels: Any) -> Any:
        wanted = tf.cast(labels, tf.float32) * (1.0 - smoothing) + smoothing / 2
        losses = tf.nn.sigmoid_cross_entropy_with_logits(wanted, tf.cast(logits, tf.float32))
        return tf.reduce_mean(losses)

    return Task(name, findings if name == "findings" else classes)


def chosen_metric(options: TrainOptions, task: Task, *, tested: bool) -> str:
    """The metric by which validation chooses; refuses now what could fail only when it scores."""
    asked = {"--best": options.best, "--patience": options.patience, "--predict": options.predict}
    if not tested and (named := next((name for name, value in asked.items() if value), "")):
        raise BadInput(
            f"{named} needs a test set, and the data have none",
            hint="leave it out, or train on data with a test split",
        )
    areas = task.name == "findings"
    known = ["auroc" if areas else "accuracy", "test_loss", *task.metrics]
    best = options.best or known[0]
    if best not in known and not (areas and best.startswith("auroc/")):
        raise BadInput(
            f"there is no metric '{best}' to choose the best weights by",
            hint=f"--best is one of {', '.join(known)}",
        )
    return best


class Evaluator:
    """Scores a network on the test set, over all ranks, by rank 0's moving averages; compiled once.

    `alive` is called after every batch.
    """

    def __init__(
        self,
        task: Task,
        network: Network,
        source: Source,
        ranks: Communicator,
        alive: Callable[[], None],
    ) -> None:
        self._network = network
        self._task = task
        self._source = source
        self._ranks = ranks
        self._alive = alive

        def body(images: Any, labels: Any) -> Any:
            logits = tf.cast(network.forward(source.prepare(images), False), tf.float32)
            more = [
                tf.reduce_mean(tf.cast(m(labels, logits), tf.float32))
                for m in task.metrics.values()
            ]
            return logits, tf.stack([network.penalized(task.loss(logits, labels)), *more])

        self._predict = compiled(body)

    def evaluate(self) -> dict[str, float]:
        """The task's metrics; empty where there is no test set."""
        return self.predictions(keep=not _one(self._task))[0]

    def predictions(self, *, keep: bool = True) -> tuple[dict[str, float], Floats, Floats]:
        """The metrics and, with `keep`, all logits and labels in the order of the test set."""
        ranks = self._ranks
        ranks.broadcast(self._network.state)
        logits: list[Floats] = []
        labels: list[Floats] = []
        sums = np.zeros(4 + len(self._task.metrics))
        for images, wanted in self._source.test_batches():
            pixels = tf.nest.map_structure(tf.convert_to_tensor, images)
            batch, means = self._predict(pixels, tf.convert_to_tensor(wanted))
            batch, wanted = np.asarray(batch, np.float64), np.asarray(wanted)
            right = np.sum(np.argmax(batch, axis=-1) == wanted) if _one(self._task) else 0
            sums[:3] += right, len(batch), wanted.size
            sums[3:] += np.asarray(means, np.float64) * len(batch)
            self._alive()
            if keep:
                logits.append(batch.reshape(len(batch), -1))
                labels.append(wanted.reshape(len(batch), -1).astype(np.float64))
        right, count, answers, loss, *more = ranks.sum_on_host(sums)
        if not count:
            return {}, np.zeros((0, 0)), np.zeros((0, 0))
        shared = {"test_loss": loss / count, "test_images": count}
        named = zip(self._task.metrics, more, strict=True)
        shared |= {name: value / count for name, value in named}
        if _one(self._task):
            shared = {"accuracy": right / answers, **shared}
        if not keep:
            return shared, np.zeros((0, 0)), np.zeros((0, 0))
        # Ranks take test examples in turn.
        order = np.arange(sum(map(len, logits)), dtype=np.float64) * ranks.size + ranks.rank
        rows = _gathered(ranks, order, logits), _gathered(ranks, order, labels)
        return (shared if _one(self._task) else {**_areas(*rows), **shared}), *rows


def _gathered(ranks: Communicator, order: Floats, parts: list[Floats]) -> Floats:
    """The ranks' rows in the order of the test set."""
    mine = parts[0].shape[1] if parts else 0
    width = ranks.sum_on_host(np.eye(1, ranks.size, ranks.rank)[0] * mine).max()
    rows = np.concatenate([np.zeros((0, int(width))), *parts])
    whole = ranks.gather_rows(np.concatenate([order[:, None], rows], axis=1))
    return np.asarray(whole[np.argsort(whole[:, 0])][:, 1:])


def _one(task: Task) -> bool:
    return task.name != "findings"


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


def write_predictions(path: Path, task: Task, logits: Floats, labels: Floats) -> None:
    """A table of the test set, CSV or Parquet: place, labels, and a probability per class."""
    if _one(task):
        raised = np.exp(logits - logits.max(axis=1, keepdims=True))
        chances = raised / raised.sum(axis=1, keepdims=True)
    else:
        chances = 1.0 / (1.0 + np.exp(-logits))
    names = [f"label_{k}" for k in range(labels.shape[1])] if labels.shape[1] > 1 else ["label"]
    columns: dict[str, Any] = {"index": np.arange(len(labels))}
    columns |= {name: labels[:, k].astype(int) for k, name in enumerate(names)}
    columns |= {f"p_{k}": chances[:, k] for k in range(chances.shape[1])}
    if path.suffix == ".parquet":
        import pyarrow
        import pyarrow.parquet

        sink = pyarrow.BufferOutputStream()
        pyarrow.parquet.write_table(pyarrow.table(columns), sink)
        write_atomic(path, bytes(sink.getvalue()))
        return
    texts = [
        [f"{x:.6g}" if isinstance(x, float) else f"{x}" for x in column]
        for column in columns.values()
    ]
    rows = [columns, *zip(*texts, strict=True)]
    write_atomic(path, "\n".join(",".join(row) for row in rows) + "\n")


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


@dataclass
class Validation:
    """What validation has found so far.

    `every` is the number of steps from one validation to the next, 0 for never. The best value of
    `metric` counts, of losses the smallest. `patience` is how many in a row may bring nothing
    better, 0 for any number. Where the metric is `required`, scores without it are refused.
    """

    every: int
    metric: str
    patience: int
    score: Callable[[], dict[str, float]]
    required: bool = True
    found: list[dict[str, Any]] = field(default_factory=list)

    def due(self, step: int) -> bool:
        """Whether to validate after a step."""
        return bool(self.every) and step % self.every == 0

    def add(self, step: int, metrics: dict[str, float]) -> bool:
        """Keep the scores after a step; whether they are the best. BadInput: no such metric."""
        if self.metric not in metrics and self.required:
            raise BadInput(
                f"there is no metric '{self.metric}' to choose the best weights by",
                hint=f"--best is one of {', '.join(metrics) or 'none'}",
            )
        self.found.append({"step": step, **metrics})
        return self._best() == len(self.found) - 1

    @property
    def in_vain(self) -> bool:
        """Whether nothing has improved for too long."""
        return bool(self.patience) and len(self.found) - 1 - self._best() >= self.patience

    def best_step(self) -> int:
        """The step of the best scores; 0 where there are none."""
        return int(self.found[self._best()]["step"]) if self.found else 0

    def _best(self) -> int:
        """The place of the best scores among those found; -1 where there are none."""
        sign = -1.0 if "loss" in self.metric else 1.0
        scores = [one.get(self.metric, math.nan) for one in self.found]
        values = [sign * value if math.isfinite(value) else -math.inf for value in scores]
        return max(range(len(values)), key=lambda i: (values[i], -i), default=-1)


def scores_line(metrics: dict[str, float]) -> str:
    """`accuracy 0.9421, test_loss 0.2318`."""
    shown = {name: value for name, value in metrics.items() if name != "test_images"}
    return ", ".join(f"{name} {value:.4f}" for name, value in shown.items())
