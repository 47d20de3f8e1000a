"""Launchers: how the ranks of a step start and find each other, by release of Slurm. Pure.

Roles, ranks, ports and host lists are worked out here and in the script; no user edits a hosts
file. All but `horovod-mpirun` start under srun. Under `torch` each rank is a task of Slurm's: it
gets signals, and its exit code is the job's; under `torchrun` neither holds for the agent, so that
its workers are reached past it. What a release needs or must not see are rows of
facts/slurm_steps.yaml: a script means the same on each, whatever the submitting shell has set.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from hpcdl import facts
from hpcdl.jobs.layout import Layout
from hpcdl.jobs.spec import LAUNCHERS, STARTERS, JobSpec, is_train
from hpcdl.results.gpus import is_slice
from hpcdl.site import Partition, Site
from hpcdl.site.model import SlurmDialect
from hpcdl.slurm.rules import SlurmRelease, known_release, mpi_plugins, span
from hpcdl.slurm.unwrap import rank_starter
from hpcdl.system.errors import BadInput
from hpcdl.system.resources import cached
from hpcdl.system.text import Expandable, bash_words, did_you_mean

PORTS = "12000-32767"
"""Where tf.distribute's workers listen: below the ephemeral range."""

_NCCL_INTERFACE = ("NCCL_SOCKET_IFNAME",)
# Open MPI's for data and for its daemons (mpirun).
_MPI_INTERFACE = ("OMPI_MCA_btl_tcp_if_include", "OMPI_MCA_oob_tcp_if_include")

# Each rank gets a user namespace, and the kernel lets none read another's memory: messages that
# Open MPI 4 would copy so never arrive (measured; later ones and UCX look for themselves).
_CONTAINER_PER_RANK = frozenset({"apptainer", "charliecloud"})
_APART_IN_MEMORY = (("OMPI_MCA_btl_vader_single_copy_mechanism", "none"),)

_IN_EVERY_RELEASE = frozenset({"none", "pmi2", "pmix"})

_NAMES_A_LINE = 10


def launch_options(site: Site, spec: JobSpec, layout: Layout) -> tuple[str, ...]:
    """Options of srun for a step that fills the job: what scripts and checks both use."""
    row = LAUNCHERS[spec.launcher]
    mpi = site.slurm.mpi if row.mpi and not row.mpirun else "none"
    rows = steps(site.slurm, "options")
    rows += steps(site.slurm, "by_socket") if layout.by_socket else []
    return (
        f"--mpi={mpi}",
        f"--cpus-per-task={layout.cpus_per_task}",
        *(row["option"] for row in rows),
        f"--kill-on-bad-exit={int(not row.apart or row.one_process)}",
    )


