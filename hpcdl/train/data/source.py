"""Gives a rank its part of every global batch.

Global batch k of an epoch is the same set of examples whatever the number of ranks: the epoch's
order is one permutation drawn from (seed, epoch), batch k is its k-th piece, and a rank takes
its slice of that piece. Nothing is remembered between batches, so a run resumes at any step,
on any number of ranks, by asking for batch k.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from hpcdl.system.errors import BadInput, HpcdlError
from hpcdl.train.data.dataset import Dataset
from hpcdl.train.data.tfrecord import Repairs, find


@dataclass(frozen=True)
class BatchShare:
    """A rank's part of the global batch, which is a multiple of `ranks` x `parts`.

    The parts go through the network one after the other, to save memory.
    """

    global_batch: int
    ranks: int
    rank: int
    seed: int
    parts: int = 1

    @property
    def per_rank(self) -> int:
        """Images per step of this rank."""
        return self.global_batch // self.ranks

    @property
    def at_once(self) -> int:
        """Images that go through the network together: what fits to train fits to score."""
        return self.per_rank // self.parts


class DataSource:
    """Where batches come from. An epoch has `steps_per_epoch` global batches, 0 for no end.

    `spec` and `label_spec` are the TensorSpecs of an example, or structures of them. `streams` is
    what the order of an epoch depends on beside its seed; 0 for nothing. A resumed run sets it to
    what it was. `digest` identifies the data, `pixels` says how the network is given them.
    `tested`: there is a test set.
    `task` is `findings` where labels are several yes or no per example.
    `own`: the data are synthetic or of `hpcdl data make`, whose labels are numbers of classes.
    `fault` is the clear error behind an error of tf.data.
    """

    spec: Any
    label_spec: Any
    classes: int
    steps_per_epoch: int
    streams: int = 0
    digest: str
    pixels: str
    tested: bool = False
    own: bool = True
    task: str = "classes"
    fault: HpcdlError | None = None

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
    pixels = "random numbers, 0 to 1"

    def __init__(
        self, shape: tuple[int, ...], classes: int, share: BatchShare, task: str = "classes"
    ) -> None:
        self.spec = tf.TensorSpec(shape, tf.float32)
        self.classes = classes
        self.task = task
        self.steps_per_epoch = 0
        seed = tf.constant((share.seed, share.rank))

        # Compiled, it scales in place: one copy instead of three. The seed is an argument, for
        # TensorFlow would compute a result of constants once more, to see whether it is small.
        @tf.function(autograph=False)  # type: ignore[untyped-decorator,unused-ignore]
        def random_images(seed: Any) -> Any:
            return tf.random.stateless_uniform((share.per_rank, *shape), seed=seed)

        self._images = random_images(seed)
        single = task == "classes"
        self._labels = tf.random.stateless_uniform(
            (share.per_rank,) if single else (share.per_rank, classes),
            seed=seed,
            maxval=classes if single else 2,
            dtype=tf.int64,
        )
        self.label_spec = tf.TensorSpec(self._labels.shape[1:], tf.int64)

    def steps(self, first: int, last: int) -> Any:
        """Return the same batch for every step."""
        return tf.data.Dataset.from_tensors((self._images, self._labels)).repeat(last - first)


class InMemory(DataSource):
    """A small data set in memory: (inputs, labels), or with weights, by split.

    Inputs and labels are arrays or structures of arrays. No `test` is no test set.
    """

    pixels = "the data set's values / its scale: 0 to 1"

    def __init__(
        self, arrays: Mapping[str, tuple[Any, ...]], share: BatchShare, classes: int, digest: str
    ) -> None:
        self._train = arrays["train"]
        self._test = arrays.get("test")
        self.tested = self._test is not None and _length(self._test) > 0
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
        return tf.data.Dataset.from_tensor_slices(mine).batch(share.at_once)


def _length(arrays: Any) -> int:
    return len(tf.nest.flatten(arrays)[0])


def read_raw(dataset: Dataset, split: str, repairs: Repairs) -> tuple[NDArray[Any], NDArray[Any]]:
    """All sound images (float32, 0 to 1) and labels of a split, in the order of the shards."""
    files = dataset.files(split)
    records = None
    while records is None:
        try:
            paths = [str(repairs.path(path)) for path in files]
            records = list(tf.data.TFRecordDataset(paths).as_numpy_iterator())
        except tf.errors.DataLossError as fault:
            repairs.repair(files, str(fault).splitlines()[0])
    try:
        parsed = _parse_raw(records)
    except (tf.errors.InvalidArgumentError, UnicodeDecodeError):  # its message quotes the record
        unreadable = {record for record in records if not _is_raw(record)}
        for record in unreadable:
            repairs.skip(*find(files, record), "it is no tf.Example with an image and its class")
        parsed = _parse_raw([record for record in records if record not in unreadable])
    pixels = np.asarray(tf.io.decode_raw(parsed["image/raw"], tf.uint8), np.float32)
    images = pixels.reshape(-1, *dataset.shape) / np.float32(dataset.scale)
    return images, np.asarray(parsed["image/class/label"])


def _parse_raw(records: list[bytes]) -> dict[str, Any]:
    wanted = {
        "image/raw": tf.io.FixedLenFeature((), tf.string),
        "image/class/label": tf.io.FixedLenFeature((), tf.int64),
    }
    parsed: dict[str, Any] = tf.io.parse_example(records, wanted)
    return parsed


def _is_raw(record: bytes) -> bool:
    with suppress(tf.errors.InvalidArgumentError, UnicodeDecodeError):
        return bool(_parse_raw([record]))
    return False


def count_records(path: Path) -> int | None:
    """The records of a sound shard, by TensorFlow's reader, which checks every checksum."""
    records = tf.data.TFRecordDataset(str(path), buffer_size=8 << 20).batch(256)
    try:
        return sum(int(tf.size(batch)) for batch in records)
    except (tf.errors.DataLossError, tf.errors.InvalidArgumentError):
        return None


BATCHES = 4
"""So many before the end of an epoch the next one is opened."""


class Ahead:
    """An epoch that `opens` gives; dropped if `state` gives something else when it is taken."""

    def __init__(self, opens: Callable[[], Iterator[Any]], state: Callable[[], object]) -> None:
        self._opens = opens
        self._state = state
        self._before = state()
        self._opened: Iterator[Any] | None = None
        self._thread = threading.Thread(target=self._open, daemon=True)
        self._thread.start()

    def _open(self) -> None:
        with suppress(Exception):  # who takes it opens it again, and gets the error
            batches = self._opens()
            self._opened = chain([next(batches)], batches)

    def take(self) -> Iterator[Any]:
        """Return the batches, from the first one on."""
        self._thread.join()
        return self._opened if self._opened and self._state() == self._before else self._opens()
