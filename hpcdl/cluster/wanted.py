"""A cluster's view of a site file: named attributes, so that this package needs no other.

`hpcdl.site.Site` has them; so may any description of partitions and nodes.
"""

# ruff: noqa: D102 - the classes say what their attributes are

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol


class WantedGpus(Protocol):
    """The GPUs of a node; `gres_type` is what Slurm calls them, None where it gives no type."""

    @property
    def gres_type(self) -> str | None: ...


class WantedPartition(Protocol):
    """A partition, or a group of equal nodes of it. Memory in GB, sizes per node."""

    @property
    def name(self) -> str: ...
    @property
    def nodes(self) -> int: ...
    @property
    def hostlist(self) -> str | None: ...
    @property
    def gpu(self) -> WantedGpus | None: ...
    @property
    def gpus_per_node(self) -> int: ...
    @property
    def sockets(self) -> int: ...
    @property
    def cores_per_socket(self) -> int: ...
    @property
    def threads_per_core(self) -> int: ...
    @property
    def cpus(self) -> int: ...
    @property
    def memory_gb(self) -> float: ...
    @property
    def features(self) -> tuple[str, ...]: ...
    @property
    def max_time(self) -> str: ...
    @property
    def max_minutes(self) -> int: ...
    @property
    def groups(self) -> Sequence[WantedPartition]: ...


class WantedSlurm(Protocol):
    """The release and the MPI plug-in that the description was written for."""

    @property
    def version(self) -> str: ...
    @property
    def mpi(self) -> str: ...


class WantedPaths(Protocol):
    """The directories of published modules, and Lmod's start-up file."""

    @property
    def prefix(self) -> Path: ...
    @property
    def lmod_init(self) -> Path: ...


class WantedCluster(Protocol):
    """A cluster to emulate, and the file that describes it."""

    @property
    def name(self) -> str: ...
    @property
    def source(self) -> Path: ...
    @property
    def slurm(self) -> WantedSlurm: ...
    @property
    def paths(self) -> WantedPaths: ...
    @property
    def default_partition(self) -> str: ...
    @property
    def partitions(self) -> Mapping[str, WantedPartition]: ...
