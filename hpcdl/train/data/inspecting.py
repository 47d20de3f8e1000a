"""Inspects directories of records: number, sizes, and damaged ones by file and offset.

TensorFlow's reader checks a sound shard at the disk's speed; only where it stumbles the shard is
walked record by record: length (8 bytes), its checksum (4), data, their checksum (4). That reader
gives up at the first bad record. Here the lengths are followed, so that every bad one gets its
name; TensorFlow judges the data.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import tensorflow as tf

from hpcdl.system.errors import BadInput
from hpcdl.system.files import explain_os_errors
from hpcdl.train.data.dataset import (
    FILE,
    Dataset,
    Shard,
    describe_shard,
    shard_files,
    write_dataset,
)

_FOR_TESTS = ("test", "val")
"""So names of shards begin that are to test or to validate with."""
Judge = Callable[[bytes], str]
"""What is wrong with the content of a record; '' if nothing is."""


@dataclass(frozen=True)
class RecordPlace:
    """One record's place: `offset` of its frame and `length` of its data, in bytes.

    `fault` is empty, or says what is wrong with it.
    """

    offset: int
    length: int
    fault: str = ""


@dataclass(frozen=True)
class ShardReport:
    """One shard: whole records, bytes, and the faults found."""

    name: str
    records: int
    bytes: int
    faults: tuple[RecordPlace, ...] = ()


@dataclass(frozen=True)
class DataReport:
    """A directory of records. `missing` are shards that names or dataset.json promise."""

    folder: Path
    shards: tuple[ShardReport, ...]
    missing: tuple[str, ...]

    @property
    def sound(self) -> bool:
        """Return whether all is there and can be read."""
        return not self.missing and not any(shard.faults for shard in self.shards)

    def as_json(self) -> dict[str, Any]:
        """For `--json`."""
        return {
            "directory": str(self.folder),
            "sound": self.sound,
            "records": sum(shard.records for shard in self.shards),
            "bytes": sum(shard.bytes for shard in self.shards),
            "missing": list(self.missing),
            "shards": [asdict(shard) for shard in self.shards],
        }

    def as_text(self) -> str:
        """For people: faults first, the sum last."""
        lines = [f"{name}: missing" for name in self.missing]
        for shard in self.shards:
            lines += [f"{shard.name}: at byte {f.offset:,}: {f.fault}" for f in shard.faults]
        faults = len(lines)
        state = "all sound" if not faults else f"{faults} fault{'s' if faults > 1 else ''}"
        sums = self.as_json()
        records, size = sums["records"], sums["bytes"]
        mean = f", {size / records / 1e3:,.1f} KB each" if records else ""
        lines.append(
            f"{len(self.shards)} shards, {records:,} records, {size / 1e6:,.1f} MB{mean}: {state}"
        )
        return "\n".join(lines)


def inspect(folder: Path, threads: int, judge: Judge | None = None) -> DataReport:
    """Look at every shard, `threads` at a time; `judge` looks into every record, too."""
    files = shard_files(folder)
    with ThreadPoolExecutor(threads) as pool:
        shards = tuple(pool.map(partial(_look, judge=judge), files))
    return DataReport(folder, shards, tuple(missing(files)))


def _look(path: Path, judge: Judge | None) -> ShardReport:
    size = path.stat().st_size
    if not size:
        return ShardReport(path.name, 0, 0, (RecordPlace(0, 0, "the file is empty"),))
    if judge is None and (quick := _count(path)) is not None:
        return ShardReport(path.name, quick, size)
    examples, faults = 0, []
    for record, data in checked(path):
        why = record.fault or (judge(data) if judge else "")
        if why:
            faults.append(replace(record, fault=why))
        else:
            examples += 1
    return ShardReport(path.name, examples, size, tuple(faults))


def checked(path: Path) -> Iterator[tuple[RecordPlace, bytes]]:
    """The records of a file in order, and their data; where a length is damaged, it ends."""
    from tensorflow.python.lib.io import tf_record

    size, offset = path.stat().st_size, 0
    # The one reader of TensorFlow that goes on behind a damaged record.
    reader = tf_record.tf_record_random_reader(str(path))
    with path.open("rb") as file:
        while offset < size:
            file.seek(offset)
            length = int.from_bytes(file.read(8), "little")
            missing_bytes, data, fault = offset + 16 + length - size, b"", ""
            if missing_bytes > 0:
                fault = (
                    f"the file is truncated: {missing_bytes} bytes are missing; or the length is "
                    "damaged"
                )
            else:
                try:
                    data, _ = reader.read(offset)
                except tf.errors.DataLossError:
                    fault = "its checksum is wrong"
            yield RecordPlace(offset, length, fault), data
            offset += 16 + length


def _count(path: Path) -> int | None:
    """The records of a sound shard, by TensorFlow's reader, which checks every checksum."""
    records = tf.data.TFRecordDataset(str(path), buffer_size=8 << 20).batch(256)
    try:
        return sum(int(tf.size(batch)) for batch in records)
    except (tf.errors.DataLossError, tf.errors.InvalidArgumentError):
        return None


