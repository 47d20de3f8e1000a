"""Asynchronous SGD: parameter servers, tf.distribute's coordinator, and who is killed comes back.

Every rank holds a worker; the first ranks hold a server (`ps`) each, rank 0 the chief as well. They
are processes of their own (members), started again when a signal ends one. The chief is an ordinary
run of one rank whose step is done elsewhere: it reads the batches in the order of every other run,
hands them out, and lost workers do not stop it, for their steps are done by others. With a
server its weights are lost: the chief begins anew at its last checkpoint. Several steps are on
their way at any time, so gradients belong to weights that have changed meanwhile: the staleness.
"""

from __future__ import annotations

import json
import math
import os
import signal
import socket
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import replace
from itertools import count
from types import FrameType
from typing import Any

from hpcdl.system.errors import BadInput, HpcdlError, MissingPrerequisite, Stopped
from hpcdl.system.python import module_argv
from hpcdl.system.run import tie
from hpcdl.train.communicate import Communicator
from hpcdl.train.data.images import first_line
from hpcdl.train.data.source import Group
from hpcdl.train.multiworker import cluster_config, node_names, require_trust
from hpcdl.train.options import TrainOptions, to_argv
from hpcdl.train.ranks import RankPlace
from hpcdl.train.run_plan import RunPlan
from hpcdl.train.step import RankSignal, Step, StepParts, StepResult, make_backward, update

NAME = "parameter-server"
_LOST = "HPCDL_LOST_AT"
_MOST_LOST = 10
_AT_ONCE = 8
"""Steps on their way per worker: a slow one holds up the others only after so many of theirs."""
_WAIT = 600.0
_SIGNALS = (signal.SIGUSR1, signal.SIGUSR2, signal.SIGTERM)
_UNFIT = ("compress", "xla", "deterministic", "profile")
Cluster = dict[str, list[str]]


def task_here() -> dict[str, Any] | None:
    """This process' task in a cluster with servers, by TF_CONFIG; None where there is none."""
    config = _config()
    if "ps" not in config["cluster"]:
        return None
    # A remote step waits in one of these threads for what others of them do: with one it hangs.
    os.environ.setdefault("TF_NUM_INTEROP_THREADS", "8")
    return config["task"]  # type: ignore[no-any-return]


def _config() -> dict[str, Any]:
    """TF_CONFIG, read; an empty cluster where it is not set."""
    try:
        config = json.loads(os.environ.get("TF_CONFIG") or '{"cluster": {}}')
        return {"cluster": dict(config["cluster"]), "task": config.get("task")}
    except (ValueError, TypeError, KeyError, AttributeError) as fault:
        raise BadInput(
            "TF_CONFIG is not the JSON of a cluster and a task",
            hint="unset it, or let `hpcdl job submit --launcher multiworker` set it",
        ) from fault


def check(options: TrainOptions) -> None:
    """Refuse what goes with synchronous ranks only.

    Raises:
        BadInput: names it.
    """
    unfit = [f"--{name}" for name in _UNFIT if getattr(options, name)]
    unfit += ["--precision fp16"] if options.precision == "fp16" else []
    if unfit:
        raise BadInput(f"{', '.join(unfit)} cannot be had with --strategy {NAME}",
                       hint="leave it out, or use --strategy multiworker")  # fmt: skip


# A rank: starts its members, and those again that were killed.


def lead(options: TrainOptions, place: RankPlace) -> int:
    """Run this rank's members until the chief has ended; returns the chief's exit code.

    Raises:
        MissingPrerequisite: as `multiworker.join`; or members are killed again and again.
    """
    check(options)
    workers = _config()["cluster"].get("worker")
    if not workers:
        require_trust(NAME)
        workers = cluster_config(os.environ, place, node_names)["cluster"]["worker"]
    cluster, meeting = with_servers(workers, options.servers)
    mine = [("worker", place.rank)]
    mine += [("ps", n) for n in range(options.servers) if n % place.size == place.rank]
    mine += [("chief", 0)] if place.rank == 0 else []
    members = {one: _start(options, cluster, *one) for one in mine}
    try:
        if place.rank:
            return _follow(options, cluster, members, meeting)
        with _open(meeting) as door:
            code = _watch(options, cluster, members, lambda: members["chief", 0].poll())
            _tell(door, place.size - 1, code)
        return code
    finally:
        for process in members.values():
            process.kill()
            process.wait()


