"""The launchers: one row holds all that differs between them. Pure.

A new launcher is a row here, a row of the table in docs/users.md, and a case of a test.
"""

from __future__ import annotations

from typing import NamedTuple


class Launcher(NamedTuple):
    """How the ranks of a step start, find each other and end.

    `mpi`: ranks meet through MPI: by the plug-in of `srun --mpi`, or with `mpirun` through it.
    `gpu_each`: each rank needs a GPU where the partition has GPUs. `one_process`: it is not for
    several nodes. `agent` is the command that each node's one task runs, in a shell that has
    {nodes} and {workers} filled in; it starts the workers. `apart`: the ranks know nothing of each
    other, and one that fails ends no other. `meets`: the program asks where ranks meet, also where
    it is alone. `openmp`: OMP_NUM_THREADS is set. `exports` is a further variable of the script;
    `per_rank` are those that each rank's own shell works out. `server`: it opens a server that asks
    for no password.
    """

    name: str
    summary: str
    mpi: bool = False
    mpirun: bool = False
    gpu_each: bool = True
    one_process: bool = False
    agent: str = ""
    apart: bool = False
    meets: bool = False
    openmp: bool = False
    exports: str = ""
    per_rank: str = ""
    server: bool = False


_ROWS = (
    Launcher("horovod", "srun and PMIx", mpi=True),
    Launcher("horovod-mpirun", "Open MPI's mpirun inside the allocation", mpi=True, mpirun=True),
    Launcher(
        "mpi",
        "srun and the site's MPI plug-in, for any MPI program",
        mpi=True,
        gpu_each=False,
        openmp=True,
    ),
    Launcher(
        "mpi-mpirun",
        "Open MPI's mpirun inside the allocation, for any MPI program",
        mpi=True,
        mpirun=True,
        gpu_each=False,
        openmp=True,
    ),
    Launcher(
        "torch",
        "srun, with what `init_process_group()` reads",
        meets=True,
        openmp=True,
        per_rank="RANK=$SLURM_PROCID LOCAL_RANK=$SLURM_LOCALID GROUP_RANK=$SLURM_NODEID "
        "WORLD_SIZE={ranks} LOCAL_WORLD_SIZE={workers}",
    ),
    Launcher(
        "torchrun",
        "a `torchrun` on each node, which starts a worker per GPU",
        # The static rendezvous unpickles nothing that strangers may send.
        agent='torchrun --nnodes={nodes} --nproc_per_node={workers} --node_rank="$SLURM_NODEID" '
        '--master_addr="$MASTER_ADDR" --master_port="$MASTER_PORT" --no_python',
        meets=True,
        openmp=True,
    ),
    Launcher(
        "jax",
        "srun, with the coordinator's address for `jax.distributed.initialize()`",
        meets=True,
        exports="JAX_COORDINATOR_ADDRESS=$MASTER_ADDR:$MASTER_PORT",
    ),
    Launcher("multiworker", "srun, with TF_CONFIG for tf.distribute", server=True),
    Launcher("plain", "srun, for independent processes", gpu_each=False, apart=True, openmp=True),
    Launcher("single", "one process", one_process=True, apart=True, openmp=True),
)
LAUNCHERS = {row.name: row for row in _ROWS}

STARTERS = {
    "torchrun": "torchrun",
    "accelerate": "torchrun",
    "deepspeed": "torch",
    "horovodrun": "horovod",
}
"""What starts ranks itself, and the launcher that does the same here; any other is `mpi`."""
