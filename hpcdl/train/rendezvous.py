"""Where TensorFlow's own servers meet: TF_CONFIG, by what the launcher says, without TensorFlow.

SlurmClusterResolver fails where a task sees one GPU or none.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable, Mapping
from typing import Any

from hpcdl.system.errors import MissingPrerequisite
from hpcdl.system.run import run
from hpcdl.train.ranks import RankPlace, slurm_tasks_on_node

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
