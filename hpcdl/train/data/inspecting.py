"""Inspects directories of records: number, sizes, and damaged ones by file.

TensorFlow's reader checks every checksum at the disk's speed. It gives up at the first bad record,
whose place in the file is in its message; what is behind it is not looked at.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import tensorflow as tf

from hpcdl.system.errors import BadInput
from hpcdl.train.data.dataset import (
    FILE,
    Dataset,
    Shard,
    describe_shard,
    shard_files,
    write_dataset,
)
from hpcdl.train.data.source import reason

_FOR_TESTS = ("test", "val")
"""So names of shards begin that are to test or to validate with."""
Judge = Callable[[bytes], str]
"""What is wrong with the content of a record; '' if nothing is."""


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
