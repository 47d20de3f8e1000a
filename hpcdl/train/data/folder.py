"""Records from a directory of JPEG images and a CSV of labels, as medical data often come.

The CSV's first column is the file's name; the second a class, or classes joined by `|`. With one
class per image in all rows the task is `classes`, with several anywhere `findings` (ChestX-ray14
comes like this, with `No Finding` for none). Faults of the CSV are shown all at once.
"""

from __future__ import annotations

import csv
import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from hpcdl.system.errors import BadInput
from hpcdl.train.data.dataset import Dataset, write_dataset
from hpcdl.train.data.images import first_line
from hpcdl.train.data.making import ShardPlan, example, finish, make_shards
from hpcdl.train.tasks import FINDINGS

_NOTHING = {"", "no finding"}
_SHOWN = 20


@dataclass(frozen=True)
class Row:
    """One image and its labels; `line` of the CSV."""

    path: Path
    labels: tuple[str, ...]
    line: int


def make_from_folder(
    tf: Any, folder: Path, images: Path, table: Path, rows: Sequence[Row], *, shards: int,
    test: float, seed: int, threads: int,
) -> Dataset:  # fmt: skip
    """Write the data set; takes up an interrupted one.

    Args:
        tf: TensorFlow.
        folder: where the records go.
        images: the images' directory.
        table: the CSV.
        rows: what it says, by `read_table`.
        shards: number of training shards.
        test: share of the images kept for testing, 0 to 1.
        seed: of split and order.
        threads: shards written at the same time.

    Raises:
        BadInput: an image cannot be read.
    """
    names, several = _names(rows), _are_several(rows)
    order = [rows[i] for i in np.random.RandomState(seed % 2**32).permutation(len(rows))]
    tested = min(round(len(rows) * test), len(rows) - 1)
    plans = [
        *_plans(tf, "train", order[tested:], names, shards, several),
        *_plans(tf, "test", order[:tested], names, max(1, round(shards * test)), several),
    ]
    request = request_of(images, table, rows, shards=shards, test=test, seed=seed)
    splits = make_shards(tf, folder, plans, request, threads)
    height, width = _size(tf, order[0])
    dataset = Dataset(
        folder, "folder", "jpeg", (height, width, 3), len(names), 255.0, seed,
        f"{images.name} with {table.name}", splits, "findings" if several else "classes", 0,
    )  # fmt: skip
    write_dataset(dataset)
    finish(folder)
    return dataset


def request_of(
    images: Path, table: Path, rows: Sequence[Row], *, shards: int, test: float, seed: int
) -> dict[str, Any]:
    """What the records follow from, as JSON values: the same again need not be made again.

    Images count by their sizes and times, so that one that was repaired is read again.
    """
    states = [(row.path.name, row.path.stat()) for row in rows]
    seen = repr([(name, state.st_size, state.st_mtime_ns) for name, state in states])
    return {
        "table": hashlib.sha256(table.read_bytes()).hexdigest(),
        "files": hashlib.sha256(seen.encode()).hexdigest(),
        "images": str(images),
        "shards": shards,
        "test": test,
        "seed": seed,
    }


def read_table(images: Path, table: Path) -> list[Row]:
    """The rows of the CSV.

    Raises:
        BadInput: it cannot be read, or rows are wrong: all of them, with their lines.
    """
    try:
        with table.open(newline="", encoding="utf-8-sig") as file:
            lines = list(csv.reader(file))
    except (OSError, UnicodeDecodeError, csv.Error) as fault:
        why = getattr(fault, "strerror", None) or fault
        raise BadInput(f"cannot read {table}: {why}") from fault
    rows: dict[Path, Row] = {}
    faults = []
    for number, line in enumerate(lines, 1):
        path = images / line[0].strip() if line else images
        if not line or (number == 1 and not path.is_file()):
            continue
        if len(line) < 2:
            faults.append(f"{table.name}:{number}: no label")
        elif not path.is_file():
            faults.append(f"{table.name}:{number}: there is no image {path}")
        elif path in rows:
            faults.append(f"{table.name}:{number}: the image of line {rows[path].line} again")
        else:
            rows[path] = Row(path, _labels(line[1]), number)
    _refuse(table, faults)
    if not rows:
        raise BadInput(f"{table} names no image", hint="its columns are: file name, label")
    found = list(rows.values())
    if not _are_several(found):
        _refuse(table, [f"{table.name}:{r.line}: no label" for r in found if not r.labels])
    return found


def _refuse(table: Path, faults: Sequence[str]) -> None:
    if faults:
        raise BadInput(f"{len(faults)} rows of {table} are wrong", details=faults[:_SHOWN])


def _labels(text: str) -> tuple[str, ...]:
    parts = (part.strip() for part in text.split("|"))
    return tuple(part for part in parts if part.lower() not in _NOTHING)


def _names(rows: Sequence[Row]) -> tuple[str, ...]:
    """The classes in the order of their numbers: ChestX-ray14's own, else sorted."""
    found = {label for row in rows for label in row.labels}
    return FINDINGS if found and found <= set(FINDINGS) else tuple(sorted(found))


def _are_several(rows: Sequence[Row]) -> bool:
    """Whether an image may have several labels, or none."""
    return _names(rows) == FINDINGS or any(len(row.labels) > 1 for row in rows)


def _plans(
    tf: Any, split: str, rows: Sequence[Row], names: tuple[str, ...], shards: int, several: bool
) -> Iterator[ShardPlan]:
    of = min(shards, len(rows))
    for number in range(of):
        mine = rows[number::of]
        record = partial(_record, tf, names=names, several=several)
        yield ShardPlan(split, number, of, len(mine), partial(map, record, mine))


def _record(tf: Any, row: Row, names: tuple[str, ...], several: bool) -> bytes:
    data = _as_jpeg(tf, row)
    label: dict[str, Any] = (
        {"image__labels": [int(name in row.labels) for name in names]}
        if several
        else {"image__class__label": names.index(row.labels[0])}
    )
    return example(
        tf, image__encoded=data, image__format="JPEG", image__filename=row.path.name, **label
    )


def _as_jpeg(tf: Any, row: Row) -> bytes:
    """The file where it is a JPEG, else its pixels as one.

    Raises:
        BadInput: it cannot be decoded.
    """
    try:
        data = row.path.read_bytes()
        image = tf.io.decode_image(data, channels=3, expand_animations=False)
        if data.startswith(b"\xff\xd8"):
            return data
        return bytes(tf.io.encode_jpeg(image, quality=95).numpy())
    except (OSError, tf.errors.InvalidArgumentError) as fault:
        raise BadInput(
            f"the image {row.path} cannot be read: {first_line(fault)}",
            hint=f"repair it, or take line {row.line} out of the CSV; complete shards stay for the "
            "next try",
        ) from fault


def _size(tf: Any, row: Row) -> tuple[int, int]:
    image = tf.io.decode_image(_as_jpeg(tf, row), channels=3, expand_animations=False)
    return int(image.shape[0]), int(image.shape[1])
