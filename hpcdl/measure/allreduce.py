"""`python -m hpcdl.measure.allreduce`: how fast the ranks sum a tensor, by its size.

The very operation that training uses, Horovod's (with NCCL where it was built for GPUs). An
iteration takes as long as its slowest rank. Bus bandwidth is as nccl-tests define it:
bytes / seconds x 2 (n - 1) / n for n ranks, which the hardware bounds whatever n is.
"""

from __future__ import annotations

import argparse
import sys
from statistics import median
from typing import TYPE_CHECKING

import numpy as np

from hpcdl.measure import WARMUP, run_program, times_of, write_measurement
from hpcdl.system.amounts import positive
from hpcdl.system.errors import HpcdlError
from hpcdl.train.startup import RankPlace, StartupClock, import_tensorflow

if TYPE_CHECKING:
    from hpcdl.train.ranks import Ranks

SIZES = (1 << 16, 1 << 20, 1 << 24, 1 << 26)


def bus_bandwidth(size: int, seconds: float, ranks: int) -> float:
    """GB/s on every link to average `size` bytes (NVIDIA/nccl-tests, doc/PERFORMANCE.md)."""
    return size / seconds * 2 * (ranks - 1) / ranks / 1e9


def measure(ranks: Ranks, size: int, repeats: int) -> list[float]:
    """Seconds of every iteration on the slowest rank, after the warm-up."""
    import tensorflow as tf

    tensor = tf.fill([size // 4], tf.constant(float(ranks.rank + 1)))
    averaged = tf.function(
        lambda values: ranks.total([values])[0][:1] / ranks.size, autograph=False
    )

    def act() -> None:
        value = float(np.asarray(averaged(tensor)).ravel()[0])
        if abs(value - (ranks.size + 1) / 2) > 1e-3:
            raise HpcdlError(f"the mean of 1..{ranks.size} came out as {value}")

    rows = np.zeros((ranks.size, repeats))
    rows[ranks.rank] = times_of(act, repeats)
    return [float(seconds) for seconds in ranks.sum_on_host(rows).max(axis=0)]


def _sizes(text: str) -> tuple[int, ...]:
    return tuple(max(4, positive(part) // 4 * 4) for part in text.split(","))


def _run(args: argparse.Namespace, place: RankPlace) -> None:
    """Measure; rank 0 writes result.json, and prints a line per size."""
    tf = import_tensorflow(place)
    from hpcdl.train.ranks import join_ranks

    ranks = join_ranks(place, StartupClock())
    if ranks.size < 2:
        raise HpcdlError("an all-reduce needs at least two ranks")
    hosts = ranks.gather(place.host)
    seconds = {str(size): measure(ranks, size, args.repeats) for size in args.sizes}
    rates = {
        name: {
            size: round(bus_bandwidth(int(size), of(times), ranks.size), 6)
            for size, times in seconds.items()
        }
        for name, of in (("bus_gbs", median), ("best_bus_gbs", min))
    }
    if ranks.rank == 0:
        nccl = bool(sys.modules["horovod.tensorflow"].nccl_built())
        write_measurement(
            "allreduce",
            hosts,
            len(tf.config.get_visible_devices("GPU")),
            {"tensorflow": tf.__version__, "strategy": "horovod", "nccl_built": nccl},
            options={"sizes": list(args.sizes), "repeats": args.repeats, "warmup": WARMUP},
            samples={"seconds_by_bytes": seconds},
            summary=rates,
        )
        for size, rate in rates["bus_gbs"].items():
            print(f"{int(size):>12,} bytes: {rate:.3f} GB/s on the bus", flush=True)
    ranks.close()


if __name__ == "__main__":
    sys.exit(run_program(_run, "--sizes", _sizes, SIZES))
