"""The ranks of a run, by Horovod or in one process alone, and the optimizer that averages.

`Ranks` is all that the rest of the program knows of Horovod; by itself it is that of one process.
`distribute` lets a Keras optimizer average gradients before Keras applies them. Keras does
everything else: constraints, clipping, schedules, accumulation, moving averages, loss scaling. The
only things added to the graph of a step are the all-reduce and one row of numbers per update,
`Board`: the loss, the stop requests of all ranks, and seconds of communication and update. Stop
requests travel with the gradients, so that all ranks agree on the step at which they stop.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from hpcdl.system.errors import MissingPrerequisite
from hpcdl.train.startup import RankPlace, StartupClock

Tensor = Any
Floats = NDArray[np.float64]
BUCKET_BYTES = 32 << 20
"""Gradients are summed in groups of about this size, the first while others are computed."""
ROWS = 1024
"""Updates that one call from Python may do."""
_COLUMNS = 4


class Ranks:
    """The collective operations of the ranks; here those of one process."""

    rank: int = 0
    size: int = 1

    def total(self, tensors: Sequence[Tensor], *, compress: bool = False) -> list[Tensor]:
        """Return the sum of each tensor over the ranks, in a graph; `compress` sends fp16."""
        return list(tensors)

    def sum_on_host(self, values: Floats) -> Floats:
        """Return the sum of an array over the ranks."""
        return values

    def broadcast(self, variables: Sequence[Any]) -> None:
        """Give all ranks the values that rank 0 has."""

    def gather(self, value: Any) -> list[Any]:
        """Return every rank's value, by rank."""
        return [value]

    def close(self) -> None:
        """Shut down; returns when all ranks have come."""


class Horovod(Ranks):
    """All ranks of an MPI job through Horovod's plain TensorFlow operations."""

    def __init__(self, hvd: Any) -> None:
        self._hvd = hvd
        self._traced = 0
        self.rank = hvd.rank()
        self.size = hvd.size()

    def total(self, tensors: Sequence[Tensor], *, compress: bool = False) -> list[Tensor]:
        """Return the sums by grouped all-reduces, the last gradients first: those come first."""
        sums: dict[int, Tensor] = {}
        # Ranks trace the same steps in the same order, so that the names agree.
        self._traced += 1
        for number, members in enumerate(buckets([_bytes(tensor) for tensor in tensors])):
            sent = [tensors[member] for member in members]
            if compress:
                sent = [tf.cast(tensor, tf.float16) for tensor in sent]
            reduced = self._hvd.grouped_allreduce(
                sent, op=self._hvd.Sum, name=f"reduced_{self._traced}_{number}"
            )
            sums.update(zip(members, reduced, strict=True))
        return [tf.cast(sums[i], tensor.dtype) for i, tensor in enumerate(tensors)]

    def sum_on_host(self, values: Floats) -> Floats:
        """Return the sum by a small all-reduce outside the step."""
        tensor = tf.constant(values, tf.float64)
        return np.asarray(self._hvd.allreduce(tensor, op=self._hvd.Sum, name="host_sum"))

    def broadcast(self, variables: Sequence[Any]) -> None:
        """Send rank 0's values as few objects: an operation for each variable takes seconds."""
        for members in buckets([_bytes(variable) for variable in variables]):
            here = [variables[member].numpy() for member in members]
            sent = self._hvd.broadcast_object(here if self.rank == 0 else None, 0)
            for member, value in zip(members if self.rank else (), sent, strict=False):
                variables[member].assign(value)

    def gather(self, value: Any) -> list[Any]:
        """Return every rank's value, pickled on its way."""
        return list(self._hvd.allgather_object(value, name="gather"))

    def close(self) -> None:
        """Shut down in order, so that MPI does not take the end of one rank for a crash.

        No rank exits before all have come: rank 0 may still be writing the last checkpoint, and
        the launcher ends the other ranks once one has exited with the code of a requeue.
        """
        self.sum_on_host(np.zeros(1))
        self._hvd.shutdown()


def join_ranks(place: RankPlace, clock: StartupClock) -> Ranks:
    """Return the ranks of this run.

    Raises MissingPrerequisite: Horovod is missing, or was built for another TensorFlow; or MPI has
    other ranks than were started, which happens where PMIx differs: every task believes to be
    alone.
    """
    if place.size == 1:
        return Ranks()
    try:
        import horovod.tensorflow as hvd
    except Exception as fault:
        raise MissingPrerequisite(
            f"Horovod cannot be imported: {str(fault).splitlines()[0]}",
            hint="it must be built for this TensorFlow: `hpcdl stack build`",
        ) from fault
    hvd.init()
    if hvd.size() != place.size:
        raise MissingPrerequisite(
            f"{place.size} tasks were started, but MPI sees {hvd.size()}",
            hint="Slurm and Open MPI must share PMIx: launch with `srun --mpi=pmix` or mpirun",
        )
    clock.mark("horovod")
    return Horovod(hvd)


def _bytes(tensor: Tensor) -> int:
    return int(tensor.shape.num_elements() or 0) * int(tensor.dtype.size)


def buckets(sizes: Sequence[int], limit: int = BUCKET_BYTES) -> list[list[int]]:
    """Return indices in groups of about `limit` bytes, from the last to the first."""
    groups: list[list[int]] = []
    filled = 0
    for index in reversed(range(len(sizes))):
        if filled + sizes[index] > limit or not groups:
            groups.append([])
            filled = 0
        groups[-1].append(index)
        filled += sizes[index]
    return groups


# ---- the optimizer ----


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
