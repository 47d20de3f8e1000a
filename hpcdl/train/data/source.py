"""Gives a rank its part of every global batch.

Global batch k of an epoch is the same set of examples whatever the number of ranks: the epoch's
order is one permutation drawn from (seed, epoch), batch k is its k-th piece, and a rank takes
its slice of that piece. Nothing is remembered between batches, so a run resumes at any step,
on any number of ranks, by asking for batch k.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from hpcdl.system.errors import BadInput

_NODES = re.compile(
    r"^Error in user-defined function passed to .* with iterator: \S+: "
    r"|\{\{[^}]*\}\}|\[Op:\w+\]|\bname: *$"
)
_PLACES = ("Graph execution error", "Detected at", "<stack traces", "[[", "File ", "(1)")
"""So lines begin that say where in a graph something went wrong."""


@dataclass(frozen=True)
class BatchShare:
    """A rank's part of the global batch, which is a multiple of `ranks`."""

    global_batch: int
    ranks: int
    rank: int
    seed: int

    @property
    def per_rank(self) -> int:
        """Images per step of this rank."""
        return self.global_batch // self.ranks


class DataSource:
    """Where batches come from. An epoch has `steps_per_epoch` global batches, 0 for no end.

    `spec` and `label_spec` are the TensorSpecs of an example, or structures of them. `streams` is
    what the order of an epoch depends on beside its seed; 0 for nothing. A resumed run sets it to
    what it was. `digest` identifies the data, `pixels` says how the network is given them.
    `tested` is the number of test examples. `waits`: a batch may have to be waited for, as it is
    not in memory.
    `task` is `findings` where labels are several yes or no per example.
    `own`: the data are synthetic or of `hpcdl data make`, whose labels are numbers of classes.
    `order` is a digest that all ranks must have alike; '' where it follows from the files.
    """

    spec: Any
    label_spec: Any
    classes: int
    steps_per_epoch: int
    streams: int = 0
    digest: str
    pixels: str
    tested: int = 0
    waits: bool = True
    own: bool = True
    task: str = "classes"
    order: str = ""

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of an example's first input."""
        return tuple(tf.nest.flatten(self.spec)[0].shape)

    def steps(self, first: int, last: int) -> Any:
        """Return the tf.data.Dataset of this rank's batches of the steps first to last - 1."""
        raise NotImplementedError

    def test(self) -> Any:
        """Return this rank's part of the test set in batches; None without a test set."""
        return None

    def prepare(self, inputs: Any) -> Any:
        """Return what the network takes for what a batch gives; part of the compiled step."""
        return inputs


def steps_in(examples: int, share: BatchShare) -> int:
    """Steps of an epoch; what does not fill a global batch is left out. BadInput: there is none."""
    if examples < share.global_batch:
        raise BadInput(
            f"the data set has {examples} training examples, fewer than one global batch of "
            f"{share.global_batch}",
            hint="use a smaller batch or fewer ranks",
        )
    return examples // share.global_batch


def epoch_order(seed: int, epoch: int, examples: int) -> NDArray[Any]:
    """The epoch's permutation of `examples`; the same on every rank and NumPy."""
    return np.random.RandomState((seed * 1_000_003 + epoch) % 2**32).permutation(examples)


class Synthetic(DataSource):
    """One random batch on the device, again and again: no input cost at all, and no test set."""

    digest = "synthetic"
    waits = False
    pixels = "random numbers, 0 to 1"

    def __init__(
        self, shape: tuple[int, ...], classes: int, share: BatchShare, task: str = "classes"
    ) -> None:
        single, count = task == "classes", share.per_rank
        labels, most = ((count,), classes) if single else ((count, classes), 2)
        draw, seed = tf.random.stateless_uniform, tf.constant((share.seed, share.rank))
        images = draw((count, *shape), seed)
        self._batch = images, draw(labels, seed, maxval=most, dtype=tf.int64)
        self.spec, self.label_spec = (
            tf.TensorSpec(one.shape[1:], one.dtype) for one in self._batch
        )
        self.classes, self.task, self.steps_per_epoch = classes, task, 0

    def steps(self, first: int, last: int) -> Any:
        """Return the same batch for every step."""
        return tf.data.Dataset.from_tensors(self._batch).repeat(last - first)


class InMemory(DataSource):
    """A small data set in memory: (inputs, labels), or with weights, by split.

    Inputs and labels are arrays or structures of arrays. No `test` is no test set.
    """

    waits = False
    pixels = "the data set's values / its scale: 0 to 1"

    def __init__(
        self, arrays: Mapping[str, tuple[Any, ...]], share: BatchShare, classes: int, digest: str
    ) -> None:
        self._train = arrays["train"]
        self._test = arrays.get("test")
        self.tested = 0 if self._test is None else _length(self._test)
        inputs, labels, *_ = tf.nest.map_structure(
            lambda a: tf.TensorSpec(a.shape[1:], tf.as_dtype(a.dtype)), self._train
        )
        self.spec, self.label_spec = inputs, labels
        self.classes = classes
        self.digest = digest
        self._share = share
        self.steps_per_epoch = steps_in(_length(self._train), share)

    def steps(self, first: int, last: int) -> Any:
        """Return slices of the epochs' permutations."""
        share, steps, count = self._share, self.steps_per_epoch, _length(self._train)
        with tf.device("CPU:0"):
            whole = tf.nest.map_structure(tf.constant, self._train)

        def rows_of(epoch: Any) -> NDArray[Any]:
            order = epoch_order(share.seed, int(epoch), count)[: steps * share.global_batch]
            return order.reshape(steps, share.ranks, share.per_rank)[:, share.rank]

        def rows(epoch: Any) -> Any:
            mine = tf.numpy_function(rows_of, [epoch], tf.int64)
            mine.set_shape((steps, share.per_rank))
            return tf.data.Dataset.from_tensor_slices(mine)

        epochs = tf.data.Dataset.range(first // steps, -(-last // steps)).flat_map(rows)
        wanted = epochs.skip(first % steps).take(last - first)

        def batch(mine: Any) -> Any:
            return tf.nest.map_structure(lambda values: tf.gather(values, mine), whole)

        return wanted.map(batch, num_parallel_calls=2, deterministic=True).prefetch(4)

    def test(self) -> Any:
        """Return every `ranks`-th test example."""
        if not self.tested:
            return None
        share = self._share
        mine = tf.nest.map_structure(lambda part: part[share.rank :: share.ranks], self._test)
        return tf.data.Dataset.from_tensor_slices(mine).batch(share.per_rank)


def _length(arrays: Any) -> int:
    return len(tf.nest.flatten(arrays)[0])


def unreadable(fault: BaseException) -> BadInput:
    """The error for data that raise while they are read."""
    why = "a record is no tf.Example" if isinstance(fault, UnicodeDecodeError) else reason(fault)
    return BadInput(
        f"the data cannot be read: {why}",
        hint="`hpcdl data inspect --decode DIR` names damaged records: get those shards again; "
        "where a function of your own raised it, that is the reason",
    )


def reason(fault: BaseException) -> str:
    """Return what an error of TensorFlow says, in one line, without the places in its graphs."""
    lines = [_NODES.sub("", line).strip() for line in str(fault).splitlines()]
    reasons = [line for line in lines if line and not line.startswith(_PLACES)]
    return (reasons or lines or [""])[0][:300]
