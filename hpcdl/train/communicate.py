"""Joins the ranks: averages in the graph, sums and texts on the host, broadcast at the start.

A `Communicator` is all that the rest of the program knows of Horovod. `Alone` is the same for
one process. The Horovod form checks that MPI sees the ranks that the launcher started: where
Slurm's and Open MPI's PMIx differ, every task believes to be alone, and would train apart.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from hpcdl.system.errors import MachineLacks
from hpcdl.train.ranks import RankPlace
from hpcdl.train.startup import StartupClock, import_horovod

Tensor = Any


class Communicator(Protocol):
    """What the ranks can do together."""

    name: str
    rank: int
    size: int

    def average(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """The mean of each tensor over the ranks; called inside a tf.function."""

    def sum_on_host(self, values: np.ndarray) -> np.ndarray:
        """The sum of a float64 vector over the ranks."""

    def broadcast(self, variables: Sequence[Any]) -> None:
        """Give all ranks the values of rank 0."""

    def gather_text(self, text: str) -> list[str]:
        """Every rank's text, by rank."""

    def barrier(self) -> None:
        """Wait for all ranks."""

    def close(self) -> None:
        """Leave the ranks in order."""


class Alone:
    """One process: every operation is the identity."""

    name = "single"
    rank = 0
    size = 1

    def average(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """The tensors themselves."""
        return list(tensors)

    def sum_on_host(self, values: np.ndarray) -> np.ndarray:
        """The values themselves."""
        return values

    def broadcast(self, variables: Sequence[Any]) -> None:
        """Nothing to do."""

    def gather_text(self, text: str) -> list[str]:
        """The one text."""
        return [text]

    def barrier(self) -> None:
        """Nobody to wait for."""

    def close(self) -> None:
        """Nothing to leave."""


class Horovod:
    """All ranks of an MPI job through Horovod's plain TensorFlow operations."""

    name = "horovod"

    def __init__(self, tf: Any, hvd: Any) -> None:
        self._tf = tf
        self._hvd = hvd
        self.rank: int = hvd.rank()
        self.size: int = hvd.size()

    def average(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """One grouped all-reduce: fused into one message, the same order on every rank."""
        if self.size == 1:
            return list(tensors)
        reduced: list[Tensor] = self._hvd.grouped_allreduce(
            list(tensors), op=self._hvd.Average, name="gradients"
        )
        return reduced

    def sum_on_host(self, values: np.ndarray) -> np.ndarray:
        """A small all-reduce outside the step."""
        tensor = self._tf.constant(values, self._tf.float64)
        return np.asarray(self._hvd.allreduce(tensor, op=self._hvd.Sum, name="host_sum"))

    def broadcast(self, variables: Sequence[Any]) -> None:
        """Rank 0's values for all, in one compiled call."""

        def spread() -> None:
            for number, variable in enumerate(variables):
                value = variable.read_value()
                variable.assign(self._hvd.broadcast(value, 0, name=f"broadcast_{number}"))

        if self.size > 1:
            self._tf.function(spread, autograph=False, jit_compile=False)()

    def gather_text(self, text: str) -> list[str]:
        """Padded to one length, gathered as bytes."""
        data = np.frombuffer(text.encode(), np.uint8)
        lengths = np.zeros(self.size)
        lengths[self.rank] = len(data)
        width = int(self.sum_on_host(lengths).max())
        padded = np.zeros((1, width), np.uint8)
        padded[0, : len(data)] = data
        rows = self._hvd.allgather(self._tf.constant(padded), name="gather_text")
        return [bytes(row).rstrip(b"\0").decode() for row in np.asarray(rows)]

    def barrier(self) -> None:
        """A sum nobody reads."""
        self.sum_on_host(np.zeros(1))

    def close(self) -> None:
        """Leave in order, so that MPI does not call the end of one rank a crash."""
        self._hvd.shutdown()


def join_ranks(
    tf: Any, strategy: str, place: RankPlace, clock: StartupClock, *, keras: bool
) -> Communicator:
    """The communicator of the strategy; `auto` is Horovod where more than one rank was started.

    Raises:
        MachineLacks: Horovod is missing, or MPI sees other ranks than the launcher started.
    """
    if strategy == "single" or (strategy == "auto" and place.size == 1):
        if place.size > 1:
            raise MachineLacks(
                f"{place.size} tasks were started, but --strategy single is for one",
                hint="start one task, or leave --strategy to 'auto'",
            )
        return Alone()
    hvd = import_horovod(keras=keras)
    hvd.init()
    clock.mark("horovod")
    if hvd.size() != place.size:
        raise MachineLacks(
            f"{place.size} tasks were started, but MPI sees {hvd.size()}",
            hint="Slurm and Open MPI must share PMIx: launch with `srun --mpi=pmix` or mpirun",
        )
    return Horovod(tf, hvd)
