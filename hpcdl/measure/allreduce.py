"""`python -m hpcdl.measure.allreduce`: how fast the ranks sum a tensor, by its size.

The very operation that training uses, Horovod's (with NCCL where it was built for GPUs). An
iteration takes as long as its slowest rank; the first ones are left out. Bus bandwidth is as
nccl-tests define it:
bytes / seconds x 2 (n - 1) / n for n ranks, which the hardware bounds whatever n is.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from statistics import median
from typing import TYPE_CHECKING

import numpy as np

from hpcdl.measure import run_program, write_measurement
from hpcdl.system.amounts import positive
from hpcdl.system.errors import HpcdlError
from hpcdl.train.startup import RankPlace, StartupClock, import_tensorflow

if TYPE_CHECKING:
    from hpcdl.train.ranks import Ranks

SIZES = (1 << 16, 1 << 20, 1 << 24, 1 << 26)
WARMUP = 3
_GIGA = 1e9


def bus_bandwidth(size: int, seconds: float, ranks: int) -> float:
    """GB/s on every link to average `size` bytes (NVIDIA/nccl-tests, doc/PERFORMANCE.md)."""
    return size / seconds * 2 * (ranks - 1) / ranks / _GIGA


def measure(ranks: Ranks, size: int, repeats: int) -> list[float]:
    """Seconds of every iteration on the slowest rank, after the warm-up."""
    import tensorflow as tf

    tensor = tf.fill([size // 4], tf.constant(float(ranks.rank + 1)))
    averaged = tf.function(
        lambda values: ranks.total([values])[0][:1] / ranks.size, autograph=False
    )
    times = []
    for _ in range(WARMUP + repeats):
        start = time.perf_counter()
        value = float(np.asarray(averaged(tensor)).ravel()[0])
        times.append(time.perf_counter() - start)
        if abs(value - (ranks.size + 1) / 2) > 1e-3:
            raise HpcdlError(f"the mean of 1..{ranks.size} came out as {value}")
    rows = np.zeros((ranks.size, repeats))
    rows[ranks.rank] = times[WARMUP:]
    return [float(seconds) for seconds in ranks.sum_on_host(rows).max(axis=0)]


def _sizes(text: str) -> tuple[int, ...]:
    return tuple(max(4, positive(part) // 4 * 4) for part in text.split(","))


def _run(args: argparse.Namespace, place: RankPlace) -> None:
    import_tensorflow(place)
    from hpcdl.train.ranks import join_ranks

    ranks = join_ranks(place, StartupClock())
    if ranks.size < 2:
        raise HpcdlError("an all-reduce needs at least two ranks")
    hosts = ranks.gather(place.host)
    seconds = {size: measure(ranks, size, args.repeats) for size in args.sizes}
    if ranks.rank == 0:
        _tell(ranks, args, hosts, seconds)
    ranks.close()


def _tell(
    ranks: Ranks, args: argparse.Namespace, hosts: Sequence[str], seconds: dict[int, list[float]]
) -> None:
    """Write result.json, and print a line per size."""
    import tensorflow as tf

    summary = {
        name: {
            str(size): round(bus_bandwidth(size, of(times), ranks.size), 6)
            for size, times in seconds.items()
        }
        for name, of in (("bus_gbs", median), ("best_bus_gbs", min))
    }
    horovod = sys.modules.get("horovod.tensorflow")
    nccl = None if horovod is None else bool(horovod.nccl_built())
    write_measurement(
        "allreduce",
        hosts,
        gpu_per_rank=len(tf.config.get_visible_devices("GPU")),
        versions={"tensorflow": tf.__version__, "strategy": ranks.name, "nccl_built": nccl},
        options={"sizes": list(args.sizes), "repeats": args.repeats, "warmup": WARMUP},
        samples={"seconds_by_bytes": {str(size): times for size, times in seconds.items()}},
        summary=summary,
    )
    for size in seconds:
        print(f"{size:>12,} bytes: {summary['bus_gbs'][str(size)]:.3f} GB/s on the bus", flush=True)


if __name__ == "__main__":
    sys.exit(run_program(_run, "--sizes", _sizes, SIZES))
