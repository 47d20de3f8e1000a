"""Where this process stands among the ranks; gets TensorFlow and Horovod into it cheaply.

Its place and its share of the node are read from the launcher's environment only (Open MPI, srun,
PMI), before any MPI call: thread counts and visible GPUs must be set before TensorFlow is imported.
A batch script's own variables (SLURM_NTASKS without a step) do not count as ranks. TensorFlow's own
servers meet where TF_CONFIG says, made here too: SlurmClusterResolver fails where a task sees one
GPU or none.

Three measures, found by measuring: the garbage collector rests while some 2,000 modules are
imported; Keras, which TensorFlow imports only to register optimizers, stays out where no Keras
model is asked for (0.8 s of 2.9 s); Horovod's Keras layer stays out with it (1.1 s). Threads,
visible GPUs and logging are set before, because TensorFlow reads them once.
"""

from __future__ import annotations

import gc
import os
import socket
import sys
import time
import types
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpcdl.system.errors import MissingPrerequisite
from hpcdl.system.run import run

# (rank, size, local rank, local size) as each launcher names them; the first complete row wins.
_LAUNCHERS = (
    (
        "OMPI_COMM_WORLD_RANK",
        "OMPI_COMM_WORLD_SIZE",
        "OMPI_COMM_WORLD_LOCAL_RANK",
        "OMPI_COMM_WORLD_LOCAL_SIZE",
    ),
    ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", "SLURM_STEP_TASKS_PER_NODE"),
    ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
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


TRUSTED = "HPCDL_TRUSTED_NETWORK"
_FIRST_PORT = 20000
_PORTS = 12000


def require_trust(strategy: str) -> None:
    """Raise MissingPrerequisite for TensorFlow's server where nobody trusts the network."""
    if os.environ.get(TRUSTED) != "1":
        raise MissingPrerequisite(
            f"the strategy '{strategy}' opens TensorFlow's server, which asks nobody for a "
            "password",
            hint="use --strategy horovod; `hpcdl job submit --launcher multiworker` fences it "
            f"as far as it goes; {TRUSTED}=1 says that this network is trusted",
        )


def cluster_config(
    environ: Mapping[str, str], place: RankPlace, names: Callable[[str], list[str]]
) -> dict[str, Any]:
    """TF_CONFIG: every rank a worker, on a port that depends on run and local rank."""
    # What all ranks of this run have in common, and no other run on these nodes has.
    step = ("SLURM_CLUSTER_NAME", "SLURM_JOB_ID", "SLURM_STEP_ID")
    run_name = environ.get("PMIX_NAMESPACE") or ".".join(environ.get(name, "") for name in step)
    run_name = str(os.getpid()) if place.size == 1 else run_name
    base = _FIRST_PORT + zlib.crc32(run_name.encode()) % _PORTS
    if place.local_size == place.size:
        workers = [f"localhost:{base + rank}" for rank in range(place.size)]
    elif "SLURM_STEP_NODELIST" in environ:
        tasks = environ.get("SLURM_STEP_TASKS_PER_NODE", "1")
        workers = [
            f"{name}:{base + local}"
            for node, name in enumerate(names(environ["SLURM_STEP_NODELIST"]))
            for local in range(slurm_tasks_on_node(tasks, node))
        ]
    else:
        raise MissingPrerequisite(
            "the nodes of the other ranks are unknown", hint="launch with srun, or set TF_CONFIG"
        )
    return {"cluster": {"worker": workers}, "task": {"type": "worker", "index": place.rank}}


def node_names(hostlist: str) -> list[str]:
    """The names in one of Slurm's host lists, by Slurm itself."""
    return run(["scontrol", "show", "hostnames", hostlist]).stdout.split()


# ---- TensorFlow ----


class StartupClock:
    """Names the parts of a start-up; times in seconds, the first part begins with the process."""

    def __init__(self) -> None:
        self._last = time.monotonic()
        self.parts: dict[str, float] = {"python": _process_age()}

    def mark(self, part: str) -> None:
        """End the part `part` now."""
        now = time.monotonic()
        self.parts[part] = self.parts.get(part, 0.0) + now - self._last
        self._last = now

    @property
    def total(self) -> float:
        """Seconds from the process's start to the last mark."""
        return sum(self.parts.values())

    def line(self) -> str:
        """`start-up 2.9 s: python 0.1, tensorflow 1.8, ...`."""
        parts = ", ".join(f"{name} {seconds:.1f}" for name, seconds in self.parts.items())
        return f"start-up {self.total:.1f} s: {parts}"


def _process_age() -> float:
    """Seconds since the kernel started this process (proc(5), field 22 of stat)."""
    try:
        stat = Path("/proc/self/stat").read_text()
        ticks = int(stat.rpartition(")")[2].split()[19])
        uptime = float(Path("/proc/uptime").read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return 0.0
    return max(0.0, uptime - ticks / os.sysconf("SC_CLK_TCK"))


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


def import_tensorflow(
    place: RankPlace, *, keras: bool = False, onednn: bool = False, devices: int = 1
) -> Any:
    """TensorFlow with `devices` visible GPUs for this local rank, or so many parts of a CPU."""
    _prepare_environment(place, onednn=onednn)
    with _quick_imports(), _calm_stderr(), _without({} if keras else _KERAS_OPTIMIZERS):
        try:
            import tensorflow as tf
        except ImportError as fault:
            raise MissingPrerequisite(
                f"TensorFlow cannot be imported: {fault}",
                hint="`module load tensorflow` first, or build it with `hpcdl stack build`",
            ) from fault
    tf.get_logger().setLevel("ERROR")
    # TensorFlow complains where there is no driver; where there is one, its messages are of use.
    with nullcontext() if Path("/dev/nvidiactl").exists() else _calm_stderr():
        gpus = tf.config.list_physical_devices("GPU")
    if gpus and len(gpus) < devices:
        raise MissingPrerequisite(
            f"--model-parallel {devices}, but this process has {len(gpus)} GPUs",
            hint=f"`hpcdl job submit --launcher single --gpus {devices}`",
        )
    wanted = range(place.local_rank, place.local_rank + devices)
    mine = [gpus[number % len(gpus)] for number in wanted if gpus]
    if mine:
        tf.config.set_visible_devices(mine, "GPU")
    for gpu in mine:
        tf.config.experimental.set_memory_growth(gpu, True)
    if devices > 1 and not gpus:
        (cpu,) = tf.config.list_physical_devices("CPU")
        parts = [tf.config.LogicalDeviceConfiguration()] * devices
        tf.config.set_logical_device_configuration(cpu, parts)
    return tf


def import_horovod(*, keras: bool) -> Any:
    """Horovod's TensorFlow module, uninitialised; MissingPrerequisite: it is not for this one."""
    hidden = {} if keras else {"horovod.tensorflow.sync_batch_norm": _EmptyModule("sync")}
    with _quick_imports(), _without(hidden):
        try:
            import horovod.tensorflow as hvd
        except Exception as fault:
            raise MissingPrerequisite(
                f"Horovod cannot be imported: {str(fault).splitlines()[0]}",
                hint="it must be built for this TensorFlow: `hpcdl stack build`; one process "
                "alone runs with --strategy single",
            ) from fault
    return hvd


class _EmptyModule(types.ModuleType):
    """Stands for a module whose names are imported but never used."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {})


# None in sys.modules makes the import fail; TensorFlow expects that this one may.
_KERAS_OPTIMIZERS: dict[str, Any] = {"keras.src.optimizers": None}


@contextmanager
def _without(hidden: dict[str, Any]) -> Iterator[None]:
    """Replace modules in sys.modules for the time of an import, then forget the stand-ins."""
    modules: dict[str, Any] = sys.modules
    absent = {name: stand_in for name, stand_in in hidden.items() if name not in modules}
    modules.update(absent)
    try:
        yield
    finally:
        for name in absent:
            modules.pop(name, None)


@contextmanager
def _quick_imports() -> Iterator[None]:
    """Let the collector rest; what was imported lives for ever and is never looked at again."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


@contextmanager
def _calm_stderr() -> Iterator[None]:
    """Hold back what C++ prints on file descriptor 2 unless the import fails, or HPCDL_VERBOSE."""
    if os.environ.get("HPCDL_VERBOSE"):
        yield
        return
    import tempfile

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
