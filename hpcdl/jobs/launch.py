"""Launchers: how the ranks of a step start and find each other. Pure.

Roles, ranks, ports and host lists are worked out here and in the script; no user edits a hosts
file. All but `horovod-mpirun` start under srun (spec.LAUNCHERS). Under `torch` each rank is a task
of Slurm's: it gets signals, and its exit code is the job's; under `torchrun` neither holds for the
agent, so that its workers are told and heard past it.
"""

from __future__ import annotations

from pathlib import Path

from hpcdl.jobs import quote, slurm_compat
from hpcdl.jobs.layout import Layout
from hpcdl.jobs.spec import JobSpec, is_train
from hpcdl.site import Partition, Site
from hpcdl.system.errors import BadInput

PORTS = "12000-32767"
"""Where tf.distribute's workers listen: below the ephemeral range."""

# NCCL's own variable, then Open MPI's for data and for its daemons (mpirun).
_INTERFACE_OF = (
    "NCCL_SOCKET_IFNAME",
    "OMPI_MCA_btl_tcp_if_include",
    "OMPI_MCA_oob_tcp_if_include",
)

# Each rank gets a user namespace, and the kernel lets none read another's memory: messages that
# Open MPI 4 would copy so never arrive (measured; later ones and UCX look for themselves).
_CONTAINER_PER_RANK = frozenset({"apptainer", "charliecloud"})
_APART_IN_MEMORY = (("OMPI_MCA_btl_vader_single_copy_mechanism", "none"),)

_WITH_MPI = frozenset({"horovod", "mpi"})
_WITH_OPENMP = frozenset({"mpi", "torch", "torchrun", "plain", "single"})
# Whose processes know nothing of each other: one that fails ends no other.
_APART = frozenset({"plain", "single"})
# What a rank is called by its launcher, where that is not Slurm.
_RANK = {"horovod-mpirun": "OMPI_COMM_WORLD_RANK", "torchrun": "RANK"}
_STARTS_RANKS = frozenset({"torchrun", "mpirun", "mpiexec", "horovodrun", "srun"})

# The index of a worker is its rank; $HPCDL_WORKERS is made once by the script.
_TF_CONFIG = (
    'export TF_CONFIG="{\\"cluster\\":{\\"worker\\":[$HPCDL_WORKERS]},'
    '\\"task\\":{\\"type\\":\\"worker\\",\\"index\\":$SLURM_PROCID}}"; exec "$@"'
)


def launch_options(site: Site, spec: JobSpec, layout: Layout) -> tuple[str, ...]:
    """Options of srun for a step that fills the job: what scripts and checks both use."""
    mpi = site.slurm.mpi if spec.launcher in _WITH_MPI else "none"
    return (
        f"--mpi={mpi}",
        f"--cpus-per-task={layout.cpus_per_task}",
        *slurm_compat.step_options(site.slurm),
        *(slurm_compat.by_socket(site.slurm)[0] if layout.by_socket else ()),
        f"--kill-on-bad-exit={int(spec.launcher != 'plain')}",
    )


def workers_per_node(spec: JobSpec, layout: Layout) -> int:
    """Processes of the program on each node: ranks, or workers of an agent."""
    if spec.launcher != "torchrun":
        return layout.tasks_per_node
    return layout.gpus_per_node or spec.tasks_per_node or 1


def together(spec: JobSpec, layout: Layout) -> str | None:
    """Where ranks end together: the variable with the number of each; None where none waits."""
    several = layout.nodes * workers_per_node(spec, layout) > 1 or spec.launcher == "torch"
    if spec.launcher in _APART or not several:
        return None
    return _RANK.get(spec.launcher, "SLURM_PROCID")


def meets(spec: JobSpec, layout: Layout) -> bool:
    """Whether the job says where ranks meet; `hpcdl train` finds its ranks by Horovod."""
    asks = bool(spec.program) and not is_train(spec.program)
    if spec.launcher in {"torch", "torchrun", "jax"}:
        return True
    return asks and spec.launcher not in _APART and layout.world_size > 1


