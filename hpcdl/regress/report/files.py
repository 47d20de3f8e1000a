"""The scripts and logs that a report carries: cut to what a reader needs, with a note.

A log's beginning and its end are kept, where its settings and its failure stand. A file that is
gone is said to be gone. Nothing else of the report reads files.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpcdl.system.text import plain

HEAD, TAIL = 8 * 1024, 40 * 1024
"""Bytes of a file's beginning and end that are kept."""


@dataclass(frozen=True)
class Attached:
    """A file as the report carries it; `note` says what was left out, or why it is not here."""

    path: str
    text: str
    note: str = ""


def read_files(verdicts: list[Mapping[str, Any]]) -> list[Mapping[str, Attached]]:
    """Script and log of each verdict, in the verdicts' order."""
    return [
        {kind: attach(Path(str(verdict[kind]))) for kind in ("script", "log") if verdict.get(kind)}
        for verdict in verdicts
    ]


def attach(path: Path) -> Attached:
    """A file's text, its middle left out where it is long."""
    try:
        if not path.is_file():
            return Attached(str(path), "", "the file is no longer there")
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(0)
            if size <= HEAD + TAIL:
                return Attached(str(path), _text(file.read()))
            head = file.read(HEAD)
            file.seek(-TAIL, os.SEEK_END)
            tail = file.read()
    except OSError as fault:
        return Attached(str(path), "", f"it cannot be read: {fault.strerror}")
    head, tail = head[: head.rfind(b"\n") + 1] or head, tail[tail.find(b"\n") + 1 :] or tail
    left_out = size - len(head) - len(tail)
    gap = f"\n[... {left_out:,} bytes are left out here ...]\n\n"
    return Attached(str(path), _text(head) + gap + _text(tail),
                    f"{left_out:,} of {size:,} bytes are left out")  # fmt: skip


def _text(data: bytes) -> str:
    """Text without what a terminal would have obeyed."""
    text = plain(data.decode("utf-8", "replace")).replace("\r\n", "\n").replace("\r", "\n")
    return "".join(c for c in text if c >= " " or c in "\n\t")
