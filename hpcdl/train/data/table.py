"""The CSV of labels beside a directory of images.

Its first column is the file's name; the second a class, or classes joined by `|`. With one class
per image in all rows the task is `classes`, with several anywhere `findings` (ChestX-ray14 comes
like this, with `No Finding` for none). Faults are shown all at once.
"""

from __future__ import annotations

import csv
import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpcdl.system.errors import BadInput
from hpcdl.system.files import unreadable
from hpcdl.train.data.dataset import FINDINGS

_NOTHING = {"", "no finding"}
_SHOWN = 20


@dataclass(frozen=True)
class ImageRow:
    """One image and its labels; `line` of the CSV."""

    path: Path
    labels: tuple[str, ...]
    line: int


def request_of(
    images: Path, table: Path, rows: Sequence[ImageRow], *, shards: int, test: float, seed: int
) -> dict[str, Any]:
    """Return the records' inputs, images by size and time: equal inputs need no new records."""
    states = [(row.path.name, row.path.stat()) for row in rows]
    seen = repr([(name, state.st_size, state.st_mtime_ns) for name, state in states])
    return {
        "table": hashlib.sha256(table.read_bytes()).hexdigest(),
        "files": hashlib.sha256(seen.encode()).hexdigest(),
        "images": str(images),
        "labels": str(table),
        "shards": shards,
        "test": test,
        "seed": seed,
    }


def read_table(images: Path, table: Path) -> list[ImageRow]:
    """The rows of the CSV; BadInput: it cannot be read, or all the rows that are wrong."""
    try:
        with table.open(newline="", encoding="utf-8-sig") as file:
            lines = list(csv.reader(file))
    except OSError as fault:
        raise unreadable(table, fault) from fault
    except (UnicodeDecodeError, csv.Error) as fault:
        hint = "--labels takes CSV in UTF-8: a row per image, its file's name and its class"
        raise BadInput(f"cannot read {table}: {fault}", hint=hint) from fault
    rows: dict[Path, ImageRow] = {}
    faults = []
    for number, line in enumerate(lines, 1):
        path = images / line[0].strip() if line else images
        there = os.path.isfile(path)  # noqa: PTH113 - what cannot be a name is none
        # A table may be another user's: it names no other file of whoever reads it.
        there = there and not os.path.relpath(path, images).startswith("../")
        if not line or (number == 1 and not there):
            continue
        if len(line) < 2:
            faults.append(f"{table.name}:{number}: no label")
        elif not there:
            faults.append(f"{table.name}:{number}: there is no image {path} in {images}")
        elif path in rows:
            faults.append(f"{table.name}:{number}: the image of line {rows[path].line} again")
        else:
            parts = (part.strip() for part in line[1].split("|"))
            labels = tuple(part for part in parts if part.lower() not in _NOTHING)
            rows[path] = ImageRow(path, labels, number)
    _refuse(table, faults)
    if not rows:
        hint = f"its columns are: file name, label; the images are looked for in {images}"
        raise BadInput(f"{table} names no image", hint=hint)
    found = list(rows.values())
    if not are_several(found):
        _refuse(table, [f"{table.name}:{r.line}: no label" for r in found if not r.labels])
    return found


def _refuse(table: Path, faults: Sequence[str]) -> None:
    if faults:
        raise BadInput(
            f"{len(faults)} rows of {table} are wrong",
            details=faults[:_SHOWN],
            hint="a row is: file name, class",
        )


def names_of(rows: Sequence[ImageRow]) -> tuple[str, ...]:
    """The classes in the order of their numbers: ChestX-ray14's own, else sorted."""
    found = {label for row in rows for label in row.labels}
    return FINDINGS if found and found <= set(FINDINGS) else tuple(sorted(found))


def are_several(rows: Sequence[ImageRow]) -> bool:
    """Return whether an image may have several labels, or none."""
    return names_of(rows) == FINDINGS or any(len(row.labels) > 1 for row in rows)
