"""What every job checks first: is this the allocation that was asked for?

Each rank runs `probe` (standard library only: 0.1 s) and prints one JSON line; the batch shell
then runs `judge` over all lines: a table of ranks for the log, and for the first thing wrong
one line and a numbered exit code (facts/slurm_reasons.yaml), before the allocation is wasted.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import get_type_hints

from hpcdl.system import nvidia
from hpcdl.system.text import table


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
    release: str = ""
    scratch: str = ""
    data: str = ""
    driver: str = ""
    real_gpus: bool = False


@dataclass(frozen=True)
class Probe:
    """The observations of one rank. `cpus` is Slurm's number for the step, `affinity` the kernel's.

    `gpus` are UUIDs, where there is a driver; `driver` is its version, '' where it does not say,
    None where there is no nvidia-smi; `gpu_faults` is what is wrong with it and the GPUs.
    """

    rank: int
    local_rank: int
    host: str
    world: int
    cpus: int
    affinity: int
    gpus: tuple[str, ...]
    release: str
    scratch_free_mb: int | None
    data: bool | None
    driver: str | None = None
    gpu_faults: tuple[str, ...] = ()

    @property
    def gpu(self) -> str | None:
        """The GPU that this rank takes: by its local rank among those it sees."""
        return self.gpus[self.local_rank % len(self.gpus)] if self.gpus else None


def probe(scratch: str = "", data: str = "", environ: Mapping[str, str] | None = None) -> Probe:
    """Look around as one rank of a step."""
    env = os.environ if environ is None else environ
    driver = nvidia.report()
    gpus = visible_gpus(env, driver)
    own_job = env.get("SLURM_JOB_ID", "")
    strangers = nvidia.foreign_processes(gpus, lambda pid: nvidia.of_job(pid, own_job))
    return Probe(
        rank=_number(env, "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", least=0),
        local_rank=_number(env, "SLURM_LOCALID", "OMPI_COMM_WORLD_LOCAL_RANK", least=0),
        # Slurm's name of the node: emulated nodes may share a machine and its host name.
        host=env.get("SLURMD_NODENAME") or socket.gethostname(),
        world=_number(env, "SLURM_NTASKS", "OMPI_COMM_WORLD_SIZE", least=1),
        cpus=_number(env, "SLURM_CPUS_PER_TASK", least=1),
        affinity=len(os.sched_getaffinity(0)),
        gpus=gpus,
        release=env.get("HPCDL_RELEASE", ""),
        scratch_free_mb=_free_mb(os.path.expandvars(scratch)) if scratch else None,
        data=Path(data).exists() if data else None,
        driver=driver.driver if driver.installed else None,
        gpu_faults=(*driver.faults, *strangers),
    )


def judge(probes: Sequence[Probe], expected: ExpectedAllocation) -> dict[int, str]:
    """What is not as expected: a sentence for each exit code, the lowest code first. Pure."""
    problems: dict[int, str] = {}
    faulty = any(p.gpu_faults for p in probes)
    of_ranks = (problem for p in probes for problem in _of_rank(p, expected, faulty=faulty))
    of_nodes = () if faulty else _gpus_of_nodes(probes, expected)
    for code, sentence in (*_world(probes, expected), *of_ranks, *of_nodes):
        problems.setdefault(code, sentence)  # one of a kind, however many ranks have it
    return dict(sorted(problems.items()))


def read_probes(text: str) -> tuple[Probe, ...]:
    """Probes from the lines that ranks printed, by rank; other lines are ignored."""
    probes = []
    types = get_type_hints(Probe) | {"gpus": tuple, "gpu_faults": tuple}
    for line in text.splitlines():
        _, start, rest = line.partition('{"rank"')
        with suppress(ValueError, TypeError, KeyError, RecursionError):  # of other lines
            values = json.loads(start + rest)
            lists = {key: tuple(map(str, values.get(key, ()))) for key in ("gpus", "gpu_faults")}
            if all(isinstance(value, types[key]) for key, value in (values | lists).items()):
                probes.append(Probe(**values | lists))
    return tuple(sorted(probes, key=lambda probe: probe.rank))


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
    if expected.tasks_per_node > 1 and probes and all(len(p.gpus) == 1 for p in probes):
        lines.append("each rank sees one GPU only: peer-to-peer between GPUs may be lost")
    return tuple(lines)


def _world(probes: Sequence[Probe], expected: ExpectedAllocation) -> Iterator[tuple[int, str]]:
    ranks = [p.rank for p in probes]
    wanted = range(expected.world)  # a mistyped number may be any: never made a list
    missing = expected.world - len({rank for rank in ranks if rank in wanted})
    if missing > 0:
        some = ", ".join(map(str, islice((rank for rank in wanted if rank not in ranks), 8)))
        yield 21, f"{missing} of {expected.world} ranks did not answer: {some}"
    elif len(ranks) != len(set(ranks)) or any(p.world != expected.world for p in probes):
        worlds = sorted({p.world for p in probes})
        yield 21, f"ranks see a world of {worlds} ranks, not {expected.world}"


def _of_rank(p: Probe, e: ExpectedAllocation, *, faulty: bool) -> Iterator[tuple[int, str]]:
    """Yield codes and sentences for what one rank has; `faulty`: a driver complains of its GPUs."""
    who = f"rank {p.rank} on {p.host}"
    if e.release and p.release != e.release:
        loaded = f"release {p.release}" if p.release else "no release"
        yield 20, f"{who} has {loaded} loaded, not {e.release}"
    if p.cpus < e.cpus_per_task:
        yield 23, f"{who} has {p.cpus} CPUs, not {e.cpus_per_task}"
    if e.scratch and not p.scratch_free_mb:
        yield 25, f"{p.host} has not enough space in {e.scratch}"
    if e.data and not p.data:
        yield 26, f"{p.host} does not see the data set {e.data}"
    if not e.gpus_per_node:
        return
    if p.gpu_faults:
        yield 28, f"{who}: {p.gpu_faults[0]}"
    if p.driver and _numbers(p.driver) < _numbers(e.driver):
        yield (
            28,
            f"{p.host} has NVIDIA driver {p.driver}, but the release needs {e.driver} or newer",
        )
    if e.real_gpus and p.driver is None and not faulty:
        yield 22, f"{who} finds no nvidia-smi, but the site file says that its node has GPUs"
    if p.gpu is None and not faulty:
        yield 22, f"{who} sees no GPU"


def _gpus_of_nodes(probes: Sequence[Probe], e: ExpectedAllocation) -> Iterator[tuple[int, str]]:
    """Yield where ranks share a GPU, and which nodes show too few."""
    owners: dict[tuple[str, str | None], list[int]] = defaultdict(list)
    shown: dict[str, set[str]] = defaultdict(set)
    for p in probes:
        owners[p.host, p.gpu].append(p.rank)
        shown[p.host].update(p.gpus)
    for (host, gpu), ranks in owners.items():
        if len(ranks) > 1 and e.gpus_per_node:
            yield 22, f"ranks {', '.join(map(str, ranks))} share GPU {gpu} of {host}"
    for host, gpus in shown.items():
        if len(gpus) < e.gpus_per_node:
            yield 22, f"{host} shows the job {len(gpus)} of {e.gpus_per_node} GPUs"


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


def _number(env: Mapping[str, str], *names: str, least: int) -> int:
    """The first of these variables that is a number."""
    return next((int(env[one]) for one in names if env.get(one, "").isdecimal()), least)


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
