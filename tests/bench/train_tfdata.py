"""Run by bench_input where TensorFlow is: a good pipeline of tf.data alone, images per second.

As TensorFlow's guide to tf.data's performance and its official ResNet write it: interleaved
shards, decode and crop in one operation, parallel map, AUTOTUNE, prefetch; bytes come out, as ours.
"""

import json
import sys
import time
from pathlib import Path

import tensorflow as tf

BATCH, SIDE, WARMUP = 64, 224, 3
FEATURES = {
    "image/encoded": tf.io.FixedLenFeature([], tf.string),
    "image/class/label": tf.io.FixedLenFeature([], tf.int64),
}


def image(record):
    found = tf.io.parse_single_example(record, FEATURES)
    encoded = found["image/encoded"]
    begin, size, _ = tf.image.sample_distorted_bounding_box(
        tf.image.extract_jpeg_shape(encoded),
        [[[0.0, 0.0, 1.0, 1.0]]],
        min_object_covered=0.1,
        aspect_ratio_range=[3 / 4, 4 / 3],
        area_range=[0.08, 1.0],
        max_attempts=100,
        use_image_if_no_bounding_boxes=True,
    )
    window = tf.concat([begin[:2], size[:2]], 0)
    pixels = tf.image.decode_and_crop_jpeg(encoded, window, channels=3, dct_method="INTEGER_FAST")
    pixels = tf.image.random_flip_left_right(tf.image.resize(pixels, (SIDE, SIDE)))
    return tf.cast(pixels, tf.uint8), found["image/class/label"]


def main(folder, seconds):
    files = tf.data.Dataset.list_files(f"{folder}/train-*").repeat()
    free = {"num_parallel_calls": tf.data.AUTOTUNE, "deterministic": False}
    images = files.interleave(tf.data.TFRecordDataset, **free).shuffle(1024).map(image, **free)
    batches = iter(images.batch(BATCH, drop_remainder=True).prefetch(tf.data.AUTOTUNE))
    for _ in range(WARMUP):
        next(batches)
    begun, cpu, done = time.perf_counter(), time.process_time(), 0
    while time.perf_counter() - begun < seconds:
        next(batches)
        done += BATCH
    elapsed, used = time.perf_counter() - begun, time.process_time() - cpu
    print(json.dumps({"images_per_second": done / elapsed, "images_per_cpu_second": done / used}))


if __name__ == "__main__":
    assert Path(sys.argv[1]).is_dir()
    main(sys.argv[1], float(sys.argv[2]))
