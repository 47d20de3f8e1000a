"""Checkpoints: complete or absent, checked on reading, the newest K kept.

A file is a magic line, length and checksum of a JSON header, the header (what of which shape,
the checksum of the rest) and the arrays' bytes. It is written aside and renamed, so a crash
leaves the one before; a damaged one is named and skipped. Everything
drawn at random comes from (seed, step), so the step number is the whole random state, and the
place in the data follows from it. A `Writer` writes while training continues.
"""

from __future__ import annotations

import json
import os
import re
import struct
import threading
import zlib
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcdl.system.files import explain_os_errors

_MAGIC = b"hpcdl-checkpoint-2\n"
_LENGTHS = struct.Struct("<QI")
_NAME = re.compile(r"step-(\d{9})\.ckpt\Z")


class DamagedCheckpoint(Exception):
    """A checkpoint file that is truncated or altered; the message says how this was detected."""


@dataclass(frozen=True)
class Checkpoint:
    """A state of training: `step` steps are done; `meta` says of what run."""

    step: int
    meta: Mapping[str, Any]
    arrays: tuple[NDArray[Any], ...]


def path_of(folder: Path, step: int) -> Path:
    """The file of the checkpoint after `step` steps."""
    return folder / f"step-{step:09d}.ckpt"


def save(folder: Path, checkpoint: Checkpoint, keep: int) -> Path:
    """Write a checkpoint as a whole, then drop all but the newest `keep`.

    Raises MissingPrerequisite: no space left; the earlier checkpoints are intact.
    """
    path = path_of(folder, checkpoint.step)
    aside = path.with_suffix(f".{os.getpid()}.part")
    with explain_os_errors(path):
        folder.mkdir(parents=True, exist_ok=True)
        discard(folder, checkpoint.step + 1)  # of a run that went on from before them
        _drop_old(folder, keep)  # a disk may be full because more were kept before
        try:
            with aside.open("wb", buffering=0) as file:
                _write(file, checkpoint)
                os.fsync(file.fileno())
            aside.replace(path)
        except BaseException:
            with suppress(OSError):
                aside.unlink()
            raise
    _drop_old(folder, keep)
    return path


def load(path: Path) -> Checkpoint:
    """Read one checkpoint; DamagedCheckpoint: it is truncated, altered, or none."""
    data = path.read_bytes()
    start = len(_MAGIC) + _LENGTHS.size
    if data[: len(_MAGIC)] != _MAGIC or len(data) < start:
        raise DamagedCheckpoint("it does not start like a checkpoint")
    length, header_crc = _LENGTHS.unpack(data[len(_MAGIC) : start])
    text = data[start : start + length]
    if zlib.crc32(text) != header_crc:
        raise DamagedCheckpoint("its header is truncated or altered")
    header = json.loads(text)
    body = memoryview(data)[start + length :]
    if len(body) != header["bytes"]:
        raise DamagedCheckpoint(f"it holds {len(body)} of {header['bytes']} bytes")
    if zlib.crc32(body) != header["crc32"]:
        raise DamagedCheckpoint("its checksum is wrong")
    arrays, offset = [], 0
    for entry in header["arrays"]:
        array = np.frombuffer(body, _dtype(entry["dtype"]), int(np.prod(entry["shape"])), offset)
        arrays.append(array.reshape(entry["shape"]))
        offset += array.nbytes
    return Checkpoint(header["step"], header["meta"], tuple(arrays))


def newest(folder: Path, warn: Any = None) -> Checkpoint | None:
    """The newest intact checkpoint, or None. `warn` is called for each one skipped."""
    for path in sorted(_all(folder), reverse=True):
        try:
            return load(path)
        except (DamagedCheckpoint, OSError) as fault:
            if warn is not None:
                warn(f"skipped {path.name}: {fault}; the one before is used")
    return None


def describe_saved(folder: Path) -> str:
    """Describe what a run that ends now can resume from."""
    step = max((_step(path) for path in _all(folder)), default=None)
    if step is None:
        return "there is no checkpoint yet"
    return f"the run resumes from the checkpoint after step {step}"


def discard(folder: Path, first: int) -> None:
    """Rename the checkpoints after `first` steps and later: what they hold has proved bad."""
    for path in _all(folder):
        if _step(path) >= first:
            path.replace(path.with_suffix(".bad"))


def start_over(folder: Path, environ: Mapping[str, str], say: Callable[[str], None]) -> None:
    """Begin without the earlier checkpoints; once per job, which resumes when it is requeued."""
    if environ.get("SLURM_RESTART_COUNT", "0") != "0":
        say("--fresh applied to the job's first start; requeued, it resumes")
    elif folder.is_dir():
        number = 1
        while (target := folder.with_name(f"{folder.name}.before-{number}")).exists():
            number += 1
        folder.rename(target)


class Writer:
    """Writes checkpoints in its own thread, one at a time; a failure shows at the next call."""

    def __init__(self, folder: Path, keep: int) -> None:
        self._folder = folder
        self._keep = keep
        self._thread: threading.Thread | None = None
        self._fault: BaseException | None = None

    def submit(self, checkpoint: Checkpoint) -> None:
        """Begin to write; waits for the one before, and raises what went wrong with it."""
        self.wait()

        def write() -> None:
            try:
                save(self._folder, checkpoint, self._keep)
            except BaseException as fault:
                self._fault = fault

        self._thread = threading.Thread(target=write, daemon=True)
        self._thread.start()

    def wait(self) -> None:
        """Return when everything is on disk; raises MissingPrerequisite where it cannot be."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        if self._fault is not None:
            fault, self._fault = self._fault, None
            raise fault


def _write(file: Any, checkpoint: Checkpoint) -> None:
    # Not ascontiguousarray, which gives scalars a dimension.
    arrays = [np.asarray(array, order="C") for array in checkpoint.arrays]
    crc = 0
    for array in arrays:
        crc = zlib.crc32(_bytes(array), crc)
    header = {
        "step": checkpoint.step,
        "meta": dict(checkpoint.meta),
        "bytes": sum(array.nbytes for array in arrays),
        "crc32": crc,
        "arrays": [{"dtype": a.dtype.name, "shape": list(a.shape)} for a in arrays],
    }
    text = json.dumps(header).encode()
    _write_all(file, _MAGIC + _LENGTHS.pack(len(text), zlib.crc32(text)) + text)
    for array in arrays:
        _write_all(file, _bytes(array))


def _dtype(name: str) -> Any:
    if name == "bfloat16":
        import ml_dtypes  # comes with TensorFlow

        return np.dtype(ml_dtypes.bfloat16)
    return np.dtype(name)


def _write_all(file: Any, data: bytes | memoryview) -> None:
    view = memoryview(data)
    while len(view):
        view = view[file.write(view[: 1 << 30]) :]


def _bytes(array: NDArray[Any]) -> memoryview:
    return array.reshape(-1).view(np.uint8).data


def _all(folder: Path) -> Iterable[Path]:
    return (path for path in folder.glob("step-*.ckpt") if _NAME.match(path.name))


def _step(path: Path) -> int:
    return int(path.stem.removeprefix("step-"))


def _drop_old(folder: Path, keep: int) -> None:
    for path in (*sorted(_all(folder), reverse=True)[keep:], *folder.glob("step-*.part")):
        with suppress(OSError):
            path.unlink()
