"""dataset.json: what a directory of TFRecord shards holds, and the check that it is all there."""

from __future__ import annotations

import hashlib
import os
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from hpcdl.results.records import DATASET
from hpcdl.system.errors import BadInput
from hpcdl.system.trust import require_own

FILE = DATASET.name
FINDINGS = (
    *("Atelectasis", "Cardiomegaly", "Effusion", "Infiltration", "Mass", "Nodule", "Pneumonia"),
    *("Pneumothorax", "Consolidation", "Edema", "Emphysema", "Fibrosis", "Pleural_Thickening"),
    "Hernia",
)
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
    `label_offset` is the number of the first class (1 in the usual ImageNet records). `request` is
    what `hpcdl data make` was asked, as JSON values.
    """

    folder: Path
    kind: str
    encoding: str
    shape: tuple[int, int, int]
    classes: int
    scale: float
    splits: dict[str, tuple[Shard, ...]]
    task: str = "classes"
    label_offset: int = 0
    request: dict[str, Any] = field(default_factory=dict)

    @property
    def digest(self) -> str:
        """Return a short digest of the shards, independent of their directory."""
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


def write_dataset(dataset: Dataset) -> None:
    """Write dataset.json, which makes the directory a data set."""
    values = asdict(dataset)
    folder = values.pop("folder")
    values["splits"] = {
        split: {"examples": dataset.examples(split), "shards": shards}
        for split, shards in values["splits"].items()
    }
    DATASET.write(folder / FILE, values)


def load_dataset(folder: Path) -> Dataset:
    """Read dataset.json; BadInput: there is none, or it is damaged or of another version."""
    if not (folder / FILE).exists():
        raise BadInput(
            f"{folder} is not a data set: it has no {FILE}",
            hint="`hpcdl data make` makes one; `hpcdl data inspect --index DIR` adds the file to "
            "a directory of records in ImageNet's layout",
        )
    try:
        record = DATASET.read(folder / FILE)
        record.need(*DATASET.schema["required"])
    except BadInput as fault:
        hint = "`hpcdl data inspect --index DIR` writes it again"
        raise BadInput(fault.message, hint=hint) from fault
    values = {one.name: record.values[one.name] for one in fields(Dataset) if one.name != "folder"}
    values["splits"] = {
        split: tuple(Shard(*(one[key.name] for key in fields(Shard))) for one in part["shards"])
        for split, part in values["splits"].items()
    }
    return Dataset(folder, **values)


def read_dataset(folder: Path) -> Dataset:
    """The data set in a directory; BadInput as `load_dataset`, or shards missing or truncated."""
    dataset = load_dataset(folder)
    faults = []
    for split, shards in dataset.splits.items():
        for shard in shards:
            path = folder / shard.name
            size = path.stat().st_size if path.is_file() else None
            if size is None:
                faults.append(f"{shard.name} ({split}): missing")
            elif size != shard.bytes:
                faults.append(f"{shard.name} ({split}): {size} bytes, should be {shard.bytes}")
    if faults:
        raise BadInput(
            f"the data set {folder} is not complete: {len(faults)} of "
            f"{sum(map(len, dataset.splits.values()))} shards are missing or truncated",
            details=faults[:20],
            hint=f"make it again: `hpcdl data make digits {folder}`"
            if dataset.kind == "digits"
            else "make it again as it was made",
        )
    return dataset


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


def require_room(folder: Path) -> None:
    """Refuse a directory in which something is, for records are made as a whole.

    Raises MissingPrerequisite: the directory is another user's, who can put other records there.
    """
    if os.path.lexists(folder):
        require_own(folder)
        if not folder.is_dir() or any(folder.iterdir()):
            raise BadInput(
                f"{folder} holds other records or files, which would be lost",
                hint="choose another directory, or remove it first",
            )


def made_before(folder: Path, request: dict[str, Any]) -> Dataset | None:
    """The data set in a directory, where it is whole and what this request made."""
    with suppress(BadInput):
        dataset = read_dataset(folder)
        return dataset if dataset.request == request else None
    return None
