"""Makes data sets; each is complete or absent.

Shards are written in a directory of their own, which is renamed as a whole.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from hpcdl.system.errors import MissingPrerequisite
from hpcdl.system.files import explain_os_errors
from hpcdl.system.resources import scratch_directory
from hpcdl.train.data.dataset import (
    Dataset,
    Shard,
    describe_shard,
    made_before,
    require_room,
    write_dataset,
)

_TEST_DIGITS = 357
Parts = Mapping[str, tuple[Sequence[Any], int]]
"""By split: the items that become records, and the number of shards, to which they go in turn."""


def make_dataset(
    dataset: Dataset, parts: Parts, record: Callable[[Any], bytes], threads: int = 1
) -> Dataset:
    """Make the data set: all shards and dataset.json; returns it with its splits.

    `record` serializes an item. Raises BadInput: another command has made another one meanwhile;
    MissingPrerequisite: no space or no permission.
    """
    folder = dataset.folder.resolve()
    with explain_os_errors(folder):
        folder.parent.mkdir(parents=True, exist_ok=True)
        with scratch_directory(folder.parent) as aside, ThreadPoolExecutor(threads) as pool:
            made = aside / folder.name
            made.mkdir()
            splits = {}
            for split, (items, shards) in parts.items():
                of = min(max(1, shards), len(items))
                paths = [made / f"{split}-{n:05d}-of-{of:05d}.tfrecord" for n in range(of)]
                shares = [items[number::of] for number in range(of)]
                splits[split] = tuple(pool.map(_write, paths, shares, [record] * of))
            splits = {split: shards for split, shards in splits.items() if shards}
            write_dataset(replace(dataset, folder=made, splits=splits))
            if found := made_before(folder, dataset.request):  # of two at once the first is kept
                return found
            require_room(folder)
            made.rename(folder)
    return replace(dataset, splits=splits)


def example(**features: bytes | int | Sequence[int]) -> bytes:
    """A serialized tf.train.Example; `__` in a name means `/`."""
    made = {name.replace("__", "/"): _feature(value) for name, value in features.items()}
    whole = tf.train.Example(features=tf.train.Features(feature=made))
    return bytes(whole.SerializeToString(deterministic=True))


def _feature(value: bytes | int | Sequence[int]) -> Any:
    if isinstance(value, bytes):
        return tf.train.Feature(bytes_list=tf.train.BytesList(value=[value]))
    numbers = [value] if isinstance(value, int) else list(value)
    return tf.train.Feature(int64_list=tf.train.Int64List(value=numbers))


def _write(path: Path, items: Sequence[Any], record: Callable[[Any], bytes]) -> Shard:
    """Write a shard and bring it to disk."""
    try:
        with tf.io.TFRecordWriter(str(path)) as writer:
            for item in items:
                writer.write(record(item))
    except tf.errors.OpError as fault:  # TensorFlow's own for a full disk
        raise MissingPrerequisite(
            f"cannot write {path}: {str(fault).splitlines()[0][:200]}",
            hint="free some space or choose another place",
        ) from fault
    with path.open("rb+") as file:
        os.fsync(file.fileno())
    return describe_shard(path, len(items))


def make_digits(folder: Path, request: dict[str, Any]) -> Dataset:
    """Scikit-learn's 1,797 handwritten digits (8x8): UCI ML's optical recognition, test set.

    The split and the order are drawn from the seed; the same seed gives the same bytes. Raises
    MissingPrerequisite: scikit-learn is missing, or no space is left.
    """
    try:
        from sklearn.datasets import load_digits
    except ImportError as fault:
        raise MissingPrerequisite(
            "scikit-learn, which has the digits, is not installed",
            hint="`module load tensorflow`: the published release has it",
        ) from fault
    images, labels = load_digits(return_X_y=True)

    def record(row: int) -> bytes:
        pixels = images[row].astype(np.uint8).tobytes()
        return example(image__raw=pixels, image__class__label=int(labels[row]))

    # RandomState's stream is frozen by NumPy: the split never changes with a version.
    order = np.random.RandomState(request["seed"]).permutation(len(labels)).tolist()
    parts = {"train": (order[:-_TEST_DIGITS], 4), "test": (order[-_TEST_DIGITS:], 2)}
    dataset = Dataset(folder, "digits", "raw", (8, 8, 1), 10, 16.0, {}, request=request)
    return make_dataset(dataset, parts, record)
