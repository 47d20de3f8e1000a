"""The one definition of site.yaml, version 1, as a JSON Schema.

The checker reads it, `hpcdl site schema` prints it for editors, and docs/site-file.md is
generated from its descriptions. A new key starts here.
"""

from __future__ import annotations

from hpcdl.system.schema import Schema
from hpcdl.system.schema_parts import ENVIRONMENT, NAME, count, named, record, size, text

VERSION = 1
_TIME = r"^(\d{1,4}-)?\d{1,4}(:[0-5]\d){0,2}$|^unlimited$"
_VERSION = r"^\d{1,2}\.\d{2}(\.\d{1,2})?([-.\w]*)?$"


SLURM = record(
    "The site's Slurm, and how jobs request resources.",
    ["version"],
    {
        "version": text(
            "Slurm's release, as `sinfo --version` prints it. It decides the form of the scripts.",
            pattern=_VERSION,
            examples=["22.05.8"],
        ),
        "gpu_request": text(
            "How a job asks for GPUs: `--gpus-per-node` or `--gres=gpu`. Never both.",
            enum=["gpus-per-node", "gres"],
            default="gpus-per-node",
        ),
        "gpu_typed": {
            "type": "boolean",
            "description": "Whether the request names the GPU's type (`gpu:p100:4`, not `gpu:4`).",
            "default": True,
        },
        "mpi": text(
            "The plug-in for `srun --mpi=`; `srun --mpi=list` shows what there is.",
            pattern=r"^[a-z0-9_]{1,30}$",
            default="pmix",
        ),
        "pmix": text(
            "The PMIx release that Slurm was built with; MPI in the stack must share it.",
            pattern=r"^\d+(\.\d+){0,2}$",
            examples=["4.2"],
        ),
        "accounting": {
            "type": "boolean",
            "description": "Whether slurmdbd runs, so that `sacct` answers.",
            "default": False,
        },
        "account": text("Account that jobs are charged to, where none is given.", pattern=NAME),
        "qos": text("Quality of service of jobs, where none is given.", pattern=NAME),
        "select": text(
            "SelectType of slurm.conf behind the slash; `scontrol show config` shows it.",
            enum=["cons_res", "cons_tres", "linear"],
        ),
        "task_plugins": {
            "type": "array",
            "description": "TaskPlugin of slurm.conf, what is behind each slash: affinity binds.",
            "items": {"type": "string", "enum": ["affinity", "cgroup", "none"]},
            "default": [],
        },
        "plugin_options": {
            "type": "array",
            "description": "Long options that plug-ins (SPANK) add to sbatch and srun, without "
            "dashes; `sbatch --help` lists them at its end.",
            "items": {"type": "string", "pattern": r"^[A-Za-z0-9][A-Za-z0-9_-]{0,60}$"},
            "default": [],
        },
        "memory": text(
            "How a job asks for memory: `--mem`, `--mem-per-cpu`, `--mem-per-gpu`, or not at all.",
            enum=["node", "cpu", "gpu", "none"],
            default="node",
        ),
        "exclusive": {
            "type": "boolean",
            "description": "Whether jobs that fill their nodes ask for `--exclusive`.",
            "default": True,
        },
        "requeue": {
            "type": "boolean",
            "description": "Whether jobs may be requeued; without it, `job submit --chain` "
            "continues a run.",
            "default": True,
        },
        "purge": text(
            "What a job unloads before it loads its modules: `all`, all but `sticky` ones of Lmod, "
            "or `none`, for Cray's bases and sites that load what jobs need.",
            enum=["all", "sticky", "none"],
            default="all",
        ),
    },
)

PATHS = record(
    "Directories on the shared file system. `~`, `$HOME`, `$USER` and `$HPCDL_HOME` are replaced.",
    ["prefix", "work", "datasets"],
    {
        "prefix": text("Where stacks and modules are published.", examples=["/apps/hpcdl"]),
        "work": text("Where jobs keep scripts, logs, results and checkpoints.",
                      examples=["/work/$USER"]),
        "datasets": text("Where data sets are.", examples=["/data"]),
        "lmod_init": text("Lmod's start-up file for bash.",
                           default="/usr/share/lmod/lmod/init/bash"),
    },
)  # fmt: skip

