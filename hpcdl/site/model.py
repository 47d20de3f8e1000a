"""The site file, declared field by field; the values of a valid one, which never change.

A field is the key of site.yaml with its bounds and its words in docs/site-file.md
(hpcdl/system/declare.py). One without `option` is worked out in `load`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from hpcdl.results.gpus import Gpu
from hpcdl.site.sections import (
    CLEANED,
    NAME,
    External,
    Limits,
    Paths,
    Remeasure,
    SlurmDialect,
    SpackSettings,
    StackRequest,
    Waiver,
    no_default,
)
from hpcdl.slurm.options import CHARGED, TIME
from hpcdl.system.declare import SWITCH, by_name, choice, listed, number, option, text, whole
from hpcdl.system.frozen import dataclass

__all__ = ["External", "Limits", "Paths", "SlurmDialect", "SpackSettings", "StackRequest", "Waiver"]

UNKNOWN_FABRIC = "unknown"
_TAKEN = ("store", "downloads")
"""Names below PREFIX/spack that all stacks share, where each stack has a directory of its name."""
# `check.site_schema` fills in the keys: those of a partition, without their defaults.
_FEATURE = "^[A-Za-z0-9_][A-Za-z0-9_.:=+@/-]{0,62}$"
_GROUP = {
    "type": "object",
    "description": "Equal nodes of a partition: their differences from the partition's values.",
    "required": ["nodes"],
    "additionalProperties": False,
    "properties": {},
}


@dataclass(frozen=True)
class Interconnect:
    """The network between nodes: `fabric` and its bandwidth in Gbit/s per node."""

    fabric: str = option(
        "Its kind; ethernet is without RDMA, roce with it, cloud the TCP of virtual machines",
        **choice("ethernet", "roce", "cloud", "infiniband", "omnipath", "slingshot", "unknown"),
    )
    bandwidth_gbps: float | None = option(
        "Bandwidth of a node in Gbit/s; predictions over several nodes need it",
        None,
        **number(0.1, 10000),
        example=56,
    )
    interface: str | None = option(
        "The network interface that MPI and NCCL use between nodes, where there are several",
        None,
        **text("^[A-Za-z0-9_.:-]{1,40}$"),
        example="ib0",
    )
    measured_gbs: float | None = option(
        "Bus bandwidth of an all-reduce between nodes in GB/s, as measured; predictions use it "
        "instead of the published part of the rate",
        None,
        **number(0.0001, 10000),
        example=5.7,
    )

    @property
    def description(self) -> str:
        """For a table: `infiniband 56 Gb/s`, `infiniband, rate unknown`, `unknown`."""
        if self.bandwidth_gbps is not None:
            return f"{self.fabric} {self.bandwidth_gbps:g} Gb/s"
        return self.fabric if self.fabric == UNKNOWN_FABRIC else f"{self.fabric}, rate unknown"


@dataclass(frozen=True)
class Scratch:
    """Node-local scratch: where it is (may name Slurm's variables) and its size in GB."""

    path: str = option(
        "Its path; `$SLURM_JOB_ID` and `$USER` are expanded in the job",
        **text(
            r"^(?=[/\x24])([^\x24`\x00-\x1f\x7f]|\x24([A-Za-z_]\w*|\{[A-Za-z_]\w*(:-[\w/.-]*)?\}))*$",
            "start it with / or a variable of the job: $NAME or ${NAME}, but no other bash syntax",
        ),
        example="/local/$SLURM_JOB_ID",
    )
    size_gb: float = option("Space in GB; 0 where it is not known", 0, **number(0, 1000000))


@dataclass(frozen=True)
class PartitionGpus:
    """The GPUs of a node as the file says them; `Gpu` is what they are."""

    model: str = option(
        "The GPU's model: a row of hpcdl/facts/gpus.yaml, or of the site's `gpus`",
        type="string",
        example="P100-PCIe",
    )
    gres_type: str | None = option(
        "What Slurm calls it in Gres (`gpu:p100:4`). The partition's name by default",
        None,
        **text("^[A-Za-z0-9_.-]{1,40}$"),
        example="p100",
    )
    typed: bool | None = option(
        "Whether Slurm gives these GPUs a type. The site's `slurm.gpu_typed` by default",
        None,
        **SWITCH,
    )
    per_node: int = option(
        "Devices per node as Slurm counts them (a K80 board is two)", **whole(1, 64)
    )
    memory_gb: float | None = option(
        "Memory of one device in GB, if not the model's", None, **number(1, 1024)
    )


@dataclass(frozen=True)
class GpuDescription:
    """A GPU model that the facts lack or describe differently; the facts give what is left out."""

    compute: str | None = option(
        "CUDA compute capability; `nvidia-smi --query-gpu=compute_cap --format=csv` shows it",
        None,
        **text("^[0-9]{1,2}\\.[0-9]$"),
        example="'8.9'",
    )
    memory_gb: float | None = option("Memory of one device in GB", None, **number(1, 1024))
    vendor: str | None = option(
        "Who makes it; NVIDIA by default", None, **choice("nvidia", "amd", "intel")
    )
    driver_name: str | None = option(
        "The part of the driver's name (`nvidia-smi -L`) that distinguishes this model. The "
        "model up to its first dash by default",
        None,
        **text("^[A-Za-z0-9][A-Za-z0-9 ./_+-]{0,60}$"),
        example="RTX 5000 Ada",
    )
    fabric: str | None = option(
        "What joins the GPUs of a node", None, **choice("pcie3", "pcie4", "pcie5", "nvlink")
    )
    nvlink_gbs: float | None = option(
        "NVLink of one device in GB/s, both ways together", None, **number(1, 100000)
    )
    memory_gbs: float | None = option("Bandwidth of its memory in GB/s", None, **number(1, 100000))
    fp32_tflops: float | None = option("Peak of float32 in TFLOPS", None, **number(0.1, 100000))
    tf32_tflops: float | None = option("Peak of TF32 in TFLOPS, dense", None, **number(0.1, 100000))
    half_tflops: float | None = option(
        "Peak of float16 in TFLOPS, dense", None, **number(0.1, 100000)
    )
    tdp_w: float | None = option("Its power in W", None, **number(1, 10000))
    machine: str | None = option(
        "The CPUs beside it; x86_64 by default", None, **choice("x86_64", "aarch64")
    )


@dataclass(frozen=True, kw_only=True)
class Partition:
    """One Slurm partition. Sizes are per node; memory in GB, time in minutes.

    Where its nodes differ, `groups` are its groups of equal nodes, each a partition of the same
    name; the sizes of the whole are then what every node with GPUs has at least, its GPU the one
    of the lowest compute capability, and `nodes` counts all. A group has `fellows`: the others.
    `usable_cpus` is None where jobs may have all CPUs of a node.
    """

    name: str
    nodes: int = option("How many nodes it has", **whole(1, 100000))
    hostlist: str | None = option(
        "Their names, as Slurm writes them. `NAME-[01-NN]` by default",
        None,
        **text("^[A-Za-z0-9_][A-Za-z0-9_.,\\[\\]-]{0,3999}$"),
        example="p100-[01-04]",
    )
    gpu: Gpu | None = option(
        "The GPUs of a node. Leave it out on a CPU partition", None, of=PartitionGpus
    )
    sockets: int = option("Processor sockets of a node", **whole(1, 16))
    cores_per_socket: int = option("Cores of a socket", **whole(1, 512))
    threads_per_core: int = option("Hardware threads of a core", 1, **whole(1, 8))
    usable_cpus: int | None = option(
        "CPUs of a node that jobs may have, where Slurm keeps some for itself "
        "(CPUEfctv is less than CPUTot); all by default",
        None,
        **whole(1, 65536),
        example=112,
    )
    memory_gb: float = option(
        "Memory of a node in GB, as Slurm gives it to jobs", **number(0.1, 65536)
    )
    interconnect: Interconnect = option(
        "The network between the nodes; unknown where it is left out",
        Interconnect(UNKNOWN_FABRIC),
        of=Interconnect,
        write=no_default,
    )
    scratch: Scratch | None = option("Scratch on the node's own disk", None, of=Scratch)
    features: tuple[str, ...] = option("Slurm features of its nodes", (), **listed(text(_FEATURE)))
    target: str = option(
        "Microarchitecture to compile for, as archspec names it",
        "x86_64_v3",
        **text("^[a-z0-9_]{1,40}$"),
        example="skylake_avx512",
    )
    driver: str | None = option(
        "Version of the NVIDIA driver", None, **text("^\\d{3}(\\.\\d+){0,2}$"), example="535.104.05"
    )
    reference_set: str = option(
        "The set of references for its checks. The GPU's name by default",
        "",
        **text(NAME),
        write=no_default,
    )
    groups: tuple[Partition, ...] = option(
        "Its groups of equal nodes, where they differ: two GPU models in one "
        "partition. Their `gpu` is given in the groups; a key that a group leaves out "
        "is the partition's, whose `nodes` counts all",
        (),
        type="array",
        items=_GROUP,
    )
    max_time: str = option(
        "The longest time limit, as Slurm writes it",
        "1-00:00:00",
        **text(f"^(?=.*[1-9])({TIME})$|^(unlimited|UNLIMITED|infinite|INFINITE)$"),
        example="24:00:00",
    )
    max_minutes: int = 0
    stack: str | None = option(
        "The stack that `module load tensorflow` gives here", None, **text(NAME)
    )
    environment: Mapping[str, str] = option(
        "Variables that every job here gets, by name",
        {},
        **by_name(text("^[^\\x00-\\x1f]{0,1000}$"), "^[A-Za-z_][A-Za-z0-9_]{0,100}$"),
        example="{NCCL_IB_HCA: mlx5}",
    )
    account: str | None = option(
        "Account for jobs here, instead of the site's", None, **text(CHARGED)
    )
    qos: str | None = option(
        "Quality of service for jobs here, instead of the site's", None, **text(CHARGED)
    )
    fellows: tuple[Partition, ...] = ()

    @property
    def node_groups(self) -> tuple[Partition, ...]:
        """The groups of equal nodes that it has: itself where all its nodes are alike."""
        return self.groups or (self,)

    @property
    def label(self) -> str:
        """The name; for a group with the GPU model, and the count if the model is not unique."""
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


@dataclass(frozen=True, kw_only=True)
class Site:
    """A cluster: its Slurm, its paths, its partitions and the stacks it wants.

    `source` is the file it was read from.
    """

    name: str = option("The cluster's name", **text(NAME), example="pi")
    source: Path
    slurm: SlurmDialect = option(
        "The site's Slurm, and how jobs request resources", of=SlurmDialect
    )
    paths: Paths = option(
        "Directories on the shared file system. `~`, `$HOME`, `$USER` and "
        "`$HPCDL_HOME` are replaced",
        of=Paths,
    )
    default_partition: str = option(
        "The partition of jobs that name none; the first one by default",
        "",
        **text(NAME),
        write=no_default,
    )
    container: str | None = option(
        "The container runtime that jobs may use",
        None,
        **choice("apptainer", "charliecloud", "pyxis"),
    )
    gpus: Mapping[str, Gpu] = option(
        "GPU models that hpcdl's facts lack or describe differently, by name",
        {},
        **by_name(GpuDescription, NAME),
    )
    partitions: Mapping[str, Partition] = option(
        "Slurm partitions by name", **by_name(Partition, NAME), minProperties=1
    )
    stacks: Mapping[str, StackRequest] = option(
        "Software stacks by name",
        {},
        **by_name(
            StackRequest,
            f"^(?!({'|'.join(_TAKEN)})(?![A-Za-z0-9_.-])){NAME[1:]}",
            f"use letters, digits, '-', '_' and '.'; {', '.join(_TAKEN)} are Spack's own",
        ),
    )
    spack: SpackSettings = option(
        "How Spack builds here. Only stacks with the backend `spack` need it",
        SpackSettings(),
        of=SpackSettings,
        write=no_default,
    )
    clean: Mapping[str, Limits] = option(
        f"How much `hpcdl clean` keeps of {', '.join(CLEANED)}",
        {},
        **by_name(Limits, f"^({'|'.join(CLEANED)})$", f"use one of: {', '.join(CLEANED)}"),
    )
    remeasure: Remeasure = option(
        "How often the nightly checks measure again what is suspicious, the same night",
        Remeasure(),
        of=Remeasure,
        write=no_default,
    )
    waivers: Mapping[str, Waiver] = option(
        "Why known vulnerabilities do not matter here, by name; they count instead of hpcdl's own",
        {},
        **by_name(Waiver, "^[A-Za-z][A-Za-z0-9._-]{2,60}$"),
    )
    agreements: Mapping[str, str] = option(
        "Who has accepted a licence agreement that publishing needs, by its name: cuda, cudnn",
        {},
        **by_name(text(r"[^\x00-\x1f]*\S[^\x00-\x1f]*"), NAME),
    )
    trusted_network: bool = option(
        "Whether everybody who can reach the nodes' ports may run code as any user: "
        "`multiworker` jobs then need no `trusted_network`",
        False,
        **SWITCH,
    )
    private: bool = option(
        "Whether the prefix is for its owner alone, such as one below a home "
        "directory that others cannot enter. Otherwise such a release is refused",
        False,
        **SWITCH,
    )

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

            message = f"the site '{self.name}' has no partition '{name}'"
            several = "," in name and "name one: a job runs on one partition"
            raise BadInput(message, hint=several or did_you_mean(name, self.partitions))
        return self.partitions[name]

    def stack_for(self, partition: str) -> StackRequest | None:
        """The stack that a partition names, else one that names it, else the first for all."""
        named = self.stacks.get(self.partition(partition).stack or "")
        stacks = self.stacks.values()
        serving = [one for one in stacks if partition in one.partitions]
        serving += [one for one in stacks if not one.partitions]
        return named or next(iter(serving), None)
