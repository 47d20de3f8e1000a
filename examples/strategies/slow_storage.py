"""`hpcdl train` on a storage of so many MB/s for all ranks of the job together.

    hpcdl job submit --gpus 2 -- python slow_storage.py 10 --model alexnet --data DIR
    hpcdl job submit --gpus 2 -- python slow_storage.py 10 old --model alexnet --data DIR

Records wait in one line, as at one device. `old` feeds it as old_pipeline.py does. Beside a run
without it, result.json shows how long a rank waits for input: what a storage-bound job looks like.
"""

import sys
import threading
import time

from hpcdl.train.startup import import_tensorflow, this_place

PLACE = this_place()
tf = import_tensorflow(PLACE)

from hpcdl.train.__main__ import main  # noqa: E402
from hpcdl.train.data import opening  # noqa: E402

if sys.argv[2] == "old":
    from old_pipeline import OldPipeline

    opening.RecordSource = OldPipeline
    del sys.argv[2]
RATE = float(sys.argv.pop(1)) * 1e6 / PLACE.size  # each rank's part
READ, LINE = tf.data.TFRecordDataset, threading.Lock()
free = [time.monotonic()]


def read(record: bytes) -> bytes:
    """A record, once the device has given those before it and its own bytes."""
    with LINE:
        free[0] = max(free[0], time.monotonic()) + len(record) / RATE
        ready = free[0]
    time.sleep(max(0.0, ready - time.monotonic()))
    return record


def slow(*paths, **how):
    """A TFRecordDataset, slowed down."""
    return READ(*paths, **how).map(
        lambda record: tf.ensure_shape(tf.numpy_function(read, [record], tf.string), ())
    )


if __name__ == "__main__":
    tf.data.TFRecordDataset = slow
    sys.exit(main())
