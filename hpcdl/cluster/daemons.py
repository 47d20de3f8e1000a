"""Starts the daemons, waits until they serve, and reports why if they do not.

All run in the foreground as sessions of their own, with a clean environment that carries our
mark, and write to one log each. The database of the accounting is made once and outlives `down`,
so that old jobs stay known; it listens on no network, and its socket is in a directory that only
its owner may enter.
"""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from hpcdl.cluster import NAMESPACES, network
from hpcdl.cluster.needs import command, program
from hpcdl.cluster.processes import MARK, alive, end, identify
from hpcdl.cluster.shape import ClusterState, Node, ProcessId
from hpcdl.cluster.status import ask
from hpcdl.system.errors import ExitCode, HpcdlError
from hpcdl.system.files import explain_os_errors, user_name
from hpcdl.system.run import run

_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_STARTING_SECONDS = 20.0
# Small, without tuning; the last second may be lost in a crash.
_DATABASE_OPTIONS = (
    "--skip-networking",
    "--skip-grant-tables",
    "--performance-schema=OFF",
    "--innodb-buffer-pool-size=64M",
    "--innodb-log-file-size=32M",
    "--innodb-flush-log-at-trx-commit=2",
    "--innodb-lock-wait-timeout=900",
    "--max-connections=20",
)
# Handles of what this process started: Python reaps them when they end, and does not warn.
_children: list[subprocess.Popen[bytes]] = []


class DaemonDied(HpcdlError):
    """A daemon ended at its start; its last output is shown (exit code 4)."""

    exit_code = ExitCode.COMMAND_FAILED

    def __init__(self, name: str, log: Path, what: str = "ended at its start") -> None:
        text = log.read_text(errors="replace") if log.exists() else ""
        lines = [f"| {line}" for line in text.strip().splitlines()[-12:]]
        super().__init__(f"{name} {what}", details=[f"log: {log}", *lines])


class Daemon(NamedTuple):
    """How to start one process of the cluster."""

    name: str
    argv: tuple[str, ...]
    environment: Mapping[str, str] = MappingProxyType({})


def munged(state: ClusterState) -> Daemon:
    """Munge with a key and a socket of the cluster's own."""
    place = state.directory / "run"
    closed = any(not one.stat().st_mode & stat.S_IXOTH for one in (place, *place.parents))
    return Daemon(
        "munged",
        (
            *command(state, "munged"),
            "--foreground",
            "--num-threads=2",
            # It wants its socket to be there for all, and takes a private one by force only. Where
            # others can reach it, its own checks of owners and modes are kept.
            *(["--force"] if closed else []),
            f"--socket={place}/munge.sock",
            f"--pid-file={place}/munged.pid",
            f"--seed-file={place}/munge.seed",
            f"--key-file={state.directory}/etc/munge.key",
        ),
    )


def slurmctld(state: ClusterState, *, fresh: bool) -> Daemon:
    """The controller; `fresh` forgets earlier jobs and node states."""
    options = ("-c",) if fresh else ()
    argv = (*command(state, "slurmctld"), "-D", *options, "-f", str(state.configuration))
    return Daemon("slurmctld", (*own_hosts(state), *argv))


def own_hosts(state: ClusterState) -> tuple[str, ...]:
    """Return the wrapper that gives a daemon the nodes' /etc/hosts: it binds to its own address.

    In loopback mode they are the machine's.
    """
    if state.mode != NAMESPACES:
        return ()
    shell = 'mount --bind "$0" /etc/hosts && exec "$@"'
    return (program("unshare"), "--mount", "sh", "-c", shell, f"{state.directory}/etc/hosts")


def prepare_database(state: ClusterState) -> None:
    """Make the database's files where there are none yet."""
    data = _data(state)
    with explain_os_errors(data):
        data.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    if (data / "mysql").is_dir():
        return
    run(
        [
            program("mariadb-install-db"),
            "--no-defaults",
            f"--datadir={data}",
            "--auth-root-authentication-method=normal",
            "--skip-test-db",
            f"--user={user_name()}",
        ],
        timeout=120,
        hint="the directory may hold a damaged database: `hpcdl cluster down --purge` removes it",
    )


def mariadbd(state: ClusterState) -> Daemon:
    """The database server."""
    return Daemon(
        "mariadbd",
        (
            program("mariadbd"),
            "--no-defaults",
            f"--datadir={_data(state)}",
            f"--socket={database_socket(state)}",
            f"--user={user_name()}",
            f"--pid-file={state.directory}/run/mariadbd.pid",
            *_DATABASE_OPTIONS,
        ),
    )


def slurmdbd(state: ClusterState) -> Daemon:
    """Slurm's accounting daemon; it finds slurmdbd.conf beside SLURM_CONF."""
    argv = (*own_hosts(state), program("slurmdbd"), "-D")
    return Daemon("slurmdbd", argv, {"MYSQL_UNIX_PORT": str(database_socket(state))})


