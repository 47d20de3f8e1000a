"""Published throughput as records: one schema for our facts and for any file of a user.

A record is one measurement; `gpus` of 1 make it a base for others of the same source,
hardware and settings. Other keys of a file than those read here are ignored, but these
must be right: all faults are shown at once, each with its line.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from hpcdl import facts
from hpcdl.predict.network import names
from hpcdl.system.disk_cache import cached
from hpcdl.system.document import read_document
from hpcdl.system.schema import Schema, check

_MOST = 1e12
_MOST_BYTES = 50_000_000
_TEXT: Schema = {"type": "string", "default": None}
RECORD: Schema = {
    "type": "object",
    "description": "One measurement.",
    "required": ["id", "source", "gpu", "gpus", "model"],
    "additionalProperties": {},
    "properties": {
        "id": {"type": "string", "description": "A name of the row, unique in the file."},
        "source": {"type": "string", "description": "Who published it."},
        "hardware": _TEXT,
        "gpu": {"type": "string", "description": "The GPU's name."},
        "gpus": {"type": "integer", "minimum": 1, "maximum": 1_000_000, "default": None,
                 "description": "How many GPUs in all."},
        "nodes": {"type": "integer", "minimum": 1, "maximum": 1_000_000, "default": 1},
        "interconnect": _TEXT,
        "framework": _TEXT,
        "version": _TEXT,
        "implementation": _TEXT,
        "model": {"type": "string", "description": "The network.", "examples": ["resnet50"]},
        "batch_per_gpu": {"type": "number", "minimum": 1, "maximum": 1_000_000, "default": None},
        "precision": {"type": "string", "default": "fp32"},
        "xla": {"type": "string", "default": "false"},
        "data": _TEXT,
        "variable_update": _TEXT,
        "images_per_sec": {"type": "number", "minimum": 1e-6, "maximum": _MOST, "default": None,
                           "description": "Images per second of all GPUs."},
        "speedup": {"type": "number", "minimum": 1e-3, "maximum": 1e6, "default": None},
        "notes": _TEXT,
    },
}  # fmt: skip
_KEYS = tuple(RECORD["properties"])
FILE: Schema = {
    "type": "object",
    "description": "Published throughput.",
    "required": ["records"],
    "additionalProperties": {},
    "properties": {
        "records": {
            "type": "array",
            "description": "The measurements.",
            "minItems": 1,
            "items": RECORD,
        }
    },
}


@dataclass(frozen=True)
class Record:
    """A published measurement; `rate` in images per second of all GPUs."""

    id: str
    source: str
    hardware: str
    gpu: str
    gpus: int | None
    nodes: int
    interconnect: str
    framework: str
    software: str
    model: str
    batch: int | None
    precision: str
    xla: bool
    data: str
    update: str
    rate: float | None
    speedup: float | None
    notes: str

    @property
    def setting(self) -> tuple[object, ...]:
        """What a record shares with its single-GPU base, the batch left out."""
        hardware = self.hardware.partition(",")[0].lstrip("0123456789x ")
        return (
            self.source, hardware, self.gpu, self.framework, self.software, self.model,
            self.precision, self.xla, self.data, self.update,
        )  # fmt: skip


def read_records(path: Path | None = None) -> tuple[Record, ...]:
    """The records of a file, or those of our facts.

    Raises:
        BadInput: the file cannot be read or has faults; all of them, with their lines.
    """
    return tuple(map(_record, _rows(path))) if path else _ours()


@cache
def _ours() -> tuple[Record, ...]:
    """The records of our facts, whose file is checked once on a machine, not every time."""
    path, form = facts.path("throughput"), repr(FILE).encode()
    return tuple(map(_record, cached("facts", [path, form], lambda: _rows(path))))


def _rows(path: Path) -> list[dict[str, Any]]:
    """The rows of a file, checked: every key of RECORD is there, of its type."""
    document = read_document(path, _MOST_BYTES)
    values = check(document, FILE)
    if isinstance(values, dict) and not document.faults:
        seen: dict[str, int] = {}
        for index, value in enumerate(values["records"]):
            if value["id"] in seen:
                node = document.find(("records", index, "id"))
                document.fault(f"the id '{value['id']}' is given twice", node)
            seen[value["id"]] = index
    document.raise_faults()
    return [{key: value[key] for key in _KEYS} for value in values["records"]]


def _record(value: dict[str, Any]) -> Record:
    return Record(
        id=value["id"],
        source=value["source"],
        hardware=value["hardware"] or "",
        gpu=value["gpu"],
        gpus=value["gpus"],
        nodes=value["nodes"],
        interconnect=value["interconnect"] or "",
        framework=value["framework"] or "",
        software=f"{value['version']} {value['implementation']}",
        model=_model(value["model"]),
        batch=round(value["batch_per_gpu"]) if value["batch_per_gpu"] else None,
        precision=_precision(value["precision"]),
        xla=value["xla"] == "true",
        data=value["data"] or "",
        update=value["variable_update"] or "",
        rate=value["images_per_sec"],
        speedup=value["speedup"],
        notes=value["notes"] or "",
    )


_PRECISIONS = {
    "fp32": "fp32", "float32": "fp32", "single": "fp32", "32": "fp32",
    "tf32": "tf32", "tensorfloat32": "tf32",
    "amp": "amp", "mixed": "amp", "bf16": "amp", "bfloat16": "amp",
    "fp16": "fp16", "float16": "fp16", "half": "fp16", "16": "fp16",
}  # fmt: skip


def _precision(text: str) -> str:
    """The row's precision as one of PRECISIONS: `tf32/fp32` is tf32, `mixed ...` is amp.

    An unknown precision stays as it is: such a row is not compared.
    """
    name = re.split(r"[/ _(]", text.strip().lower())[0]
    return _PRECISIONS.get(name, text)


def _model(text: str) -> str:
    """The network's own name for `ResNet-50`, `inception3` or however a source writes it."""
    folded = _folded(text)
    aliases: dict[str, str] = facts.load("links")["model_names"]
    return {**{_folded(name): name for name in names()}, **aliases}.get(folded, text)


def _folded(text: str) -> str:
    return re.sub(r"[^a-z0-9]", "", text.lower())


class Bases:
    """The single-GPU records to start from: those of a file first, then those of our facts."""

    def __init__(self, records: Iterable[Record]) -> None:
        self._known: dict[tuple[object, ...], list[Record]] = {}
        for record in (*records, *_ours()):
            if record.gpus == 1 and record.rate:
                self._known.setdefault(record.setting, []).append(record)

    def of(self, record: Record) -> Record | None:
        """The single-GPU record of the same source, hardware and settings, nearest in batch.

        A base whose batch differs by more than a quarter is none.
        """
        found = self._known.get(record.setting, [])
        if record.batch is None:
            return next((other for other in found if other.batch is None), None)
        batch = record.batch
        near = [r for r in found if r.batch and abs(r.batch - batch) <= batch / 4]
        return min(near, key=lambda other: abs((other.batch or 0) - batch), default=None)
