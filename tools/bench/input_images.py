"""Run by bench_train where TensorFlow is: CPU seconds of an image by `hpcdl train` and by a tuned
tf.data pipeline, in turn, from JPEGs to the network's floats. Prints JSON.
"""

import json
import sys
import time
from pathlib import Path

from hpcdl.train.startup import import_tensorflow, this_place

tf = import_tensorflow(this_place())

from hpcdl.train.data.dataset import read_dataset  # noqa: E402
from hpcdl.train.data.pipeline import DEVIATION, MEAN, RecordSource  # noqa: E402
from hpcdl.train.data.source import BatchShare  # noqa: E402

FOLDER, TURNS = Path(sys.argv[1]), int(sys.argv[2])
BATCH, BATCHES, THREADS, SIZE = 32, 8, 2, (224, 224)


def ours():
    source = RecordSource(read_dataset(FOLDER), BatchShare(BATCH, 1, 0, 1), SIZE, THREADS)
    return source.steps(0, BATCHES + 2).map(lambda x, y: (source.prepare(x), y))


def tuned():
    """As tutorials advise: interleaved reads, one parallel map, decode of the crop, prefetch."""
    wanted = {
        "image/encoded": tf.io.FixedLenFeature((), tf.string),
        "image/class/label": tf.io.FixedLenFeature((), tf.int64),
    }

    def image(record):
        parsed = tf.io.parse_single_example(record, wanted)
        start, size, _ = tf.image.sample_distorted_bounding_box(
            tf.image.extract_jpeg_shape(parsed["image/encoded"]),
            [[[0.0, 0.0, 1.0, 1.0]]],
            min_object_covered=0.1,
            aspect_ratio_range=(3 / 4, 4 / 3),
            area_range=(0.08, 1.0),
            max_attempts=10,
            use_image_if_no_bounding_boxes=True,
        )
        crop = tf.concat([start[:2], size[:2]], 0)
        part = tf.image.decode_and_crop_jpeg(
            parsed["image/encoded"], crop, channels=3, dct_method="INTEGER_FAST"
        )
        pixels = tf.image.random_flip_left_right(tf.image.resize(part, SIZE))
        return (pixels - MEAN) / DEVIATION, parsed["image/class/label"] - 1

    files = [str(path) for path in read_dataset(FOLDER).files("train")]
    records = tf.data.Dataset.from_tensor_slices(files).interleave(
        lambda file: tf.data.TFRecordDataset(file, buffer_size=1 << 20),
        cycle_length=len(files),
        num_parallel_calls=THREADS,
        deterministic=False,
    )
    images = records.shuffle(512, seed=2).repeat().map(image, THREADS, deterministic=False)
    options = tf.data.Options()
    options.threading.private_threadpool_size = THREADS
    options.threading.max_intra_op_parallelism = 1
    options.deterministic = False
    batches = images.batch(BATCH, drop_remainder=True).prefetch(2)
    return batches.take(BATCHES + 2).with_options(options)


def spent(pipeline):
    """CPU seconds of an image, after two batches."""
    batches = iter(pipeline())
    for _ in range(2):
        next(batches)
    begun = time.process_time()
    for _ in range(BATCHES):
        next(batches)
    return (time.process_time() - begun) / (BATCHES * BATCH)


def main():
    seconds = {"ours": [], "tuned": []}
    for turn in range(TURNS + 1):  # the first warms up
        for side, pipeline in (("ours", ours), ("tuned", tuned)):
            took = spent(pipeline)
            seconds[side] += [took] if turn else []
    print(json.dumps(seconds))


main()
