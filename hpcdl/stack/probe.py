"""What the gate runs in every rank, with the Python of the release that is tested.

A program of its own: it imports nothing of hpcdl and is never imported, for the release may hold
another hpcdl or none. Rank 0 writes what was seen as JSON to the file named on the command line;
whoever started it judges (hpcdl.stack.verify). A step that fails ends the program, so that the
launcher and the log say so.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

STEPS = 20
_LOCAL_RANK = ("SLURM_LOCALID", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID")


def look() -> dict[str, Any]:
    """Versions, as Python finds them; TensorFlow sees this rank's GPU only."""
    import tensorflow as tf

    gpus = tf.config.list_physical_devices("GPU")
    if gpus:
        local = next((int(os.environ[name]) for name in _LOCAL_RANK if name in os.environ), 0)
        tf.config.set_visible_devices(gpus[local % len(gpus)], "GPU")
    return {
        "tensorflow": tf.__version__,
        "python": sys.version.split()[0],
        "release": os.environ.get("HPCDL_RELEASE"),
        "cuda": tf.test.is_built_with_cuda(),
        "gpus": len(gpus),
        "host": os.environ.get("SLURMD_NODENAME") or socket.gethostname(),
        **_horovod(),
    }


def _horovod() -> dict[str, Any]:
    try:
        import horovod
        import horovod.tensorflow as hvd
    except ImportError:
        return {"horovod": None}
    return {"horovod": horovod.__version__, "mpi": hvd.mpi_built()}


def matrices() -> Any:
    """Return two float32 matrices whose product every GPU computes without rounding.

    From compute capability 8.0 on TensorFlow multiplies float32 as TF32, with 10 bits of mantissa:
    of random fractions a right product was off by 3e-3. Small integers fit into TF32, bfloat16 and
    half, and their sums into float32; half sums would show.
    """
    import numpy as np

    return np.random.default_rng(1).integers(0, 16, (2, 64, 64)).astype(np.float32)


def kernel() -> dict[str, Any]:
    """A product of matrices and a convolution on the device, against what they must be."""
    import numpy as np
    import tensorflow as tf

    gpus = tf.config.get_visible_devices("GPU")
    device = "/GPU:0" if gpus else "/CPU:0"
    left, right = matrices()
    with tf.device(device):
        product = tf.matmul(left, right)
        image, ones = tf.ones([1, 8, 8, 2]), tf.ones([3, 3, 2, 4])
        folded = tf.nn.conv2d(image, ones, strides=1, padding="VALID")
    wrong = max(float(np.abs(product - left @ right).max()), float(np.abs(folded - 18.0).max()))
    details = tf.config.experimental.get_device_details(gpus[0]) if gpus else {}
    return {
        "device": product.device.rpartition("/")[2],
        "wrong": wrong,
        "model": details.get("device_name"),
    }


def ranks() -> dict[str, Any]:
    """Run what all ranks must agree on: a mean, and a small model whose loss falls."""
    import horovod.tensorflow as hvd
    import tensorflow as tf

    hvd.init()
    mean = float(hvd.allreduce(tf.constant([1.0 + hvd.rank()]), op=hvd.Average)[0])
    tf.random.set_seed(hvd.rank())
    x = tf.random.normal([256, 8])
    y = tf.reduce_sum(x, axis=1, keepdims=True)
    w = tf.Variable(tf.zeros([8, 1]))
    losses, seconds = [], []
    for _ in range(STEPS):
        start = time.monotonic()
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((x @ w - y) ** 2)
        w.assign_sub(0.1 * hvd.allreduce(tape.gradient(loss, w), op=hvd.Average))
        losses.append(float(loss))
        seconds.append(round(time.monotonic() - start, 4))
    apart = tf.reduce_max(tf.abs(hvd.broadcast(w, root_rank=0) - w))
    return {
        "rank": hvd.rank(),
        "size": hvd.size(),
        "mean": mean,
        "losses": losses,
        "seconds": seconds,
        "differ": float(hvd.allreduce(apart, op=hvd.Sum)),
    }


def libraries(names: Sequence[str]) -> dict[str, Any]:
    """What this process has loaded, and which libraries TensorFlow does not find.

    It opens them by `names` as where it finds a GPU: the same call of the same library.
    """
    import tensorflow as tf

    not_found = {}
    for name in names:
        try:
            tf.load_op_library(name)
        except tf.errors.OpError as fault:
            not_found[name] = str(fault).splitlines()[0]
    lines = Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace").splitlines()
    mapped = {line.split(maxsplit=5)[5] for line in lines if ".so" in line}
    return {"mapped": sorted(mapped), "not_found": not_found}


def _timed(step: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    start = time.monotonic()
    return {**step(), "took": round(time.monotonic() - start, 2)}


def main(out: Path, *names: str) -> None:
    """Run every step; rank 0 writes the file at once, so that no reader sees half of it."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    seen = {"import": _timed(look), "kernel": _timed(kernel)}
    if seen["import"]["horovod"]:
        seen["ranks"] = _timed(ranks)
    seen["libraries"] = _timed(lambda: libraries(names))
    if seen.get("ranks", {}).get("rank", 0) == 0:
        # Where MPI does not connect them, each is a rank 0 of one, which the gate has to hear.
        aside = out.with_name(f"{out.name}.{os.environ.get('SLURM_PROCID')}-{os.getpid()}")
        aside.write_text(json.dumps(seen))
        aside.replace(out)


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
