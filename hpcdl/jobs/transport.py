"""How the GPUs of a job reach each other, compared with the partition's declaration.

Each rank joins one NCCL communicator and sums a megabyte with NCCL_DEBUG=INFO; NCCL then says
which transport each channel took. The wrong network goes unnoticed otherwise, and costs a factor
of four or five. NCCL is called through ctypes: no framework, so that it takes a second.
"""

from __future__ import annotations

import ctypes
import os
import re
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from hpcdl.system.errors import MissingPrerequisite

# `... NCCL INFO Channel 00/0 : 1[1] -> 2[2] via P2P/CUMEM/read`, `[send] via NET/IB/0/GDRDMA`
_RANK = r"(\d+)\[[^]]*\]"
_CHANNEL = re.compile(rf"Channel \d+(?:/\d+)? : {_RANK} -> {_RANK}.*? via (NET/[^\s/]+|[^\s/]+)")
_WAIT_SECONDS = 20.0
_ID_BYTES = 128
_BYTES = 1_000_000
# Networks where TCP is no fault; of one that nobody described nothing is known.
_BY_SOCKETS = ("ethernet", "unknown")
_OWN_STEP = ("SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_RESTART_COUNT")


class NoLibrary(MissingPrerequisite):
    """NCCL or CUDA is not on the loader's path, as in an image or with programs that bring them."""


class Link(NamedTuple):
    """What two ranks use between them: `P2P`, `SHM`, `NET/IB` or `NET/Socket`."""

    sender: int
    receiver: int
    transport: str


def read_links(log: str) -> tuple[Link, ...]:
    """Links from what NCCL printed, one per pair and transport. Pure."""
    found = {Link(int(sender), int(receiver), via)
             for sender, receiver, via in _CHANNEL.findall(log)}  # fmt: skip
    return tuple(sorted(found))


def judge_links(
    links: Iterable[Link], hosts: Mapping[int, str], *, nvlink: bool, fabric: str
) -> tuple[str, ...]:
    """What is not as the partition declares, a sentence per kind. Pure.

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
    cuda = _library("libcudart.so", "libcudart.so.12", "libcudart.so.11.0")
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
        ctypes.POINTER(ctypes.c_void_p), ctypes.c_int, _Identity, ctypes.c_int,
    ]  # fmt: skip
    identity = _Identity()
    path = folder / identity_name(os.environ)
    if rank == 0:
        _call(nccl, "ncclGetUniqueId", ctypes.byref(identity))
        aside = path.with_suffix(".new")
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
        said = f"{name} failed with code {code}"
        raise MissingPrerequisite(said, hint="the job's log has NCCL's messages")
