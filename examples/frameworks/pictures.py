"""Images to measure with: drawn, not read, the same in every process and framework.

`hpcdl train --dataset hpcdl.examples.frameworks.pictures:small`; `large` has 224 pixels a side.
"""

import numpy as np

CLASSES = 1000


def small(split: str) -> tuple[np.ndarray, np.ndarray]:
    """256 images of 64 x 64 x 3 (32 to test), 0 to 1, and their classes."""
    return _drawn(split, 64, 256)


def large(split: str) -> tuple[np.ndarray, np.ndarray]:
    """2,048 images of 224 x 224 x 3 (32 to test), 0 to 1, and their classes: enough for 16 GPUs."""
    return _drawn(split, 224, 2048)


def _drawn(split: str, side: int, count: int) -> tuple[np.ndarray, np.ndarray]:
    draw = np.random.default_rng(1 if split == "train" else 2)
    count = count if split == "train" else 32
    images = draw.random((count, side, side, 3), dtype=np.float32)
    # Each split has the last class, by which a reader knows how many there are.
    return images, np.append(draw.integers(0, CLASSES, count - 1), CLASSES - 1)
