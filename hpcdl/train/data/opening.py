"""Opens what `--data` or `--dataset` names, as the source of batches that fits it.

A user's own data are `--dataset package.module:function`. The function is called with `train` and
with `test` and returns arrays (inputs, labels) or (inputs, labels, weights), or a tf.data.Dataset
of such tuples, one example each, of known length; None where there is no test set. Inputs and
labels may be structures of arrays. Arrays are shuffled as a whole, a pipeline in a buffer, by seed
and epoch. Every `ranks`-th example is a rank's, so a global batch is the same set on any number.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from hpcdl.system.errors import BadInput
from hpcdl.train.data import source as sources
from hpcdl.train.data.dataset import Dataset, read_dataset
from hpcdl.train.data.pipeline import RecordSource
from hpcdl.train.data.source import BatchShare, DataSource, InMemory, Synthetic, steps_in
from hpcdl.train.models import origin, user_function
from hpcdl.train.options import SYNTHETIC, TrainOptions

_BUFFER = 8192
_LOOKED_AT = 64
_MOST_CLASSES = 10_000_000
_CONTRACT = (
    "the function is called with 'train' or 'test' and returns arrays (inputs, labels), or a "
    "tf.data.Dataset of such pairs"
)


def open_source(
    options: TrainOptions,
    model: dict[str, Any],
    share: BatchShare,
    cpus: int,
    *,
    counts: bool = True,
) -> DataSource:
    """The source of a run's batches, read and decoded by `cpus` threads.

    `model` is its row of facts/models.yaml; `counts`: the model wants the number of classes.
    Raises BadInput: no such data, or it does not fit.
    """
    task = model["task"]
    shape = tuple(model["input"])
    if options.image_size and len(shape) == 3:
        shape = (options.image_size, options.image_size, shape[2])
    if options.dataset:
        return _open_users(options.dataset, share, counts=counts)
    if options.data == SYNTHETIC:
        return Synthetic(shape, model["classes"], share, task)
    dataset = read_dataset(Path(options.data))
    if dataset.task != task and ":" not in options.model:
        raise BadInput(
            f"the model {options.model} is for {task}, the data set's labels are {dataset.task}",
            hint="`hpcdl data inspect --index --classes` says what they are",
        )
    if dataset.encoding == "raw":
        if options.image_size and dataset.shape[:2] != shape[:2]:
            raise BadInput(
                f"the data set's images are {dataset.shape[0]} x {dataset.shape[1]}, and raw",
                hint="leave out --image-size: only JPEGs are cropped to a size",
            )
        arrays = {split: _read_raw(dataset, split) for split in dataset.splits}
        return InMemory(arrays, share, dataset.classes, dataset.digest)
    return RecordSource(dataset, share, shape[:2], cpus)


def _read_raw(dataset: Dataset, split: str) -> tuple[Any, Any]:
    """All images (float32, 0 to 1) and labels of a split, in the order of the shards.

    Raises BadInput: a record is damaged.
    """
    wanted = {
        "image/raw": tf.io.FixedLenFeature((), tf.string),
        "image/class/label": tf.io.FixedLenFeature((), tf.int64),
    }
    try:
        records = list(tf.data.TFRecordDataset(list(map(str, dataset.files(split)))))
        parsed = tf.io.parse_example(records, wanted)
        pixels = np.asarray(tf.io.decode_raw(parsed["image/raw"], tf.uint8), np.float32)
        images = pixels.reshape(len(records), *dataset.shape) / np.float32(dataset.scale)
        labels = np.asarray(parsed["image/class/label"])
        if ((labels < 0) | (labels >= dataset.classes)).any():
            raise ValueError(f"a label is none of {dataset.classes} classes")
    # A UnicodeDecodeError's message quotes the record; a ValueError: pixels are not of the shape.
    except (tf.errors.OpError, ValueError) as fault:
        raise sources.unreadable(fault) from fault
    return images, labels


def _open_users(named: str, share: BatchShare, *, counts: bool) -> DataSource:
    """Return what the function gives as a source; BadInput: it raises, or gives no data.

    `counts`: the number of classes is wanted, which may need a pass over the labels.
    """
    function = user_function("--dataset", named)
    parts: dict[str, Any] = {}
    for split in ("train", "test"):
        try:
            parts[split] = function(split)
        except Exception as fault:  # it is the user's: anything may go wrong in it
            raise BadInput(
                f"--dataset {named} raised for '{split}'", details=origin(fault), hint=_CONTRACT
            ) from fault
    given = {split: part for split, part in parts.items() if part is not None}
    if "train" not in given:
        raise BadInput(f"--dataset {named} gives nothing to train on", hint=_CONTRACT)
    pipelines = [isinstance(part, tf.data.Dataset) for part in given.values()]
    if any(pipelines) and not all(pipelines):
        raise BadInput(
            f"--dataset {named} gives arrays for one of 'train' and 'test', and a pipeline for the "
            "other",
            hint="tf.data.Dataset.from_tensor_slices(arrays) is a pipeline of arrays",
        )
    if pipelines[0]:
        return UserPipeline(named, given, share, counts=counts)
    arrays = {split: _arrays(named, split, part) for split, part in given.items()}
    _require_alike(
        named,
        [tf.nest.map_structure(lambda values: values.shape[1:], part) for part in arrays.values()],
    )
    digest = hashlib.sha256(tf.nest.flatten(arrays["train"])[0].tobytes()).hexdigest()[:16]
    labels = [part[1] for part in arrays.values()]
    source = InMemory(arrays, share, _classes(labels) if counts else 0, digest)
    source.own, source.order = False, digest
    return source


def _require_alike(named: str, parts: Sequence[Any]) -> None:
    """Refuse a test set of other shapes: it would fail when all training is done."""
    for place, what in enumerate(("inputs", "labels")):
        shapes = [str(part[place]) for part in parts]
        if len(set(shapes)) > 1:
            raise BadInput(
                f"--dataset {named}: {what} to train and to test with differ in shape",
                details=shapes,
            )


def _arrays(named: str, split: str, part: Any) -> tuple[Any, ...]:
    try:
        if not (isinstance(part, tuple | list) and len(part) in {2, 3}):
            raise ValueError("it is not (inputs, labels) or (inputs, labels, weights)")
        # A list of numbers is an array, a tuple or dict of arrays a structure.
        given = [np.asarray(each) if isinstance(each, list) else each for each in part]
        arrays = _usual(*(tf.nest.map_structure(_array, each) for each in given), batch=1)
        lengths = [len(values) for values in tf.nest.flatten(arrays)]
        if len(set(lengths)) > 1:
            raise ValueError(f"{lengths[0]} inputs, but {lengths[-1]} labels")
    except (TypeError, ValueError) as fault:
        raise BadInput(f"--dataset {named}, '{split}': {fault}", hint=_CONTRACT) from fault
    return arrays


def _array(values: Any) -> Any:
    array = np.asarray(values)
    if array.dtype.kind not in "biuf" or array.ndim == 0:
        raise ValueError(f"{array.dtype} is not numbers")
    return array


def _usual(inputs: Any, labels: Any, *weights: Any, batch: int = 0) -> tuple[Any, ...]:
    """Return an example, or arrays of them with `batch` 1, in the types that training takes.

    Integers are int64, but bytes of pixels float32 as all other numbers. Labels keep their shape: a
    loss that is given others than Keras gives it broadcasts without a word.
    """

    def typed(values: Any, *, pixels: bool = False) -> Any:
        kind = tf.as_dtype(values.dtype)
        if kind == tf.string:
            return values
        pixels = pixels and kind == tf.uint8 and len(values.shape) > batch
        usual = tf.int64 if kind.is_integer and not pixels else tf.float32
        return values.astype(usual.as_numpy_dtype, copy=False) if batch else tf.cast(values, usual)

    return (
        tf.nest.map_structure(lambda values: typed(values, pixels=True), inputs),
        tf.nest.map_structure(typed, labels),
        *(tf.nest.map_structure(typed, each) for each in weights),
    )


def _classes(labels: Any) -> int:
    """Return the classes: the width of labels that have one, or the greatest number + 1.

    Of several outputs' labels those count that are integers: others are numbers to be met.
    """
    parts = tf.nest.flatten(labels)
    counted = [part for part in parts if part.dtype.kind != "f"]
    first = (counted or parts)[0]
    if not counted:
        return int(first.shape[1]) if first.ndim > 1 else 1
    lowest = min(int(part.min(initial=0)) for part in counted)
    if lowest < 0:
        raise BadInput(f"--dataset: a label is {lowest}; they count from 0", hint=_CONTRACT)
    highest = max(int(part.max(initial=0)) for part in counted)
    if highest > _MOST_CLASSES:
        raise BadInput(
            f"--dataset: a label is {highest:,}, and classes count from 0", hint=_CONTRACT
        )
    return max(int(first.shape[1]) if first.ndim > 1 and highest <= 1 else 0, highest + 1)


class UserPipeline(DataSource):
    """A user's tf.data pipelines, as a source of batches."""

    pixels = "as the data set's function gives them"
    own = False

    def __init__(
        self, named: str, parts: dict[str, Any], share: BatchShare, *, counts: bool
    ) -> None:
        self._named = named
        self._share = share
        self.digest = named
        try:
            self._parts = {split: part.map(_usual) for split, part in parts.items()}
            self.spec, self.label_spec, *_ = self._parts["train"].element_spec
            for spec in tf.nest.flatten((self.spec, self.label_spec)):
                tuple(map(int, spec.shape))
            lengths = [int(part.cardinality()) for part in parts.values()]
        except (TypeError, ValueError, AttributeError) as fault:
            raise self._error(
                "examples are not (input, label) of known shapes",
                f"give single examples, not batches (.unbatch()); {_CONTRACT}",
            ) from fault
        _require_alike(
            named,
            [
                tf.nest.map_structure(lambda spec: tuple(spec.shape), part.element_spec)
                for part in self._parts.values()
            ],
        )
        if tf.data.INFINITE_CARDINALITY in lengths:
            raise self._error("it has no end", "leave out .repeat(), or add .take(n)")
        if min(lengths) < 0:
            raise self._error("its length is not known: add .apply(assert_cardinality(n))")
        self.steps_per_epoch = steps_in(lengths[0], share)
        self.tested = sum(lengths[1:])
        self._refuse_reshuffling()
        self.classes = self._count() if counts else 0

    def _error(self, why: str, hint: str = _CONTRACT) -> BadInput:
        return BadInput(f"--dataset {self._named}: {why}", hint=hint)

    def _refuse_reshuffling(self) -> None:
        """Refuse a data set whose order differs from pass to pass: ranks would share examples."""
        for part in self._parts.values():
            passes = [
                [
                    np.asarray(y).tobytes()
                    for element in self._read(part.take(_LOOKED_AT))
                    for y in tf.nest.flatten(element[1])
                ]
                for _ in range(2)
            ]
            self.order += hashlib.sha256(b"".join(passes[0])).hexdigest()
            if passes[0] != passes[1]:
                raise self._error(
                    "it gives its elements in another order each time, so ranks would train on "
                    "the same examples and a resumed run on others",
                    "leave out .shuffle(): hpcdl train shuffles by seed and epoch; or "
                    ".shuffle(n, seed=1, reshuffle_each_iteration=False)",
                )

    def _count(self) -> int:
        specs = tf.nest.flatten(self.label_spec)
        place = next((n for n, one in enumerate(specs) if one.dtype.is_integer), 0)
        spec = specs[place]
        if not spec.dtype.is_integer:
            return int(spec.shape[0]) if spec.shape.rank else 1
        batches = (
            np.asarray(tf.nest.flatten(element[1])[place])
            for part in self._parts.values()
            for element in self._read(part.batch(1024))
        )
        ends = [end for labels in batches for end in (labels.min(axis=0), labels.max(axis=0))]
        return _classes([np.stack(ends)])

    def _read(self, dataset: Any) -> Iterator[Any]:
        try:
            yield from dataset.prefetch(2)
        except tf.errors.OpError as fault:
            raise self._error(sources.reason(fault)) from fault

    def steps(self, first: int, last: int) -> Any:
        """Return batches of the epochs' orders."""
        share, length = self._share, self.steps_per_epoch
        train = self._parts["train"]

        def epoch(number: Any) -> Any:
            seed = (share.seed * 1_000_003 + number) % 2**31
            mixed = train.shuffle(_BUFFER, seed=seed, reshuffle_each_iteration=False)
            mine = mixed.shard(share.ranks, share.rank).batch(share.per_rank, drop_remainder=True)
            return mine.take(length).apply(tf.data.experimental.assert_cardinality(length))

        epochs = tf.data.Dataset.range(first // length, -(-last // length)).flat_map(epoch)
        return epochs.skip(first % length).take(last - first).prefetch(2)

    def test(self) -> Any:
        """Return every `ranks`-th test example."""
        share = self._share
        if not self.tested:
            return None
        return self._parts["test"].shard(share.ranks, share.rank).batch(share.per_rank)
