"""Launchers: how the ranks of a step start and find each other, by release of Slurm. Pure.

Roles, ranks, ports and host lists are worked out here and in the script; no user edits a hosts
file. All but `horovod-mpirun` start under srun. Under `torch` each rank is a task of Slurm's: it
gets signals, and its exit code is the job's; under `torchrun` neither holds for the agent, so that
its workers are told and heard past it. What a release needs or must not see are rows of
facts/slurm_steps.yaml: a script means the same on each, whatever the submitting shell has set.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from hpcdl import facts
from hpcdl.jobs import quote
from hpcdl.jobs.layout import Layout
from hpcdl.jobs.spec import JobSpec, is_train
from hpcdl.site import Partition, Site
from hpcdl.site.model import SlurmDialect
from hpcdl.slurm.rules import Release, known_release, mpi_plugins, span
from hpcdl.system.errors import BadInput
from hpcdl.system.resources import cached
from hpcdl.system.text import did_you_mean

PORTS = "12000-32767"
"""Where tf.distribute's workers listen: below the ephemeral range."""

# NCCL's own variable, then Open MPI's for data and for its daemons (mpirun).
_INTERFACE_OF = ("NCCL_SOCKET_IFNAME", "OMPI_MCA_btl_tcp_if_include", "OMPI_MCA_oob_tcp_if_include")

# Each rank gets a user namespace, and the kernel lets none read another's memory: messages that
# Open MPI 4 would copy so never arrive (measured; later ones and UCX look for themselves).
_CONTAINER_PER_RANK = frozenset({"apptainer", "charliecloud"})
_APART_IN_MEMORY = (("OMPI_MCA_btl_vader_single_copy_mechanism", "none"),)

_IN_EVERY_RELEASE = frozenset({"none", "pmi2", "pmix"})
_WITH_MPI = frozenset({"horovod", "mpi"})
_WITH_OPENMP = frozenset({"mpi", "torch", "torchrun", "plain", "single"})
# Whose programs ask where ranks meet, also a rank alone.
_ASK_WHERE = frozenset({"torch", "torchrun", "jax"})
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
    rows = steps(site.slurm, "options")
    rows += steps(site.slurm, "by_socket") if layout.by_socket else []
    return (
        f"--mpi={mpi}",
        f"--cpus-per-task={layout.cpus_per_task}",
        *(row["option"] for row in rows),
        f"--kill-on-bad-exit={int(spec.launcher != 'plain')}",
    )


