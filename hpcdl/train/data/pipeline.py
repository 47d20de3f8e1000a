"""The input pipeline for JPEG records: interleaved reads, fused decode and crop, prefetch.

The epoch's order is cut into lanes: every lane reads its own shards one after the other, mixes
them in a buffer, and gives the same number of images to every global batch; a rank owns
neighbouring lanes. Lanes depend on seed, epoch and global batch, not on the ranks (as long as
their number divides into them), so batch k is the same set of images on 1 rank and on 8. Crop and
mirror are drawn from (seed, epoch, place in the epoch). To resume inside an epoch, a lane passes
over the records it has given, without decoding them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hpcdl.system.errors import BadInput
from hpcdl.train.data.dataset import Dataset
from hpcdl.train.data.repair import Repairs
from hpcdl.train.data.source import Group, Share, epoch_order, one
from hpcdl.train.data.tfrecord import find

MEAN = (123.675, 116.28, 103.53)
DEVIATION = (58.395, 57.12, 57.375)
"""Of ImageNet's pixels, red, green, blue, 0 to 255 (pytorch/vision's and others' convention)."""

_MOST_LANES = 64
_MIXED = 4096
_AREA = (0.08, 1.0)
_ASPECT = (3 / 4, 4 / 3)


@dataclass(frozen=True)
class Unit:
    """What a lane reads: part `part` of `parts` of a shard."""

    path: str
    parts: int
    part: int


def lane_count(global_batch: int, ranks: int, shards: int) -> int:
    """Lanes of an epoch: divides the batch, is shared by the ranks, not more than the shards."""
    wanted = max(ranks, min(shards, _MOST_LANES))
    return max(
        lanes
        for lanes in range(ranks, wanted + 1, ranks)
        if global_batch % lanes == 0
    )  # fmt: skip


