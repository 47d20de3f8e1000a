"""How ranks can work together: the one table of strategies, the choice, and asynchronous SGD.

A strategy is a function that joins the ranks and returns their `Communicator`. Another one is a
module with such a function, a row of `STRATEGIES` here and its name in options.py; step, loop,
checkpoints and evaluation stay as they are.

Asynchronous SGD is done by tf.distribute's coordinator: what workers, servers and the chief do is
here, their processes are parameter_server.py's. The chief is a run of one rank whose step is done
elsewhere: it hands out batches in the order of every other run, and others do the steps of lost
workers. With a server its weights are lost: the chief begins anew at its last checkpoint. Several
steps are on their way at any time, so gradients belong to weights that have changed meanwhile: the
staleness.
"""

from __future__ import annotations

import math
import os
import signal
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from hpcdl.system.errors import HpcdlError, MissingPrerequisite, Stopped
from hpcdl.train.communicate import Communicator, Horovod, join, no_server
from hpcdl.train.data.source import Group
from hpcdl.train.options import RunPlan
from hpcdl.train.parameter_server import NAME, SIGNALS, WAIT, config_here, connected
from hpcdl.train.startup import RankPlace, StartupClock, import_horovod
from hpcdl.train.step import RankSignal, Step, StepParts, StepResult, make_backward, update

_LOST = "HPCDL_LOST_AT"
_AT_ONCE = 8
"""Steps on their way per worker: a slow one holds up the others only after so many of theirs."""


def serve() -> None:
    """Be a worker or a server of TensorFlow's, until the rank ends this process."""
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)  # they are the chief's
    config = config_here()
    cluster, task = tf.train.ClusterSpec(config["cluster"]), config["task"]
    try:
        server = tf.distribute.Server(cluster, task["type"], task["index"], protocol="grpc")
    except tf.errors.OpError as fault:
        raise no_server(fault) from fault
    server.join()


class Chief(Communicator):
    """The one rank of a run whose steps workers do. `late` has the staleness of every step."""

    name = NAME

    def __init__(self) -> None:
        tf.get_logger().setLevel("FATAL")  # what it says of lost members is said here
        cluster = config_here()["cluster"]
        _wait_for([*cluster["ps"], *cluster["worker"]])
        resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
            tf.train.ClusterSpec(cluster), rpc_layer="grpc", task_type="chief", task_id=0
        )
        self._strategy = tf.distribute.ParameterServerStrategy(resolver)
        self._coordinator = tf.distribute.coordinator.ClusterCoordinator(self._strategy)
        self._flying: deque[Any] = deque()
        self._loss = math.nan
        self._servers = len(cluster["ps"])
        self.hosts = [address.rpartition(":")[0] for address in cluster["worker"]]
        self.late: list[int] = []

    def scope(self) -> Any:
        """Where variables are made that live on the servers."""
        return self._strategy.scope()

    def make_step(self, parts: StepParts, plan: RunPlan) -> Step:
        """The step as `step.make_step` has it: hands out batches, and returns before they are done.

        Before a checkpoint, a validation, the end and a stop it waits for all.
        """
        single = self._one(parts)
        every = [n for n in (plan.checkpoint_every, plan.validate_every, plan.steps) if n]

        def step(
            group: Group, rates: Sequence[float], asked: RankSignal, number: int
        ) -> list[StepResult]:
            begun = time.perf_counter()
            done = number + len(rates)
            for at, rate in enumerate(rates):
                # The batch of the step; the only one, where there is one.
                images, labels = tf.nest.map_structure(
                    lambda whole, at=at: tf.convert_to_tensor(whole[min(at, len(whole) - 1)]),
                    group[:2],
                )
                given = (images, labels, tf.constant(rate), tf.constant(number + at))
                self._flying.append(self._coordinator.schedule(single, args=given))
                self._land(_AT_ONCE * len(self.hosts) if self.late else 0)
            if asked.stop or any(done % n == 0 for n in every):
                self._land(0)
            each = (time.perf_counter() - begun) / len(rates)
            return [StepResult(self._loss, asked, each, 0.0, 0.0)] * len(rates)

        return step

    def _land(self, most: int) -> None:
        """Wait until at most `most` steps are on their way; a loss that is no number stays."""
        while len(self._flying) > most:
            loss, late = self._flying.popleft().fetch()
            self._loss = float(loss) if not self.late or math.isfinite(self._loss) else self._loss
            self.late.append(int(late))

    def _one(self, parts: StepParts) -> Callable[..., Any]:
        """What a worker does: pull, compute, push; gives loss and staleness."""
        with self.scope():
            done = tf.Variable(0, dtype=tf.int64, trainable=False)
        backward = make_backward(parts)

        @tf.function(autograph=False)  # type: ignore[untyped-decorator,unused-ignore]
        def single(images: Any, labels: Any, lr: Any, number: Any) -> Any:
            began = done.read_value()
            with tf.control_dependencies([began]):
                images, labels = tf.nest.map_structure(tf.identity, (images, labels))
            if parts.network.random is not None:
                seeds = parts.network.random.seeds
                seeds.assign(tf.stack([seeds[0], number]))
            loss, gradients = backward(*parts.augment(parts.prepare(images), labels))
            changed = update(parts, parts.network.trainable, gradients, lr)
            with tf.control_dependencies([*gradients, *changed]):
                late = done.assign_add(1, read_value=True) - 1 - began
            return tf.cast(loss, tf.float64), late

        return single  # type: ignore[no-any-return,unused-ignore]

    def summary(self) -> Mapping[str, Any]:
        """For the result: workers, servers, and by how many updates gradients came late."""
        late = self.late or [0]
        mean = round(sum(late) / len(late), 3)
        return {
            "workers": len(self.hosts),
            "servers": self._servers,
            "mean_staleness": mean,
            "max_staleness": max(late),
        }

    def recover(self, fault: BaseException, first: int) -> HpcdlError | None:
        """Begin anew where a server was lost: with the last checkpoint, in this process' place.

        Returns the error where that brought nothing three times, None where it is another fault.
        """
        kinds = tf.errors
        lost = (kinds.UnavailableError, kinds.AbortedError, kinds.CancelledError)
        if not (isinstance(fault, lost) or "/job:ps" in str(fault)):
            return None
        before = os.environ.get(_LOST, "").split(",")
        lines = str(fault).splitlines()
        why = next((line for line in lines if "/job:" in line), lines[0])[:200]
        if before[-2:] == [str(first)] * 2:
            return Stopped(
                "a parameter server was lost three times, and no checkpoint between",
                details=[why],
                hint="a smaller --checkpoint-every",
            )
        print(
            f"a parameter server was lost, with its weights; waiting for it ({why})",
            file=sys.stderr,
            flush=True,
        )
        os.environ[_LOST] = ",".join([*before, str(first)])
        argv = [word for word in sys.orig_argv if word != "--fresh"]
        return os.execv(sys.executable, [sys.executable, *argv[1:]])  # noqa: S606 - itself, afresh


