"""Times the input pipeline alone: images per second, per CPU-second, and cores used.

CPU-seconds are this process's, all threads; on a busy machine they are more reliable than the
clock.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from typing import Any

import tensorflow as tf

from hpcdl.system.errors import BadInput, MissingPrerequisite
from hpcdl.system.packages import nvidia_driver
from hpcdl.train.data.dataset import Dataset
from hpcdl.train.data.pipeline import RecordSource
from hpcdl.train.data.source import BatchShare, unreadable
from hpcdl.train.result import job_of

_WARMUP_BATCHES = 3
_CROP = 224
"""Pixels of a side that are left of an image."""


def bench(dataset: Dataset, batch: int, seconds: float, threads: int) -> dict[str, Any]:
    """Run the pipeline for some seconds and return what came out of it."""
    if not dataset.examples("train"):
        raise BadInput(f"{dataset.folder} holds no records")
    if dataset.encoding != "jpeg":
        raise BadInput(
            f"{dataset.folder} holds {dataset.encoding} records, which need no pipeline",
            hint="`hpcdl data make photos DIR` makes JPEG records",
        )
    batch = min(batch, dataset.examples("train"))
    source = RecordSource(dataset, BatchShare(batch, 1, 0, 1), (_CROP, _CROP), threads)
    try:
        marks, used = _timed(iter(source.steps(0, 1 << 30)), seconds)
    except (tf.errors.ResourceExhaustedError, MemoryError) as fault:
        message = f"there is no memory for batches of {batch} images of {_CROP} x {_CROP} pixels"
        raise MissingPrerequisite(message, hint="a smaller --batch") from fault
    except (tf.errors.OpError, UnicodeDecodeError) as fault:
        raise unreadable(fault) from fault
    images, elapsed = batch * (len(marks) - 1), marks[-1]
    return {
        "directory": str(dataset.folder),
        "crop": _CROP,
        "batch": batch,
        "threads": threads,
        "images": images,
        "seconds": round(elapsed, 3),
        "images_per_second": round(images / elapsed, 2),
        "images_per_cpu_second": round(images / used, 2),
        "cores_used": round(used / elapsed, 3),
        "records": dataset.examples("train"),
        "release": os.environ.get("HPCDL_RELEASE"),
        "job": job_of(os.environ),
        "ended": time.time(),
        "driver": nvidia_driver(),
        "samples": {"images_per_second": _rates(marks, batch)},
    }


def _timed(batches: Iterator[Any], seconds: float) -> tuple[list[float], float]:
    """Seconds at the start and after each batch, and the CPU-seconds they took."""
    for _ in range(_WARMUP_BATCHES):
        next(batches)
    marks = [0.0]
    begun, cpu = time.perf_counter(), time.process_time()
    while marks[-1] < seconds:
        next(batches)
        marks.append(time.perf_counter() - begun)
    return marks, time.process_time() - cpu


def _rates(marks: Sequence[float], batch: int) -> list[float]:
    """Images per second over spans of at least half a second; `marks` are as of `_timed`."""
    rates: list[float] = []
    first = 0
    for index, now in enumerate(marks):
        if now - marks[first] >= 0.5:
            rates.append(round(batch * (index - first) / (now - marks[first]), 2))
            first = index
    return rates
