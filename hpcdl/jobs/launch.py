"""Launchers: how the ranks of a step start and find each other. Pure.

Roles, ranks, ports and host lists are worked out here and in the script; nobody edits a hosts
file. `horovod` and `single` start under srun; `horovod-mpirun` is Open MPI's own launcher inside
the allocation; `multiworker` tells tf.distribute its peers by TF_CONFIG.
"""

from __future__ import annotations

from hpcdl.jobs import dialect, quote
from hpcdl.jobs.layout import Layout
from hpcdl.jobs.spec import JobSpec
from hpcdl.site import Site

WORKER_PORT = 12000
"""First port of tf.distribute's workers: below the ephemeral range, which starts at 32768."""

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
        *dialect.step_options(site.slurm),
        "--kill-on-bad-exit=1",
    )


def launch_words(site: Site, spec: JobSpec, layout: Layout) -> tuple[str, ...]:
    """The launcher and its options: everything before the program."""
    if spec.launcher == "horovod-mpirun":
        # Mapped by socket, not bound, TCP or UCX but never openib: the form that was fastest on
        # V100 nodes (Dell EMC, CheXNet at scale, 2019), as Horovod's own documents advise.
        return (
            "mpirun", "-np", str(layout.world_size), "--bind-to", "none", "--map-by", "socket",
            "-mca", "pml", "ob1", "-mca", "btl", "^openib",
        )  # fmt: skip
    return ("srun", *launch_options(site, spec, layout))


def program_words(spec: JobSpec) -> tuple[str, ...]:
    """The program as the launcher must be given it."""
    program = spec.program or ("hpcdl", "train")
    if spec.launcher == "multiworker":
        program = ("bash", "-c", _TF_CONFIG, "worker", *program)
    return step_command(program)


def step_command(program: tuple[str, ...]) -> tuple[str, ...]:
    """The program as launchers must be given it: a word `:` alone would start another component."""
    if ":" not in program:
        return program
    return ("bash", "-c", f"exec {quote.words(program)}")
