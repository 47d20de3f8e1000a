"""Loss, learning rate and throughput for TensorBoard, without TensorBoard being installed.

TensorFlow's core operation writes the event files; only the mark that says "scalars" is ours.
"""

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
        if self._writer is None or number % self._every:
            return
        tf = self._tf
        proto = tf.compat.v1.SummaryMetadata
        mark = proto(plugin_data=proto.PluginData(plugin_name="scalars"), data_class=1)
        with self._writer.as_default():
            for name, value in values.items():
                tf.summary.write(name, tf.constant(value, tf.float32), number, metadata=mark)

    def close(self) -> None:
        """Bring everything to disk."""
        if self._writer is not None:
            self._writer.close()
