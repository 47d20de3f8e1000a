"""This process's place among the ranks, and its share of the node.

Read from the launcher's environment only (Open MPI, srun, PMI), before any MPI call: thread
counts and visible GPUs must be set before TensorFlow is imported. A batch script's own
variables (SLURM_NTASKS without a step) do not count as ranks.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass

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
    asked = _number(environ.get("SLURM_CPUS_PER_TASK"))
    if asked:
        cpus = min(asked, affinity)
    else:
        online = os.cpu_count() or affinity
        shared = affinity * local_size > online
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


def _number(text: str | None) -> int | None:
    return int(text) if text and text.isdigit() and int(text) > 0 else None
