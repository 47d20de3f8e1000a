"""Scikit-learn's 1,797 handwritten digits (8x8, from UCI's optical recognition set) as TFRecords.

A real data set small enough to travel with a Python package: a test of everything that needs no
download. The split and the order are drawn from the seed; the same seed gives the same bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from hpcdl.system.errors import MissingPrerequisite
from hpcdl.train.data.dataset import Dataset
from hpcdl.train.data.making import example, make_dataset, share_out

_TEST_EXAMPLES = 357
_SOURCE = "scikit-learn load_digits: UCI ML optical recognition of handwritten digits, test set"


def make_digits(folder: Path, request: Mapping[str, Any], threads: int) -> Dataset:
    """Write the data set; MissingPrerequisite: scikit-learn is missing, or no space is left."""
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
    plans = share_out("train", order[:-_TEST_EXAMPLES], 4, record)
    plans += share_out("test", order[-_TEST_EXAMPLES:], 2, record)
    dataset = Dataset(folder, "digits", "raw", (8, 8, 1), 10, 16.0, request["seed"], _SOURCE, {})
    return make_dataset(dataset, plans, request, threads)