def rank_values(site: Site, spec: JobSpec, partition: Partition, layout: Layout) -> dict[str, Any]:
    """Return the template's values: how ranks start, work, meet and end."""
    row, workers, cpus = LAUNCHERS[spec.launcher], layout.tasks_per_node, layout.cpus_per_task
    if row.agent:  # it is the one task of a node
        workers = layout.gpus_per_node or spec.tasks_per_node or 1
        cpus //= workers
    # No OMP_PLACES: with it libgomp binds the main thread to one core as soon as it is loaded, and
    # the workers that a pool or a DataLoader forks inherit that core.
    threads = max(1, cpus // partition.threads_per_core) if row.openmp else None
    # What makes MPI and NCCL take the interface that the site names, between several nodes.
    interface = partition.interconnect.interface if layout.nodes > 1 else None
    named = (*_NCCL_INTERFACE, *(_MPI_INTERFACE if row.mpi else ()))
    apart = row.mpi and spec.container and site.container in _CONTAINER_PER_RANK
    reason = "one launcher for all nodes; Slurm's default would hang when one rank dies"
    if layout.by_socket and not row.mpirun:
        reason += f"; {steps(site.slurm, 'by_socket')[0]['reason']}"
    ranks = layout.nodes * workers
    waits = (ranks > 1 or bool(row.per_rank)) and not row.apart
    number = "OMPI_COMM_WORLD_RANK" if row.mpirun else "RANK" if row.agent else "SLURM_PROCID"
    # `hpcdl train` finds its ranks by Horovod.
    asks = not is_train(spec.program) and not row.apart
    sizes = {"nodes": layout.nodes, "workers": workers, "ranks": ranks}
    return {
        "meets": row.meets or (asks and layout.world_size > 1),
        "launcher": row,
        "agent": row.agent.format(**sizes),
        "per_rank": row.per_rank.format(**sizes),
        "ports": PORTS,
        # Where ranks end together: the variable with the number of each; None where none waits.
        "rank_name": number if waits else None,
        "workers": workers,
        "threads": threads,
        "network": [(name, interface) for name in named if interface],
        "container": _APART_IN_MEMORY if apart else (),
        "launch": _launch_argv(site, spec, layout),
        "launch_reason": reason,
    }


def check_launcher(spec: JobSpec) -> None:
    """Raise BadInput for a program that would start ranks itself, once in every rank."""
    name = rank_starter(spec.program)
    if not name or LAUNCHERS[spec.launcher].one_process:
        return
    if name in {"sbatch", "salloc"}:
        raise BadInput(
            f"'{name}' would submit another job, from within this one",
            hint="`hpcdl job submit -- PROGRAM` takes the program itself; for a batch script of "
            "your own run sbatch, and `hpcdl job lint SCRIPT` checks it",
        )
    raise BadInput(
        f"'{name}' would be started by every rank, and start all ranks each time",
        hint=f"leave it out: --launcher {STARTERS.get(name, 'mpi')} -- PROGRAM starts a process "
        "per rank; or --launcher single, where it starts those of one node",
    )


def traps(spec: JobSpec) -> bool:
    """Whether the program is a shell that traps USR2, which it cannot where it is ignored."""
    return spec.traps or any("USR2" in word for word in spec.program)


def check_ranks(site: Site, spec: JobSpec, partition: Partition, layout: Layout) -> None:
    """Raise BadInput for ranks that could not start here, or would not find each other."""
    row, plugin = LAUNCHERS[spec.launcher], site.slurm.mpi
    if plugin not in _IN_EVERY_RELEASE and plugin not in mpi_plugins(site.slurm.version):
        message = f"Slurm {site.slurm.version} has no MPI plug-in '{plugin}'"
        raise BadInput(message, hint=did_you_mean(plugin, mpi_plugins(site.slurm.version)))
    if spec.container and site.container is None:
        hint = "its site file must say `container: apptainer`, `charliecloud` or `pyxis`"
        raise BadInput(f"the site '{site.name}' declares no container runtime", hint=hint)
    if spec.container and site.container == "pyxis" and row.mpirun:
        message = "Pyxis starts containers under srun, not under mpirun"
        raise BadInput(message, hint="use --launcher horovod or mpi")
    if row.server and not (spec.trusted_network or site.trusted_network):
        raise BadInput(
            f"the launcher '{row.name}' opens TensorFlow's server, which has no "
            "password: anyone who can reach its port can run code as you",
            hint="use --launcher horovod; or, where all who reach the nodes' ports are trusted, "
            "`trusted_network: true` in job.yaml or the site file",
        )
    if row.mpi and not row.mpirun and plugin == "none" and layout.world_size > 1:
        raise BadInput(
            f"{layout.world_size} ranks cannot find each other by MPI: srun of '{site.name}' has "
            "no PMI (`slurm.mpi: none` in the site file)",
            hint=f"use --launcher {row.name}-mpirun; or correct `slurm.mpi`: "
            "`srun --mpi=list` shows the plug-ins",
        )
    several = layout.nodes * max(layout.tasks_per_node, layout.gpus_per_node) > 1
    together = several and (row.one_process or not row.apart)
    gpu = partition.gpu
    if gpu and together and (is_slice(gpu.gres_type or "") or is_slice(gpu.model)):
        raise BadInput(
            f"the GPUs of '{partition.name}' are slices of GPUs (MIG), which cannot exchange data",
            hint="use --gpus 1; `hpcdl job sweep`, or --launcher plain, runs many such processes",
        )


def _launch_argv(site: Site, spec: JobSpec, layout: Layout) -> tuple[str, ...]:
    """The launcher and its options: everything before the program."""
    if LAUNCHERS[spec.launcher].mpirun:
        # Mapped by socket, not bound, TCP or UCX but never openib: the setting that was fastest on
        # V100 nodes (Dell EMC, CheXNet at scale, 2019), as Horovod's own documents advise.
        fastest = "--bind-to none --map-by socket -mca pml ob1 -mca btl ^openib"
        return ("mpirun", "-np", str(layout.world_size), *fastest.split())
    options = launch_options(site, spec, layout)
    if not spec.container or site.container != "pyxis":
        return ("srun", *options)
    paths = _mounts(site, spec)
    mounts = ",".join(f"{path}:{path}" for path in paths)
    expands = any(isinstance(path, Expandable) for path in paths)
    return (
        "srun",
        *options,
        f"--container-image={spec.container}",
        _joined("--container-mounts", Expandable(mounts) if expands else mounts),
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
    """Return the paths to mount in a container: work, data sets, and the job's and program's files.

    Staged data is seen through HPCDL_DATA, which is in the scratch of the node; what did not fit
    is linked to where it came from.
    """
    own: list[Path | str | None] = [spec.job_dir, spec.data, spec.chdir, spec.python_path]
    mounted: list[Path] = []
    named = [Path(one) for one in own if one]
    for path in (site.paths.work, site.paths.datasets, *spec.files, *named):
        if not any(path.is_relative_to(seen) for seen in mounted):
            mounted.append(path)
    scratch = site.partition(spec.partition).scratch
    seen = not scratch or any(Path(scratch.path).is_relative_to(path) for path in mounted)
    return [*map(str, mounted), *([Expandable(scratch.path)] if scratch and not seen else [])]


def _work_folder(spec: JobSpec) -> str:
    return str(spec.chdir) if spec.chdir else Expandable("$HPCDL_JOB_DIR")


def _joined(option: str, value: str) -> str:
    """`OPTION=VALUE`, expanded where the value is to be."""
    return type(value)(f"{option}={value}")


def program_argv(site: Site, spec: JobSpec, waits: bool) -> tuple[str, ...]:
    """The program as the launcher must be given it; the script sets $HPCDL_RANK and $hpcdl_agent.

    `waits` is whether its ranks end together. A rank starts with USR2 ignored: the signal before
    the time limit would end a program that has no handler for it. A handler overrides that. Only a
    shell cannot trap what it inherits as ignored; where one does, the program is left as it is.
    """
    row, program = LAUNCHERS[spec.launcher], step_command(spec.program)
    rank: tuple[str, ...] = ()
    if waits:
        rank = ("sh", "-c", Expandable("$HPCDL_RANK"), "rank")
    elif spec.signal_before and not traps(spec) and not is_train(spec.program):
        rank = ("sh", "-c", 'trap "" USR2; exec "$@"', "rank")
    if row.agent:
        program = ("sh", "-c", Expandable("$hpcdl_agent"), "agent", *rank, *program)
        rank = ()
    if spec.container and site.container != "pyxis":
        program = (*_in_image(site, spec), *program)
    if row.server:
        program = ("bash", "-c", Expandable("$hpcdl_worker"), "worker", *program)
    return (*rank, *program)


def step_command(program: tuple[str, ...]) -> tuple[str, ...]:
    """The program for launchers: to them a lone argument `:` would start another component."""
    if ":" not in program:
        return program
    return ("bash", "-c", f"exec {bash_words(program)}")


# ---- releases of Slurm ----


def steps(slurm: SlurmDialect, what: str) -> list[dict[str, Any]]:
    """The facts about steps that hold on this release.

    `what` is a key of facts/slurm_steps.yaml: `options` that a step needs beyond those it always
    has, those of ranks that fill one socket after another (`by_socket`), the `environment` that a
    launcher needs, and what sbatch sets of what srun reads as options (`set_by_sbatch`).
    """
    release = SlurmRelease.parse(slurm.version)
    return [row for row in _steps()[what] if span(row).holds(release)]


def inherited(slurm: SlurmDialect, *, gpus: bool) -> list[list[str]]:
    """Return the variables that a script clears, in lines of it, without their `SLURM_`.

    Not those that sbatch sets itself; `gpus`: the job asks for GPUs.
    """
    form = slurm.gpu_request if gpus else None
    own = [row["name"] for row in steps(slurm, "set_by_sbatch") if row.get("form") in {None, form}]
    names = [name for name in _steps()["inherited"] if name not in own]
    return [names[start : start + _NAMES_A_LINE] for start in range(0, len(names), _NAMES_A_LINE)]


def variables(slurm: SlurmDialect, launcher: str, nodes: int) -> list[dict[str, Any]]:
    """The variables that steps of a launcher need on so many nodes."""
    row = LAUNCHERS[launcher]
    starts = "mpirun" if row.mpirun else "mpi" if row.mpi else ""
    return [
        row
        for row in steps(slurm, "environment")
        if row["starts"] == starts
        and ("plugin" not in row or (nodes > 1 and slurm.mpi.startswith(row["plugin"])))
    ]


def with_version(site: Site, version: str) -> Site:
    """The site as if its Slurm were of another release; BadInput for one that is not known."""
    return replace(site, slurm=replace(site.slurm, version=str(known_release(version))))


@cache
def _steps() -> dict[str, Any]:
    """The facts about steps; YAML is read only when they have changed."""
    name = "slurm_steps"
    found: dict[str, Any] = cached("facts", [facts.path(name)], lambda: facts.load(name))
    return found
