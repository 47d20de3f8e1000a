"""Makes data sets: digits, and for photos.py photographs.

A maker says what each shard holds. They are written side by side in a directory of their own, which
is renamed as a whole: a data set is complete or absent.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from hpcdl.system.errors import MissingPrerequisite
from hpcdl.system.files import explain_os_errors
from hpcdl.system.resources import scratch_directory
from hpcdl.system.text import StatusLine
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
    dataset: Dataset, parts: Parts, record: Callable[[Any], bytes], threads: int
) -> Dataset:
    """Make the data set: all shards and dataset.json; returns it with its splits.

    `record` serializes an item. Raises BadInput: another command has made another one meanwhile;
    MissingPrerequisite: no space or no permission.
    """
    folder = dataset.folder.resolve()
    with explain_os_errors(folder):
        folder.parent.mkdir(parents=True, exist_ok=True)
        with scratch_directory(folder.parent) as aside:
            made = aside / folder.name
            made.mkdir()
            splits = _write_shards(made, parts, record, threads)
            write_dataset(replace(dataset, folder=made, splits=splits))
            if found := made_before(folder, dataset.request):  # of two at once the first is kept
                return found
            require_room(folder)
            made.rename(folder)
    return replace(dataset, splits=splits)


def _write_shards(
    folder: Path, parts: Parts, record: Callable[[Any], bytes], threads: int
) -> dict[str, tuple[Shard, ...]]:
    work = [
        (split, folder / f"{split}-{number:05d}-of-{of:05d}.tfrecord", items[number::of])
        for split, (items, shards) in parts.items()
        for of in [min(max(1, shards), len(items))]
        for number in range(of)
    ]
    with StatusLine(sys.stderr) as line, ThreadPoolExecutor(threads) as pool:
        waiting = [pool.submit(_write, path, items, record) for _, path, items in work]
        try:
            for done, written in enumerate(as_completed(waiting), 1):
                written.result()
                line.show(f"{done} of {len(work)} shards are written")
        except BaseException:
            pool.shutdown(wait=True, cancel_futures=True)
            raise
    splits: dict[str, tuple[Shard, ...]] = {}
    for (split, *_), written in zip(work, waiting, strict=True):
        splits[split] = (*splits.get(split, ()), written.result())
    return splits


def example(**features: bytes | int | Sequence[int] | str) -> bytes:
    """A serialized tf.train.Example; `__` in a name means `/`."""
    made = {name.replace("__", "/"): _feature(value) for name, value in features.items()}
    whole = tf.train.Example(features=tf.train.Features(feature=made))
    return bytes(whole.SerializeToString(deterministic=True))


def _feature(value: bytes | int | Sequence[int] | str) -> Any:
    if isinstance(value, str):
        value = value.encode()
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


def make_digits(folder: Path, request: dict[str, Any], threads: int) -> Dataset:
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
    return make_dataset(dataset, parts, record, threads)
