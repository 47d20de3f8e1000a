"""`python -m hpcdl.measure.versions`: what the loaded module really contains, from inside the job.

TensorFlow and Horovod are imported as a training does, and one small product is computed on
the device that a training would use: "it imports" is not "it runs on the GPU".
"""

from __future__ import annotations

import platform
import sys

from hpcdl import __version__
from hpcdl.measure import run_program, write_measurement
from hpcdl.system.errors import HpcdlError
from hpcdl.train import startup


def main() -> int:
    """Write result.json and print the versions; returns the exit code."""
    return run_program(_run)


def _run(place: startup.RankPlace) -> None:
    clock = startup.StartupClock()
    tf = startup.import_tensorflow(place)
    clock.mark("tensorflow")
    horovod = startup.import_horovod()
    clock.mark("horovod")
    device = _compute()
    clock.mark("compute")
    versions = {
        "hpcdl": __version__,
        "python": platform.python_version(),
        "tensorflow": tf.__version__,
        "horovod": sys.modules["horovod"].__version__,
        "device": device,
        "mpi_built": bool(horovod.mpi_built()),
        "nccl_built": bool(horovod.nccl_built()),
    }
    write_measurement(
        "versions",
        [place.host],
        gpu_per_rank=len(tf.config.get_visible_devices("GPU")),
        versions=versions,
        options={},
        samples={},
        summary={"startup_seconds": round(clock.total, 3)},
    )
    print(", ".join(f"{name} {value}" for name, value in versions.items()), flush=True)


def _compute() -> str:
    """The device that computed a product of two small matrices."""
    import tensorflow as tf

    product = tf.matmul(tf.ones([64, 64]), tf.ones([64, 64]))
    if float(tf.reduce_max(tf.abs(product - 64.0))) > 1e-3:
        raise HpcdlError(f"a product of matrices of ones is wrong on {product.device}")
    return str(product.device)


if __name__ == "__main__":
    sys.exit(main())
