"""Scikit-learn's 1,797 handwritten digits (8x8, from UCI's optical recognition set) as TFRecords.

A real data set small enough to travel with a Python package: a test of everything that needs no
download. The split and the order are drawn from the seed; the same seed gives the same bytes.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcdl.system.errors import MissingPrerequisite
from hpcdl.system.files import clear_leftovers, explain_os_errors, write_json
from hpcdl.system.scratch import scratch_directory
from hpcdl.train.data.dataset import FILE, Dataset, Shard, describe_shard, write_dataset
from hpcdl.train.data.making import example, write_records
from hpcdl.train.data.requests import REQUEST

TEST_EXAMPLES = 357
SHARDS = {"train": 4, "test": 2}
SOURCE = "scikit-learn load_digits: UCI ML optical recognition of handwritten digits, test set"


def make_digits(folder: Path, seed: int) -> Dataset:
    """Write the data set to `folder`, aside first: an interrupted run leaves nothing behind.

    Raises:
        MissingPrerequisite: scikit-learn is missing, or no space is left.
    """
    images, labels = _load()
    # RandomState's stream is frozen by NumPy: the split never changes with a version.
    order = np.random.RandomState(seed).permutation(len(labels))
    parts = {"train": order[:-TEST_EXAMPLES], "test": order[-TEST_EXAMPLES:]}
    with explain_os_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        clear_leftovers(folder / FILE, folder / REQUEST)
        with scratch_directory(folder) as aside:
            splits = {
                split: _write_split(aside, split, images[rows], labels[rows])
                for split, rows in parts.items()
            }
            # By this the next attempt knows whose shards it finds, should this one be killed.
            write_json(folder / REQUEST, {"kind": "digits", "seed": seed})
            for path in sorted(aside.iterdir()):
                path.replace(folder / path.name)
    dataset = Dataset(folder, "digits", "raw", (8, 8, 1), 10, 16.0, seed, SOURCE, splits)
    write_dataset(dataset)
    (folder / REQUEST).unlink()
    return dataset


def _load() -> tuple[NDArray[Any], NDArray[Any]]:
    try:
        from sklearn.datasets import load_digits
    except ImportError as fault:
        raise MissingPrerequisite(
            "scikit-learn, which has the digits, is not installed",
            hint="`module load tensorflow`: the published release has it",
        ) from fault
    digits = load_digits()
    return digits.data.astype(np.uint8), digits.target.astype(np.int64)


def _write_split(
    aside: Path, split: str, images: NDArray[Any], labels: NDArray[Any]
) -> tuple[Shard, ...]:
    count = SHARDS[split]
    shards = []
    for number in range(count):
        path = aside / f"{split}-{number:05d}-of-{count:05d}.tfrecord"
        rows = range(number, len(labels), count)
        records = (
            example(image__raw=images[row].tobytes(), image__class__label=int(labels[row]))
            for row in rows
        )
        write_records(path, records, lambda _: None)
        shards.append(describe_shard(path, len(rows)))
    return tuple(shards)
