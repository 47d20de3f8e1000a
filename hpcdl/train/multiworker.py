"""The ranks joined by TensorFlow's own collectives, without Horovod and MPI.

MultiWorkerMirroredStrategy sets up the cluster and gives the all-reduce; variables stay plain,
one copy per rank, as with Horovod, so everything else of the program is the same.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from hpcdl.system.errors import MissingPrerequisite
from hpcdl.train.communicate import Communicator, Floats, Tensor, by_type
from hpcdl.train.data.images import first_line
from hpcdl.train.ranks import RankPlace, cluster_config, node_names, require_trust


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
        reduced = self._reduce(tf.distribute.ReduceOp.SUM, sent)
        return [tf.cast(r, t.dtype) for r, t in zip(reduced, tensors, strict=True)]

    def sum_on_host(self, values: Floats) -> Floats:
        """A compiled all-reduce per shape."""
        if values.shape not in self._sums:

            def add(tensor: Tensor) -> Tensor:
                return self._reduce(tf.distribute.ReduceOp.SUM, [tensor])[0]

            self._sums[values.shape] = self.function(add)
        return np.asarray(self._sums[values.shape](tf.constant(values, tf.float64)))

    def broadcast(self, variables: Sequence[Any]) -> None:
        """The sum of rank 0's values and the others' zeros, type by type."""
        mine = 1.0 if self.rank == 0 else 0.0

        def spread() -> None:
            values = [variable.read_value() * tf.cast(mine, variable.dtype)
                      for variable in variables]  # fmt: skip
            # They are packed into one: numbers drawn from have another type than weights.
            for members in by_type(variables):
                sent = [values[member] for member in members]
                added = self._reduce(tf.distribute.ReduceOp.SUM, sent)
                for member, value in zip(members, added, strict=True):
                    variables[member].assign(value)

        if variables:
            self.function(spread)()

    def _reduce(self, operation: Any, tensors: Sequence[Tensor]) -> list[Tensor]:
        """All-reduce within a replica; it must know on which device the tensors lie."""
        with tf.device(self._strategy.extended.worker_devices[0]):
            placed = [tf.identity(tensor) for tensor in tensors]
        context = tf.distribute.get_replica_context()
        reduced: list[Tensor] = context.all_reduce(operation, placed)
        return reduced

    def close(self) -> None:
        """Wait for all: the coordinator must not exit first."""
        self.sum_on_host(np.zeros(1))


def no_server(fault: Exception) -> MissingPrerequisite:
    """The error of a server of TensorFlow's that did not start."""
    return MissingPrerequisite(f"TensorFlow's server does not start: {first_line(fault)}",
                               hint="another run may have its port; try again")  # fmt: skip


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
