"""dataset.json: what a directory of TFRecord shards holds, and the check that it is all there.

Written last, so that a directory with a dataset.json is a complete data set.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from hpcdl.system.errors import BadInput
from hpcdl.system.files import write_json

FILE = "dataset.json"
SCHEMA = 1
_AGAIN = "`hpcdl data inspect --index DIR` writes it again"
IMAGES = "images"
"""The task of records whose labels are not read."""
FINDINGS = (
    "Atelectasis", "Cardiomegaly", "Effusion", "Infiltration", "Mass", "Nodule", "Pneumonia",
    "Pneumothorax", "Consolidation", "Edema", "Emphysema", "Fibrosis", "Pleural_Thickening",
    "Hernia",
)  # fmt: skip
"""The 14 labels of ChestX-ray14, in the order of arXiv 1705.02315."""


@dataclass(frozen=True)
class Shard:
    """One TFRecord file: its name, records, bytes and SHA-256."""

    name: str
    examples: int
    bytes: int
    sha256: str


@dataclass(frozen=True)
class Dataset:
    """A directory of records.

    `kind` names who made it; `encoding` is `raw` (uint8 values of `shape`) or `jpeg`; `shape` is
    (height, width, channels), for jpeg the usual one; `scale` is the value that maps to 1.0;
    `splits` are `train` and, where there is one, `test`. `task` is `classes` or `findings`;
    `label_offset` is the number of the first class (1 in the usual ImageNet records).
    """

    folder: Path
    kind: str
    encoding: str
    shape: tuple[int, int, int]
    classes: int
    scale: float
    seed: int
    source: str
    splits: dict[str, tuple[Shard, ...]]
    task: str = "classes"
    label_offset: int = 0

    @property
    def digest(self) -> str:
        """A short digest of the shards, wherever they lie."""
        shards = sorted(shard.sha256 + shard.name for one in self.splits.values() for shard in one)
        return hashlib.sha256("".join(shards).encode()).hexdigest()[:16]

    def examples(self, split: str) -> int:
        """Number of records of a split; 0 where there is none."""
        return sum(shard.examples for shard in self.splits.get(split, ()))

    def files(self, split: str) -> list[Path]:
        """The shards of a split, in their order."""
        return [self.folder / shard.name for shard in self.splits[split]]


def describe_shard(path: Path, examples: int) -> Shard:
    """The entry of a written shard."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        for block in iter(lambda: file.read(1 << 20), b""):
            digest.update(block)
    return Shard(path.name, examples, path.stat().st_size, digest.hexdigest())


def write_dataset(dataset: Dataset) -> Path:
    """Write dataset.json, which makes the directory a data set; returns its path."""
    values = {"schema": SCHEMA, **asdict(dataset)}
    del values["folder"]
    values["splits"] = {
        split: {
            "examples": dataset.examples(split),
            "shards": [asdict(shard) for shard in shards],
        }
        for split, shards in dataset.splits.items()
    }
    path = dataset.folder / FILE
    write_json(path, values)
    return path


def read_dataset(folder: Path) -> Dataset:
    """Read dataset.json; BadInput: none, of another version, or shards missing or truncated."""
    path = folder / FILE
    values = _read(path)
    try:
        dataset = _dataset(folder, values)
    except (KeyError, TypeError, AttributeError, ValueError) as fault:
        raise _garbled(path, fault) from fault
    _check_shards(dataset)
    return dataset


def promised(folder: Path) -> dict[str, int]:
    """The records that every shard should have, by its name; BadInput: dataset.json is damaged."""
    path = folder / FILE
    try:
        parts = _read(path)["splits"].values()
        return {shard["name"]: int(shard["examples"]) for part in parts for shard in part["shards"]}
    except (KeyError, TypeError, AttributeError, ValueError) as fault:
        raise _garbled(path, fault) from fault


def _read(path: Path) -> dict[str, Any]:
    try:
        values = json.loads(path.read_text())
    except FileNotFoundError as fault:
        raise BadInput(
            f"{path.parent} is not a data set: it has no {FILE}",
            hint="`hpcdl data make` makes one; `hpcdl data inspect --index DIR` adds the file to "
            "a directory of records in ImageNet's layout",
        ) from fault
    except (OSError, ValueError) as fault:
        raise BadInput(f"cannot read {path}: {fault}", hint=_AGAIN) from fault
    if not isinstance(values, dict) or values.get("schema") != SCHEMA:
        found = values.get("schema") if isinstance(values, dict) else None
        raise BadInput(f"{path} has schema {found}, this hpcdl reads {SCHEMA}", hint=_AGAIN)
    return values


def _garbled(path: Path, fault: Exception) -> BadInput:
    return BadInput(f"{path}: missing or invalid key {fault}", hint="make the data set again")


def _dataset(folder: Path, values: dict[str, Any]) -> Dataset:
    height, width, channels = values["shape"]
    return Dataset(
        folder=folder,
        kind=values["kind"],
        encoding=values["encoding"],
        shape=(height, width, channels),
        classes=int(values["classes"]),
        scale=float(values["scale"]),
        seed=int(values["seed"]),
        source=values["source"],
        splits={
            split: tuple(
                Shard(str(s["name"]), int(s["examples"]), int(s["bytes"]), str(s["sha256"]))
                for s in part["shards"]
            )
            for split, part in values["splits"].items()
        },
        task=values.get("task", "classes"),
        label_offset=int(values.get("label_offset", 0)),
    )


def _check_shards(dataset: Dataset) -> None:
    faults = []
    for split, shards in dataset.splits.items():
        for shard in shards:
            path = dataset.folder / shard.name
            size = path.stat().st_size if path.is_file() else None
            if size is None:
                faults.append(f"{shard.name} ({split}): missing")
            elif size != shard.bytes:
                faults.append(f"{shard.name} ({split}): {size} bytes, should be {shard.bytes}")
    if faults:
        raise BadInput(
            f"the data set {dataset.folder} is not complete: {len(faults)} of "
            f"{sum(map(len, dataset.splits.values()))} shards are missing or truncated",
            details=faults[:20],
            hint=f"make it again: `hpcdl data make {dataset.kind} {dataset.folder}`",
        )
