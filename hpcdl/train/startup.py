"""This process's place among the ranks; imports TensorFlow and Horovod cheaply.

Its place and its share of the node are read from the launcher's environment only (Open MPI, srun,
PMI), before any MPI call: threads, visible GPUs and logging must be set before the import, because
TensorFlow reads them once. A batch script's own variables (SLURM_NTASKS without a step) do not
count as ranks.
"""

from __future__ import annotations

import atexit
import gc
import os
import socket
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from hpcdl.system.errors import MissingPrerequisite
from hpcdl.system.files import process_fields
from hpcdl.system.resources import scratch_directory

# Rank, size, local rank, local size as each launcher names them; the first complete row wins.
_LAUNCHERS = (
    [f"OMPI_COMM_WORLD_{name}" for name in ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE")],
    ["SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", "SLURM_STEP_TASKS_PER_NODE"],
    ["PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"],
)


@dataclass(frozen=True)
class RankPlace:
    """One process: its rank of `size`, its place on the node, and the CPU threads it may use."""

    rank: int
    size: int
    local_rank: int
    local_size: int
    cpus: int
    host: str


def place(environ: Mapping[str, str], affinity: int, host: str) -> RankPlace:
    """The place of a process that may use `affinity` CPUs, on the node `host`.

    Its CPUs are SLURM_CPUS_PER_TASK where given. Else the mask is divided by the ranks on the node,
    for a mask of its own cannot be told from one shared by all, unless it is already so small.
    """
    rank, size, local_rank, local_size = _numbers(environ)
    asked = environ.get("SLURM_CPUS_PER_TASK", "")
    shared = affinity * local_size > (os.cpu_count() or affinity)
    if asked.isdigit() and int(asked):
        cpus = min(int(asked), affinity)
    else:
        cpus = affinity // local_size if shared else affinity
    return RankPlace(rank, size, local_rank, local_size, max(1, cpus), host)


def this_place() -> RankPlace:
    """The place of this process; its node by Slurm's name, where Slurm gives one."""
    host = os.environ.get("SLURMD_NODENAME") or socket.gethostname()
    return place(os.environ, len(os.sched_getaffinity(0)), host)


def slurm_tasks_on_node(text: str, node: int) -> int:
    """Tasks on the node with index `node` from Slurm's notation `2(x3),1`."""
    index = 0
    for part in text.split(","):
        count, _, repeat = part.partition("(x")
        index += int(repeat.rstrip(")")) if repeat else 1
        if node < index:
            return int(count)
    return 1


def _numbers(environ: Mapping[str, str]) -> tuple[int, int, int, int]:
    for rank, size, local_rank, local_size in _LAUNCHERS:
        if rank not in environ or size not in environ:
            continue
        local_text = environ.get(local_size, "1")
        if local_size == "SLURM_STEP_TASKS_PER_NODE":
            local = slurm_tasks_on_node(local_text, int(environ.get("SLURM_NODEID", "0")))
        else:
            local = int(local_text)
        return int(environ[rank]), int(environ[size]), int(environ.get(local_rank, "0")), local
    return 0, 1, 0, 1


class StartupClock:
    """Names the parts of a start-up; times in seconds, the first part begins with the process."""

    def __init__(self) -> None:
        self._last = int(process_fields("self")[19]) / os.sysconf("SC_CLK_TCK")
        self.parts: dict[str, float] = {}
        self.mark("python")

    def mark(self, part: str) -> None:
        """End the part `part` now."""
        now = time.clock_gettime(time.CLOCK_BOOTTIME)
        self.parts[part] = max(0.0, now - self._last)
        self._last = now

    def line(self) -> str:
        """`start-up 2.9 s: python 0.1, tensorflow 1.8, ...`."""
        parts = ", ".join(f"{name} {seconds:.1f}" for name, seconds in self.parts.items())
        return f"start-up {sum(self.parts.values()):.1f} s: {parts}"


def _prepare_environment(place: RankPlace, *, onednn: bool) -> None:
    """Set what TensorFlow, OpenMP and Horovod read once, without overruling the user."""
    threads = str(place.cpus)
    chosen = {
        "TF_CPP_MIN_LOG_LEVEL": "2",
        "TF_ENABLE_ONEDNN_OPTS": "1" if onednn else "0",
        "TF_FORCE_GPU_ALLOW_GROWTH": "true",
        "TF_NUM_INTRAOP_THREADS": threads,
        "TF_NUM_INTEROP_THREADS": threads,
        "OMP_NUM_THREADS": threads,
        # A cycle of 1 ms instead of 5 halves the wait for small gradients.
        "HOROVOD_CYCLE_TIME": "1",
        # Horovod's thread waits for other ranks by asking again and again, on cores that compute:
        # ResNet-50 at 128 px took 2.0 s a step instead of 0.82 s until it gave way.
        "OMPI_MCA_mpi_yield_when_idle": "1",
    }
    for name, value in chosen.items():
        os.environ.setdefault(name, value)


@cache
def _gather_temporary_files() -> None:
    """Have the temporary files of this process in one directory, which goes when it has ended.

    TensorFlow writes modules there and runs them; it leaves their byte code, and all of them where
    it is killed. The next command removes the directory of a killed one.
    """
    kept = ExitStack()
    atexit.register(kept.close)
    tempfile.tempdir = str(kept.enter_context(scratch_directory()))


def import_tensorflow(place: RankPlace, *, onednn: bool = False, xla: bool = False) -> Any:
    """Return TensorFlow with this local rank's GPU; `xla` lets it compile what it can by itself."""
    _prepare_environment(place, onednn=onednn)
    _gather_temporary_files()
    if xla:
        # Not Keras' jit_compile, which would put Horovod's operations into what XLA compiles.
        given = os.environ.get("TF_XLA_FLAGS", "")
        os.environ["TF_XLA_FLAGS"] = f"{given} --tf_xla_auto_jit=2 --tf_xla_cpu_global_jit".strip()
    with _calm_stderr():
        gc.disable()  # a third of the import would be its search among modules that all live on
        try:
            import tensorflow as tf
        except ImportError as fault:
            raise MissingPrerequisite(
                f"TensorFlow cannot be imported: {fault}",
                hint="`module load tensorflow` first, or build it with `hpcdl stack build`",
            ) from fault
        gc.freeze()
        gc.enable()
    tf.get_logger().setLevel("ERROR")
    # TensorFlow complains where there is no driver; where there is one, its messages are of use.
    with nullcontext() if Path("/dev/nvidiactl").exists() else _calm_stderr():
        gpus = tf.config.list_physical_devices("GPU")
    if gpus:
        mine = gpus[place.local_rank % len(gpus)]
        tf.config.set_visible_devices(mine, "GPU")
        tf.config.experimental.set_memory_growth(mine, True)
    return tf


@contextmanager
def _calm_stderr() -> Iterator[None]:
    """Hold back what C++ prints on file descriptor 2 unless the import fails, or HPCDL_VERBOSE."""
    if os.environ.get("HPCDL_VERBOSE"):
        yield
        return
    with tempfile.TemporaryFile() as kept:
        sys.stderr.flush()
        original = os.dup(2)
        os.dup2(kept.fileno(), 2)
        try:
            yield
        except BaseException:
            kept.seek(0)
            os.write(original, kept.read()[-4000:])
            raise
        finally:
            os.dup2(original, 2)
            os.close(original)
