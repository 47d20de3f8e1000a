"""The values of a valid site file. Frozen: a `Site` never changes after `load_site`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

UNKNOWN_FABRIC = "unknown"


class GpuFigures(NamedTuple):
    """What may be known of a GPU model beside its capability and memory; None: nobody gave it.

    `memory_gbs` in GB/s; peaks in TFLOPS (dense, boost clock); `fabric` is the link between the
    GPUs of a node (`nvlink`, `pcie4`); `nvlink_gbs` counts both ways. `driver_name` is part of
    what the driver calls it, `machine` the architecture of the CPUs beside it.
    """

    memory_gbs: float | None = None
    fp32_tflops: float | None = None
    tf32_tflops: float | None = None
    half_tflops: float | None = None
    fabric: str | None = None
    nvlink_gbs: float | None = None
    tdp_w: float | None = None
    driver_name: str = ""
    machine: str = "x86_64"


class Gpu(NamedTuple):
    """The GPUs of one node of a partition.

    `model` is a row of facts/gpus.yaml or of the site's `gpus`; `gres_type` is what Slurm calls
    it, None where Slurm gives no type; `per_node` counts devices as Slurm does (a K80 board is
    two); `nvlink` is whether NVLink joins them.
    """

    model: str
    gres_type: str | None
    per_node: int
    compute: str
    memory_gb: float
    nvlink: bool = False
    figures: GpuFigures = GpuFigures()

    @property
    def driver_name(self) -> str:
        """The part of the driver's name for it that tells it from other models."""
        return self.figures.driver_name or self.model.split("-")[0]


class Interconnect(NamedTuple):
    """The network between nodes: `fabric` and its bandwidth in Gbit/s per node.

    `fabric` is UNKNOWN_FABRIC and `bandwidth_gbps` None where the site does not say.
    """

    fabric: str
    bandwidth_gbps: float | None
    interface: str | None

    @property
    def description(self) -> str:
        """For a table: `infiniband 56 Gb/s`, `infiniband, rate unknown`, `unknown`."""
        if self.bandwidth_gbps is not None:
            return f"{self.fabric} {self.bandwidth_gbps:g} Gb/s"
        return self.fabric if self.fabric == UNKNOWN_FABRIC else f"{self.fabric}, rate unknown"


class Scratch(NamedTuple):
    """Node-local scratch: where it is (may name Slurm's variables) and its size in GB."""

    path: str
    size_gb: float


@dataclass(frozen=True)
class Partition:
    """One Slurm partition. Sizes are per node; memory in GB, time in minutes.

    Where its nodes differ, `groups` are its groups of equal nodes, each a partition of the same
    name; the sizes of the whole are then what every node with GPUs has at least, its GPU the one
    of the lowest compute capability, and `nodes` counts all. A group has `fellows`: the others.
    `usable_cpus` is None where jobs may have all CPUs of a node.
    """

    name: str
    nodes: int
    hostlist: str | None
    gpu: Gpu | None
    sockets: int
    cores_per_socket: int
    threads_per_core: int
    memory_gb: float
    interconnect: Interconnect
    scratch: Scratch | None
    max_time: str
    max_minutes: int
    features: tuple[str, ...]
    target: str
    driver: str | None
    reference_set: str
    stack: str | None
    environment: Mapping[str, str]
    account: str | None
    qos: str | None
    usable_cpus: int | None = None
    groups: tuple[Partition, ...] = ()
    fellows: tuple[Partition, ...] = ()

    @property
    def node_groups(self) -> tuple[Partition, ...]:
        """The groups of equal nodes that it has: itself where all its nodes are alike."""
        return self.groups or (self,)

    @property
    def label(self) -> str:
        """Its name; of a group, with the GPU model, and the count where that does not tell."""
        if not self.fellows or self.gpu is None:
            return self.name
        like = any(one.gpu and one.gpu.model == self.gpu.model for one in self.fellows)
        return f"{self.name}:{self.gpu.model}" + (f"x{self.gpu.per_node}" if like else "")

    @property
    def gpu_asked_for(self) -> str | None:
        """The GPU model that a job must name to get these nodes and no fellows; None for none."""
        return self.gpu.model if self.gpu and self.fellows else None

    @property
    def gpu_groups(self) -> tuple[Partition, ...]:
        """Its groups of equal nodes with GPUs; itself on a CPU partition."""
        return tuple(group for group in self.node_groups if group.gpu) or (self,)

    @property
    def gpu_models(self) -> tuple[str, ...]:
        """The GPU models of its nodes, in the file's order; empty on a CPU partition."""
        models = (group.gpu.model for group in self.gpu_groups if group.gpu)
        return tuple(dict.fromkeys(models))

    @property
    def cores(self) -> int:
        """Physical cores of a node."""
        return self.sockets * self.cores_per_socket

    @property
    def cpus(self) -> int:
        """CPUs of a node that jobs may have, as Slurm counts them: hardware threads."""
        return self.usable_cpus or self.cores * self.threads_per_core

    @property
    def usable_cores(self) -> int:
        """Physical cores of a node that jobs may have."""
        return self.cpus // self.threads_per_core

    @property
    def gpus_per_node(self) -> int:
        """GPUs of a node; 0 on a CPU partition."""
        return self.gpu.per_node if self.gpu else 0