GPU = record(
    "The GPUs of a node. Leave it out on a CPU partition.",
    ["model", "per_node"],
    {
        "model": text(
            "The GPU's model: a row of hpcdl/facts/gpus.yaml, or of the site's `gpus`.",
            examples=["P100-PCIe"],
        ),
        "gres_type": text(
            "What Slurm calls it in Gres (`gpu:p100:4`). The partition's name by default.",
            pattern=r"^[A-Za-z0-9_.-]{1,40}$",
            examples=["p100"],
        ),
        "typed": {
            "type": "boolean",
            "description": "Whether Slurm gives these GPUs a type. The site's `slurm.gpu_typed` "
            "by default.",
        },
        "per_node": count("Devices per node as Slurm counts them (a K80 board is two).", 1, 64),
        "memory_gb": size("Memory of one device in GB, if not the model's.", 1, 1024),
    },
)

GPU_MODEL = record(
    "A GPU model that hpcdl does not know, or knows otherwise. What is left out is the facts'; "
    "where they have nothing, whoever needs the figure says so.",
    [],
    {
        "compute": text(
            "CUDA compute capability; `nvidia-smi --query-gpu=compute_cap --format=csv` shows it.",
            pattern=r"^[0-9]{1,2}\.[0-9]$",
            examples=["'8.9'"],
        ),
        "memory_gb": size("Memory of one device in GB.", 1, 1024),
        "vendor": text("Who makes it; NVIDIA by default.", enum=["nvidia", "amd", "intel"]),
        "driver_name": text(
            "What in the driver's name (`nvidia-smi -L`) tells it from other models. The model "
            "up to its first dash by default.",
            pattern=r"^[A-Za-z0-9][A-Za-z0-9 ./_+-]{0,60}$",
            examples=["RTX 5000 Ada"],
        ),
        "fabric": text("What joins the GPUs of a node.",
                        enum=["pcie3", "pcie4", "pcie5", "nvlink"]),
        "nvlink_gbs": size("NVLink of one device in GB/s, both ways together.", 1, 100_000),
        "memory_gbs": size("Bandwidth of its memory in GB/s.", 1, 100_000),
        "fp32_tflops": size("Peak of float32 in TFLOPS.", 0.1, 100_000),
        "tf32_tflops": size("Peak of TF32 in TFLOPS, dense.", 0.1, 100_000),
        "half_tflops": size("Peak of float16 in TFLOPS, dense.", 0.1, 100_000),
        "tdp_w": size("Its power in W.", 1, 10_000),
        "machine": text("The CPUs beside it; x86_64 by default.", enum=["x86_64", "aarch64"]),
    },
)  # fmt: skip

INTERCONNECT = record(
    "The network between the nodes; unknown where it is left out.",
    ["fabric"],
    {
        "fabric": text(
            "Its kind.", enum=["ethernet", "infiniband", "omnipath", "slingshot", "unknown"]
        ),
        "bandwidth_gbps": size(
            "Bandwidth of a node in Gbit/s; predictions over several nodes need it.",
            0.1, 10000, examples=[56],
        ),
        "interface": text(
            "The network interface that MPI and NCCL use between nodes, where there are several.",
            pattern=r"^[A-Za-z0-9_.:-]{1,40}$",
            examples=["ib0"],
        ),
    },
)  # fmt: skip

SCRATCH = record(
    "Scratch on the node's own disk.",
    ["path"],
    {
        "path": text("Its path; `$SLURM_JOB_ID` and `$USER` are expanded in the job.",
                      examples=["/local/$SLURM_JOB_ID"]),
        "size_gb": size("Space in GB; 0 where it is not known.", 0, 1_000_000, default=0),
    },
)  # fmt: skip