def register(state: ClusterState) -> None:
    """Make the cluster known to slurmdbd; known already is fine."""
    answer = ask(state, "sacctmgr", "-i", "add", "cluster", state.cluster_name, seconds=30)
    answered = (answer.stdout + answer.stderr) if answer else "no answer within 30 s"
    if (answer is None or not answer.ok) and "already exists" not in answered:
        raise HpcdlError("slurmdbd did not take the cluster", details=answered.splitlines()[-5:])


def database_socket(state: ClusterState) -> Path:
    """MariaDB's socket."""
    return state.directory / "database/mariadb.sock"


def _data(state: ClusterState) -> Path:
    return state.directory / "database/data"


def start(state: ClusterState, daemon: Daemon) -> ProcessId:
    """Start a daemon and give its process."""
    process = _spawn(state, daemon, subprocess.DEVNULL)
    return _identified(process, state, daemon.name)


def start_nodes(state: ClusterState, nodes: Sequence[Node]) -> dict[str, ProcessId]:
    """Start the slurmds of some nodes; in namespaces mode whole nodes with their cables."""
    if state.mode != NAMESPACES:
        slurmd = (*command(state, "slurmd"), "-D", "-f", str(state.configuration), "-N")
        return {each.name: start(state, Daemon(each.name, (*slurmd, each.name))) for each in nodes}
    for node in nodes:
        _forget_steps(state, node)
    # A whole node waits for a line on its standard input.
    init = (
        program("unshare"),
        "--net",
        "--uts",
        "--mount",
        "--ipc",
        "--pid",
        "--fork",
        "--kill-child",
        "--mount-proc",
        "bash",
        f"{state.directory}/etc/node.sh",
    )
    inits = [
        _spawn(state, Daemon(each.name, (*init, each.name, each.address)), subprocess.PIPE)
        for each in nodes
    ]
    try:
        pairs = list(zip(nodes, inits, strict=True))
        for node, first in pairs:
            _wait_for_own_network(first, output(state, node.name), node.name)
        network.plug(state.bridge, [(node, first.pid) for node, first in pairs])
        started = {node.name: _identified(first, state, node.name) for node, first in pairs}
        for first in inits:
            assert first.stdin is not None
            first.stdin.write(b"go\n")
            first.stdin.close()
    except BaseException:
        for first in inits:
            first.kill()
        raise
    return started


def _forget_steps(state: ClusterState, node: Node) -> None:
    """Empty a dead node's spool and temporary directories, as a reboot would.

    A requeued job counts its steps from 0 again, and a step is refused whose socket or whose
    PMIx directories are there already.
    """
    for kind in ("spool", "tmp"):
        folder = state.directory / kind / node.name
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)


def wait_until(serves: Callable[[], bool], process: ProcessId, name: str, log: Path) -> None:
    """Wait until a daemon serves; raise `DaemonDied` with the reason if it does not."""
    deadline = time.monotonic() + _STARTING_SECONDS
    while not serves():
        if not alive(process):
            raise DaemonDied(name, log)
        if time.monotonic() > deadline:
            raise DaemonDied(name, log, f"did not answer within {_STARTING_SECONDS:.0f} s")
        time.sleep(0.01)


def output(state: ClusterState, name: str) -> Path:
    """Return the file of a daemon's standard output.

    Slurmd keeps a log of its own beside it, which slurmstepd shares.
    """
    is_node = any(node.name == name for node in state.nodes)
    return state.log(name).with_suffix(".out") if is_node else state.log(name)


def _spawn(state: ClusterState, daemon: Daemon, stdin: int) -> subprocess.Popen[bytes]:
    log = output(state, daemon.name)
    # Nothing of the user's, and our mark.
    environment = {
        "PATH": _PATH,
        "HOME": os.environ.get("HOME", "/"),
        "LANG": "C.UTF-8",
        "SLURM_CONF": str(state.configuration),
        MARK: str(state.directory),
    }
    with explain_os_errors(log):
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as out:
            process = subprocess.Popen(
                daemon.argv,
                stdin=stdin,
                stdout=out,
                stderr=subprocess.STDOUT,
                cwd="/",
                env={**environment, **daemon.environment},
                start_new_session=True,
            )
    _children.append(process)
    return process


def _identified(process: subprocess.Popen[bytes], state: ClusterState, name: str) -> ProcessId:
    found = identify(process.pid)
    if found is None:
        process.wait(timeout=5)
        raise DaemonDied(name, output(state, name))
    return found


def _wait_for_own_network(init: subprocess.Popen[bytes], log: Path, name: str) -> None:
    deadline = time.monotonic() + 10
    here = Path("/proc/self/ns/net").readlink()
    while True:
        with suppress(OSError):
            if Path(f"/proc/{init.pid}/ns/net").readlink() != here:
                return
        if init.poll() is not None or time.monotonic() > deadline:
            end([found] if (found := identify(init.pid)) else [])
            raise DaemonDied(name, log)
        time.sleep(0.001)
