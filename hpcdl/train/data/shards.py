"""Makes data sets, and inspects directories of records.

A data set is complete or absent: its shards are written in a directory of their own, which is
renamed as a whole. TensorFlow's reader checks every checksum at the disk's speed. It gives up at
the first bad record, whose place in the file is in its message; what is behind is not looked at.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from hpcdl.system.errors import BadInput, MissingPrerequisite
from hpcdl.system.files import explain_os_errors
from hpcdl.system.resources import scratch_directory
from hpcdl.train.data.dataset import (
    FILE,
    Dataset,
    Shard,
    describe_shard,
    made_before,
    require_room,
    shard_files,
    write_dataset,
)
from hpcdl.train.data.source import reason

_TEST_DIGITS = 357
_FOR_TESTS = ("test", "val")
"""So names of shards begin that are to test or to validate with."""
Judge = Callable[[bytes], str]
"""What is wrong with the content of a record; '' if nothing is."""
Parts = Mapping[str, tuple[Sequence[Any], int]]
"""By split: the items that become records, and the number of shards, to which they go in turn."""


def make_dataset(
    dataset: Dataset, parts: Parts, record: Callable[[Any], bytes], threads: int = 1
) -> Dataset:
    """Make the data set: all shards and dataset.json; returns it with its splits.

    `record` serializes an item. Raises BadInput: another command has made another one meanwhile;
    MissingPrerequisite: no space or no permission.
    """
    folder = dataset.folder.resolve()
    with explain_os_errors(folder):
        folder.parent.mkdir(parents=True, exist_ok=True)
        with scratch_directory(folder.parent) as aside, ThreadPoolExecutor(threads) as pool:
            made = aside / folder.name
            made.mkdir()
            splits = {}
            for split, (items, shards) in parts.items():
                of = min(max(1, shards), len(items))
                paths = [made / f"{split}-{n:05d}-of-{of:05d}.tfrecord" for n in range(of)]
                shares = [items[number::of] for number in range(of)]
                splits[split] = tuple(pool.map(_write, paths, shares, [record] * of))
            splits = {split: shards for split, shards in splits.items() if shards}
            write_dataset(replace(dataset, folder=made, splits=splits))
            if found := made_before(folder, dataset.request):  # of two at once the first is kept
                return found
            require_room(folder)
            made.rename(folder)
    return replace(dataset, splits=splits)


def example(**features: bytes | int | Sequence[int]) -> bytes:
    """A serialized tf.train.Example; `__` in a name means `/`."""
    made = {name.replace("__", "/"): _feature(value) for name, value in features.items()}
    whole = tf.train.Example(features=tf.train.Features(feature=made))
    return bytes(whole.SerializeToString(deterministic=True))


def _feature(value: bytes | int | Sequence[int]) -> Any:
    if isinstance(value, bytes):
        return tf.train.Feature(bytes_list=tf.train.BytesList(value=[value]))
    numbers = [value] if isinstance(value, int) else list(value)
    return tf.train.Feature(int64_list=tf.train.Int64List(value=numbers))


def _write(path: Path, items: Sequence[Any], record: Callable[[Any], bytes]) -> Shard:
    """Write a shard and bring it to disk."""
    try:
        with tf.io.TFRecordWriter(str(path)) as writer:
            for item in items:
                writer.write(record(item))
    except tf.errors.OpError as fault:  # TensorFlow's own for a full disk
        raise MissingPrerequisite(
            f"cannot write {path}: {str(fault).splitlines()[0][:200]}",
            hint="free some space or choose another place",
        ) from fault
    with path.open("rb+") as file:
        os.fsync(file.fileno())
    return describe_shard(path, len(items))


def make_digits(folder: Path, request: dict[str, Any]) -> Dataset:
    """Scikit-learn's 1,797 handwritten digits (8x8): UCI ML's optical recognition, test set.

    The split and the order are drawn from the seed; the same seed gives the same bytes. Raises
    MissingPrerequisite: scikit-learn is missing, or no space is left.
    """
    try:
        from sklearn.datasets import load_digits
    except ImportError as fault:
        raise MissingPrerequisite(
            "scikit-learn, which has the digits, is not installed",
            hint="`module load tensorflow`: the published release has it",
        ) from fault
    images, labels = load_digits(return_X_y=True)

    def record(row: int) -> bytes:
        pixels = images[row].astype(np.uint8).tobytes()
        return example(image__raw=pixels, image__class__label=int(labels[row]))

    # RandomState's stream is frozen by NumPy: the split never changes with a version.
    order = np.random.RandomState(request["seed"]).permutation(len(labels)).tolist()
    parts = {"train": (order[:-_TEST_DIGITS], 4), "test": (order[-_TEST_DIGITS:], 2)}
    dataset = Dataset(folder, "digits", "raw", (8, 8, 1), 10, 16.0, {}, request=request)
    return make_dataset(dataset, parts, record)


# ---- inspecting ----


def inspect(
    folder: Path, threads: int, promised: Dataset | None = None, judge: Judge | None = None
) -> dict[str, Any]:
    """Look at every shard, `threads` at a time; returns the report, as `--json` prints it.

    `judge` looks into every record, too. What differs from the records that a dataset.json has
    `promised` is a fault; without one, the numbers in the names say which shards there are.
    """
    files = shard_files(folder)
    shards = [one for split in promised.splits.values() for one in split] if promised else []
    wanted = {shard.name: shard.examples for shard in shards}
    with ThreadPoolExecutor(threads) as pool:
        found = list(pool.map(partial(_look, judge=judge, wanted=wanted), files))
    absent = missing(files) | (wanted.keys() - {path.name for path in files})
    return {
        "directory": str(folder),
        "sound": not absent and not any(shard["faults"] for shard in found),
        "records": sum(shard["records"] for shard in found),
        "bytes": sum(shard["bytes"] for shard in found),
        "missing": sorted(absent),
        "shards": found,
    }


def as_text(report: Mapping[str, Any]) -> str:
    """The report for people: faults first, the sum last."""
    shards, records, size = report["shards"], report["records"], report["bytes"]
    lines = [f"{name}: missing" for name in report["missing"]]
    lines += [f"{shard['name']}: {fault}" for shard in shards for fault in shard["faults"]]
    state = f"{len(lines)} fault{'s' if len(lines) > 1 else ''}" if lines else "all sound"
    mean = f", {size / records / 1e3:,.1f} KB each" if records else ""
    sums = f"{len(shards)} shards, {records:,} records, {size / 1e6:,.1f} MB{mean}"
    return "\n".join([*lines, f"{sums}: {state}"])


def _look(path: Path, judge: Judge | None, wanted: dict[str, int]) -> dict[str, Any]:
    size, read, faults = path.stat().st_size, 0, []
    if not size:
        faults.append("the file is empty")
    try:
        data = tf.data.TFRecordDataset(str(path), buffer_size=8 << 20)
        for read, record in enumerate(data.as_numpy_iterator(), 1):
            if judge and (why := judge(record)):
                faults.append(f"record {read}: {why}")
    except tf.errors.OpError as fault:
        why, *_ = reason(fault).split("'")  # behind it is what was read
        faults.append(f"after {read:,} records: {why}")
    count = wanted.get(path.name, read)
    if not faults and read != count:
        faults.append(f"the file ends after {read:,} records, {FILE} promises {count:,}")
    return {"name": path.name, "records": read, "bytes": size, "faults": faults}


def index(folder: Path, report: Mapping[str, Any], task: str, classes: int, offset: int) -> None:
    """Write dataset.json for a sound directory that has none; `validation` shards are `test`."""
    if not report["sound"]:
        details = as_text(report).splitlines()
        raise BadInput(f"{folder} is not sound, so it gets no {FILE}", details=details)
    splits: dict[str, tuple[Shard, ...]] = {"train": ()}
    for shard in report["shards"]:
        split = "test" if shard["name"].startswith(_FOR_TESTS) else "train"
        described = describe_shard(folder / shard["name"], shard["records"])
        splits[split] = (*splits.get(split, ()), described)
    shape = (224, 224, 3)
    write_dataset(Dataset(folder, "records", "jpeg", shape, classes, 255.0, splits, task, offset))


def missing(files: Sequence[Path]) -> set[str]:
    """Names that the numbering `-00003-of-00016` promises, and are not there."""
    there = {path.name for path in files}
    promised = set()
    for name in there:
        if match := re.fullmatch(r"(.*-)([0-9]{1,6})(-of-([0-9]{1,6})(\..*)?)", name):
            head, number, rest, total, _ = match.groups()
            promised |= {f"{head}{n:0{len(number)}d}{rest}" for n in range(int(total))}
    return promised - there
