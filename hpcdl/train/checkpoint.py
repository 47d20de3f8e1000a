"""Checkpoints: complete or absent, checked on reading, the newest K kept.

A file is what `numpy.savez` writes: the arrays, and a JSON header. It is written aside and renamed,
so a crash leaves the one before; a damaged one is named and skipped. Everything drawn at random
comes from (seed, step), so the step number is the whole random state, and the place in the data
follows from it. A `Writer` writes while training continues.
"""

from __future__ import annotations

import json
import os
import re
import zlib
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from hpcdl.system.files import explain_os_errors

_HEADER = "header"
_NAME = re.compile(r"step-(\d{9})\.ckpt\Z")


class DamagedCheckpoint(Exception):
    """A checkpoint file that is truncated or altered; the message says how this was detected."""


@dataclass(frozen=True)
class Checkpoint:
    """A state of training: `step` steps are done; `meta` says of what run."""

    step: int
    meta: Mapping[str, Any]
    arrays: tuple[NDArray[Any], ...]


def save(folder: Path, checkpoint: Checkpoint, keep: int) -> Path:
    """Write a checkpoint as a whole, then drop all but the newest `keep`.

    Raises MissingPrerequisite: no space left; the earlier checkpoints are intact.
    """
    path = folder / f"step-{checkpoint.step:09d}.ckpt"
    aside = path.with_suffix(f".{os.getpid()}.part")
    with explain_os_errors(path):
        folder.mkdir(parents=True, exist_ok=True)
        discard(folder, checkpoint.step + 1)  # of a run that went on from before them
        _drop_old(folder, keep)  # a disk may be full because more were kept before
        try:
            with aside.open("xb") as file:  # never through a link that another user left there
                _write(file, checkpoint)
                file.flush()
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
    try:
        with np.load(path) as file:  # a zip, which checks every array's CRC
            header = json.loads(bytes(file[_HEADER]))
            arrays = tuple(file[_array(number)] for number in range(header["arrays"]))
            return Checkpoint(header["step"], header["meta"], arrays)
    # A TypeError, before Python 3.11 an AttributeError: another array's file of NumPy, or a header
    # of another form.
    except (
        *(BadZipFile, EOFError, zlib.error, NotImplementedError),
        *(AttributeError, KeyError, TypeError, ValueError),
    ) as fault:
        raise DamagedCheckpoint(str(fault).splitlines()[0] or repr(fault)) from fault


def newest(folder: Path, warn: Callable[[str], None] = print) -> Checkpoint | None:
    """The newest intact checkpoint, or None. `warn` is called for each one skipped."""
    for path in sorted(_all(folder), reverse=True):
        try:
            return load(path)
        except (DamagedCheckpoint, OSError) as fault:
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
        self._pool = ThreadPoolExecutor(1)
        self._pending: Future[Path] | None = None

    def submit(self, checkpoint: Checkpoint) -> None:
        """Begin to write; waits for the one before, and raises what went wrong with it."""
        self.wait()
        self._pending = self._pool.submit(save, self._folder, checkpoint, self._keep)

    def wait(self) -> None:
        """Return when everything is on disk; raises MissingPrerequisite where it cannot be."""
        pending, self._pending = self._pending, None
        if pending is not None:
            pending.result()


def _write(file: Any, checkpoint: Checkpoint) -> None:
    arrays = [
        # NumPy has no bfloat16, and float32 holds all its values.
        array.astype(np.float32) if array.dtype.name == "bfloat16" else array
        for array in map(np.asarray, checkpoint.arrays)
    ]
    header = {"step": checkpoint.step, "meta": dict(checkpoint.meta), "arrays": len(arrays)}
    named: dict[str, Any] = {_array(number): array for number, array in enumerate(arrays)}
    named[_HEADER] = np.frombuffer(json.dumps(header).encode(), np.uint8)
    np.savez(file, **named)


def _array(number: int) -> str:
    return f"array_{number:05d}"


def _all(folder: Path) -> Iterable[Path]:
    return (path for path in folder.glob("step-*.ckpt") if _NAME.match(path.name))


def _step(path: Path) -> int:
    return int(path.stem.removeprefix("step-"))


def _drop_old(folder: Path, keep: int) -> None:
    for path in (*sorted(_all(folder), reverse=True)[keep:], *folder.glob("step-*.part")):
        with suppress(OSError):
            path.unlink()
