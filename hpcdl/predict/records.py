"""Published throughput as records: one schema for our facts and for any file of a user.

A record is one measurement: a row of a CSV file, or an entry of `records` in YAML or JSON. The
one of the fewest GPUs is the base of others of the same source, hardware and settings. Other keys
of a file than those read here are ignored, but these must be right: all faults are shown at
once, each with its line.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from hpcdl import facts
from hpcdl.predict.network import names
from hpcdl.system.document import Document, Mapping, Mark, Scalar, Sequence, read_document
from hpcdl.system.errors import BadInput
from hpcdl.system.resources import cached
from hpcdl.system.safe_read import read_regular
from hpcdl.system.schema import Schema, check

_MOST_BYTES = 50_000_000


@dataclass(frozen=True)
class Record:
    """A published measurement; `rate` in images (sequences) per second of all GPUs.

    `size` is the edge of an image in pixels, or the length of a sequence in tokens; `cores` are
    physical ones of a node; `batch` is of one GPU and one pass, `accumulation` passes an exchange.
    """

    id: str
    source: str
    hardware: str
    gpu: str
    gpus: int | None
    nodes: int
    cores: int | None
    interconnect: str
    framework: str
    software: str
    model: str
    size: int | None
    batch: int | None
    accumulation: int
    precision: str
    xla: bool
    data: str
    update: str
    rate: float | None
    speedup: float | None
    notes: str

    @property
    def setting(self) -> tuple[object, ...]:
        """What a record shares with its base, the batch left out."""
        return (
            self.source,
            self.system,
            self.gpu,
            self.framework,
            self.software,
            self.model,
            self.size,
            self.precision,
            self.xla,
            self.data,
            self.update,
        )

    @property
    def system(self) -> str:
        """The machine, without how many of them."""
        return self.hardware.partition(",")[0].lstrip("0123456789x ")


def read_records(path: Path | None = None) -> tuple[Record, ...]:
    """The records of a file, or those of our facts; a `BadInput` has all faults of a file."""
    return tuple(map(_record, _rows(path))) if path else _ours()


@cache
def _ours() -> tuple[Record, ...]:
    """The records of our facts, whose file is checked once on a machine, not every time."""
    path, form = facts.rows_path("throughput"), repr(_format()).encode()
    return tuple(map(_record, cached("facts", [path, form], lambda: _rows(path))))


def _rows(path: Path) -> list[dict[str, Any]]:
    """The rows of a file, checked: every key of the format is there, of its type."""
    is_table = path.suffix.lower() == ".csv"
    document = _read_table(path) if is_table else read_document(path, _MOST_BYTES)
    values = check(document, _format())
    if isinstance(values, dict) and not document.faults:
        seen: dict[str, int] = {}
        for index, value in enumerate(values["records"]):
            if value["id"] in seen:
                node = document.find(("records", index, "id"))
                document.fault(f"the id '{value['id']}' is given twice", node)
            seen[value["id"]] = index
    document.raise_faults()
    keys = _format()["properties"]["records"]["items"]["properties"]
    return [{key: value[key] for key in keys} for value in values["records"]]


def _format() -> Schema:
    found: Schema = facts.load("throughput_format")["file"]
    return found


def _read_table(path: Path) -> Document:
    """A CSV file as a document of `records`; empty cells are left out."""
    try:
        text = read_regular(path, _MOST_BYTES).decode("utf-8-sig")
        table = csv.reader(io.StringIO(text, newline=""), strict=True)
        names, first = next(table, []), Mark(1, 1)
        rows = []
        for row in filter(None, table):
            here = Mark(table.line_num, 1)
            cells = [
                (Scalar(name, True, first), Scalar(cell, False, here))
                for name, cell in zip(names, row, strict=False)
                if cell
            ]
            rows.append(Mapping(tuple(cells), here))
    except (UnicodeDecodeError, csv.Error) as fault:
        raise BadInput(f"{path} is no CSV file: {fault}") from fault
    root = Mapping(((Scalar("records", True, first), Sequence(tuple(rows), first)),), first)
    return Document(str(path), text.splitlines(), root)


def _record(value: dict[str, Any]) -> Record:
    same = {key: value[key] for key in ("id", "source", "gpu", "gpus", "nodes", "cores", "speedup")}
    for key in ("hardware", "interconnect", "framework", "data", "notes"):
        same[key] = value[key] or ""
    size, batch = value["sequence_length"] or value["image_size"], value["batch_per_gpu"]
    return Record(
        **same,
        software=f"{value['version']} {value['implementation']}",
        model=_model(value["model"]),
        size=round(size) if size else None,
        batch=round(batch) if batch else None,
        accumulation=value["accumulation"] or 1,
        precision=_precision(value["precision"]),
        xla=value["xla"] == "true",
        update=value["variable_update"] or "",
        rate=value["images_per_sec"],
    )


def _precision(text: str) -> str:
    """One of PRECISIONS: `tf32/fp32` is tf32, `mixed ...` is amp; an unknown one stays as it is."""
    known: dict[str, str] = facts.load("links")["precision_names"]
    return known.get(re.split(r"[/ _(]", text.strip().lower())[0], text)


def _model(text: str) -> str:
    """The network's own name for `ResNet-50`, `inception3` or however a source writes it."""
    aliases: dict[str, str] = facts.load("links")["model_names"]
    return {**{_folded(name): name for name in names()}, **aliases}.get(_folded(text), text)


def _folded(text: str) -> str:
    return re.sub(r"[^a-z0-9]", "", text.lower())


class Bases:
    """The records to start from: those of a file first, then those of our facts."""

    def __init__(self, records: Iterable[Record]) -> None:
        self._known: dict[tuple[object, ...], list[Record]] = {}
        for record in dict.fromkeys((*records, *_ours())):
            if record.gpus and record.rate:
                self._known.setdefault(record.setting, []).append(record)

    def of(self, record: Record) -> Record | None:
        """The record of the fewest GPUs of the same source, hardware and settings.

        Of those with as few it is the nearest in batch; one whose batch differs by more than a
        quarter is none, nor is one of as many GPUs.
        """
        batch = record.batch
        fewer = [
            other
            for other in self._known.get(record.setting, [])
            if (other.gpus or 0) < (record.gpus or 0)
            and (other.batch is None) == (batch is None)
            and (batch is None or abs((other.batch or 0) - batch) <= batch / 4)
        ]
        return min(fewer, key=lambda o: (o.gpus, abs((o.batch or 0) - (batch or 0))), default=None)
