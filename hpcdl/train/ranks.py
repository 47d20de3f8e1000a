"""This process's place among the ranks, and its share of the node.

Read from the launcher's environment only (Open MPI, srun, PMI), before any MPI call: thread
counts and visible GPUs must be set before TensorFlow is imported. A batch script's own
variables (SLURM_NTASKS without a step) do not count as ranks. TensorFlow's own servers meet where
TF_CONFIG says, made here too: SlurmClusterResolver fails where a task sees one GPU or none.
"""

from __future__ import annotations

import os
import socket
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from hpcdl.system.errors import MissingPrerequisite
from hpcdl.system.run import run

# (rank, size, local rank, local size) as each launcher names them; the first complete row wins.
_LAUNCHERS = (
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
     "OMPI_COMM_WORLD_LOCAL_SIZE"),
    ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", "SLURM_STEP_TASKS_PER_NODE"),
    ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
)  # fmt: skip


@dataclass(frozen=True)
class RankPlace:
    """One process: its rank of `size`, its place on the node, and the CPU threads it may use."""

    rank: int
    size: int
    local_rank: int
    local_size: int
    cpus: int
    host: str


def place(environ: Mapping[str, str], affinity: int, host: str) -> RankPlace:
    """The place of a process that may use `affinity` CPUs, on the node `host`.

    Its CPUs are SLURM_CPUS_PER_TASK where given. Else the mask is divided by the ranks on the node,
    for a mask of its own cannot be told from one shared by all, unless it is already so small.
    """
    rank, size, local_rank, local_size = _numbers(environ)
    asked = environ.get("SLURM_CPUS_PER_TASK", "")
    shared = affinity * local_size > (os.cpu_count() or affinity)
    if asked.isdigit() and int(asked):
        cpus = min(int(asked), affinity)
    else:
        cpus = affinity // local_size if shared else affinity
    return RankPlace(rank, size, local_rank, local_size, max(1, cpus), host)


def this_place() -> RankPlace:
    """The place of this process; its node by Slurm's name, where Slurm gives one."""
    host = os.environ.get("SLURMD_NODENAME") or socket.gethostname()
    return place(os.environ, len(os.sched_getaffinity(0)), host)


def slurm_tasks_on_node(text: str, node: int) -> int:
    """Tasks on the node with index `node` from Slurm's notation `2(x3),1`."""
    index = 0
    for part in text.split(","):
        count, _, repeat = part.partition("(x")
        index += int(repeat.rstrip(")")) if repeat else 1
        if node < index:
            return int(count)
    return 1


def _numbers(environ: Mapping[str, str]) -> tuple[int, int, int, int]:
    for rank, size, local_rank, local_size in _LAUNCHERS:
        if rank not in environ or size not in environ:
            continue
        local_text = environ.get(local_size, "1")
        if local_size == "SLURM_STEP_TASKS_PER_NODE":
            local = slurm_tasks_on_node(local_text, int(environ.get("SLURM_NODEID", "0")))
        else:
            local = int(local_text)
        return int(environ[rank]), int(environ[size]), int(environ.get(local_rank, "0")), local
    return 0, 1, 0, 1


TRUSTED = "HPCDL_TRUSTED_NETWORK"
_FIRST_PORT = 20000
_PORTS = 12000


def require_trust(strategy: str) -> None:
    """Raise MissingPrerequisite for TensorFlow's server where nobody trusts the network."""
    if os.environ.get(TRUSTED) != "1":
        raise MissingPrerequisite(
            f"the strategy '{strategy}' opens TensorFlow's server, which asks nobody for a "
            "password",
            hint="use --strategy horovod; `hpcdl job submit --launcher multiworker` fences it "
            f"as far as it goes; {TRUSTED}=1 says that this network is trusted",
        )


def cluster_config(
    environ: Mapping[str, str], place: RankPlace, names: Callable[[str], list[str]]
) -> dict[str, Any]:
    """TF_CONFIG: every rank a worker, on a port that depends on run and local rank."""
    # What all ranks of this run have in common, and no other run on these nodes has.
    step = ("SLURM_CLUSTER_NAME", "SLURM_JOB_ID", "SLURM_STEP_ID")
    run_name = environ.get("PMIX_NAMESPACE") or ".".join(environ.get(name, "") for name in step)
    run_name = str(os.getpid()) if place.size == 1 else run_name
    base = _FIRST_PORT + zlib.crc32(run_name.encode()) % _PORTS
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
            "the nodes of the other ranks are unknown", hint="launch with srun, or set TF_CONFIG"
        )
    return {"cluster": {"worker": workers}, "task": {"type": "worker", "index": place.rank}}


def node_names(hostlist: str) -> list[str]:
    """The names in one of Slurm's host lists, by Slurm itself."""
    return run(["scontrol", "show", "hostnames", hostlist]).stdout.split()
