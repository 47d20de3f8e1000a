"""`python -m hpcdl.measure.copies`: GB/s between a node's memory and its GPUs, and between GPUs.

One process copies a tensor from host memory to every GPU, back, and between every two GPUs (over
NVLink or PCI Express, whichever joins them). The slowest GPU or pair counts. On a node without
GPUs it measures copies within host memory, and says so.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from itertools import permutations
from statistics import median
from typing import Any

import numpy as np

from hpcdl.measure import WARMUP, run_program, times_of, write_measurement
from hpcdl.system.amounts import positive
from hpcdl.train.startup import RankPlace, import_tensorflow

_GIGA, _MEGA = 1e9, 1_000_000
Way = tuple[str, str, Callable[[], Any]]


def _run(args: argparse.Namespace, place: RankPlace) -> None:
    """Measure, write result.json, and print a line per way."""
    tf = import_tensorflow(place)
    gpus = tf.config.list_physical_devices("GPU")
    for gpu in gpus:  # all of them, not this rank's alone
        tf.config.experimental.set_memory_growth(gpu, True)
    tf.config.set_visible_devices(gpus, "GPU")
    size = args.megabytes * _MEGA
    ways = _between(tf, len(gpus), size) if gpus else _in_memory(size)
    rates: dict[str, dict[str, list[float]]] = {}
    for kind, name, copy in ways:
        rates.setdefault(kind, {})[name] = [
            round(size / seconds / _GIGA, 4) for seconds in times_of(copy, args.repeats)
        ]
    summary = {kind: min(map(median, of.values())) for kind, of in rates.items()}
    best = {f"best_{kind}": min(map(max, of.values())) for kind, of in rates.items()}
    write_measurement(
        "copies",
        [place.host],
        len(gpus),
        {"tensorflow": tf.__version__},
        options={"bytes": size, "repeats": args.repeats, "warmup": WARMUP},
        samples={"gbs_by_way": {name: way for of in rates.values() for name, way in of.items()}},
        summary={**summary, **best},
    )
    for kind, rate in summary.items():
        print(f"{kind.removesuffix('_gbs').replace('_', ' ')}: {rate:.2f} GB/s", flush=True)
    if not gpus:
        print("this node has no GPU that TensorFlow sees: its memory was measured")


def _between(tf: Any, gpus: int, size: int) -> Iterator[Way]:
    names = [f"GPU:{index}" for index in range(gpus)]
    values = {}
    for device in ("CPU:0", *names):
        with tf.device(device):
            values[device] = tf.zeros([size // 4])

    def copy(source: str, target: str) -> Callable[[], Any]:
        def act() -> Any:
            # TensorFlow copies no tensor twice; this one shares the memory, copied nowhere yet.
            with tf.device(source):
                fresh = tf.identity(values[source])
            with tf.device(target):
                copied = tf.identity(fresh)
            tf.test.experimental.sync_devices()
            return copied

        return act

    for name in names:
        yield "host_to_device_gbs", f"host to {name}", copy("CPU:0", name)
        yield "device_to_host_gbs", f"{name} to host", copy(name, "CPU:0")
    for one, other in permutations(names, 2):
        yield "device_to_device_gbs", f"{one} to {other}", copy(one, other)


def _in_memory(size: int) -> Iterator[Way]:
    source, target = np.ones(size, np.uint8), np.empty(size, np.uint8)
    yield "host_to_host_gbs", "host to host", lambda: np.copyto(target, source)


if __name__ == "__main__":
    sys.exit(run_program(_run, "--megabytes", positive, 64))