def rank_values(site: Site, spec: JobSpec, partition: Partition, layout: Layout) -> dict[str, Any]:
    """What a script's template must know of how ranks start, work, meet and end."""
    workers, cpus = layout.tasks_per_node, layout.cpus_per_task
    if spec.launcher == "torchrun":  # its agent is the one task of a node
        workers = layout.gpus_per_node or spec.tasks_per_node or 1
        cpus //= workers
    # What keeps the threads of a rank on its own cores; others' threads are set by themselves.
    threads = (
        ("OMP_NUM_THREADS", max(1, cpus // partition.threads_per_core)),
        ("OMP_PLACES", "cores"),
    )
    # What makes MPI and NCCL take the interface that the site names, between several nodes.
    interface = partition.interconnect.interface if layout.nodes > 1 else None
    apart = spec.container and site.container in _CONTAINER_PER_RANK
    reason = "one launcher for all nodes; Slurm's default would hang when one rank dies"
    if layout.by_socket and spec.launcher != "horovod-mpirun":
        reason += f"; {steps(site.slurm, 'by_socket')[0]['reason']}"
    several = layout.nodes * workers > 1 or spec.launcher == "torch"
    waits = several and spec.launcher not in _APART
    # `hpcdl train` finds its ranks by Horovod.
    asks = spec.program and not is_train(spec.program) and spec.launcher not in _APART
    return {
        "meets": spec.launcher in _ASK_WHERE or (asks and layout.world_size > 1),
        "ports": PORTS,
        # Where ranks end together: the variable with the number of each; None where none waits.
        "rank_name": _RANK.get(spec.launcher, "SLURM_PROCID") if waits else None,
        "workers": workers,
        "openmp": threads if spec.launcher in _WITH_OPENMP else (),
        "network": [(name, interface) for name in _INTERFACE_OF if interface],
        "container": _APART_IN_MEMORY if apart else (),
        "launch": _launch_argv(site, spec, layout),
        "launch_reason": reason,
    }


def check_launcher(spec: JobSpec) -> None:
    """Raise BadInput for a program that would start ranks itself, once in every rank."""
    name = Path(spec.program[0]).name if spec.program else ""
    if " ".join(spec.program[1:3]) in {"-m torch.distributed.run", "-m torch.distributed.launch"}:
        name = "torchrun"
    if spec.launcher == "single" or name not in _STARTS_RANKS:
        return
    better = "torchrun" if name == "torchrun" else "mpi"
    raise BadInput(
        f"'{name}' would be started by every rank, and start all ranks each time",
        hint=f"leave it out: --launcher {better} -- PROGRAM starts a process per rank; "
        "or --launcher single, where it starts those of one node",
    )


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
    """Raise BadInput for a container that the site or the launcher cannot start."""
    if spec.container and site.container is None:
        hint = "its site file must say `container: apptainer`, `charliecloud` or `pyxis`"
        raise BadInput(f"the site '{site.name}' declares no container runtime", hint=hint)
    if spec.container and site.container == "pyxis" and spec.launcher == "horovod-mpirun":
        raise BadInput(
            "Pyxis starts containers under srun, not under mpirun", hint="use --launcher horovod"
        )


def _launch_argv(site: Site, spec: JobSpec, layout: Layout) -> tuple[str, ...]:
    """The launcher and its options: everything before the program."""
    if spec.launcher == "horovod-mpirun":
        # Mapped by socket, not bound, TCP or UCX but never openib: the setting that was fastest on
        # V100 nodes (Dell EMC, CheXNet at scale, 2019), as Horovod's own documents advise.
        return (
            "mpirun",
            "-np",
            str(layout.world_size),
            "--bind-to",
            "none",
            "--map-by",
            "socket",
            "-mca",
            "pml",
            "ob1",
            "-mca",
            "btl",
            "^openib",
        )
    options = launch_options(site, spec, layout)
    if not spec.container or site.container != "pyxis":
        return ("srun", *options)
    paths = _mounts(site, spec)
    mounts = ",".join(f"{path}:{path}" for path in paths)
    expands = any(isinstance(path, quote.Expandable) for path in paths)
    return (
        "srun",
        *options,
        f"--container-image={spec.container}",
        _joined("--container-mounts", quote.Expandable(mounts) if expands else mounts),
        _joined("--container-workdir", _work_folder(spec)),
    )


def _in_image(site: Site, spec: JobSpec) -> tuple[str, ...]:
    """The arguments before a program by which a rank runs it in its image.

    Charliecloud's images have the GPU's libraries in them (ch-fromhost --nvidia).
    """
    binds = [_joined("--bind", path) for path in _mounts(site, spec)]
    if site.container == "charliecloud":
        return ("ch-run", *binds, _joined("--cd", _work_folder(spec)), str(spec.container), "--")
    gpus = ["--nv"] if site.partition(spec.partition).gpu else []
    folder = _joined("--pwd", _work_folder(spec))
    return ("apptainer", "exec", *gpus, *binds, folder, str(spec.container))


def _mounts(site: Site, spec: JobSpec) -> list[str]:
    """What a container must see: work and data sets, this job's files and data, its program's.

    Staged data is seen through HPCDL_DATA, which lies in the scratch of the node; what did not fit
    is linked to where it came from.
    """
    own: list[Path | str | None] = [spec.job_dir, spec.data, spec.chdir, spec.python_path]
    found: list[Path] = []
    named = [Path(one) for one in own if one]
    for path in (site.paths.work, site.paths.datasets, *spec.files, *named):
        if not any(path.is_relative_to(seen) for seen in found):
            found.append(path)
    scratch = site.partition(spec.partition).scratch
    seen = not scratch or any(Path(scratch.path).is_relative_to(path) for path in found)
    return [*map(str, found), *([quote.Expandable(scratch.path)] if scratch and not seen else [])]


def _work_folder(spec: JobSpec) -> str:
    return str(spec.chdir) if spec.chdir else quote.Expandable("$HPCDL_JOB_DIR")


def _joined(option: str, value: str) -> str:
    """`OPTION=VALUE`, expanded where the value is to be."""
    return type(value)(f"{option}={value}")


def program_argv(site: Site, spec: JobSpec, waits: bool) -> tuple[str, ...]:
    """The program as the launcher must be given it: `$rank` and `$agent` are the script's.

    `waits` is whether its ranks end together.
    """
    program = step_command(spec.program or ("hpcdl", "train"))
    rank = ("sh", "-c", quote.Expandable("$rank"), "rank") if waits else ()
    if spec.launcher == "torchrun":
        program = ("sh", "-c", quote.Expandable("$agent"), "agent", *rank, *program)
        rank = ()
    if spec.container and site.container != "pyxis":
        program = (*_in_image(site, spec), *program)
    if spec.launcher == "multiworker":
        program = ("bash", "-c", _TF_CONFIG, "worker", *program)
    return (*rank, *program)


def step_command(program: tuple[str, ...]) -> tuple[str, ...]:
    """The program for launchers: to them a lone argument `:` would start another component."""
    if ":" not in program:
        return program
    return ("bash", "-c", f"exec {quote.quote_argv(program)}")


# ---- releases of Slurm ----


def steps(slurm: SlurmDialect, what: str) -> list[dict[str, Any]]:
    """The facts about steps that hold on this release.

    `what` is a key of facts/slurm_steps.yaml: `options` that a step needs beyond those it always
    has, those of ranks that fill the sockets one after the other (`by_socket`), the `environment`
    that a launcher needs, why the step too has the CPUs of a rank (`cpus_per_task`), and the
    variables that sbatch itself sets among those that srun reads as options (`set_by_sbatch`).
    """
    release = Release.parse(slurm.version)
    return [row for row in _steps()[what] if span(row).holds(release)]


def own_variables(slurm: SlurmDialect, *, gpus: bool) -> list[str]:
    """What sbatch sets for a job; `gpus` is whether it asks for GPUs, as `slurm` takes it."""
    form = slurm.gpu_request if gpus else None
    return [row["name"] for row in steps(slurm, "set_by_sbatch") if row.get("form") in {None, form}]


def variables(slurm: SlurmDialect, launcher: str, nodes: int) -> list[dict[str, Any]]:
    """The variables that steps of a launcher need on so many nodes."""
    return [
        row
        for row in steps(slurm, "environment")
        if launcher in row["launchers"]
        and ("plugin" not in row or (nodes > 1 and slurm.mpi.startswith(row["plugin"])))
    ]


def check_mpi(site: Site) -> None:
    """Raise BadInput for an MPI plug-in that the site's release of Slurm cannot have."""
    plugin = site.slurm.mpi
    if plugin not in _IN_EVERY_RELEASE and plugin not in mpi_plugins(site.slurm.version):
        said = f"Slurm {site.slurm.version} has no MPI plug-in '{plugin}'"
        raise BadInput(said, hint=did_you_mean(plugin, mpi_plugins(site.slurm.version)))


def with_version(site: Site, version: str) -> Site:
    """The site as if its Slurm were of another release; BadInput for one that is not known."""
    return replace(site, slurm=replace(site.slurm, version=str(known_release(version))))


@cache
def _steps() -> dict[str, Any]:
    """The facts about steps; YAML is read only when they have changed."""
    name = "slurm_steps"
    found: dict[str, Any] = cached("facts", [facts.path(name)], lambda: facts.load(name))
    return found
