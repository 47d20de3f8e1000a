"""What every job checks first: is this the allocation that was asked for?

Each rank runs `probe` (standard library only: 0.1 s) and prints one JSON line; the batch shell
then runs `judge` over all lines: a table of ranks for the log, and for the first thing wrong
one line and a numbered exit code (facts/slurm_reasons.yaml), before the allocation is wasted.

How the GPUs of a job reach each other is compared with the partition's declaration: each rank joins
one NCCL communicator and sums a megabyte with NCCL_DEBUG=INFO; NCCL then says which transport each
channel took. The wrong network goes unnoticed otherwise, and costs a factor of four or five. NCCL
is called through ctypes: no framework, so that it takes a second.
"""

from __future__ import annotations

import ctypes
import json
import os
import re
import shutil
import socket
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from hpcdl.site.model import UNKNOWN_FABRIC
from hpcdl.system import nvidia
from hpcdl.system.errors import MissingPrerequisite
from hpcdl.system.text import table

STUCK_SECONDS = 60.0
"""How long GPUs may take to exchange a megabyte; NCCL starts on hundreds of ranks in seconds."""

# `... NCCL INFO Channel 00/0 : 1[1] -> 2[2] via P2P/CUMEM/read`, `[send] via NET/IB/0/GDRDMA`
_RANK = r"(\d+)\[[^]]*\]"
_CHANNEL = re.compile(rf"Channel \d+(?:/\d+)? : {_RANK} -> {_RANK}.*? via (NET/[^\s/]+|[^\s/]+)")
_WAIT_SECONDS = 20.0
_ID_BYTES = 128
_BYTES = 1_000_000
# Networks where TCP is no fault; an undescribed one is not judged.
_BY_SOCKETS = ("ethernet", "cloud", "unknown")
_OWN_STEP = ("SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_RESTART_COUNT")


class GpuLink(NamedTuple):
    """The transport between two ranks: `P2P`, `SHM`, `NET/IB` or `NET/Socket`."""

    sender: int
    receiver: int
    transport: str


@dataclass(frozen=True)
class ExpectedAllocation:
    """The allocation that the script was written for. 0, None or '' means: not checked.

    `driver` is the oldest that the release runs with. With `real_gpus` a node without nvidia-smi
    has no GPUs; without, they are emulated.
    """

    world: int
    tasks_per_node: int
    cpus_per_task: int
    gpus_per_node: int = 0
    memory_mb: int = 0
    release: str = ""
    scratch: str = ""
    data: str = ""
    fabric: str = ""
    nvlink: bool = False
    driver: str = ""
    real_gpus: bool = False


@dataclass(frozen=True)
class Probe:
    """The observations of one rank. `cpus` is Slurm's number for the step, `affinity` the kernel's.

    `gpus` are UUIDs, where there is a driver; `driver` is its version, '' where it does not say,
    None where there is no nvidia-smi; `gpu_faults` is what is wrong with it and the GPUs. `links`
    is how its GPU reaches others; where that was not checked, `unchecked` says why, and where
    trying it failed, `fault` says how.
    """

    rank: int
    local_rank: int
    host: str
    world: int
    cpus: int
    affinity: int
    gpus: tuple[str, ...]
    memory_mb: int
    release: str
    scratch_free_mb: int | None
    data: bool | None
    links: tuple[GpuLink, ...] = ()
    unchecked: str = ""
    fault: str = ""
    driver: str | None = None
    gpu_faults: tuple[str, ...] = ()

    @property
    def gpu(self) -> str | None:
        """The GPU that this rank takes: by its local rank among those it sees."""
        return self.gpus[self.local_rank % len(self.gpus)] if self.gpus else None


@dataclass(frozen=True)
class PreflightProblem:
    """One thing wrong: its exit code and a sentence."""

    code: int
    sentence: str


