"""The input pipeline for records of images: interleaved reads, fused decode and crop, prefetch.

The epoch's records, shard after shard in a new order, are divided into streams of equal length.
Every stream mixes what it reads in a buffer and gives as many images to every global batch; a rank
owns neighbouring streams. Their number goes by global batch and shards where the ranks can share
it: then batch k is the same set of images on 1 rank and on 8. Checkpoints keep it, so that a run
resumed on other ranks gives the rest of its epoch; a stream passes over the records it has given.
Crop and mirror are drawn from (seed, epoch, place in the epoch).
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from hpcdl.train.data.dataset import Dataset
from hpcdl.train.data.source import BatchShare, DataSource, epoch_order, reason, steps_in

MEAN = (123.675, 116.28, 103.53)
DEVIATION = (58.395, 57.12, 57.375)
"""Of ImageNet's pixels, red, green, blue, 0 to 255 (pytorch/vision's and others' convention)."""

_AREA = (0.08, 1.0)
_ASPECT = (3 / 4, 4 / 3)
_MOST_STREAMS = 64
_MIXED = 4096
_LABELS = {"findings": "image/labels", "classes": "image/class/label"}


@dataclass(frozen=True)
class Unit:
    """A stream's part of a shard: `count` records after the first `skip`."""

    path: str
    skip: int
    count: int


def stream_count(global_batch: int, ranks: int, shards: int) -> int:
    """Streams of an epoch: divides the batch, a multiple of the ranks, at most the shards."""
    wanted = max(ranks, min(shards, _MOST_STREAMS))
    return max(n for n in range(ranks, wanted + 1, ranks) if global_batch % n == 0)