@dataclass(frozen=True)
class SlurmDialect:
    """How this site's Slurm wants to be asked.

    `gpu_request` is `gpus-per-node` or `gres`; `gpu_typed` whether the request names the type;
    `mpi` the value of `srun --mpi=`; `pmix` the PMIx release that Slurm was built with; `select`
    how it gives out nodes; `task_plugins` what starts and binds tasks; `plugin_options`
    what its plug-ins (SPANK) add to sbatch. `memory` is what memory is asked for by, `node`,
    `cpu`, `gpu` or `none`; `purge` what modules a job unloads.
    """

    version: str
    gpu_request: str
    gpu_typed: bool
    mpi: str
    accounting: bool
    pmix: str | None = None
    account: str | None = None
    qos: str | None = None
    select: str | None = None
    task_plugins: tuple[str, ...] = ()
    plugin_options: tuple[str, ...] = ()
    memory: str = "node"
    exclusive: bool = True
    requeue: bool = True
    purge: str = "all"


@dataclass(frozen=True)
class Paths:
    """Absolute directories: software `prefix`, jobs' `work` and `datasets`; Lmod's bash init."""

    prefix: Path
    work: Path
    datasets: Path
    lmod_init: Path


@dataclass(frozen=True)
class StackRequest:
    """A stack the site wants: its backend, pins, and the partitions it serves.

    `packages` are requirements beside TensorFlow's, such as `pandas` or `jupyterlab>=4`.
    `variant` is `cpu` where a build for CPUs is meant although partitions have GPUs; without
    `horovod` it is for tf.distribute; `cuda_home` has the nvcc that compiles Horovod.
    """

    name: str
    backend: str
    partitions: tuple[str, ...]
    pins: Mapping[str, str]
    packages: tuple[str, ...] = ()
    variant: str | None = None
    horovod: bool = True
    cuda_home: Path | None = None
    renamed: str = ""
    """The old name of its backend, where the site file has that."""


@dataclass(frozen=True)
class External:
    """A package of the machine that Spack uses and does not build."""

    name: str
    version: str
    prefix: Path


@dataclass(frozen=True)
class SpackSettings:
    """How Spack builds here: what the machine has, mirrors by name, the padded path's length.

    `signing_key` is a key of Spack's own keyring that signs the build cache; None: one of ours.
    `store` is the site's own install tree; None: PREFIX/spack/store.
    """

    externals: tuple[External, ...] = ()
    mirrors: Mapping[str, str] = field(default_factory=dict)
    build_jobs: int | None = None
    padded_length: int = 128
    signing_key: str | None = None
    store: Path | None = None

    @property
    def compilers(self) -> tuple[str, ...]:
        """Versions of the gcc that the site offers; empty where it names none."""
        return tuple(external.version for external in self.externals if external.name == "gcc")


class Limits(NamedTuple):
    """What `hpcdl clean` keeps of a kind; None: the kind's own figure."""

    days: float | None = None
    gb: float | None = None


@dataclass(frozen=True)
class Site:
    """A cluster: its Slurm, its paths, its partitions and the stacks it wants.

    `source` is the file it was read from. `default_partition` is the one a job gets that
    names none. `gpus` are the models that the site describes itself, one device of each.
    `private` is whether the prefix is for its owner alone; `trusted_network`, whether servers that
    ask nobody for a password may run on the nodes. `clean` is what `hpcdl clean` keeps, by kind.
    """

    name: str
    source: Path
    slurm: SlurmDialect
    paths: Paths
    partitions: Mapping[str, Partition]
    stacks: Mapping[str, StackRequest]
    default_partition: str
    container: str | None
    spack: SpackSettings = field(default_factory=SpackSettings)
    gpus: Mapping[str, Gpu] = field(default_factory=dict)
    private: bool = False
    trusted_network: bool = False
    clean: Mapping[str, Limits] = field(default_factory=dict)

    def by_groups(self, names: Sequence[str] = ()) -> tuple[Partition, ...]:
        """Partitions, and in place of those whose nodes differ their groups with GPUs.

        What is measured, and compared with what was measured before, is of equal nodes.
        """
        chosen = [self.partition(name) for name in names or self.partitions]
        return tuple(group for partition in chosen for group in partition.gpu_groups)

    def partition(self, name: str) -> Partition:
        """The partition, or the group of a label (`gpu:L40S`); BadInput names the nearest."""
        if name not in self.partitions:
            whole = self.partitions.get(name.partition(":")[0])
            for group in whole.groups if whole else ():
                if group.label == name:
                    return group
            from hpcdl.system.errors import BadInput
            from hpcdl.system.text import did_you_mean

            said = f"the site '{self.name}' has no partition '{name}'"
            several = "," in name and "name one: a job runs on one partition"
            raise BadInput(said, hint=several or did_you_mean(name, self.partitions))
        return self.partitions[name]

    def stack_for(self, partition: str) -> StackRequest | None:
        """The stack that a partition names, else the first that serves it; None without one."""
        named = self.stacks.get(self.partition(partition).stack or "")
        serving = (s for s in self.stacks.values() if not s.partitions or partition in s.partitions)
        return named or next(serving, None)
