"""Launchers: how the ranks of a step start and find each other. Pure.

Roles, ranks, ports and host lists are worked out here and in the script; no user edits a hosts
file. `horovod` and `single` start under srun; `horovod-mpirun` is Open MPI's own launcher inside
the allocation; `multiworker` passes tf.distribute its peers in TF_CONFIG.
"""

from __future__ import annotations

from pathlib import Path

from hpcdl.jobs import quote, slurm_compat
from hpcdl.jobs.layout import Layout
from hpcdl.jobs.spec import JobSpec
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

# The index of a worker is its rank; $HPCDL_WORKERS is made once by the script.
_TF_CONFIG = (
    'export TF_CONFIG="{\\"cluster\\":{\\"worker\\":[$HPCDL_WORKERS]},'
    '\\"task\\":{\\"type\\":\\"worker\\",\\"index\\":$SLURM_PROCID}}"; exec "$@"'
)


def launch_options(site: Site, spec: JobSpec, layout: Layout) -> tuple[str, ...]:
    """Options of srun for a step that fills the job: what scripts and checks both use."""
    mpi = site.slurm.mpi if spec.launcher == "horovod" else "none"
    return (
        f"--mpi={mpi}",
        f"--cpus-per-task={layout.cpus_per_task}",
        *slurm_compat.step_options(site.slurm),
        *(slurm_compat.by_socket(site.slurm)[0] if layout.by_socket else ()),
        "--kill-on-bad-exit=1",
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


def check_trust(site: Site, spec: JobSpec) -> None:
    """Refuse TensorFlow's server where nobody said that the network may be trusted with it.

    Raises:
        BadInput: see above.
    """
    if spec.launcher == "multiworker" and not (spec.trusted_network or site.trusted_network):
        raise BadInput(
            "the launcher 'multiworker' opens TensorFlow's server, which asks nobody for a "
            "password: whoever reaches its port runs code as you",
            hint="use --launcher horovod; or --trusted-network, where all who reach the nodes' "
            "ports are trusted",
        )


def check_container(site: Site, spec: JobSpec) -> None:
    """Refuse a container where the site declares no runtime for it.

    Raises:
        BadInput: see above.
    """
    if spec.container and site.container is None:
        raise BadInput(
            f"the site '{site.name}' declares no container runtime",
            hint="its site file must say `container: apptainer` or `container: pyxis`",
        )


def _mounts(site: Site, spec: JobSpec) -> list[Path]:
    """What a container must see: the directories of jobs, data sets and this job, and its data.

    Staged data is seen through HPCDL_DATA; what did not fit is linked to where it came from.
    """
    wanted = [site.paths.work, site.paths.datasets]
    wanted += [Path(path) for path in (spec.job_dir, spec.data) if path]
    found: list[Path] = []
    for path in wanted:
        if not any(path.is_relative_to(seen) for seen in found):
            found.append(path)
    return found


def _pyxis(site: Site, spec: JobSpec) -> tuple[str, ...]:
    """Options of srun that Pyxis adds: image, mounts, and the job's directory to work in."""
    mounts = ",".join(f"{path}:{path}" for path in _mounts(site, spec))
    option = f"--container-mounts={mounts}"
    if spec.stage:
        option = quote.Expandable(f"{option},$HPCDL_DATA:$HPCDL_DATA")
    return (
        f"--container-image={spec.container}",
        option,
        quote.Expandable("--container-workdir=$HPCDL_JOB_DIR"),
    )


def _apptainer(site: Site, spec: JobSpec, *, gpus: bool) -> tuple[str, ...]:
    """The arguments before a program that run it in an Apptainer image."""
    binds = [f"--bind={path}" for path in _mounts(site, spec)]
    binds += [quote.Expandable("--bind=$HPCDL_DATA")] if spec.stage else []
    return ("apptainer", "exec", *(["--nv"] if gpus else []), *binds, str(spec.container))


def program_argv(site: Site, spec: JobSpec) -> tuple[str, ...]:
    """The program as the launcher must be given it."""
    program = spec.program or ("hpcdl", "train")
    if spec.container and site.container == "apptainer":
        gpus = site.partition(spec.partition).gpu is not None
        program = (*_apptainer(site, spec, gpus=gpus), *program)
    if spec.launcher == "multiworker":
        program = ("bash", "-c", _TF_CONFIG, "worker", *program)
    return step_command(program)


def step_command(program: tuple[str, ...]) -> tuple[str, ...]:
    """The program for launchers: to them a lone argument `:` would start another component."""
    if ":" not in program:
        return program
    return ("bash", "-c", f"exec {quote.quote_argv(program)}")
