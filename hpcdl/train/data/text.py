"""A corpus that is always there: the source text of Python's own library, as bytes.

For `--model gpt --dataset hpcdl.train.data.text:corpus`: sequences of 256 bytes, and the same moved
on by one as labels. The last tenth is for testing.
"""

from __future__ import annotations

import sysconfig
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

LENGTH = 256
_MOST_BYTES = 4 << 20


def corpus(split: str) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Inputs and labels of a split, of shape (sequences, 256); bytes, 0 to 255."""
    files = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
    text = b"".join(path.read_bytes() for path in files)[:_MOST_BYTES]
    count = (len(text) - 1) // LENGTH
    values = np.frombuffer(text, np.uint8).astype(np.int64)
    inputs, labels = (values[at : at + count * LENGTH].reshape(count, LENGTH) for at in (0, 1))
    border = count * 9 // 10
    part = slice(None, border) if split == "train" else slice(border, None)
    return inputs[part], labels[part]
