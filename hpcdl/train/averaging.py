"""A Keras optimizer whose gradients are averaged over the ranks before Keras applies them.

Keras does everything else: constraints, clipping, schedules, accumulation, moving averages, loss
scaling. The only things added to the graph of a step are the all-reduce and one row of numbers per
update, `Board`: the loss, the stop requests of all ranks, and seconds of communication and update.
Stop requests travel with the gradients, so that all ranks agree on the step at which they stop.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from hpcdl.train.ranks import Ranks

ROWS = 1024
"""Updates that one call from Python may do."""
_COLUMNS = 4


class Board:
    """The log of updates for Python: rows of (loss, stop, communication, update).

    `clocked`: read clocks in the graph. TensorFlow refuses that when it must be deterministic, XLA
    cannot compile it, and beside a short step it takes long; then both times are 0 and count as
    compute.
    """

    def __init__(self, *, clocked: bool) -> None:
        self.clocked = clocked
        self.stop = tf.Variable(0.0, dtype=tf.float64, trainable=False)
        self._rows = tf.Variable(tf.zeros((ROWS, _COLUMNS), tf.float64), trainable=False)
        self._count = tf.Variable([[0]], dtype=tf.int64, trainable=False)
        self._taken = 0
        self.loss: Any = None  # of the step that is being traced

    def now(self) -> Any:
        """The time in seconds, in a graph."""
        return tf.timestamp() if self.clocked else tf.constant(0.0, tf.float64)

    def add(self, *row: Any) -> None:
        """Write the row of an update, in a graph: few operations, for steps are short."""
        place = self._count.read_value() % ROWS
        cells = tf.stack([tf.cast(cell, tf.float64) for cell in row])
        self._rows.scatter_nd_update(place, tf.reshape(cells, (1, _COLUMNS)))
        self._count.assign_add([[1]])

    def take(self) -> NDArray[np.float64]:
        """Return the rows since the last call."""
        count = int(self._count[0, 0])
        places = np.arange(self._taken, count) % ROWS
        self._taken = count
        return np.asarray(self._rows.numpy()[places])


def distribute(optimizer: Any, ranks: Ranks, board: Board, *, compress: bool) -> None:
    """Let an optimizer of Keras average gradients over the ranks first, and fill the board."""
    newer = hasattr(optimizer, "scale_loss")  # Keras 3; 2 gives pairs of gradient and variable
    with_loss, with_gradients = (
        ("scale_loss", "apply") if newer else ("minimize", "apply_gradients")
    )
    note, apply = getattr(optimizer, with_loss), getattr(optimizer, with_gradients)

    def noted(loss: Any, *arguments: Any, **named: Any) -> Any:
        board.loss = loss
        return note(loss, *arguments, **named)

    def averaged(given: Any, *arguments: Any, **named: Any) -> None:
        gradients, variables = (given, ()) if newer else zip(*given, strict=True)

        def act(reduced: list[Any]) -> Any:
            pairs = reduced if newer else zip(reduced, variables, strict=True)
            apply(pairs, *arguments, **named)
            return optimizer.iterations if newer else variables[-1]

        _reduced(list(gradients), ranks, board, compress, act)

    setattr(optimizer, with_loss, noted)
    setattr(optimizer, with_gradients, averaged)


def _reduced(
    gradients: list[Any],
    ranks: Ranks,
    board: Board,
    compress: bool,
    act: Callable[[list[Any]], Any],
) -> None:
    """Average the gradients, act with them, and write the board's row.

    `act` returns a variable that changes last: what reads it comes after.
    """
    loss = board.loss if board.loss is not None else tf.constant(np.nan)
    if ranks.size == 1 and not board.clocked:
        act(gradients)
        board.add(tf.reduce_mean(loss), 0.0, 0.0, 0.0)
        return
    mean, stop = tf.cast(tf.reduce_mean(loss), tf.float64), tf.constant(0.0, tf.float64)
    computed = [each for each in gradients if each is not None]
    with tf.control_dependencies(tf.nest.flatten(computed, expand_composites=True)):
        begun = reduced = board.now()
    if ranks.size > 1:
        there = [i for i, gradient in enumerate(gradients) if gradient is not None]
        # Horovod groups no sparse gradients, such as an embedding's, with dense ones.
        sent = [tf.convert_to_tensor(gradients[i]) for i in there]
        # The loss and the stop request do not fit into fp16.
        signals = tf.stack([mean, board.stop.read_value()])
        sums = [*ranks.total(sent, compress=compress), *ranks.total([signals])]
        for i, total in zip(there, sums, strict=False):
            gradients[i] = total / tf.cast(ranks.size, total.dtype)
        mean, stop = sums[-1][0] / ranks.size, sums[-1][1]
        with tf.control_dependencies(sums):
            reduced = board.now()
    with tf.control_dependencies([tf.convert_to_tensor(act(gradients))]):
        updated = board.now()
    board.add(mean, stop, reduced - begun, updated - reduced)