def probe(scratch: str = "", data: str = "", environ: Mapping[str, str] | None = None) -> Probe:
    """Look around as one rank of a step."""
    env = os.environ if environ is None else environ
    driver = nvidia.report()
    gpus = visible_gpus(env, driver)
    own_job = env.get("SLURM_JOB_ID", "")
    strangers = nvidia.foreign_processes(gpus, lambda pid: nvidia.of_job(pid, own_job))
    return Probe(
        rank=int(env.get("SLURM_PROCID") or env.get("OMPI_COMM_WORLD_RANK") or 0),
        local_rank=int(env.get("SLURM_LOCALID") or env.get("OMPI_COMM_WORLD_LOCAL_RANK") or 0),
        # Slurm's name of the node: emulated nodes may share a machine and its host name.
        host=env.get("SLURMD_NODENAME") or socket.gethostname(),
        world=int(env.get("SLURM_NTASKS") or env.get("OMPI_COMM_WORLD_SIZE") or 1),
        cpus=int(env.get("SLURM_CPUS_PER_TASK") or 1),
        affinity=len(os.sched_getaffinity(0)),
        gpus=gpus,
        memory_mb=int(env.get("SLURM_MEM_PER_NODE") or 0),
        release=env.get("HPCDL_RELEASE", ""),
        scratch_free_mb=_free_mb(os.path.expandvars(scratch)) if scratch else None,
        data=Path(data).exists() if data else None,
        driver=driver.driver if driver.installed else None,
        gpu_faults=(*driver.faults, *strangers),
    )


def with_links(
    probed: Probe, folder: Path, stuck: Callable[[Probe], None], seconds: float = STUCK_SECONDS
) -> Probe:
    """The same probe, with how its GPU reaches the others, or why that is not known.

    NCCL waits for ever where a network is wrong, and cannot be interrupted: `stuck` is called
    with the probe after `seconds`, in a separate thread, and is to end the process.
    """
    if probed.world < 2 or not probed.gpus or probed.driver is None:
        return replace(probed, unchecked="no GPU driver here")
    late = replace(probed, fault=f"GPUs did not exchange a megabyte within {seconds:.0f} s")
    watchdog = threading.Timer(seconds, stuck, (late,))
    watchdog.daemon = True
    watchdog.start()
    try:
        log = exchange(probed.rank, probed.world, probed.local_rank % len(probed.gpus), folder)
    except NoLibrary as lack:
        return replace(probed, unchecked=lack.message)
    except MissingPrerequisite as lack:
        return replace(probed, fault=lack.message)
    finally:
        watchdog.cancel()
    own = tuple(link for link in read_links(log) if link.sender == probed.rank)
    return replace(probed, links=own)


def judge(probes: Sequence[Probe], expected: ExpectedAllocation) -> tuple[PreflightProblem, ...]:
    """Everything that is not as expected, in the order of the exit codes. Pure."""
    e, links = expected, [link for p in probes for link in p.links]
    hosts = {p.rank: p.host for p in probes}
    sentences_by_code: dict[int, Iterable[str]] = {
        20: (
            f"{_who(p)} has {f'release {p.release}' if p.release else 'no release'} loaded, not "
            f"{e.release}"
            for p in probes
            if e.release and p.release != e.release
        ),
        21: _world(probes, e),
        22: _gpus(probes, e) if e.gpus_per_node else (),
        23: (
            f"{_who(p)} has {p.cpus} CPUs, not {e.cpus_per_task}"
            for p in probes
            if p.cpus < e.cpus_per_task
        ),
        **_memory_and_files(probes, e),
        27: (
            *(f"{_who(p)}: {p.fault}" for p in probes if p.fault),
            *judge_links(links, hosts, nvlink=e.nvlink, fabric=e.fabric or "ethernet"),
        ),
        28: _driver(probes, e) if e.gpus_per_node else (),
    }
    # One problem of a kind, however many ranks have it.
    return tuple(
        PreflightProblem(code, sentence)
        for code, sentences in sentences_by_code.items()
        for sentence in islice(sentences, 1)
    )


