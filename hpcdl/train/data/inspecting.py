"""Inspects directories of records: number, sizes, and damaged ones by file and offset.

TensorFlow's reader checks a sound shard at the disk's speed; only where it stumbles, or cannot
be had, the shard is walked record by record.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from hpcdl.system.errors import BadInput
from hpcdl.train.data.dataset import (
    FILE,
    IMAGES,
    Dataset,
    Shard,
    describe_shard,
    read_dataset,
    write_dataset,
)
from hpcdl.train.data.tfrecord import RecordPlace, walk

_FOR_TESTS = ("test", "val")
"""So names of shards begin that are to test or to validate with."""
Splits = dict[str, tuple[Shard, ...]]


@dataclass(frozen=True)
class ShardReport:
    """One shard: whole records, bytes, and the faults found."""

    name: str
    examples: int
    bytes: int
    faults: tuple[RecordPlace, ...] = ()

    @property
    def sound(self) -> bool:
        """Return whether every record can be read."""
        return not self.faults


@dataclass(frozen=True)
class DataReport:
    """A directory of records. `missing` are shards that names or dataset.json promise."""

    folder: Path
    shards: tuple[ShardReport, ...]
    missing: tuple[str, ...]

    @property
    def sound(self) -> bool:
        """Return whether all is there and can be read."""
        return not self.missing and all(shard.sound for shard in self.shards)

    @property
    def examples(self) -> int:
        """Whole records of all shards."""
        return sum(shard.examples for shard in self.shards)

    @property
    def bytes(self) -> int:
        """Bytes of all shards."""
        return sum(shard.bytes for shard in self.shards)

    def as_json(self) -> dict[str, Any]:
        """For `--json`."""
        shards = [
            {
                "name": s.name,
                "records": s.examples,
                "bytes": s.bytes,
                "faults": [asdict(fault) for fault in s.faults],
            }
            for s in self.shards
        ]
        return {
            "directory": str(self.folder),
            "sound": self.sound,
            "records": self.examples,
            "bytes": self.bytes,
            "missing": list(self.missing),
            "shards": shards,
        }

    def as_text(self) -> str:
        """For people: faults first, the sum last."""
        lines = [f"{name}: missing" for name in self.missing]
        for shard in self.shards:
            lines += [f"{shard.name}: at byte {f.offset:,}: {f.fault}" for f in shard.faults]
        faults = len(lines)
        state = "all sound" if not faults else f"{faults} fault{'s' if faults > 1 else ''}"
        mean = f", {self.bytes / self.examples / 1e3:,.1f} KB each" if self.examples else ""
        lines.append(
            f"{len(self.shards)} shards, {self.examples:,} records, "
            f"{self.bytes / 1e6:,.1f} MB{mean}: {state}"
        )
        return "\n".join(lines)


def shard_files(folder: Path) -> list[Path]:
    """The record files of a directory: `*.tfrecord*` and `NAME-00000-of-00010`; BadInput: none."""
    if not folder.is_dir():
        raise BadInput(f"{folder} is not a directory", hint="`hpcdl data make` makes a data set")
    found = {*folder.glob("*.tfrecord*"), *folder.glob("*-[0-9]*-of-[0-9]*")}
    files = sorted(path for path in found if path.is_file() and path.suffix != ".part")
    if not files:
        raise BadInput(
            f"{folder} holds no TFRecord files", hint="`hpcdl data make` makes a data set"
        )
    return files


def inspect(folder: Path, count: Callable[[Path], int | None], threads: int) -> DataReport:
    """Look at every shard, `threads` at a time; `count` gives a sound file's records, else None."""
    files = shard_files(folder)
    with ThreadPoolExecutor(threads) as pool:
        shards = tuple(pool.map(lambda path: _look(path, count), files))
    return DataReport(folder, shards, tuple(missing(files)))


def compared(report: DataReport, dataset: Dataset) -> DataReport:
    """The report, with what differs from the records that dataset.json promises of every shard."""
    promised = {one.name: one.examples for shards in dataset.splits.values() for one in shards}

    def judged(shard: ShardReport) -> ShardReport:
        wanted = promised.get(shard.name, shard.examples)
        if not shard.sound or shard.examples == wanted:
            return shard
        why = f"the file ends after {shard.examples:,} records, {FILE} promises {wanted:,}"
        return replace(shard, faults=(RecordPlace(shard.bytes, 0, why),))

    missing = {*report.missing, *promised} - {shard.name for shard in report.shards}
    shards = tuple(map(judged, report.shards))
    return replace(report, shards=shards, missing=tuple(sorted(missing)))


def data_of(folder: Path) -> Dataset:
    """The data set in a directory, or the records of one without dataset.json, labels not read."""
    if (folder / FILE).exists():
        dataset = read_dataset(folder)
        some = next((shards for shards in dataset.splits.values() if shards), ())
        return replace(dataset, splits={"train": dataset.splits.get("train") or some})
    files = shard_files(folder)
    chosen = [path for path in files if not path.name.startswith(_FOR_TESTS)] or files
    shards, without = [], missing(chosen)
    for path in chosen:
        # A truncated record counts: damage shows when it is read.
        faults = [record.fault for record in walk(path, check_data=False)]
        if all(faults):
            without.append(path.name)
        else:
            shards.append(Shard(path.name, len(faults), path.stat().st_size, ""))
    for name in without:
        print(f"{name} gives no records", file=sys.stderr, flush=True)
    if not shards:
        raise BadInput(
            f"no record can be read from the {len(chosen)} files in {folder}",
            hint=f"`hpcdl data inspect {folder}` says what is wrong with each",
        )
    return _records(folder, 1, "counted", {"train": tuple(shards)}, IMAGES)


def index(folder: Path, report: DataReport, classes: int, task: str, offset: int) -> None:
    """Write dataset.json for a sound directory that has none; `validation` shards are `test`."""
    if not report.sound:
        raise BadInput(
            f"{folder} is not sound, so it gets no {FILE}", details=report.as_text().splitlines()
        )
    splits: Splits = {"train": ()}
    for shard in report.shards:
        split = "test" if shard.name.startswith(_FOR_TESTS) else "train"
        described = describe_shard(folder / shard.name, shard.examples)
        splits[split] = (*splits.get(split, ()), described)
    write_dataset(_records(folder, classes, "indexed", splits, task, offset))


def _records(folder: Path, classes: int, source: str, splits: Splits, *task: Any) -> Dataset:
    """A data set of records that others made, in ImageNet's layout."""
    size = (224, 224, 3)
    return Dataset(folder, "records", "jpeg", size, classes, 255.0, 0, source, splits, *task)


def _look(path: Path, count: Callable[[Path], int | None]) -> ShardReport:
    size = path.stat().st_size
    if not size:
        return ShardReport(path.name, 0, 0, (RecordPlace(0, 0, "the file is empty"),))
    if (quick := count(path)) is not None:
        return ShardReport(path.name, quick, size)
    records = list(walk(path, check_data=True))
    faults = tuple(record for record in records if record.fault)
    return ShardReport(path.name, len(records) - len(faults), size, faults)


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
