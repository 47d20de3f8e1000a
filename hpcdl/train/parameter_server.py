"""Asynchronous SGD: a rank's parameter servers and workers, and who is killed comes back.

Every rank holds a worker; the first ranks hold a server (`ps`) each, rank 0 the chief as well. They
are processes of their own (members, strategies.py), started again when a signal ends one.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from dataclasses import replace
from itertools import count
from types import FrameType
from typing import Any

from hpcdl.system.errors import BadInput, MissingPrerequisite
from hpcdl.system.run import module_argv, tie
from hpcdl.train.options import TrainOptions, to_argv
from hpcdl.train.startup import RankPlace, cluster_config, node_names, require_trust

NAME = "parameter-server"
_MOST_LOST = 10
WAIT = 600.0
"""Seconds for all members to answer."""
SIGNALS = (signal.SIGUSR1, signal.SIGUSR2, signal.SIGTERM)
_UNFIT = ("compress", "xla", "deterministic", "profile")
Cluster = dict[str, list[str]]
Meeting = tuple[str, int]


def task_here() -> dict[str, Any] | None:
    """This process' task in a cluster with servers, by TF_CONFIG; None where there is none."""
    config = config_here()
    if "ps" not in config["cluster"]:
        return None
    # A remote step waits in one of these threads for what others of them do: with one it hangs.
    os.environ.setdefault("TF_NUM_INTEROP_THREADS", "8")
    return config["task"]  # type: ignore[no-any-return]


def config_here() -> dict[str, Any]:
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
    """Refuse, by BadInput, what goes with synchronous ranks only."""
    unfit = [f"--{name}" for name in _UNFIT if getattr(options, name)]
    unfit += ["--precision fp16"] if options.precision == "fp16" else []
    if unfit:
        raise BadInput(
            f"{', '.join(unfit)} cannot be had with --strategy {NAME}",
            hint="leave it out, or use --strategy multiworker",
        )


def lead(options: TrainOptions, place: RankPlace) -> int:
    """Run this rank's members until the chief has ended; returns its exit code.

    Raises MissingPrerequisite: nobody trusts the network, or members are killed again and again.
    """
    check(options)
    workers = config_here()["cluster"].get("worker")
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
            with suppress(OSError):  # the other ranks wait connected to learn of the end
                for _ in range(place.size - 1):
                    with closing(door.accept()[0]) as other:
                        other.sendall(bytes([code]))
        return code
    finally:
        for process in members.values():
            process.kill()
            process.wait()


def with_servers(workers: Sequence[str], servers: int) -> tuple[Cluster, Meeting]:
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

    for number in SIGNALS:
        signal.signal(number, pass_on)
    lost = 0
    while (code := ended()) is None or code < 0:
        for (kind, index), process in members.items():
            if process.poll() is None or (kind == "chief" and process.returncode >= 0):
                continue  # of the chief's own end `ended` tells
            lost += 1
            if lost > _MOST_LOST or process.returncode > 0:
                raise MissingPrerequisite(
                    f"{kind} {index} of the cluster ended with status {process.returncode}",
                    hint="its own error stands before this one; -9 is often too little memory",
                )
            print(
                f"{kind} {index} was killed by signal {-process.returncode}; it starts again",
                file=sys.stderr,
                flush=True,
            )
            members[kind, index] = _start(replace(options, fresh=False), cluster, kind, index)
        time.sleep(0.1)
    return code


def _open(meeting: Meeting) -> socket.socket:
    try:
        door = socket.create_server(("", meeting[1]), backlog=4096)
    except OSError as fault:
        raise MissingPrerequisite(
            f"cannot listen on port {meeting[1]}: {fault.strerror}",
            hint="another run has it; try again",
        ) from fault
    door.settimeout(30.0)
    return door


def connected(address: Meeting, deadline: float, said: str, hint: str = "") -> socket.socket:
    """A connection, waited for until `deadline`; MissingPrerequisite with what is `said`: none."""
    while True:
        with suppress(OSError):
            return socket.create_connection(address, 10.0)
        if time.monotonic() > deadline:
            raise MissingPrerequisite(said, hint=hint)
        time.sleep(0.2)


def _follow(options: TrainOptions, cluster: Cluster, members: Members, meeting: Meeting) -> int:
    said = f"rank 0 does not answer on {meeting[0]}:{meeting[1]}"
    with closing(connected(meeting, time.monotonic() + WAIT, said)) as line:
        line.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        line.setblocking(False)

        def ended() -> int | None:
            try:
                said = line.recv(1)
            except BlockingIOError:
                return None
            except OSError:
                said = b""
            return said[0] if said else 1  # rank 0 is gone, and the run with it

        return _watch(options, cluster, members, ended)