def openmp_variables(
    partition: Partition, spec: JobSpec, layout: Layout
) -> tuple[tuple[str, str], ...]:
    """What keeps the threads of a rank on its own cores; others' threads are set by themselves."""
    if spec.launcher not in _WITH_OPENMP:
        return ()
    cpus = layout.cpus_per_task * layout.tasks_per_node // workers_per_node(spec, layout)
    return (
        ("OMP_NUM_THREADS", str(max(1, cpus // partition.threads_per_core))),
        ("OMP_PLACES", "cores"),
    )


def check_launcher(spec: JobSpec) -> None:
    """Refuse a program that would start ranks itself, once in every rank.

    Raises:
        BadInput: names the launcher to use.
    """
    name = Path(spec.program[0]).name if spec.program else ""
    if spec.launcher == "single" or name not in _STARTS_RANKS:
        return
    better = "torchrun" if name == "torchrun" else "mpi"
    raise BadInput(
        f"'{name}' would be started by every rank, and start all ranks each time",
        hint=f"leave it out: --launcher {better} -- PROGRAM starts a process per rank; "
        "or --launcher single, where it starts those of one node",
    )


def launch_argv(site: Site, spec: JobSpec, layout: Layout) -> tuple[str, ...]:
    """The launcher and its options: everything before the program."""
    inside = _pyxis(site, spec) if spec.container and site.container == "pyxis" else ()
    if spec.launcher == "horovod-mpirun":
        if inside:
            raise BadInput(
                "Pyxis starts containers under srun, not under mpirun",
                hint="use --launcher horovod",
            )
        # Mapped by socket, not bound, TCP or UCX but never openib: the setting that was fastest on
        # V100 nodes (Dell EMC, CheXNet at scale, 2019), as Horovod's own documents advise.
        return (
            "mpirun", "-np", str(layout.world_size), "--bind-to", "none", "--map-by", "socket",
            "-mca", "pml", "ob1", "-mca", "btl", "^openib",
        )  # fmt: skip
    return ("srun", *launch_options(site, spec, layout), *inside)


def network_variables(partition: Partition, layout: Layout) -> tuple[tuple[str, str], ...]:
    """What makes MPI and NCCL take the interface that the site names, between several nodes."""
    interface = partition.interconnect.interface
    if interface is None or layout.nodes < 2:
        return ()
    return tuple((name, interface) for name in _INTERFACE_OF)


def container_variables(site: Site, spec: JobSpec) -> tuple[tuple[str, str], ...]:
    """What lets the ranks of a node talk where each one is in a container of its own."""
    return _APART_IN_MEMORY if spec.container and site.container in _CONTAINER_PER_RANK else ()


def check_trust(site: Site, spec: JobSpec) -> None:
    """Raise BadInput for TensorFlow's server where nobody said that the network may be trusted."""
    if spec.launcher == "multiworker" and not (spec.trusted_network or site.trusted_network):
        raise BadInput(
            "the launcher 'multiworker' opens TensorFlow's server, which asks nobody for a "
            "password: whoever reaches its port runs code as you",
            hint="use --launcher horovod; or --trusted-network, where all who reach the nodes' "
            "ports are trusted",
        )


def check_container(site: Site, spec: JobSpec) -> None:
    """Raise BadInput for a container where the site declares no runtime for it."""
    if spec.container and site.container is None:
        raise BadInput(
            f"the site '{site.name}' declares no container runtime",
            hint="its site file must say `container: apptainer`, `charliecloud` or `pyxis`",
        )


def _mounts(site: Site, spec: JobSpec) -> list[str]:
    """What a container must see: work and data sets, this job's files and data, its program's.

    Staged data is seen through HPCDL_DATA, which lies in the scratch of the node; what did not fit
    is linked to where it came from.
    """
    wanted = [site.paths.work, site.paths.datasets, *spec.files]
    wanted += [Path(path) for path in (spec.job_dir, spec.data, spec.chdir, spec.python_path)
               if path]  # fmt: skip
    found: list[Path] = []
    for path in wanted:
        if not any(path.is_relative_to(seen) for seen in found):
            found.append(path)
    scratch = site.partition(spec.partition).scratch
    own = scratch and not any(Path(scratch.path).is_relative_to(seen) for seen in found)
    local = [quote.Expandable(scratch.path)] if scratch and own else []
    return [*map(str, found), *local]


def _work_folder(spec: JobSpec) -> str:
    """Where the program works, as bash shall read it."""
    return str(spec.chdir) if spec.chdir else quote.Expandable("$HPCDL_JOB_DIR")


def _joined(option: str, value: str) -> str:
    """`OPTION=VALUE`, expanded where the value is to be."""
    kind = type(value)
    return kind(f"{option}={value}")


def _pyxis(site: Site, spec: JobSpec) -> tuple[str, ...]:
    """Options of srun that Pyxis adds: image, mounts, and the job's directory to work in."""
    paths = _mounts(site, spec)
    mounts = ",".join(f"{path}:{path}" for path in paths)
    expands = any(isinstance(path, quote.Expandable) for path in paths)
    option = _joined("--container-mounts", quote.Expandable(mounts) if expands else mounts)
    return (
        f"--container-image={spec.container}",
        option,
        _joined("--container-workdir", _work_folder(spec)),
    )


def _apptainer(site: Site, spec: JobSpec, *, gpus: bool) -> tuple[str, ...]:
    """The arguments before a program that run it in an Apptainer image."""
    binds = [_joined("--bind", path) for path in _mounts(site, spec)]
    start = ("apptainer", "exec", *(["--nv"] if gpus else []))
    return (*start, *binds, _joined("--pwd", _work_folder(spec)), str(spec.container))


def _charliecloud(site: Site, spec: JobSpec) -> tuple[str, ...]:
    """The same for Charliecloud; the image has the GPU's libraries in it (ch-fromhost --nvidia)."""
    binds = [_joined("--bind", path) for path in _mounts(site, spec)]
    return ("ch-run", *binds, _joined("--cd", _work_folder(spec)), str(spec.container), "--")


def program_argv(site: Site, spec: JobSpec, layout: Layout) -> tuple[str, ...]:
    """The program as the launcher must be given it: `$rank` and `$agent` are the script's."""
    program = step_command(spec.program or ("hpcdl", "train"))
    rank: tuple[str, ...] = ("sh", "-c", quote.Expandable("$rank"), "rank")
    rank = rank if together(spec, layout) else ()
    if spec.launcher == "torchrun":
        program = ("sh", "-c", quote.Expandable("$agent"), "agent", *rank, *program)
        rank = ()
    if spec.container and site.container == "apptainer":
        gpus = site.partition(spec.partition).gpu is not None
        program = (*_apptainer(site, spec, gpus=gpus), *program)
    if spec.container and site.container == "charliecloud":
        program = (*_charliecloud(site, spec), *program)
    if spec.launcher == "multiworker":
        program = ("bash", "-c", _TF_CONFIG, "worker", *program)
    return (*rank, *program)


def step_command(program: tuple[str, ...]) -> tuple[str, ...]:
    """The program for launchers: to them a lone argument `:` would start another component."""
    if ":" not in program:
        return program
    return ("bash", "-c", f"exec {quote.quote_argv(program)}")
