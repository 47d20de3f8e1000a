"""The input pipeline for records of images: interleaved reads, fused decode and crop, prefetch.

The epoch's records, shard after shard in a new order, are divided into streams of equal length.
Every stream mixes what it reads in a buffer and gives as many images to every global batch; a rank
owns neighbouring streams. Their number goes by global batch and shards where the ranks can share
it: then batch k is the same set of images on 1 rank and on 8. Checkpoints keep it, so that a run
resumed on other ranks gives the rest of its epoch; a stream passes over the records it has given.
Crop and mirror are drawn from (seed, epoch, place in the epoch).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from hpcdl.system.errors import BadInput, HpcdlError
from hpcdl.train.data.dataset import IMAGES, Dataset
from hpcdl.train.data.images import Images, first_line
from hpcdl.train.data.source import BATCHES, Ahead, BatchShare, DataSource, epoch_order, steps_in
from hpcdl.train.data.tfrecord import Repairs, find

MEAN = (123.675, 116.28, 103.53)
DEVIATION = (58.395, 57.12, 57.375)
"""Of ImageNet's pixels, red, green, blue, 0 to 255 (pytorch/vision's and others' convention)."""

_MOST_STREAMS = 64
_MIXED = 4096
_LABELS = {"findings": "image/labels", "classes": "image/class/label", IMAGES: ""}


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
    and decode. `pipeline` is `new`, or `old`: one image after the other, nothing overlapped.
    """

    def __init__(
        self,
        dataset: Dataset,
        share: BatchShare,
        size: tuple[int, int],
        threads: int,
        repairs: Repairs,
        pipeline: str = "new",
    ) -> None:
        self._dataset = dataset
        self._share = share
        self._size = size
        self.images = Images(size)
        self._threads = threads
        self._repairs = repairs
        self._pipeline = pipeline
        self._unreadable: list[bytes] = []
        self.spec = tf.TensorSpec((*size, 3), tf.float32)
        several = (dataset.classes,) if dataset.task == "findings" else ()
        self.label_spec = tf.TensorSpec(several, tf.int64)
        self.classes = dataset.classes
        self.digest = dataset.digest
        self.task = dataset.task
        self.tested = dataset.examples("test") > 0
        self.pixels = f"(red, green, blue from 0 to 255 - {MEAN}) / {DEVIATION}"
        self.steps_per_epoch = steps_in(dataset.examples("train"), share)
        shards = len(dataset.splits["train"])
        self.streams = stream_count(share.global_batch, share.ranks, shards)

    @property
    def damaged(self) -> int:
        """How many records have turned out damaged."""
        return len(self._repairs.places)

    def prepare(self, images: Any) -> Any:
        """Bytes to mean 0 and deviation 1, and mirroring; on the device, as part of the step.

        Both cost the host a third of a decode, and the bytes are a quarter of what floats are.
        """
        pixels, mirrored = images
        # Half a step is added, because the bytes were truncated, not rounded.
        values = (tf.cast(pixels, tf.float32) + (0.5 - np.array(MEAN))) / DEVIATION
        return tf.where(mirrored[:, None, None, None], values[:, :, ::-1], values)

    def steps(self, first: int, last: int) -> Any:
        """Return the batches of the steps; the next epoch is opened before one ends."""
        return self._from(lambda: self._walk(first, last))

    def test(self) -> Any:
        """Return every `ranks`-th test image in batches, the middle of it."""
        return self._from(self.test_batches) if self.tested else None

    def _from(self, batches: Callable[[], Iterator[Any]]) -> Any:
        """Return what a Python iterator gives as a tf.data.Dataset; its clear error is kept."""
        size = (None, *self._size, 3)
        label = tf.TensorSpec((None, *self.label_spec.shape), tf.int64)
        given = ((tf.TensorSpec(size, tf.uint8), tf.TensorSpec((None,), tf.bool)), label)

        def generate() -> Iterator[Any]:
            try:
                yield from batches()
            except HpcdlError as fault:
                self.fault = fault
                raise

        return tf.data.Dataset.from_generator(generate, output_signature=given).prefetch(1)

    def _walk(self, first: int, last: int) -> Iterator[Any]:
        length, ahead = self.steps_per_epoch, None
        epoch, batch = divmod(first, length)
        for step in range(first, last):
            if step == first or step % length == 0:
                batches = ahead.take() if ahead else self.batches(epoch, batch)
                epoch, batch, ahead = epoch + 1, 0, None
            yield next(batches)
            left = length - 1 - step % length
            if left == min(BATCHES, length - 1) and step + left + 1 < last and length > 1:
                opens = partial(self.batches, epoch, 0)
                ahead = Ahead(opens, lambda: self.damaged)

    def batches(self, epoch: int, first: int) -> Iterator[Any]:
        """Return this rank's part of the epoch's batches from number `first` on, one by one."""
        errors = tf.errors  # an interpreter that ends takes modules apart
        batch = first
        while batch < self.steps_per_epoch:
            begun = batch
            try:
                for images, labels in self.dataset(epoch, batch):
                    yield tf.nest.map_structure(lambda part: part.numpy(), (images, labels))
                    batch += 1
            except errors.NotFoundError as fault:
                raise BadInput(
                    f"a shard of {self._dataset.folder} is gone: {first_line(fault)}",
                    hint="the run resumes when it is back",
                ) from fault
            except errors.DataLossError as fault:
                self._repairs.repair(self._dataset.files("train"), first_line(fault))
            except (errors.InvalidArgumentError, UnicodeDecodeError) as fault:
                records = self._serialized(epoch, batch).take(self._share.per_rank)
                self._leave_out(records, "train", first_line(fault))
            else:
                if batch == begun:
                    raise BadInput(
                        f"{self._dataset.folder} has too few sound records: none is left for "
                        f"batch {batch} of an epoch",
                        hint="`hpcdl data inspect` names those that cannot be read",
                    )

    def dataset(self, epoch: int, first: int) -> Any:
        """The tf.data pipeline of the rest of an epoch."""
        share = self._share
        records = self._serialized(epoch, first)
        if self._pipeline == "old":
            return self._old(records).take(self.steps_per_epoch - first)
        records = records.enumerate(first * share.per_rank)
        batches = self._decoded(records, self._training_part(epoch), share.per_rank)
        batches = batches.take(self.steps_per_epoch - first).with_options(self._options())
        gpus = tf.config.get_visible_devices("GPU")
        if gpus:
            return batches.apply(tf.data.experimental.prefetch_to_device("/GPU:0", 2))
        return batches.prefetch(2)

    def _decoded(self, records: Any, describe: Callable[..., Any], count: int) -> Any:
        """Return batches of `count` images.

        `describe` gives of a record: ((encoded, area, mirrored), label).
        """

        def image(*record: Any) -> Any:
            (encoded, area, mirrored), label = describe(*record)
            return (self.images.crop(encoded, area), mirrored), label

        images = records.map(image, num_parallel_calls=self._threads, deterministic=True)
        return images.batch(count)

    def test_batches(self) -> Iterator[tuple[Any, Any]]:
        """Every `ranks`-th test image, the middle of it."""
        done, more = 0, "test" in self._dataset.splits
        while more:
            files = [str(self._repairs.path(path)) for path in self._dataset.files("test")]
            records = tf.data.TFRecordDataset(files).shard(self._share.ranks, self._share.rank)
            records = self._readable(records).skip(done * self._share.at_once)
            try:
                for batch in self._test_dataset(records):
                    yield batch
                    done += 1
                more = False
            except tf.errors.DataLossError as fault:
                # All ranks read all records, so they continue with the same numbering.
                self._repairs.repair(self._dataset.files("test"), first_line(fault))
            except (tf.errors.InvalidArgumentError, UnicodeDecodeError) as fault:
                self._leave_out(records.take(self._share.at_once), "test", first_line(fault))

    def _test_dataset(self, records: Any) -> Any:
        batches = self._decoded(records, self._test_part, self._share.at_once)
        return batches.with_options(self._options()).prefetch(2)

    def _readable(self, records: Any) -> Any:
        """The records without those that hold no image."""
        if not self._unreadable:
            return records
        unreadable = tf.constant(self._unreadable)
        return records.filter(lambda record: tf.reduce_all(record != unreadable))

    def _leave_out(self, records: Any, split: str, why: str) -> None:
        """Name the images of a batch that cannot be decoded, and leave them out from now on."""
        batch = [record.numpy() for record in records]
        faults = {record: fault for record in batch if (fault := self._fault_of(record))}
        if not faults:
            raise BadInput(f"an image of {self._dataset.folder} cannot be decoded: {why}")
        for record, fault in faults.items():
            shard, offset = find(self._dataset.files(split), record)
            self._repairs.skip(shard, offset, fault)
            self._unreadable.append(record)

    def _fault_of(self, record: bytes) -> str:
        try:
            encoded, label = self._parse(record)
        except UnicodeDecodeError:  # TensorFlow's message quotes the record
            return "it is no tf.Example"
        except tf.errors.InvalidArgumentError as fault:
            return first_line(fault)
        if not self._is_valid(label):
            return f"its label {label.numpy()} is none of {self.classes} classes"
        return self.images.fault_of(encoded)

    def _serialized(self, epoch: int, first: int) -> Any:
        share = self._share
        if self._pipeline != "old":
            return self._records(epoch, first)
        files = [self._repairs.path(path) for path in self._dataset.files("train")]
        order = epoch_order(share.seed, epoch, len(files))
        records = tf.data.TFRecordDataset([str(files[i]) for i in order])
        mine = self._readable(records.shard(share.ranks, share.rank)).repeat()
        return mine.skip(first * share.per_rank)

    def _records(self, epoch: int, first: int) -> Any:
        share = self._share
        shards = [
            (self._repairs.path(self._dataset.folder / shard.name), shard.examples)
            for shard in self._dataset.splits["train"]
        ]
        streams = self.streams
        mine = streams // share.ranks
        block = share.global_batch // streams
        length = self._dataset.examples("train") // share.global_batch * block
        queues = interleave_shards(shards, streams, length, share.seed, epoch)
        queues = queues[share.rank * mine :][:mine]
        paths = tf.ragged.constant([[unit.path for unit in stream] for stream in queues])
        spans = [[(unit.skip, unit.count) for unit in stream] for stream in queues]
        spans = tf.ragged.constant(spans, tf.int64, inner_shape=(2,))

        # By seed, epoch and number of the stream over all ranks.
        first_seed = (share.seed * 1_000_003 + epoch) * _MOST_STREAMS + share.rank * mine

        def read(path: Any, span: Any) -> Any:
            records = tf.data.TFRecordDataset(path, buffer_size=1 << 20)
            return self._readable(records.skip(span[0]).take(span[1]))

        def stream(number: Any) -> Any:
            units = tf.data.Dataset.from_tensor_slices((paths[number], spans[number]))
            records = units.flat_map(read)
            mixed = records.shuffle(
                max(block, _MIXED // streams),
                seed=first_seed + tf.cast(number, tf.int64),
                reshuffle_each_iteration=False,
            )
            # What damage takes from a stream it reads again, and no more: a buffer would be a pass.
            whole = mixed.concatenate(records.repeat()).take(self.steps_per_epoch * block)
            return whole.skip(first * block)

        return tf.data.Dataset.range(mine).interleave(
            stream,
            cycle_length=mine,
            block_length=block,
            deterministic=True,
            num_parallel_calls=min(mine, max(2, self._threads)),
        )

    def _training_part(self, epoch: int) -> Callable[[Any, Any], tuple[Any, Any]]:
        share = self._share
        stream = (share.seed * 1_000_003 + epoch) % 2**31

        def part(local: Any, serialized: Any) -> tuple[Any, Any]:
            step, slot = local // share.per_rank, local % share.per_rank
            place = step * share.global_batch + share.rank * share.per_rank + slot
            seed = tf.stack([tf.constant(stream, tf.int64), place])
            encoded, label = self._parse_checked(serialized)
            area = self.images.random_crop(self.images.shape(encoded), seed)
            mirrored = tf.random.stateless_uniform((), seed + 1) < 0.5
            return (encoded, area, mirrored), label

        return part

    def _test_part(self, serialized: Any) -> tuple[Any, Any]:
        encoded, label = self._parse_checked(serialized)
        area = self.images.central_crop(self.images.shape(encoded))
        return (encoded, area, tf.constant(False)), label

    def _parse(self, serialized: Any) -> tuple[Any, Any]:
        task = self._dataset.task
        name, shape = _LABELS[task], (self.classes,) if task == "findings" else ()
        wanted = {"image/encoded": tf.io.FixedLenFeature((), tf.string)}
        if name:
            wanted[name] = tf.io.FixedLenFeature(shape, tf.int64)
        parsed = tf.io.parse_single_example(serialized, wanted)
        label = parsed[name] - self._dataset.label_offset if name else tf.constant(0, tf.int64)
        return parsed["image/encoded"], label

    def _parse_checked(self, serialized: Any) -> tuple[Any, Any]:
        """Image and label; a label that is no class would otherwise show as a loss of NaN."""
        encoded, label = self._parse(serialized)
        with tf.control_dependencies([tf.debugging.Assert(self._is_valid(label), [label])]):
            return encoded, tf.identity(label)

    def _is_valid(self, label: Any) -> Any:
        most = 2 if self._dataset.task == "findings" else self.classes
        return tf.reduce_all((label >= 0) & (label < most))

    def _old(self, records: Any) -> Any:
        """The slow form: whole images decoded, one by one, and nothing done ahead."""
        share = self._share

        def image(serialized: Any) -> tuple[Any, Any]:
            encoded, label = self._parse(serialized)
            whole = tf.io.decode_jpeg(encoded, channels=3)
            seed = tf.random.uniform((2,), maxval=2**31 - 1, dtype=tf.int32)
            area = self.images.random_crop(tf.shape(whole), tf.cast(seed, tf.int64))
            part = tf.slice(whole, [area[0], area[1], 0], [area[2], area[3], 3])
            resized = tf.image.resize(part, self._size)
            resized = tf.image.random_flip_left_right(resized)
            return (resized, tf.constant(False)), label

        options = tf.data.Options()
        options.autotune.enabled = False
        # Of its own accord TensorFlow would read ahead, whatever its single options are.
        options.experimental_optimization.apply_default_optimizations = False
        batches = records.map(image).batch(share.per_rank, drop_remainder=True)
        return batches.with_options(options)

    def _options(self) -> Any:
        """Threads within the rank's budget, map and batch as one operation."""
        options = tf.data.Options()
        options.deterministic = True
        options.autotune.enabled = False
        options.threading.private_threadpool_size = self._threads
        options.threading.max_intra_op_parallelism = 1
        options.experimental_optimization.map_and_batch_fusion = True
        return options