def with_servers(workers: Sequence[str], servers: int) -> tuple[Cluster, tuple[str, int]]:
    """The cluster of these workers, and where ranks learn of the end: on ports beside theirs."""
    taken = {int(worker.rpartition(":")[2]) for worker in workers}

    def beside(number: int) -> str:
        host, _, port = workers[number % len(workers)].rpartition(":")
        free = next(p for p in count(int(port) + 1) if p not in taken)
        taken.add(free)
        return f"{host}:{free}"

    chief, (host, _, port) = beside(0), beside(0).rpartition(":")
    ps = [beside(number) for number in range(servers)]
    return {"chief": [chief], "ps": ps, "worker": list(workers)}, (host, int(port))


Members = dict[tuple[str, int], "subprocess.Popen[bytes]"]


def _start(
    options: TrainOptions, cluster: Cluster, kind: str, index: int
) -> subprocess.Popen[bytes]:
    config = {"cluster": cluster, "task": {"type": kind, "index": index}}
    more = {"TF_CONFIG": json.dumps(config)}
    more |= {} if kind == "worker" else {"CUDA_VISIBLE_DEVICES": "-1"}
    argv = [*module_argv(sys.executable, "hpcdl.train"), *to_argv(options)]
    return subprocess.Popen(argv, env={**os.environ, **more}, preexec_fn=tie())


def _watch(
    options: TrainOptions, cluster: Cluster, members: Members, ended: Callable[[], int | None]
) -> int:
    """Start killed members again until the run has ended; its exit code."""

    def pass_on(number: int, frame: FrameType | None) -> None:
        if chief := members.get(("chief", 0)):
            chief.send_signal(number)

    for number in _SIGNALS:
        signal.signal(number, pass_on)
    lost = 0
    while (code := ended()) is None or code < 0:
        for (kind, index), process in members.items():
            if process.poll() is None:
                continue
            lost += 1
            if lost > _MOST_LOST or process.returncode > 0:
                raise MissingPrerequisite(
                    f"{kind} {index} of the cluster ended with status {process.returncode}",
                    hint="its own error stands before this one; -9 is often too little memory",
                )
            print(f"{kind} {index} was killed by signal {-process.returncode}; it starts again",
                  file=sys.stderr, flush=True)  # fmt: skip
            members[kind, index] = _start(options, cluster, kind, index)
        time.sleep(0.1)
    return code


def _open(meeting: tuple[str, int]) -> socket.socket:
    try:
        door = socket.create_server(("", meeting[1]), backlog=4096)
    except OSError as fault:
        raise MissingPrerequisite(f"cannot listen on port {meeting[1]}: {fault.strerror}",
                                  hint="another run has it; try again") from fault  # fmt: skip
    door.settimeout(30.0)
    return door


def _tell(door: socket.socket, ranks: int, code: int) -> None:
    """Tell the other ranks, who wait connected, that the run has ended."""
    with suppress(OSError):
        for _ in range(ranks):
            other, _ = door.accept()
            with other:
                other.sendall(bytes([code]))


def _follow(
    options: TrainOptions, cluster: Cluster, members: Members, meeting: tuple[str, int]
) -> int:
    """As `_watch`, for ranks without the chief."""
    deadline = time.monotonic() + _WAIT
    while True:
        with suppress(OSError):
            line = socket.create_connection(meeting, 10.0)
            break
        if time.monotonic() > deadline:
            raise MissingPrerequisite(f"rank 0 does not answer on {meeting[0]}:{meeting[1]}")
        time.sleep(0.2)
    with closing(line):
        line.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        line.setblocking(False)

        def ended() -> int | None:
            try:
                said = line.recv(1)
            except BlockingIOError:
                return None
            return said[0] if said else 1  # rank 0 is gone, and the run with it

        return _watch(options, cluster, members, ended)


def serve(tf: Any) -> None:
    """Be a worker or a server of TensorFlow's, until the rank ends this process."""
    for number in _SIGNALS:
        signal.signal(number, signal.SIG_IGN)  # they are the chief's
    config = _config()
    cluster, task = tf.train.ClusterSpec(config["cluster"]), config["task"]
    try:
        server = tf.distribute.Server(cluster, task["type"], task["index"], protocol="grpc")
    except tf.errors.OpError as fault:
        raise MissingPrerequisite(
            f"TensorFlow's server does not start: {first_line(fault)}",
            hint="another run may have its port; try again",
        ) from fault
    server.join()


def alone(place: RankPlace) -> RankPlace:
    """The chief's place: the only rank of its run."""
    return replace(place, rank=0, size=1)