_NODES: dict[str, Schema] = {
    "nodes": count("How many nodes it has.", 1, 100_000),
    "hostlist": text(
        "Their names, as Slurm writes them. `NAME-[01-NN]` by default.",
        pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.,\[\]-]{0,3999}$",
        examples=["p100-[01-04]"],
    ),
    "gpu": GPU,
    "sockets": count("Processor sockets of a node.", 1, 16),
    "cores_per_socket": count("Cores of a socket.", 1, 512),
    "threads_per_core": count("Hardware threads of a core.", 1, 8, default=1),
    "memory_gb": size("Memory of a node in GB, as Slurm gives it to jobs.", 0.1, 65536),
    "interconnect": INTERCONNECT,
    "scratch": SCRATCH,
    "features": {
        "type": "array",
        "description": "Slurm features of its nodes.",
        "items": {"type": "string", "pattern": NAME},
        "default": [],
    },
    "target": text(
        "Microarchitecture to compile for, as archspec names it.",
        pattern=r"^[a-z0-9_]{1,40}$",
        default="x86_64_v3",
        examples=["skylake_avx512"],
    ),
    "driver": text(
        "Version of the NVIDIA driver.",
        pattern=r"^\d{3}(\.\d+){0,2}$",
        examples=["535.104.05"],
    ),
    "reference_set": text(
        "The set of references for its checks. The GPU's name by default.",
        pattern=NAME,
    ),
}
"""What may differ between the groups of nodes of one partition."""

GROUP = record(
    "Equal nodes of a partition: what they have otherwise than the partition says.",
    ["nodes"],
    # No defaults: what a group leaves out is the partition's.
    {
        name: {word: value for word, value in key.items() if word != "default"}
        for name, key in _NODES.items()
    },
)

PARTITION = record(
    "A Slurm partition.",
    ["nodes", "sockets", "cores_per_socket", "memory_gb"],
    {
        **_NODES,
        "groups": {
            "type": "array",
            "description": "Its groups of equal nodes, where they differ: two GPU models in one "
            "partition. Their `gpu` stands in the groups; a key that a group leaves out is the "
            "partition's, whose `nodes` counts all.",
            "items": GROUP,
            "default": [],
        },
        "max_time": text(
            "The longest time limit, as Slurm writes it.",
            pattern=_TIME,
            default="1-00:00:00",
            examples=["24:00:00"],
        ),
        "stack": text("The stack that `module load tensorflow` gives here.", pattern=NAME),
        "environment": ENVIRONMENT,
        "account": text("Account for jobs here, instead of the site's.", pattern=NAME),
        "qos": text("Quality of service for jobs here, instead of the site's.", pattern=NAME),
    },
)

STACK = record(
    "A software stack.",
    ["backend"],
    {
        "backend": text("How it is built: compiled by Spack, or from wheels in a venv.",
                         enum=["spack", "venv"]),
        "partitions": {
            "type": "array",
            "description": "The partitions it serves; all by default.",
            "items": {"type": "string", "pattern": NAME},
            "default": [],
        },
        "pins": {
            "type": "object",
            "description": "Versions fixed by the site, by component (tensorflow, cuda, ...).",
            "propertyNames": {"pattern": r"^[a-z0-9_-]{1,40}$"},
            "additionalProperties": {"type": "string", "pattern": r"^[0-9][0-9A-Za-z.+_-]{0,40}$"},
            "default": {},
        },
        "packages": {
            "type": "array",
            "description": "Packages from PyPI on top, locked with the rest (wheels only): names, "
            "with extras and versions as pip takes them. TensorFlow, Keras and Horovod: see pins.",
            "items": {
                "type": "string",
                "pattern": r"^(?!(tensorflow(-cpu|-gpu)?|keras|horovod)(?![A-Za-z0-9._-]))"
                r"[A-Za-z0-9][A-Za-z0-9._-]{0,80}(\[[A-Za-z0-9,._-]{1,80}\])?"
                r"( ?(==|>=|<=|~=|!=|<|>) ?[0-9][0-9A-Za-z.*+!_-]{0,40},?){0,4}$",
            },
            "examples": [["pandas", "jupyterlab>=4,<5"]],
            "default": [],
        },
        "variant": text("`cpu`: a build for CPUs, although its partitions have GPUs, which then "
                         "stay idle. Without it the partitions decide.", enum=["cpu"]),
        "horovod": text("`none`: without Horovod, for tf.distribute; no compiler is needed then.",
                         enum=["none"]),
        "cuda_home": text(
            "The CUDA toolkit whose nvcc compiles Horovod; needed while building only. By default "
            "the first that fits of $CUDA_HOME, PATH and /usr/local/cuda*.",
            pattern="^/", examples=["/usr/local/cuda-12.4"],
        ),
    },
)  # fmt: skip

