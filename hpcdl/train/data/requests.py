"""What was asked of `hpcdl data make`, kept beside the records."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpcdl.system.errors import BadInput
from hpcdl.train.data.dataset import FILE

REQUEST = ".making.json"
MADE = ".made.json"


@dataclass(frozen=True)
class PhotoRequest:
    """What is wanted: `count` images to train and `test` ones, `bytes` each on average."""

    count: int
    test: int
    width: int
    height: int
    bytes: int
    classes: int
    shards: int
    seed: int
    task: str = "classes"


def guard(folder: Path, kind: str) -> None:
    """Check that no records of another command, or of a person, would be lost.

    Raises:
        BadInput: the directory holds records that are no data set of this kind.
    """
    if (folder / REQUEST).exists() or not any(folder.glob("*.tfrecord*")):
        return
    try:
        there = json.loads((folder / FILE).read_text())["kind"]
    except (OSError, ValueError, KeyError, TypeError):
        there = "other"
    if there != kind:
        raise BadInput(f"{folder} holds {there} records, which would be lost",
                       hint="choose another directory, or remove them first")  # fmt: skip


def finish(folder: Path) -> None:
    """The request is met, once dataset.json is written."""
    (folder / REQUEST).replace(folder / MADE)


def was_made(folder: Path, request: Mapping[str, Any]) -> bool:
    """Whether the records in a directory are what this request made, to its end."""
    if (folder / REQUEST).exists():
        return False
    try:
        return bool(json.loads((folder / MADE).read_text()) == dict(request))
    except (OSError, ValueError):
        return False
