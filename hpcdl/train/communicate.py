"""What ranks do together: sums in the graph, sums and texts on the host, broadcasts.

A `Communicator` is all that the rest of the program knows of Horovod or of TensorFlow's own
collectives; by itself it is that of one process. strategies.py chooses. For the collectives
MultiWorkerMirroredStrategy sets up the cluster and gives the all-reduce; variables stay plain, one
copy per rank, as with Horovod, so everything else of the program is the same.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from hpcdl.system.errors import MissingPrerequisite
from hpcdl.train.data.images import first_line
from hpcdl.train.startup import RankPlace, cluster_config, node_names, require_trust

Tensor = Any
Floats = NDArray[np.float64]
BUCKET_BYTES = 32 << 20
"""Gradients are summed in groups of about this size, the first while others are computed."""


class Communicator:
    """What the ranks can do together: here what one process does, which others build upon.

    Every method but `total` is called outside a step.
    """

    name = "single"
    rank: int = 0
    size: int = 1

    def function(self, body: Callable[..., Any]) -> Callable[..., Any]:
        """The compiled function of a body that calls `total`."""
        return compiled(self.replica(body))

    def replica(self, body: Callable[..., Any]) -> Callable[..., Any]:
        """The body as a part, in a loop say, of what is compiled by other means."""
        return body

    def total(self, tensors: Sequence[Tensor], *, compress: bool = False) -> list[Tensor]:
        """The sum of each tensor over the ranks; `compress` sends them as fp16."""
        return list(tensors)

    def sum_on_host(self, values: Floats) -> Floats:
        """The sum of an array over the ranks."""
        return values

    def broadcast(self, variables: Sequence[Any]) -> None:
        """Give all ranks the values of rank 0."""

    def gather_text(self, text: str) -> list[str]:
        """Every rank's text, by rank: each fills its own row of zeros, and the rows are added."""
        data = np.frombuffer(text.encode(), np.uint8)
        lengths = np.zeros(self.size)
        lengths[self.rank] = len(data)
        # A byte at least: TensorFlow's collectives crash on nothing.
        rows = np.zeros((self.size, max(1, int(self.sum_on_host(lengths).max()))))
        rows[self.rank, : len(data)] = data
        filled = self.sum_on_host(rows)
        return [bytes(row.astype(np.uint8)).rstrip(b"\0").decode() for row in filled]

    def gather_rows(self, rows: Floats) -> Floats:
        """The ranks' matrices, one below the other: every rank fills its own part of zeros."""
        counts = np.zeros(self.size)
        counts[self.rank] = len(rows)
        ends = np.cumsum(self.sum_on_host(counts)).astype(int)
        whole = np.zeros((ends[-1], *rows.shape[1:]))
        whole[ends[self.rank] - len(rows) : ends[self.rank]] = rows
        return self.sum_on_host(whole)

    def close(self) -> None:
        """Shut down; returns when all ranks have come."""


class Horovod(Communicator):
    """All ranks of an MPI job through Horovod's plain TensorFlow operations."""

    name = "horovod"

    def __init__(self, hvd: Any) -> None:
        self._hvd = hvd
        self._traced = 0
        self.rank = hvd.rank()
        self.size = hvd.size()

    def total(self, tensors: Sequence[Tensor], *, compress: bool = False) -> list[Tensor]:
        """Grouped all-reduces, the last gradients first: those are ready first."""
        if self.size == 1:
            return list(tensors)
        found: dict[int, Tensor] = {}
        # Ranks trace the same steps in the same order, so that the names agree.
        self._traced += 1
        sizes = [int(t.shape.num_elements() or 0) * int(t.dtype.size) for t in tensors]
        for number, members in enumerate(buckets(sizes)):
            # Horovod groups no sparse gradients, such as an embedding's, with dense ones.
            sent = [tf.convert_to_tensor(tensors[member]) for member in members]
            if compress:
                sent = [tf.cast(tensor, tf.float16) for tensor in sent]
            reduced = self._hvd.grouped_allreduce(
                sent, op=self._hvd.Sum, name=f"reduced_{self._traced}_{number}"
            )
            found.update(zip(members, reduced, strict=True))
        return [tf.cast(found[i], tensor.dtype) for i, tensor in enumerate(tensors)]

    def sum_on_host(self, values: Floats) -> Floats:
        """A small all-reduce outside the step."""
        tensor = tf.constant(values, tf.float64)
        return np.asarray(self._hvd.allreduce(tensor, op=self._hvd.Sum, name="host_sum"))

    def broadcast(self, variables: Sequence[Any]) -> None:
        """Rank 0's values for all, packed: one operation for each variable takes seconds."""
        if self.size == 1:
            return
        values = [np.asarray(variable.numpy()) for variable in variables]
        for number, members in enumerate(packs(values)):
            packed = np.concatenate([values[member].ravel() for member in members])
            sent = tf.constant(packed)
            received = np.asarray(self._hvd.broadcast(sent, 0, name=f"broadcast_{number}"))
            ends = np.cumsum([values[member].size for member in members])
            for member, part in zip(members, np.split(received, ends[:-1]), strict=True):
                variables[member].assign(part.reshape(values[member].shape))

    def gather_rows(self, rows: Floats) -> Floats:
        """Horovod's all-gather, which takes different numbers of rows."""
        tensor = tf.constant(rows, tf.float64)
        return np.asarray(self._hvd.allgather(tensor, name="gather_rows"))

    def close(self) -> None:
        """Shut down in order, so that MPI does not take the end of one rank for a crash.

        No rank exits before all have come: rank 0 may still be writing the last checkpoint, and
        the launcher ends the other ranks once one has exited with the code of a requeue.
        """
        self.sum_on_host(np.zeros(1))
        self._hvd.shutdown()