def _wait_for(addresses: Sequence[str]) -> None:
    """Wait until all members answer: TensorFlow would wait for ever."""
    deadline = time.monotonic() + WAIT
    for address in addresses:
        host, _, port = address.rpartition(":")
        said = f"no parameter server or worker answers on {address} for {WAIT:.0f} s"
        hint = "see its own output; checkpoints that were written stay"
        connected((host, int(port)), deadline, said, hint).close()


# ---- the table ----


def _single(place: RankPlace, keras: bool) -> Communicator:
    if place.size > 1:
        raise MissingPrerequisite(
            f"{place.size} tasks were started, but --strategy single is for one",
            hint="start one task, or leave --strategy to 'auto'",
        )
    return Communicator()


def _horovod(place: RankPlace, keras: bool) -> Communicator:
    """Refuses the world of MPI where PMIx differs: every task believes to be alone."""
    hvd = import_horovod(keras=keras)
    hvd.init()
    if hvd.size() != place.size:
        raise MissingPrerequisite(
            f"{place.size} tasks were started, but MPI sees {hvd.size()}",
            hint="Slurm and Open MPI must share PMIx: launch with `srun --mpi=pmix` or mpirun",
        )
    return Horovod(hvd)


STRATEGIES: dict[str, Callable[[RankPlace, bool], Communicator]] = {
    "horovod": _horovod,
    "multiworker": lambda place, _: join(place),
    "parameter-server": lambda *_: Chief(),
    "single": _single,
}


def join_ranks(
    strategy: str, place: RankPlace, clock: StartupClock, *, keras: bool
) -> Communicator:
    """The communicator of the strategy; `keras`: whether the network is a Keras model.

    Raises MissingPrerequisite: Horovod is missing, or MPI sees other ranks than were started.
    """
    if strategy == "auto":  # tf.distribute's launcher sets TF_CONFIG and starts no MPI
        several = "multiworker" if "TF_CONFIG" in os.environ else "horovod"
        strategy = several if place.size > 1 else "single"
    ranks = STRATEGIES[strategy](place, keras)
    if strategy != "single":
        clock.mark(strategy)
    return ranks