def _memory_and_files(probes: Sequence[Probe], e: ExpectedAllocation) -> dict[int, Iterable[str]]:
    return {
        24: (
            f"{p.host} gives the job {p.memory_mb} MB, not {e.memory_mb}"
            for p in probes
            if p.memory_mb and p.memory_mb < e.memory_mb
        ),
        25: (
            f"{p.host} has not enough space in {e.scratch}"
            for p in probes
            if e.scratch and not p.scratch_free_mb
        ),
        26: (
            f"{p.host} does not see the data set {e.data}" for p in probes if e.data and not p.data
        ),
    }


def read_probes(text: str) -> tuple[Probe, ...]:
    """Probes from the lines that ranks printed, by rank; other lines are ignored."""
    probes = []
    for line in text.splitlines():
        _, start, rest = line.partition('{"rank"')
        with suppress(ValueError, TypeError, KeyError):  # of other lines
            values = json.loads(start + rest)
            values["links"] = tuple(GpuLink(*link) for link in values.get("links", ()))
            lists = {key: tuple(values.get(key, ())) for key in ("gpus", "gpu_faults")}
            probes.append(Probe(**values | lists))
    return tuple(sorted(probes, key=lambda probe: probe.rank))


def as_json_line(found: Probe) -> str:
    """A probe as the line that `read_probes` reads."""
    return json.dumps({**asdict(found), "links": [tuple(link) for link in found.links]})


def as_table(probes: Sequence[Probe]) -> str:
    """A row per rank."""
    rows = [
        [str(p.rank), p.host, str(p.local_rank), p.gpu or "-", str(p.cpus), p.release or "-"]
        for p in probes
    ]
    return table(rows, ("rank", "host", "local", "GPU", "CPUs", "release"))


def notes(probes: Sequence[Probe], expected: ExpectedAllocation) -> tuple[str, ...]:
    """Warnings: worth a line, but they do not stop the job."""
    lines = []
    narrow = [p for p in probes if p.affinity < expected.cpus_per_task]
    if narrow:
        few = min(p.affinity for p in narrow)
        lines.append(f"{len(narrow)} ranks may run on {few} CPUs only: Slurm binds no CPUs here")
    if expected.fabric and expected.world > 1 and not any(p.links or p.fault for p in probes):
        why = next((p.unchecked for p in probes if p.unchecked), "NCCL names no channel")
        lines.append(f"{why}: how GPUs reach each other was not checked")
    if expected.fabric == UNKNOWN_FABRIC and len({p.host for p in probes}) > 1:
        lines.append(
            "the site does not say what network joins its nodes (`interconnect`): whether they "
            "talk by the fastest one is not judged"
        )
    if expected.tasks_per_node > 1 and probes and all(len(p.gpus) == 1 for p in probes):
        lines.append("each rank sees one GPU only: peer-to-peer between GPUs may be lost")
    return tuple(lines)


def _world(probes: Sequence[Probe], expected: ExpectedAllocation) -> Iterator[str]:
    ranks = [p.rank for p in probes]
    if any(p.fault for p in probes):
        return  # its peers ended with it
    missing = sorted(set(range(expected.world)) - set(ranks))
    if missing:
        some = ", ".join(map(str, missing[:8]))
        yield f"{len(missing)} of {expected.world} ranks did not answer: {some}"
    elif len(ranks) != len(set(ranks)) or any(p.world != expected.world for p in probes):
        worlds = sorted({p.world for p in probes})
        yield f"ranks see a world of {worlds} ranks, not {expected.world}"


def _gpus(probes: Sequence[Probe], expected: ExpectedAllocation) -> Iterator[str]:
    """Yield what is wrong with the number of GPUs; a driver's fault is code 28 instead."""
    if any(p.gpu_faults for p in probes):
        return
    for p in probes:
        if expected.real_gpus and p.driver is None:
            yield f"{_who(p)} finds no nvidia-smi, but the site file says that its node has GPUs"
        if p.gpu is None:
            yield f"{_who(p)} sees no GPU"
    owners: dict[tuple[str, str | None], list[int]] = defaultdict(list)
    shown: dict[str, set[str]] = defaultdict(set)
    for p in probes:
        owners[p.host, p.gpu].append(p.rank)
        shown[p.host].update(p.gpus)
    for (host, gpu), ranks in owners.items():
        if len(ranks) > 1:
            yield f"ranks {', '.join(map(str, ranks))} share GPU {gpu} of {host}"
    for host, gpus in shown.items():
        if len(gpus) < expected.gpus_per_node:
            yield f"{host} shows the job {len(gpus)} of {expected.gpus_per_node} GPUs"


