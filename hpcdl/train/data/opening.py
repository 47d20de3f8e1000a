"""Opens what `--data` or `--dataset` names, as the source of batches that fits it.

A user's own data are `--dataset package.module:function`. The function is called with `train` and
with `test` and returns arrays (inputs, labels), or a tf.data.Dataset of such pairs, one example
each, of known length; None where there is no test set. Arrays are shuffled as a whole, a pipeline
in a buffer, by seed and epoch. Every `ranks`-th example is a rank's: a global batch is the same set
of examples on any number of ranks.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from hpcdl.system.errors import BadInput
from hpcdl.train.data.dataset import read_dataset
from hpcdl.train.data.images import first_line
from hpcdl.train.data.pipeline import Records
from hpcdl.train.data.source import (
    Group,
    InMemory,
    Share,
    Source,
    Synthetic,
    one,
    read_raw,
    steps_in,
)
from hpcdl.train.data.tfrecord import Repairs
from hpcdl.train.models import origin, user_function
from hpcdl.train.options import SYNTHETIC, TrainOptions

_BUFFER = 8192
_LIMITS = (0.0, 255.0)  # not looked at: what is given goes to Keras' layers as it is
_CONTRACT = (
    "the function is called with 'train' or 'test' and returns arrays (inputs, labels), or a "
    "tf.data.Dataset of such pairs"
)
_SEVERAL = (
    "a label is of shape {}, and one number is wanted: the class's, argmax(-1) of one-hot labels; "
    "several yes or no per input are --task findings"
)


def open_source(
    options: TrainOptions,
    model: dict[str, Any],
    share: Share,
    cpus: int,
    repairs: Repairs,
) -> Source:
    """The source of a run's batches, read and decoded by `cpus` threads.

    `model` is its row of facts/models.yaml. Raises BadInput: no such data, or it does not fit.
    """
    task = str(options.task or model["task"])
    shape = tuple(model["input"])
    if options.image_size and len(shape) == 3:
        shape = (options.image_size, options.image_size, shape[2])
    if options.dataset:
        return _open_users(options.dataset, share, task)
    if options.data == SYNTHETIC:
        return Synthetic(shape, model["classes"], share, task)
    dataset = read_dataset(Path(options.data))
    if dataset.task != task:
        raise BadInput(
            f"the model {options.model} is for {task}, the data set's labels are {dataset.task}",
            hint="`hpcdl data make photos --task` makes either",
        )
    if dataset.encoding == "raw":
        if options.image_size and dataset.shape[:2] != shape[:2]:
            raise BadInput(
                f"the data set's images are {dataset.shape[0]} x {dataset.shape[1]}, and raw",
                hint="leave out --image-size: only JPEGs are cropped to a size",
            )
        arrays = {split: read_raw(dataset, split, repairs) for split in dataset.splits}
        return InMemory(arrays, share, dataset.classes, dataset.digest)
    return Records(dataset, share, shape[:2], cpus, repairs, options.pipeline)


def _open_users(named: str, share: Share, task: str) -> Source:
    """What the function gives, as a source of batches; BadInput: it raises, or gives no data."""
    single = task == "classes"  # a column of labels is one label each: as Keras' own data sets
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
    if "train" in given and isinstance(given["train"], tf.data.Dataset):
        return Pipeline(named, given, share, single=single)
    arrays = {split: _arrays(named, split, part, single) for split, part in given.items()}
    if "train" not in arrays:
        raise BadInput(f"--dataset {named} gives nothing to train on", hint=_CONTRACT)
    if len({images.shape[1:] for images, _ in arrays.values()}) > 1:
        raise BadInput(f"--dataset {named}: inputs to train and to test with differ in shape")
    digest = hashlib.sha256(arrays["train"][0].tobytes()).hexdigest()[:16]
    classes = max(_classes(labels) for _, labels in arrays.values())
    source = InMemory(arrays, share, classes, digest)
    source.limits = _LIMITS
    return source


def _arrays(named: str, split: str, part: Any, single: bool) -> tuple[Any, Any]:
    try:
        images, labels = (np.asarray(values) for values in part)
        if len(images) != len(labels):
            raise ValueError(f"{len(images)} inputs, but {len(labels)} labels")
        if labels.dtype.kind not in "iu":
            raise ValueError(f"labels are {labels.dtype}, not integers")
        labels = labels[:, 0] if single and labels.shape[1:] == (1,) else labels
        if single and labels.ndim > 1 and images.ndim in {1, 4}:  # one class for each
            raise ValueError(_SEVERAL.format(labels.shape[1:]))
        inputs = images.astype(np.int64 if images.dtype.kind == "i" else np.float32, copy=False)
    except (TypeError, ValueError) as fault:
        raise BadInput(f"--dataset {named}, '{split}': {fault}", hint=_CONTRACT) from fault
    return inputs, labels.astype(np.int64, copy=False)


def _classes(labels: Any) -> int:
    """Yes-or-no labels have a column each; other labels count from 0."""
    if labels.min(initial=0) < 0:
        raise BadInput(f"--dataset: a label is {labels.min()}; they count from 0", hint=_CONTRACT)
    several = labels.ndim == 2 and labels.max(initial=0) <= 1
    return int(labels.shape[1] if several else labels.max(initial=0) + 1)


class Pipeline(Source):
    """A user's tf.data pipelines, as a source of batches."""

    pixels = "as the data set's function gives them"
    limits = _LIMITS

    def __init__(self, named: str, parts: dict[str, Any], share: Share, *, single: bool) -> None:
        self._named = named
        self._share = share
        self.digest = named
        self.tested = "test" in parts
        try:
            image, label = parts["train"].element_spec
            self.shape: tuple[int, ...] = tuple(map(int, image.shape))
            if single and label.shape == (1,):
                parts = {split: part.map(lambda x, y: (x, y[0])) for split, part in parts.items()}
                label = parts["train"].element_spec[1]
            examples = int(parts["train"].cardinality())
        except (TypeError, ValueError, AttributeError) as fault:
            raise self._error("examples are not (input, label) of known shapes") from fault
        self._parts = parts
        if single and label.shape.rank and len(self.shape) in {0, 3}:
            raise self._error(_SEVERAL.format(tuple(label.shape)))
        if examples < 0:
            raise self._error("its length is not known: add .apply(assert_cardinality(n))")
        self.steps_per_epoch = steps_in(examples, share)
        # As many as there are labels, or as the largest one says: it is looked for once.
        labels = (np.asarray(y) for part in parts.values() for _, y in self._read(part.batch(1024)))
        self.classes = int(label.shape[0]) if label.shape.rank else max(map(_classes, labels))

    def _error(self, why: str) -> BadInput:
        return BadInput(f"--dataset {self._named}: {why}", hint=_CONTRACT)

    def _read(self, dataset: Any) -> Iterator[Any]:
        try:
            yield from dataset.prefetch(2)
        except tf.errors.OpError as fault:
            raise self._error(first_line(fault)) from fault

    def batches(self, epoch: int, first: int, wanted: Callable[[], int] = one) -> Iterator[Group]:
        """Batches of the epoch's order, one by one."""
        share, done = self._share, first
        seed = (share.seed * 1_000_003 + epoch) % 2**31
        mixed = self._parts["train"].shuffle(_BUFFER, seed=seed, reshuffle_each_iteration=False)
        mine = mixed.shard(share.ranks, share.rank).batch(share.per_rank, drop_remainder=True)
        for images, labels in self._read(mine.skip(first).take(self.steps_per_epoch - first)):
            yield Group(_inputs(images)[None], tf.cast(labels, tf.int64)[None], 1)
            done += 1
        if done < self.steps_per_epoch:
            raise self._error(f"it ended after batch {done} of {self.steps_per_epoch}")

    def test_batches(self) -> Iterator[tuple[Any, Any]]:
        """Every `ranks`-th test example."""
        share = self._share
        if "test" in self._parts:
            mine = self._parts["test"].shard(share.ranks, share.rank).batch(share.at_once)
            for images, labels in self._read(mine):
                yield _inputs(images), tf.cast(labels, tf.int64)


def _inputs(images: Any) -> Any:
    """As those of arrays: pixels, unsigned integers, become float32; others stay as they are."""
    return tf.cast(images, tf.float32) if images.dtype.is_unsigned else images
