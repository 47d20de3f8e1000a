"""Loss, learning rate, throughput and scores for TensorBoard."""

from __future__ import annotations

from pathlib import Path

import tensorflow as tf


class Scalars:
    """Writes scalars below `folder`; without a directory it does nothing."""

    def __init__(self, folder: Path | None) -> None:
        create = tf.summary.create_file_writer
        self._writer = create(str(folder)) if folder else tf.summary.create_noop_writer()

    def step(self, number: int, every: int = 10, **values: float) -> None:
        """After a step; every tenth is kept."""
        if number % every == 0:
            with self._writer.as_default(number):
                for name, value in values.items():
                    tf.summary.scalar(name, value)

    def close(self) -> None:
        """Bring everything to disk."""
        self._writer.close()