def compared(report: DataReport, dataset: Dataset) -> DataReport:
    """The report, with what differs from the records that dataset.json promises of every shard."""
    promised = {one.name: one.examples for shards in dataset.splits.values() for one in shards}

    def judged(shard: ShardReport) -> ShardReport:
        wanted = promised.get(shard.name, shard.records)
        if shard.faults or shard.records == wanted:
            return shard
        why = f"the file ends after {shard.records:,} records, {FILE} promises {wanted:,}"
        return replace(shard, faults=(RecordPlace(shard.bytes, 0, why),))

    absent = {*report.missing, *promised} - {shard.name for shard in report.shards}
    shards = tuple(map(judged, report.shards))
    return replace(report, shards=shards, missing=tuple(sorted(absent)))


def repair(report: DataReport, dataset: Dataset) -> Dataset:
    """Write damaged shards again without their damaged records; returns the new data set.

    Raises BadInput: a shard is missing; MissingPrerequisite: no space left.
    """
    if report.missing:
        raise BadInput(
            f"shards of {report.folder} are missing: {', '.join(report.missing[:5])}",
            hint=f"make it again: `hpcdl data make {dataset.kind} {report.folder}`",
        )
    found = {shard.name: shard for shard in report.shards}
    splits = {
        split: tuple(_mended(report.folder, shard, found[shard.name]) for shard in shards)
        for split, shards in dataset.splits.items()
    }
    whole = replace(dataset, splits=splits)
    write_dataset(whole)
    return whole


def _mended(folder: Path, shard: Shard, report: ShardReport) -> Shard:
    if not report.faults:
        return shard
    path = folder / shard.name
    aside, bad = path.with_suffix(".part"), {fault.offset for fault in report.faults}
    with explain_os_errors(aside), path.open("rb") as old, aside.open("wb") as new:
        for record, _ in checked(path):
            if record.offset not in bad:
                old.seek(record.offset)
                new.write(old.read(record.length + 16))
    aside.replace(path)
    return describe_shard(path, report.records)


def index(folder: Path, report: DataReport, task: str, classes: int, offset: int) -> None:
    """Write dataset.json for a sound directory that has none; `validation` shards are `test`."""
    if not report.sound:
        raise BadInput(
            f"{folder} is not sound, so it gets no {FILE}", details=report.as_text().splitlines()
        )
    splits: dict[str, tuple[Shard, ...]] = {"train": ()}
    for shard in report.shards:
        split = "test" if shard.name.startswith(_FOR_TESTS) else "train"
        described = describe_shard(folder / shard.name, shard.records)
        splits[split] = (*splits.get(split, ()), described)
    shape = (224, 224, 3)
    write_dataset(
        Dataset(
            folder, "records", "jpeg", shape, classes, 255.0, 0, "indexed", splits, task, offset
        )
    )


def missing(files: Sequence[Path]) -> list[str]:
    """Names that the numbering `-00003-of-00016` promises, and are not there."""
    there = {path.name for path in files}
    promised = set()
    for name in there:
        stem, of, rest = name.partition("-of-")
        total, dot, suffix = rest.partition(".")
        head, dash, number = stem.rpartition("-")
        if of and dash and all(re.fullmatch("[0-9]{1,6}", text) for text in (total, number)):
            width = len(number)
            promised |= {f"{head}-{n:0{width}d}-of-{total}{dot}{suffix}" for n in range(int(total))}
    return sorted(promised - there)