SPACK = record(
    "How Spack builds here. Only stacks with the backend `spack` need it.",
    [],
    {
        "externals": {
            "type": "array",
            "description": "What the machine has already: compilers, Slurm, PMIx, rdma-core.",
            "items": record(
                "A package that Spack shall use and not build.",
                ["spec", "prefix"],
                {
                    "spec": text("Its name and version.", pattern=r"^[a-z0-9-]+@[0-9][\w.+-]*$",
                                  examples=["gcc@12.2.0"]),
                    "prefix": text("Where it is installed.", pattern="^/", examples=["/usr"]),
                },
            ),
            "default": [],
        },
        "mirrors": named(
            "Mirrors of sources and binaries, by name.",
            {"type": "string", "pattern": r"^(file|https?|oci|s3)://"},
        ),
        "build_jobs": count("Processes per build; Spack's own choice by default.", 1, 1024),
        "padded_length": count(
            "Length the install path is padded to, so that binaries can move. 0: no padding.",
            0, 512, default=128,
        ),
        "signing_key": text(
            "Fingerprint or name of a key in Spack's keyring (`spack gpg list --signing`) that "
            "signs the build cache; by default a key that the build makes.",
            pattern=r"^[^\s-][^\n]{2,199}$", examples=["hpc-admins@example.org"],
        ),
        "store": text(
            "The site's own install tree, so that nothing is built twice; by default "
            "PREFIX/spack/store. `padded_length` is then that tree's own, 0 by default.",
            pattern="^/", examples=["/apps/spack/opt/spack"],
        ),
    },
)  # fmt: skip

CLEANED = ("check-runs", "job-index", "logs", "failures", "job-records", "leftovers", "cache")
KEPT = record(
    "How much of a kind `hpcdl clean` keeps; its own figures where nothing is said.",
    [],
    {
        "days": size("What is older goes.", 0, 36_500, examples=[30]),
        "gb": size("Of more than this many GB the oldest go.", 0, 1_000_000, examples=[5]),
    },
)

SITE: Schema = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "title": "hpcdl site file, version 1",
    **record(
        "A cluster: its Slurm, its paths, its partitions and the stacks it wants.",
        ["schema", "name", "slurm", "paths", "partitions"],
        {
            "schema": count("Version of this format.", VERSION, VERSION, examples=[VERSION]),
            "name": text("The cluster's name.", pattern=NAME, examples=["pi"]),
            "slurm": SLURM,
            "paths": PATHS,
            "default_partition": text(
                "The partition of jobs that name none; the first one by default.", pattern=NAME
            ),
            "container": text(
                "The container runtime that jobs may use.",
                enum=["apptainer", "charliecloud", "pyxis"],
            ),
            "gpus": named(
                "GPU models by name that hpcdl does not know, or knows otherwise.", GPU_MODEL
            ),
            "partitions": named("Slurm partitions by name.", PARTITION, minProperties=1),
            "stacks": named("Software stacks by name.", STACK),
            "spack": SPACK,
            "clean": named(f"How much `hpcdl clean` keeps of {', '.join(CLEANED)}.", KEPT),
            "trusted_network": {
                "type": "boolean",
                "description": "Whether everybody who can reach the nodes' ports may run code as "
                "any user: `multiworker` jobs then need no --trusted-network.",
                "default": False,
            },
            "private": {
                "type": "boolean",
                "description": "Whether the prefix is for its owner alone, such as one below a "
                "home directory that others cannot enter. Otherwise such a release is refused.",
                "default": False,
            },
        },
    ),
}