def interleave_shards(
    shards: Sequence[tuple[Path, int]], streams: int, length: int, seed: int, epoch: int
) -> list[list[Unit]]:
    """Return every stream's parts in an epoch: `length` records each, and none twice.

    `shards` are files and their numbers of records, at least `streams` x `length` in all; seed and
    epoch draw their order, and what is left out.
    """
    spare = sum(count for _, count in shards) - streams * length
    queues: list[list[Unit]] = [[] for _ in range(streams)]
    end = -int(epoch_order(seed, epoch, spare + 1)[0])  # so many are left out at the start
    for number in epoch_order(seed, epoch, len(shards)):
        path, count = shards[number]
        begin, end = end, end + count
        for stream in range(max(0, begin // length), min(streams, -(-end // length))):
            first, last = max(begin, stream * length), min(end, (stream + 1) * length)
            if first < last:
                queues[stream].append(Unit(str(path), first - begin, last - first))
    return queues


class RecordSource(DataSource):
    """A data set of JPEG records as a source of batches.

    `size` is (height, width) of the images given out; `threads` is the number of those that read
    and decode.
    """

    def __init__(
        self, dataset: Dataset, share: BatchShare, size: tuple[int, int], threads: int
    ) -> None:
        self._dataset = dataset
        self._share = share
        self._size = size
        self._threads = threads
        self.spec = tf.TensorSpec((*size, 3), tf.float32)
        several = (dataset.classes,) if dataset.task == "findings" else ()
        self.label_spec = tf.TensorSpec(several, tf.int64)
        self.classes = dataset.classes
        self.digest = dataset.digest
        self.task = dataset.task
        self.tested = dataset.examples("test")
        self.pixels = f"(red, green, blue from 0 to 255 - {MEAN}) / {DEVIATION}"
        self.steps_per_epoch = steps_in(dataset.examples("train"), share)
        shards = len(dataset.splits["train"])
        self.streams = stream_count(share.global_batch, share.ranks, shards)

    def prepare(self, inputs: Any) -> Any:
        """Bytes to mean 0 and deviation 1; on the device, for they are a quarter of the floats."""
        # Half a step is added, because the bytes were truncated, not rounded.
        return (tf.cast(inputs, tf.float32) + (0.5 - np.array(MEAN))) / DEVIATION

    def steps(self, first: int, last: int) -> Any:
        """Return the batches of the steps; the first epoch begins where step `first` is."""
        share, (epoch, batch) = self._share, divmod(first, self.steps_per_epoch)

        def records(number: Any) -> Any:
            skipped = tf.where(number == epoch, tf.constant(batch, tf.int64), 0)
            numbered = self._records(number, skipped).enumerate(skipped * share.per_rank)
            return tf.data.Dataset.zip((tf.data.Dataset.from_tensors(number).repeat(), numbered))

        epochs = tf.data.Dataset.range(epoch, -(-last // self.steps_per_epoch))
        images = self._decoded(epochs.flat_map(records), self._training_part)
        batches = images.batch(share.per_rank)
        return batches.take(last - first).with_options(self._options()).prefetch(2)

    def test(self) -> Any:
        """Return every `ranks`-th test image in batches, the middle of it."""
        if not self.tested:
            return None
        files = [str(path) for path in self._dataset.files("test")]
        records = tf.data.TFRecordDataset(files).shard(self._share.ranks, self._share.rank)
        batches = self._decoded(records, self._test_part).batch(self._share.per_rank)
        mine = len(range(self._share.rank, self.tested, self._share.ranks))
        # Without a length Keras warns that the data ran out.
        known = tf.data.experimental.assert_cardinality(-(-mine // self._share.per_rank))
        return batches.apply(known).with_options(self._options()).prefetch(2)

    def _decoded(self, records: Any, describe: Any) -> Any:
        """Return the images; `describe` gives of a record: ((encoded, area, mirrored), label)."""

        def image(*record: Any) -> Any:
            (encoded, area, mirrored), label = describe(*record)
            pixels = cropped(encoded, area, self._size)
            # One by one: TensorFlow is quick at reversing one image of three colours, not a batch.
            return tf.cond(mirrored, lambda: tf.reverse(pixels, [1]), lambda: pixels), label

        return records.map(image, num_parallel_calls=self._threads, deterministic=True)

    def _records(self, epoch: Any, first: Any) -> Any:
        """Return this rank's records of an epoch from batch `first` on, in a graph."""
        share = self._share
        mine, block = self.streams // share.ranks, share.global_batch // self.streams
        length = self.steps_per_epoch * block
        files, parts = self._dataset.files("train"), self._dataset.splits["train"]
        shards = [(path, part.examples) for path, part in zip(files, parts, strict=True)]

        def units(epoch: Any, number: Any) -> Any:
            queues = interleave_shards(shards, self.streams, length, share.seed, int(epoch))
            row = queues[share.rank * mine + int(number)]
            paths = np.array([os.fsencode(unit.path) for unit in row])
            return paths, np.array([(unit.skip, unit.count) for unit in row], np.int64)

        # By seed, epoch and number of the stream over all ranks.
        first_seed = (share.seed * 1_000_003 + epoch) * _MOST_STREAMS + share.rank * mine

        def read(path: Any, span: Any) -> Any:
            records = tf.data.TFRecordDataset(path, buffer_size=1 << 20)
            return records.skip(span[0]).take(span[1])

        def stream(number: Any) -> Any:
            paths, spans = tf.numpy_function(units, [epoch, number], (tf.string, tf.int64))
            paths, spans = tf.ensure_shape(paths, (None,)), tf.ensure_shape(spans, (None, 2))
            mixed = (
                tf.data.Dataset.from_tensor_slices((paths, spans))
                .flat_map(read)
                .shuffle(
                    max(block, _MIXED // self.streams),
                    seed=first_seed + number,
                    reshuffle_each_iteration=False,
                )
            )
            # A shard with fewer records than promised is an error on this rank, no hang of all.
            whole = mixed.apply(tf.data.experimental.assert_cardinality(length))
            return whole.skip(first * block)

        return tf.data.Dataset.range(mine).interleave(
            stream,
            cycle_length=mine,
            block_length=block,
            deterministic=True,
            num_parallel_calls=min(mine, max(2, self._threads)),
        )

    def _training_part(self, epoch: Any, numbered: tuple[Any, Any]) -> tuple[Any, Any]:
        share, (local, serialized) = self._share, numbered
        step, slot = local // share.per_rank, local % share.per_rank
        place = step * share.global_batch + share.rank * share.per_rank + slot
        seed = tf.stack([(share.seed * 1_000_003 + epoch) % 2**31, place])
        encoded, label = parse(self._dataset, serialized)
        area = random_crop(shape_of(encoded), seed)
        mirrored = tf.random.stateless_uniform((), seed + 1) < 0.5
        return (encoded, area, mirrored), label

    def _test_part(self, serialized: Any) -> tuple[Any, Any]:
        encoded, label = parse(self._dataset, serialized)
        return (encoded, central_crop(shape_of(encoded)), tf.constant(False)), label

    def _options(self) -> Any:
        """Threads within the rank's budget, map and batch as one operation."""
        options = tf.data.Options()
        options.deterministic = True
        options.autotune.enabled = False
        options.threading.private_threadpool_size = self._threads
        options.threading.max_intra_op_parallelism = 1
        options.experimental_optimization.map_and_batch_fusion = True
        return options


def parse(dataset: Dataset, serialized: Any) -> tuple[Any, Any]:
    """Image and label of a record; a label that is no class would show as a loss of NaN."""
    several = dataset.task == "findings"
    place = "image/raw" if dataset.encoding == "raw" else "image/encoded"
    name, shape = _LABELS[dataset.task], (dataset.classes,) if several else ()
    wanted = {
        place: tf.io.FixedLenFeature((), tf.string),
        name: tf.io.FixedLenFeature(shape, tf.int64),
    }
    parsed = tf.io.parse_single_example(serialized, wanted)
    label = parsed[name] - dataset.label_offset
    valid = tf.reduce_all((label >= 0) & (label < (2 if several else dataset.classes)))
    message = f"a label is none of {dataset.classes} classes"
    with tf.control_dependencies([tf.debugging.Assert(valid, [message, label])]):
        return parsed[place], tf.identity(label)


def fault_of(dataset: Dataset, record: bytes) -> str:
    """Return what is wrong with the image or the label of a record; '' if nothing is."""
    try:
        encoded, _ = parse(dataset, record)
        if dataset.encoding == "raw":
            found, wanted = len(encoded.numpy()), math.prod(dataset.shape)
            return "" if found == wanted else f"{found} bytes, and an image has {wanted}"
        shape = shape_of(encoded)
        cropped(encoded, tf.concat([[0, 0], shape[:2]], 0), (8, 8))
    except UnicodeDecodeError:  # TensorFlow's message quotes the record
        return "it is no tf.Example"
    except tf.errors.InvalidArgumentError as fault:
        return reason(fault)
    return ""


# ---- encoded images to pixels ----


def shape_of(encoded: Any) -> Any:
    """(height, width, channels) of an image, from its header where it is a JPEG."""
    return tf.cond(
        tf.io.is_jpeg(encoded),
        lambda: tf.image.extract_jpeg_shape(encoded),
        lambda: tf.shape(_whole(encoded)),
    )


def random_crop(shape: Any, seed: Any) -> Any:
    """(top, left, height, width): a random part of random shape (arXiv 1409.4842)."""
    start, size, _ = tf.raw_ops.StatelessSampleDistortedBoundingBox(
        image_size=shape,
        bounding_boxes=[[[0.0, 0.0, 1.0, 1.0]]],
        min_object_covered=0.0,
        seed=seed,
        aspect_ratio_range=_ASPECT,
        area_range=_AREA,
        max_attempts=10,
        use_image_if_no_bounding_boxes=True,
    )
    return tf.concat([start[:2], size[:2]], axis=0)


def central_crop(shape: Any) -> Any:
    """The middle: seven eighths of the shorter side, a pixel at least."""
    side = tf.maximum(1, tf.minimum(shape[0], shape[1]) * 7 // 8)
    return tf.stack([(shape[0] - side) // 2, (shape[1] - side) // 2, side, side])


def cropped(encoded: Any, area: Any, size: tuple[int, int]) -> Any:
    """Return an area of an image as bytes of shape (height, width, 3) of `size`, in a graph.

    JPEGs are cropped by TensorFlow's fused operation, which decodes only the crop, at the smallest
    scale that still has the wanted pixels. The few other images (PNG, GIF, BMP) are decoded whole.
    """
    begin, depth = tf.concat([area[:2], [0]], 0), tf.concat([area[2:], [3]], 0)
    part = tf.cond(
        tf.io.is_jpeg(encoded),
        lambda: _crop_jpeg(encoded, area, size),
        lambda: tf.slice(_whole(encoded), begin, depth),
    )
    resized = tf.raw_ops.ResizeBilinear(
        images=tf.expand_dims(part, 0), size=size, half_pixel_centers=True
    )
    return tf.cast(resized[0], tf.uint8)


def _crop_jpeg(encoded: Any, area: Any, size: tuple[int, int]) -> Any:
    def at(ratio: int) -> Any:
        return lambda: tf.image.decode_and_crop_jpeg(
            encoded, area // ratio, channels=3, ratio=ratio, dct_method="INTEGER_FAST"
        )

    spare = tf.minimum(area[2] // size[0], area[3] // size[1])
    scale = tf.reduce_sum(tf.cast(spare >= [2, 4, 8], tf.int32))
    return tf.switch_case(scale, [at(1), at(2), at(4), at(8)])


def _whole(encoded: Any) -> Any:
    return tf.io.decode_image(encoded, channels=3, expand_animations=False)