def _driver(probes: Sequence[Probe], expected: ExpectedAllocation) -> Iterator[str]:
    """Yield the driver's complaints about its GPUs, and a driver that is too old."""
    yield from (f"{_who(p)}: {p.gpu_faults[0]}" for p in probes if p.gpu_faults)
    least = _numbers(expected.driver)
    for p in probes:
        if p.driver and _numbers(p.driver) < least:
            yield (
                f"{p.host} has NVIDIA driver {p.driver}, but the release needs {expected.driver} "
                "or newer"
            )


def _numbers(version: str) -> tuple[int, ...]:
    """`535.104.05` as numbers; none of a text without any."""
    return tuple(map(int, re.findall(r"\d+", version)))


def needed_driver(environ: Mapping[str, str]) -> str:
    """The oldest driver of the loaded release, by its record; '' without a release or a record."""
    record = Path(environ.get("HPCDL_STACK") or "/nonexistent").parent / "release.json"
    try:
        needs = json.loads(record.read_text(encoding="utf-8")).get("needs") or {}
        return str((needs.get("driver") or {}).get("from", ""))
    except (OSError, ValueError, AttributeError):
        return ""


def _who(found: Probe) -> str:
    return f"rank {found.rank} on {found.host}"


def _free_mb(path: str) -> int | None:
    """Free space in MB where this user can write, or could make the directory; else None."""
    place = Path(path)
    places = (place, *place.parents) if place.is_absolute() else (place,)
    try:
        # Staging makes the missing directories.
        there = next((one for one in places if one.exists()), place)
        return shutil.disk_usage(there).free // 1_000_000 if os.access(there, os.W_OK) else None
    except OSError:
        return None


def visible_gpus(env: Mapping[str, str], driver: nvidia.DriverReport) -> tuple[str, ...]:
    """The GPUs that CUDA shows this rank: UUIDs where the driver answers, else Slurm's numbers.

    As in CUDA, the list ends at the first entry that is no GPU: Slurm writes `NoDevFiles` where
    it gave none, and `-1` hides all.
    """
    uuids = {gpu.number: gpu.uuid for gpu in driver.gpus}
    listed = env.get("CUDA_VISIBLE_DEVICES")
    if listed is None:
        return tuple(uuids.values())
    visible: list[str] = []
    for entry in map(str.strip, listed.split(",")):
        if driver.installed and entry.startswith("GPU-"):
            gpu = next((uuid for uuid in uuids.values() if uuid.startswith(entry)), None)
        elif entry.isdigit():
            gpu = uuids.get(entry) if driver.installed else entry
        else:
            gpu = entry if entry.startswith(("GPU-", "MIG-")) else None
        if gpu is None:
            break
        visible.append(gpu)
    return tuple(visible)


# ---- how GPUs reach each other ----


class NoLibrary(MissingPrerequisite):
    """NCCL or CUDA is not on the loader's path, as in an image or with programs that bring them."""


def read_links(log: str) -> tuple[GpuLink, ...]:
    """Links from what NCCL printed, one per pair and transport. Pure."""
    found = {
        GpuLink(int(sender), int(receiver), via) for sender, receiver, via in _CHANNEL.findall(log)
    }
    return tuple(sorted(found))


def judge_links(
    links: Iterable[GpuLink], hosts: Mapping[int, str], *, nvlink: bool, fabric: str
) -> tuple[str, ...]:
    """Return how the links differ from what the partition declares, a sentence per kind. Pure.

    `hosts` has the host of each rank. With `nvlink` the GPUs of a node must use P2P; `fabric` is
    `infiniband`, `omnipath`, `slingshot`, `ethernet` or `unknown`.
    """
    wrong: Counter[str] = Counter()
    for link in links:
        inside = hosts.get(link.sender) == hosts.get(link.receiver)
        if inside and nvlink and link.transport != "P2P":
            wrong[f"GPUs of a node talk by {link.transport}, though NVLink is declared"] += 1
        if inside and link.transport.startswith("NET"):
            wrong[f"GPUs of a node talk through the network ({link.transport})"] += 1
        if not inside and fabric not in _BY_SOCKETS and link.transport == "NET/Socket":
            wrong[f"nodes talk by TCP sockets, though {fabric} is declared"] += 1
    return tuple(f"{sentence} ({count} links)" for sentence, count in wrong.items())


