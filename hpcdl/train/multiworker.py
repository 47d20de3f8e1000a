"""The ranks joined by TensorFlow's own collectives, without Horovod and MPI.

MultiWorkerMirroredStrategy sets up the cluster and gives the all-reduce; variables stay plain,
one copy per rank, as with Horovod, so everything else of the program is the same. TF_CONFIG is
written from what the launcher says: SlurmClusterResolver fails where a task sees one GPU or
none.
"""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from hpcdl.system.errors import MissingPrerequisite
from hpcdl.system.run import run
from hpcdl.train.communicate import Communicator, Floats, Tensor, by_type
from hpcdl.train.data.images import first_line
from hpcdl.train.ranks import RankPlace, slurm_tasks_on_node

TRUSTED = "HPCDL_TRUSTED_NETWORK"
_FIRST_PORT = 20000
_PORTS = 12000


class MultiWorker(Communicator):
    """All ranks through a tf.distribute strategy."""

    name = "multiworker"

    def __init__(self, tf: Any, strategy: Any, place: RankPlace) -> None:
        super().__init__(tf)
        self._strategy = strategy
        self.rank = place.rank
        self.size = place.size
        self._sums: dict[tuple[int, ...], Callable[..., Any]] = {}

    def replica(self, body: Callable[..., Any]) -> Callable[..., Any]:
        """The body as this worker's one replica; the strategy allows no loop around its sums."""

        def outer(*arguments: Any) -> Any:
            return self._strategy.run(body, args=arguments)

        return outer

    def total(self, tensors: Sequence[Tensor], *, compress: bool = False) -> list[Tensor]:
        """The replica context's all-reduce, which packs gradients itself."""
        tf = self._tf
        sent = [tf.cast(t, tf.float16) for t in tensors] if compress else list(tensors)
        reduced = self._reduce(tf.distribute.ReduceOp.SUM, sent)
        return [tf.cast(r, t.dtype) for r, t in zip(reduced, tensors, strict=True)]

    def sum_on_host(self, values: Floats) -> Floats:
        """A compiled all-reduce per shape."""
        tf = self._tf
        if values.shape not in self._sums:

            def add(tensor: Tensor) -> Tensor:
                return self._reduce(tf.distribute.ReduceOp.SUM, [tensor])[0]

            self._sums[values.shape] = self.function(add)
        return np.asarray(self._sums[values.shape](tf.constant(values, tf.float64)))

    def broadcast(self, variables: Sequence[Any]) -> None:
        """The sum of rank 0's values and the others' zeros, type by type."""
        tf = self._tf
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
        tf = self._tf
        with tf.device(self._strategy.extended.worker_devices[0]):
            placed = [tf.identity(tensor) for tensor in tensors]
        context = tf.distribute.get_replica_context()
        reduced: list[Tensor] = context.all_reduce(operation, placed)
        return reduced

    def close(self) -> None:
        """Wait for all: the coordinator must not exit first."""
        self.sum_on_host(np.zeros(1))


def require_trust(strategy: str) -> None:
    """Refuse to open TensorFlow's server where nobody said that the network is trusted.

    Raises:
        MissingPrerequisite: see above.
    """
    if os.environ.get(TRUSTED) != "1":
        raise MissingPrerequisite(
            f"the strategy '{strategy}' opens TensorFlow's server, which asks nobody for a "
            "password",
            hint="use --strategy horovod; `hpcdl job submit --launcher multiworker` fences it "
            f"as far as it goes; {TRUSTED}=1 says that this network is trusted",
        )


def join(tf: Any, place: RankPlace) -> MultiWorker:
    """Set up the cluster of this job.

    Raises:
        MissingPrerequisite: the ranks' nodes are unknown, or a port is taken, or nobody said that
            whoever reaches their ports may run code as this user: TensorFlow's server asks for no
            password.
    """
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
        raise MissingPrerequisite(
            f"TensorFlow's server does not start: {first_line(fault)}",
            hint="another run may have its port; try again",
        ) from fault
    return MultiWorker(tf, strategy, place)


def cluster_config(
    environ: Mapping[str, str], place: RankPlace, names: Callable[[str], list[str]]
) -> dict[str, Any]:
    """TF_CONFIG: every rank a worker, on a port that depends on run and local rank.

    Raises:
        MissingPrerequisite: several nodes, and not under srun.
    """
    base = _FIRST_PORT + zlib.crc32(_run_name(environ, place).encode()) % _PORTS
    if place.local_size == place.size:
        workers = [f"localhost:{base + rank}" for rank in range(place.size)]
    elif "SLURM_STEP_NODELIST" in environ:
        tasks = environ.get("SLURM_STEP_TASKS_PER_NODE", "1")
        workers = [
            f"{name}:{base + local}"
            for node, name in enumerate(names(environ["SLURM_STEP_NODELIST"]))
            for local in range(slurm_tasks_on_node(tasks, node))
        ]
    else:
        raise MissingPrerequisite(
            "the nodes of the other ranks are unknown",
            hint="launch with srun, or set TF_CONFIG",
        )
    return {"cluster": {"worker": workers}, "task": {"type": "worker", "index": place.rank}}


def _run_name(environ: Mapping[str, str], place: RankPlace) -> str:
    """What all ranks of this run have in common, and no other run on these nodes has."""
    if place.size == 1:
        return str(os.getpid())
    step = ("SLURM_CLUSTER_NAME", "SLURM_JOB_ID", "SLURM_STEP_ID")
    return environ.get("PMIX_NAMESPACE") or ".".join(environ.get(name, "") for name in step)


def node_names(hostlist: str) -> list[str]:
    """The names in one of Slurm's host lists, by Slurm itself."""
    return run(["scontrol", "show", "hostnames", hostlist]).stdout.split()
