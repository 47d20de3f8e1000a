"""Accounting: a private MariaDB on a socket, slurmdbd on it, so that `sacct` answers.

The database is made once and outlives `down`, so that old jobs stay known; it listens on no
network, and its socket lies in a directory that only its owner may enter.
"""

from __future__ import annotations

from pathlib import Path

from hpcdl.cluster.daemons import Daemon, own_hosts
from hpcdl.cluster.model import ClusterState
from hpcdl.cluster.needs import program
from hpcdl.cluster.query import ask
from hpcdl.system.errors import HpcdlError
from hpcdl.system.files import explain_os_errors, user_name
from hpcdl.system.run import run

# Small, without tuning; the last second may be lost in a crash.
_OPTIONS = (
    "--skip-networking", "--skip-grant-tables", "--performance-schema=OFF",
    "--innodb-buffer-pool-size=64M", "--innodb-log-file-size=32M",
    "--innodb-flush-log-at-trx-commit=2", "--innodb-lock-wait-timeout=900",
    "--max-connections=20",
)  # fmt: skip


def prepare_database(state: ClusterState) -> None:
    """Make the database's files where there are none yet."""
    data = _data(state)
    with explain_os_errors(data):
        data.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    if (data / "mysql").is_dir():
        return
    run(
        [
            program("mariadb-install-db"), "--no-defaults", f"--datadir={data}",
            "--auth-root-authentication-method=normal", "--skip-test-db", f"--user={user_name()}",
        ],
        timeout=120,
        hint="the directory may hold a damaged database: `hpcdl cluster down --purge` removes it",
    )  # fmt: skip


def mariadbd(state: ClusterState) -> Daemon:
    """The database server."""
    return Daemon(
        "mariadbd",
        (
            program("mariadbd"), "--no-defaults", f"--datadir={_data(state)}",
            f"--socket={database_socket(state)}", f"--user={user_name()}",
            f"--pid-file={state.directory}/run/mariadbd.pid", *_OPTIONS,
        ),
    )  # fmt: skip


def slurmdbd(state: ClusterState) -> Daemon:
    """Slurm's accounting daemon; it finds slurmdbd.conf beside SLURM_CONF."""
    argv = (*own_hosts(state), program("slurmdbd"), "-D")
    return Daemon("slurmdbd", argv, {"MYSQL_UNIX_PORT": str(database_socket(state))})


def register(state: ClusterState) -> None:
    """Make the cluster known to slurmdbd; known already is fine."""
    answer = ask(state, "sacctmgr", "-i", "add", "cluster", state.cluster_name, seconds=30)
    said = (answer.stdout + answer.stderr) if answer else "no answer within 30 s"
    if (answer is None or not answer.ok) and "already exists" not in said:
        raise HpcdlError("slurmdbd did not take the cluster", details=said.splitlines()[-5:])


def database_socket(state: ClusterState) -> Path:
    """MariaDB's socket."""
    return state.directory / "database/mariadb.sock"


def _data(state: ClusterState) -> Path:
    return state.directory / "database/data"
