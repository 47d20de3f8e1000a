"""How measurements are taken and judged on a cluster, and on a single-node emulation of one.

Where one machine runs all nodes (slurm.conf: SlurmdParameters=config_overrides), jobs disturb
each other, GPUs are only counted, and more ranks bring no more hardware. Everything that then
differs is in one profile; code asks the profile and never which kind of machine it is.
"""

from __future__ import annotations

from hpcdl.slurm import client
from hpcdl.system.errors import HpcdlError
from hpcdl.system.frozen import dataclass


@dataclass(frozen=True)
class ExecutionProfile:
    """The rules for measurements; the defaults are those of a cluster of real nodes."""

    name: str
    max_jobs: int = 8  # checks that run at a time
    judges_best: bool = False  # the best step, pass or iteration is judged, not the typical one
    margin: float = 0.0  # a smaller difference between nodes is chance; a fraction
    full_size: bool = True  # checks have published networks, all GPUs of a node, large data
    real_gpus: bool = True  # ranks must find GPUs
    binds_cpus: bool = True  # Slurm binds ranks to CPUs
    # All ranks share one machine's cores: efficiency is theirs, no expectation for GPUs holds.
    shared_cores: bool = False
    machine_references: bool = False  # references hold only on the machine that measured them

    @property
    def serial(self) -> bool:
        """Whether checks run one at a time."""
        return self.max_jobs == 1


CLUSTER = ExecutionProfile("cluster")
SINGLE_NODE = ExecutionProfile(
    "single-node",
    max_jobs=1,
    judges_best=True,
    margin=0.40,
    full_size=False,
    real_gpus=False,
    binds_cpus=False,
    shared_cores=True,
    machine_references=True,
)
PROFILES = {profile.name: profile for profile in (CLUSTER, SINGLE_NODE)}


def recorded(machine: str | None) -> ExecutionProfile:
    """The profile of a run, or a reference, that names its machine: only a single node's does."""
    return SINGLE_NODE if machine else CLUSTER


def current() -> ExecutionProfile:
    """The profile of this Slurm. Raises `HpcdlError`: Slurm is away."""
    emulation = "config_overrides" in client.config().get("SlurmdParameters", "")
    return SINGLE_NODE if emulation else CLUSTER


def current_or_cluster() -> ExecutionProfile:
    """The same, for what is also written or asked where Slurm is away: then a cluster's."""
    try:
        return current()
    except HpcdlError:
        return CLUSTER