class MultiWorker(Communicator):
    """All ranks through a tf.distribute strategy."""

    name = "multiworker"

    def __init__(self, strategy: Any, place: RankPlace) -> None:
        self._strategy = strategy
        self.rank = place.rank
        self.size = place.size
        self._sums: dict[tuple[int, ...], Callable[..., Any]] = {}

    def replica(self, body: Callable[..., Any]) -> Callable[..., Any]:
        """The body as this worker's one replica; the strategy allows no loop around its sums."""
        return lambda *arguments: self._strategy.run(body, args=arguments)

    def total(self, tensors: Sequence[Tensor], *, compress: bool = False) -> list[Tensor]:
        """The replica context's all-reduce, which packs gradients itself."""
        sent = [tf.cast(t, tf.float16) for t in tensors] if compress else list(tensors)
        reduced = self._sum(sent)
        return [tf.cast(r, t.dtype) for r, t in zip(reduced, tensors, strict=True)]

    def sum_on_host(self, values: Floats) -> Floats:
        """A compiled all-reduce per shape."""
        if values.shape not in self._sums:
            self._sums[values.shape] = self.function(lambda tensor: self._sum([tensor])[0])
        return np.asarray(self._sums[values.shape](tf.constant(values, tf.float64)))

    def broadcast(self, variables: Sequence[Any]) -> None:
        """The sum of rank 0's values and the others' zeros, type by type."""
        mine = 1.0 if self.rank == 0 else 0.0

        def spread() -> None:
            values = [
                variable.read_value() * tf.cast(mine, variable.dtype) for variable in variables
            ]
            # They are packed into one: numbers drawn from have another type than weights.
            for members in by_type(variables):
                sent = [values[member] for member in members]
                added = self._sum(sent)
                for member, value in zip(members, added, strict=True):
                    variables[member].assign(value)

        if variables:
            self.function(spread)()

    def _sum(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """All-reduce within a replica; it must know on which device the tensors lie."""
        with tf.device(self._strategy.extended.worker_devices[0]):
            placed = [tf.identity(tensor) for tensor in tensors]
        context = tf.distribute.get_replica_context()
        reduced: list[Tensor] = context.all_reduce(tf.distribute.ReduceOp.SUM, placed)
        return reduced

    def close(self) -> None:
        """Wait for all: the coordinator must not exit first."""
        self.sum_on_host(np.zeros(1))


def no_server(fault: Exception) -> MissingPrerequisite:
    """The error of a server of TensorFlow's that did not start."""
    return MissingPrerequisite(
        f"TensorFlow's server does not start: {first_line(fault)}",
        hint="another run may have its port; try again",
    )


def join(place: RankPlace) -> MultiWorker:
    """Set up the cluster of this job; MissingPrerequisite: no nodes, a taken port, no trust."""
    if "TF_CONFIG" not in os.environ:
        if place.size > 1:
            require_trust("multiworker")
        os.environ["TF_CONFIG"] = json.dumps(cluster_config(os.environ, place, node_names))
    options = tf.distribute.experimental.CommunicationOptions(
        implementation=tf.distribute.experimental.CommunicationImplementation.AUTO
    )
    try:
        strategy = tf.distribute.MultiWorkerMirroredStrategy(communication_options=options)
    except tf.errors.OpError as fault:
        raise no_server(fault) from fault
    return MultiWorker(strategy, place)


def compiled(body: Callable[..., Any], signature: Any = None) -> Callable[..., Any]:
    """A tf.function without AutoGraph, whose import takes a second, and without XLA.

    With a `signature` it is traced once; else again for other shapes.
    """
    function: Callable[..., Any] = tf.function(
        body,
        input_signature=signature,
        autograph=False,
        jit_compile=False,
        reduce_retracing=signature is None,
    )
    return function


def buckets(sizes: Sequence[int], limit: int = BUCKET_BYTES) -> list[list[int]]:
    """Indices in groups of about `limit` bytes, from the last to the first: gradients come so."""
    groups: list[list[int]] = []
    filled = 0
    for index in reversed(range(len(sizes))):
        if filled + sizes[index] > limit or not groups:
            groups.append([])
            filled = 0
        groups[-1].append(index)
        filled += sizes[index]
    return groups


def packs(values: Sequence[NDArray[Any]]) -> list[list[int]]:
    """Indices of arrays that may be sent as one: of one type, of about a bucket's size."""
    return [
        [members[place] for place in group]
        for members in by_type(values)
        for group in buckets([values[member].nbytes for member in members])
    ]


def by_type(values: Sequence[Any]) -> list[list[int]]:
    """Indices of arrays or variables, those of one type together."""
    kinds: dict[Any, list[int]] = {}
    for index, value in enumerate(values):
        kinds.setdefault(value.dtype, []).append(index)
    return list(kinds.values())
