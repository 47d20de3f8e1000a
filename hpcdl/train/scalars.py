"""Loss, learning rate, throughput and scores for TensorBoard."""

from __future__ import annotations

from pathlib import Path

import tensorflow as tf


class Scalars:
    """Writes scalars below `folder`; without a directory nothing, and TensorBoard is not needed."""

    def __init__(self, folder: Path | None) -> None:
        self._writer = tf.summary.create_file_writer(str(folder)) if folder else None

    def step(self, number: int, every: int = 10, **values: float) -> None:
        """After a step; every tenth is kept."""
        if self._writer and number % every == 0:
            with self._writer.as_default(number):
                for name, value in values.items():
                    tf.summary.scalar(name, value)

    def close(self) -> None:
        """Bring everything to disk."""
        if self._writer:
            self._writer.close()
