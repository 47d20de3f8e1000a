"""The ranks of a run: sums, texts and broadcasts among them, by Horovod or in one process alone.

`Ranks` is all that the rest of the program knows of Horovod; by itself it is that of one process.
"""

from __future__ import annotations

from collections.abc import Sequence
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


class Ranks:
    """The collective operations of the ranks; here those of one process."""

    name = "single"
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

    name = "horovod"

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