def lay_lanes(files: Sequence[Path], lanes: int, seed: int, epoch: int) -> list[list[Unit]]:
    """What every lane reads in an epoch; where shards are few, several lanes share one."""
    parts = -(-lanes // len(files))
    units = [Unit(str(path), parts, part) for path in files for part in range(parts)]
    order = epoch_order(seed, epoch, len(units))
    return [[units[i] for i in order[lane::lanes]] for lane in range(lanes)]


class Records:
    """A data set of JPEG records as a source of batches.

    Args:
        tf: TensorFlow.
        dataset: the data set.
        share: this rank's share of the batches.
        size: (height, width) of the images given out.
        threads: CPU threads for reading and decoding.
        repairs: what to do about damaged records.
        pipeline: `new`, or `old`: one image after the other, nothing overlapped.
    """

    def __init__(
        self, tf: Any, dataset: Dataset, share: Share, size: tuple[int, int], threads: int,
        repairs: Repairs, pipeline: str = "new",
    ) -> None:  # fmt: skip
        self._tf = tf
        self._dataset = dataset
        self._share = share
        self._size = size
        self._threads = threads
        self._repairs = repairs
        self._pipeline = pipeline
        self._unreadable: list[bytes] = []
        self.shape: tuple[int, ...] = (*size, 3)
        self.classes = dataset.classes
        examples = dataset.examples("train")
        self.steps_per_epoch = examples // share.global_batch
        if not self.steps_per_epoch:
            raise BadInput(
                f"the data set has {examples} training examples, fewer than one global batch of "
                f"{share.global_batch}",
                hint="use a smaller batch or fewer ranks",
            )

    def prepare(self, images: Any) -> Any:
        """Bytes to mean 0 and deviation 1, and mirroring; on the device, as part of the step.

        Both cost the host a third of a decode, and the bytes are a quarter of what floats are.
        """
        tf = self._tf
        pixels, mirrored = images
        # Half a step is added, because the bytes were cut off, not rounded.
        values = (tf.cast(pixels, tf.float32) + (0.5 - np.array(MEAN))) / DEVIATION
        return tf.where(mirrored[:, None, None, None], values[:, :, ::-1], values)

    def batches(self, epoch: int, first: int, wanted: Callable[[], int] = one) -> Iterator[Group]:
        """This rank's part of the epoch's batches from number `first` on, one by one.

        Raises:
            BadInput: a shard is gone, or more records are damaged than may be skipped.
        """
        batch = first
        while batch < self.steps_per_epoch:
            try:
                for images, labels in self.dataset(epoch, batch):
                    pixels, mirrored = (self._tf.expand_dims(part, 0) for part in images)
                    yield Group((pixels, mirrored), self._tf.expand_dims(labels, 0), 1)
                    batch += 1
            except self._tf.errors.NotFoundError as fault:
                raise BadInput(f"a shard of {self._dataset.folder} is gone: {_first(fault)}",
                               hint="the run goes on when it is back") from fault  # fmt: skip
            except self._tf.errors.DataLossError as fault:
                self._repairs.repair(self._dataset.files("train"), _first(fault))
            except self._tf.errors.InvalidArgumentError as fault:
                self._leave_out(self._records(epoch, batch), "train", _first(fault))

    def dataset(self, epoch: int, first: int) -> Any:
        """The tf.data pipeline of the rest of an epoch."""
        if self._pipeline == "old":
            return self._old(epoch).skip(first).take(self.steps_per_epoch - first)
        tf, share = self._tf, self._share
        records = self._records(epoch, first).enumerate(first * share.per_rank)
        images = records.map(
            self._training_image(epoch), num_parallel_calls=self._threads, deterministic=True
        )
        batches = images.batch(share.per_rank, drop_remainder=True)
        batches = batches.take(self.steps_per_epoch - first).with_options(self._options())
        gpus = tf.config.get_visible_devices("GPU")
        if gpus:
            return batches.apply(tf.data.experimental.prefetch_to_device("/GPU:0", 2))
        return batches.prefetch(2)

    def test_batches(self) -> Iterator[tuple[Any, Any]]:
        """Every `ranks`-th test image, the middle of it.

        Raises:
            BadInput: more records are damaged than may be skipped.
        """
        done, more = 0, "test" in self._dataset.splits
        while more:
            records = self._test_records().skip(done * self._share.per_rank)
            try:
                for batch in self._test_dataset(records):
                    yield batch
                    done += 1
                more = False
            except self._tf.errors.DataLossError as fault:
                # All ranks read all records, so they go on with the same numbering.
                self._repairs.repair(self._dataset.files("test"), _first(fault))
            except self._tf.errors.InvalidArgumentError as fault:
                self._leave_out(records, "test", _first(fault))

    def _test_records(self) -> Any:
        files = [str(self._repairs.path(path)) for path in self._dataset.files("test")]
        records = self._tf.data.TFRecordDataset(files)
        return self._readable(records.shard(self._share.ranks, self._share.rank))

    def _test_dataset(self, records: Any) -> Any:
        images = records.map(self._test_image, num_parallel_calls=self._threads)
        return images.batch(self._share.per_rank).with_options(self._options()).prefetch(2)

    def _readable(self, records: Any) -> Any:
        """The records without those that hold no image."""
        tf = self._tf
        if not self._unreadable:
            return records
        unreadable = tf.constant(self._unreadable)
        return records.filter(lambda record: tf.reduce_all(record != unreadable))

    def _leave_out(self, records: Any, split: str, why: str) -> None:
        """Name the images among the next batch's records that cannot be decoded.

        They are left out from now on.

        Raises:
            BadInput: too many are, or none can be found.
        """
        batch = [record.numpy() for record in records.take(self._share.per_rank)]
        faults = {record: fault for record in batch if (fault := self._fault_of(record))}
        if not faults or self._pipeline == "old":
            raise BadInput(f"an image of {self._dataset.folder} cannot be decoded: {why}")
        for record, fault in faults.items():
            shard, offset = find(self._dataset.files(split), record)
            self._repairs.skip(shard, offset, fault)
            self._unreadable.append(record)

    def _fault_of(self, record: bytes) -> str:
        try:
            encoded, label = self._parse(record)
            if not self._is_valid(label):
                return f"its label {label.numpy()} is none of {self.classes} classes"
            self._tf.io.decode_jpeg(encoded, channels=3)
        except self._tf.errors.InvalidArgumentError as fault:
            return _first(fault)
        return ""

    def _records(self, epoch: int, first: int) -> Any:
        """This rank's serialized records from batch `first` on, in the lanes' order."""
        tf, share = self._tf, self._share
        files = [self._repairs.path(path) for path in self._dataset.files("train")]
        lanes = lane_count(share.global_batch, share.ranks, len(files))
        mine = lanes // share.ranks
        block = share.global_batch // lanes
        laid = lay_lanes(files, lanes, share.seed, epoch)[share.rank * mine :][:mine]
        parts = laid[0][0].parts
        paths = tf.ragged.constant([[unit.path for unit in lane] for lane in laid])
        places = tf.ragged.constant([[unit.part for unit in lane] for lane in laid], tf.int64)

        def read(path: Any, part: Any) -> Any:
            records = tf.data.TFRecordDataset(path, buffer_size=1 << 20)
            return self._readable(records.shard(parts, part))

        def lane(number: Any) -> Any:
            units = tf.data.Dataset.from_tensor_slices((paths[number], places[number]))
            mixed = units.flat_map(read).shuffle(
                max(block, _MIXED // lanes),
                seed=share.seed * 7919 + share.rank * mine + tf.cast(number, tf.int64),
                reshuffle_each_iteration=False,
            )
            return mixed.repeat().skip(first * block)

        return tf.data.Dataset.range(mine).interleave(
            lane, cycle_length=mine, block_length=block, deterministic=True,
            num_parallel_calls=min(mine, max(2, self._threads)),
        )  # fmt: skip

    def _training_image(self, epoch: int) -> Callable[[Any, Any], tuple[Any, Any]]:
        tf, share = self._tf, self._share
        stream = (share.seed * 1_000_003 + epoch) % 2**31

        def image(local: Any, serialized: Any) -> tuple[Any, Any]:
            step, slot = local // share.per_rank, local % share.per_rank
            place = step * share.global_batch + share.rank * share.per_rank + slot
            seed = tf.stack([tf.constant(stream, tf.int64), place])
            encoded, label = self._parse_checked(serialized)
            window = self._random_window(tf.image.extract_jpeg_shape(encoded), seed)
            mirrored = tf.random.stateless_uniform((), seed + 1) < 0.5
            return (self._cut(encoded, window), mirrored), label

        return image

    def _test_image(self, serialized: Any) -> tuple[Any, Any]:
        """The middle: seven eighths of the shorter side, resized."""
        tf = self._tf
        encoded, label = self._parse_checked(serialized)
        shape = tf.image.extract_jpeg_shape(encoded)
        side = tf.minimum(shape[0], shape[1]) * 7 // 8
        top, left = (shape[0] - side) // 2, (shape[1] - side) // 2
        pixels = self._cut(encoded, tf.stack([top, left, side, side]))
        return (pixels, tf.constant(False)), label

    def _random_window(self, shape: Any, seed: Any) -> Any:
        """(top, left, height, width): a random part of random shape (arXiv 1409.4842)."""
        tf = self._tf
        start, size, _ = tf.raw_ops.StatelessSampleDistortedBoundingBox(
            image_size=shape, bounding_boxes=[[[0.0, 0.0, 1.0, 1.0]]], min_object_covered=0.0,
            seed=seed, aspect_ratio_range=_ASPECT, area_range=_AREA, max_attempts=10,
            use_image_if_no_bounding_boxes=True,
        )  # fmt: skip
        return tf.concat([start[:2], size[:2]], axis=0)

    def _cut(self, encoded: Any, window: Any) -> Any:
        """Decode the window only, and resize it; bytes of shape (height, width, 3)."""
        tf = self._tf
        part = tf.image.decode_and_crop_jpeg(
            encoded, window, channels=3, dct_method="INTEGER_FAST", fancy_upscaling=False
        )
        resized = tf.raw_ops.ResizeBilinear(
            images=part[None], size=self._size, half_pixel_centers=True
        )
        return tf.cast(resized[0], tf.uint8)

    def _parse(self, serialized: Any) -> tuple[Any, Any]:
        tf = self._tf
        several = self._dataset.task == "findings"
        name = "image/labels" if several else "image/class/label"
        shape = (self.classes,) if several else ()
        parsed = tf.io.parse_single_example(
            serialized,
            {
                "image/encoded": tf.io.FixedLenFeature((), tf.string),
                name: tf.io.FixedLenFeature(shape, tf.int64),
            },
        )
        return parsed["image/encoded"], parsed[name] - self._dataset.label_offset

    def _parse_checked(self, serialized: Any) -> tuple[Any, Any]:
        """Image and label; a label that is no class would otherwise show as a loss of NaN."""
        tf = self._tf
        encoded, label = self._parse(serialized)
        with tf.control_dependencies([tf.debugging.Assert(self._is_valid(label), [label])]):
            return encoded, tf.identity(label)

    def _is_valid(self, label: Any) -> Any:
        most = 2 if self._dataset.task == "findings" else self.classes
        return self._tf.reduce_all((label >= 0) & (label < most))

    def _old(self, epoch: int) -> Any:
        """The slow form: whole images decoded, one by one, and nothing done ahead."""
        tf, share = self._tf, self._share
        files = self._dataset.files("train")
        order = epoch_order(share.seed, epoch, len(files))
        paths = [str(files[i]) for i in order]

        def image(serialized: Any) -> tuple[Any, Any]:
            encoded, label = self._parse(serialized)
            whole = tf.io.decode_jpeg(encoded, channels=3)
            seed = tf.random.uniform((2,), maxval=2**31 - 1, dtype=tf.int32)
            window = self._random_window(tf.shape(whole), tf.cast(seed, tf.int64))
            part = tf.slice(whole, [window[0], window[1], 0], [window[2], window[3], 3])
            resized = tf.image.resize(part, self._size)
            resized = tf.image.random_flip_left_right(resized)
            return (resized, tf.constant(False)), label

        records = tf.data.TFRecordDataset(paths).shard(share.ranks, share.rank)
        options = tf.data.Options()
        options.autotune.enabled = False
        batches = records.map(image).repeat().batch(share.per_rank, drop_remainder=True)
        return batches.with_options(options)

    def _options(self) -> Any:
        """Threads within the rank's budget, map and batch as one operation."""
        options = self._tf.data.Options()
        options.deterministic = True
        options.autotune.enabled = False
        options.threading.private_threadpool_size = self._threads
        options.threading.max_intra_op_parallelism = 1
        options.experimental_optimization.map_and_batch_fusion = True
        return options


def _first(fault: Any) -> str:
    return str(getattr(fault, "message", fault)).splitlines()[0][:300]