class Chief(Communicator):
    """The one rank of a run whose steps workers do. `late` has the staleness of every step."""

    name = NAME

    def __init__(self, tf: Any) -> None:
        super().__init__(tf)
        tf.get_logger().setLevel("FATAL")  # what it says of lost members is said here
        cluster = _config()["cluster"]
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
                given = (*self._batch(group, at), self._tf.constant(rate),
                         self._tf.constant(number + at))  # fmt: skip
                self._flying.append(self._coordinator.schedule(single, args=given))
                self._land(_AT_ONCE * len(self.hosts) if self.late else 0)
            if asked.stop or any(done % n == 0 for n in every):
                self._land(0)
            each = (time.perf_counter() - begun) / len(rates)
            return [StepResult(self._loss, asked, each, 0.0, 0.0)] * len(rates)

        return step

    def _batch(self, group: Group, at: int) -> tuple[Any, Any]:
        """The batch of a group for its step `at`; the only one, where there is one."""

        def pick(whole: Any) -> Any:
            return self._tf.convert_to_tensor(whole[min(at, len(whole) - 1)])

        return self._tf.nest.map_structure(pick, group.images), pick(group.labels)

    def _land(self, most: int) -> None:
        """Wait until no more than `most` steps are on their way.

        A loss that is no number stays: such weights do not become better.
        """
        while len(self._flying) > most:
            loss, late = self._flying.popleft().fetch()
            self._loss = float(loss) if not self.late or math.isfinite(self._loss) else self._loss
            self.late.append(int(late))

    def _one(self, parts: StepParts) -> Callable[..., Any]:
        """What a worker does: pull, compute, push; gives loss and staleness."""
        tf = self._tf
        with self.scope():
            done = tf.Variable(0, dtype=tf.int64, trainable=False)
        backward = make_backward(tf, parts)

        @tf.function(autograph=False)  # type: ignore[untyped-decorator,unused-ignore]
        def single(images: Any, labels: Any, lr: Any, number: Any) -> Any:
            began = done.read_value()
            with tf.control_dependencies([began]):
                images, labels = tf.nest.map_structure(tf.identity, (images, labels))
            if parts.network.random is not None:
                seeds = parts.network.random.seeds
                seeds.assign(tf.stack([seeds[0], number]))
            loss, gradients = backward(parts.prepare(images), labels)
            changed = update(tf, parts, parts.network.trainable, gradients, lr)
            with tf.control_dependencies([*gradients, *changed]):
                late = done.assign_add(1, read_value=True) - 1 - began
            return tf.cast(loss, tf.float64), late

        return single  # type: ignore[no-any-return,unused-ignore]

    def summary(self) -> Mapping[str, Any]:
        """For the result: workers, servers, and by how many updates gradients came late."""
        late = self.late or [0]
        mean = round(sum(late) / len(late), 3)
        return {"workers": len(self.hosts), "servers": self._servers, "mean_staleness": mean,
                "max_staleness": max(late)}  # fmt: skip

    def recover(self, fault: BaseException, first: int) -> HpcdlError | None:
        """Begin anew where a server was lost: with the last checkpoint, in this process' place.

        Returns the error where that brought nothing three times, None where it is another fault.
        """
        kinds = self._tf.errors
        lost = (kinds.UnavailableError, kinds.AbortedError, kinds.CancelledError)
        if not (isinstance(fault, lost) or "/job:ps" in str(fault)):
            return None
        before = os.environ.get(_LOST, "").split(",")
        lines = str(fault).splitlines()
        why = next((line for line in lines if "/job:" in line), lines[0])[:200]
        if before[-2:] == [str(first)] * 2:
            return Stopped("a parameter server was lost three times, and no checkpoint between",
                           details=[why], hint="a smaller --checkpoint-every")  # fmt: skip
        print(f"a parameter server was lost, with its weights; waiting for it ({why})",
              file=sys.stderr, flush=True)  # fmt: skip
        os.environ[_LOST] = ",".join([*before, str(first)])
        argv = [word for word in sys.orig_argv if word != "--fresh"]
        return os.execv(sys.executable, [sys.executable, *argv[1:]])  # noqa: S606 - itself, afresh


def _wait_for(addresses: Sequence[str]) -> None:
    """Wait until all members answer: TensorFlow would wait for ever.

    Raises:
        MissingPrerequisite: one does not.
    """
    deadline = time.monotonic() + _WAIT
    for address in addresses:
        host, _, port = address.rpartition(":")
        while True:
            with suppress(OSError), socket.create_connection((host, int(port)), 10.0):
                break
            if time.monotonic() > deadline:
                raise MissingPrerequisite(
                    f"no parameter server or worker answers on {address} for {_WAIT:.0f} s",
                    hint="see its own output; checkpoints that were written stay",
                )
            time.sleep(0.2)
