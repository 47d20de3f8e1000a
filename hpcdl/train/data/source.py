"""Gives a rank its part of every global batch.

Global batch k of an epoch is the same set of examples whatever the number of ranks: the epoch's
order is one permutation drawn from (seed, epoch), batch k is its k-th piece, and a rank takes
its slice of that piece. Nothing is remembered between batches, so a run resumes at any step,
on any number of ranks, by asking for batch k. Batches come in groups: short steps are run several
at a time, and the one who runs them says each time how many.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from hpcdl.system.errors import BadInput
from hpcdl.train.data.dataset import Dataset
from hpcdl.train.data.tfrecord import Repairs, find


@dataclass(frozen=True)
class Share:
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


class Group(NamedTuple):
    """The batches of `steps` steps in a row.

    The first axis of images and labels counts batches: one per step, or a single one for all.
    """

    images: Any
    labels: Any
    steps: int


def one() -> int:
    """One batch at a time."""
    return 1


class Source:
    """Where batches come from. An epoch has `steps_per_epoch` global batches, 0 for no end.

    `streams` is what the order of an epoch depends on beside its seed; 0 for nothing. A resumed run
    sets it to what it was. `digest` says which data it is, `pixels` how the network is given them,
    `decoder` what decodes images: empty where nothing does. `limits` are the lowest and the highest
    value of a pixel, as the network is given it. `tested` is whether there is a test set.
    """

    shape: tuple[int, ...]
    classes: int
    steps_per_epoch: int
    streams: int = 0
    digest: str
    pixels: str
    decoder: str = ""
    limits: tuple[Any, Any] = (0.0, 1.0)
    tested: bool = False

    def batches(self, epoch: int, first: int, wanted: Callable[[], int] = one) -> Iterator[Group]:
        """This rank's batches of the epoch from `first` on.

        `wanted` is asked before each group how many batches it may hold; it can hold fewer.
        """
        raise NotImplementedError

    def test_batches(self) -> Iterator[tuple[Any, Any]]:
        """This rank's part of the test set: every example once over all ranks; none here."""
        return iter(())

    def prepare(self, images: Any) -> Any:
        """What a batch gives as images, as the network takes it; part of the compiled step."""
        return images


def steps_in(examples: int, share: Share) -> int:
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


class Synthetic(Source):
    """One random batch on the device, again and again: no input cost at all, and no test set."""

    digest = "synthetic"
    pixels = "random numbers, 0 to 1"

    def __init__(
        self, shape: tuple[int, ...], classes: int, share: Share, task: str = "classes"
    ) -> None:
        self.shape = shape
        self.classes = classes
        self.steps_per_epoch = 0
        seed = tf.constant((share.seed, share.rank))

        # Compiled, it scales in place: one copy instead of three. The seed is an argument, for
        # TensorFlow would compute a result of constants once more, to see whether it is small.
        @tf.function(autograph=False)  # type: ignore[untyped-decorator,unused-ignore]
        def random_images(seed: Any) -> Any:
            return tf.random.stateless_uniform((1, share.per_rank, *shape), seed=seed)

        self._images = random_images(seed)
        single = task == "classes"
        self._labels = tf.random.stateless_uniform(
            (1, share.per_rank) if single else (1, share.per_rank, classes),
            seed=seed,
            maxval=classes if single else 2,
            dtype=tf.int64,
        )

    def batches(self, epoch: int, first: int, wanted: Callable[[], int] = one) -> Iterator[Group]:
        """The same batch for ever."""
        while True:
            yield Group(self._images, self._labels, wanted())


class InMemory(Source):
    """A small data set in memory: images and labels by split. No `test` is no test set."""

    pixels = "the data set's values / its scale: 0 to 1"

    def __init__(
        self, arrays: Mapping[str, tuple[Any, Any]], share: Share, classes: int, digest: str
    ) -> None:
        self._train = arrays["train"]
        self._test = arrays.get("test", (np.zeros(0), np.zeros(0)))
        self.tested = len(self._test[1]) > 0
        self.shape: tuple[int, ...] = tuple(self._train[0].shape[1:])
        self.classes = classes
        self.digest = digest
        self._share = share
        self.steps_per_epoch = steps_in(len(self._train[1]), share)

    def batches(self, epoch: int, first: int, wanted: Callable[[], int] = one) -> Iterator[Group]:
        """Slices of the epoch's permutation."""
        images, labels = self._train
        share, steps = self._share, self.steps_per_epoch
        order = epoch_order(share.seed, epoch, len(labels))[: steps * share.global_batch]
        mine = order.reshape(steps, share.ranks, share.per_rank)[:, share.rank]
        while first < steps:
            rows = mine[first : first + wanted()]
            yield Group(images[rows], labels[rows], len(rows))
            first += len(rows)

    def test_batches(self) -> Iterator[tuple[Any, Any]]:
        """Every `ranks`-th test example."""
        share = self._share
        images, labels = (part[share.rank :: share.ranks] for part in self._test)
        for at in range(0, len(labels), share.at_once):
            yield images[at : at + share.at_once], labels[at : at + share.at_once]


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

    def __init__(self, opens: Callable[[], Iterator[Group]], state: Callable[[], object]) -> None:
        self._opens = opens
        self._state = state
        self._before = state()
        self._found: Iterator[Group] | None = None
        self._thread = threading.Thread(target=self._open, daemon=True)
        self._thread.start()

    def _open(self) -> None:
        with suppress(Exception):  # who takes it opens it again, and is told
            batches = self._opens()
            self._found = chain([next(batches)], batches)

    def take(self) -> Iterator[Group]:
        """The batches, from the first one on."""
        self.wait()
        return self._found if self._found and self._state() == self._before else self._opens()

    def wait(self) -> None:
        """Return when the thread has ended."""
        self._thread.join()