def exchange(rank: int, world: int, device: int, folder: Path) -> str:
    """Sum a megabyte over all ranks and give what NCCL printed meanwhile.

    Ranks meet through a file in `folder`, which all see.

    Raises:
        NoLibrary: there is no NCCL or CUDA library.
        MissingPrerequisite: they do not work, or the ranks did not meet.
    """
    log = folder / f"nccl-{rank}.log"
    os.environ.update(NCCL_DEBUG="INFO", NCCL_DEBUG_SUBSYS="INIT,GRAPH", NCCL_DEBUG_FILE=str(log))
    nccl = _library("libnccl.so.2")
    cuda = _library(*(f"libcudart.so{end}" for end in ("", ".13", ".12", ".11.0")))
    _call(cuda, "cudaSetDevice", device)
    identity = _meet(nccl, rank, folder)
    communicator, buffer = ctypes.c_void_p(), ctypes.c_void_p()
    _call(nccl, "ncclCommInitRank", ctypes.byref(communicator), world, identity, rank)
    _call(cuda, "cudaMalloc", ctypes.byref(buffer), ctypes.c_size_t(_BYTES))
    count = ctypes.c_size_t(_BYTES // 4)
    float32, total, stream = 7, 0, None
    _call(nccl, "ncclAllReduce", buffer, buffer, count, float32, total, communicator, stream)
    _call(cuda, "cudaDeviceSynchronize")
    _call(nccl, "ncclCommDestroy", communicator)
    return log.read_text(errors="replace") if log.exists() else ""


class _Identity(ctypes.Structure):
    """NCCL's ncclUniqueId, passed by value."""

    _fields_ = [("internal", ctypes.c_byte * _ID_BYTES)]


def identity_name(environ: Mapping[str, str]) -> str:
    """The file in which the ranks of one step meet: none of another step, run or job of a chain."""
    own = (environ.get(name, "0") for name in _OWN_STEP)
    return "-".join(("nccl-identity", *own))


def _meet(nccl: ctypes.CDLL, rank: int, folder: Path) -> _Identity:
    """Rank 0 makes the identity of the communicator; the others wait for its file."""
    nccl.ncclCommInitRank.argtypes = [
        ctypes.POINTER(ctypes.c_void_p),
        ctypes.c_int,
        _Identity,
        ctypes.c_int,
    ]
    identity = _Identity()
    path = folder / identity_name(os.environ)
    if rank == 0:
        _call(nccl, "ncclGetUniqueId", ctypes.byref(identity))
        aside = path.with_suffix(".new")
        aside.touch(mode=0o600)  # who reads it can take part in the communicator
        aside.write_bytes(bytes(identity.internal))
        aside.replace(path)
        return identity
    deadline = time.monotonic() + _WAIT_SECONDS
    while not path.exists():
        if time.monotonic() > deadline:
            raise MissingPrerequisite("rank 0 did not open the GPUs' communicator in time")
        time.sleep(0.05)
    ctypes.memmove(identity.internal, path.read_bytes(), _ID_BYTES)
    return identity


def _library(*names: str) -> ctypes.CDLL:
    for name in names:
        with suppress(OSError):
            return ctypes.CDLL(name)
    raise NoLibrary(f"the library {names[0]} cannot be loaded", hint="is the module loaded?")


def _call(library: ctypes.CDLL, name: str, *arguments: object) -> None:
    code = getattr(library, name)(*arguments)
    if code:
        message = f"{name} failed with code {code}"
        raise MissingPrerequisite(message, hint="the job's log has NCCL's messages")
