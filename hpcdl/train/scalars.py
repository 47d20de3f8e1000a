"""Loss, learning rate, throughput and scores for TensorBoard."""

from __future__ import annotations

from pathlib import Path
from typing import Any


class Scalars:
    """Writes scalars below `folder`; without a directory it does nothing."""

    def __init__(self, tf: Any, folder: Path | None, every: int = 10) -> None:
        self._tf = tf
        self._every = every
        self._writer = tf.summary.create_file_writer(str(folder)) if folder else None

    def step(self, number: int, **values: float) -> None:
        """After a step; every tenth is kept."""
        if number % self._every == 0:
            self.keep(number, **values)

    def keep(self, number: int, **values: float) -> None:
        """Write values of a step."""
        if self._writer is None:
            return
        with self._writer.as_default(number):
            for name, value in values.items():
                self._tf.summary.scalar(name, value)

    def close(self) -> None:
        """Bring everything to disk."""
        if self._writer is not None:
            self._writer.close()
