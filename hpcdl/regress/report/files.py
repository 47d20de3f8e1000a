"""The scripts and logs that a report carries: cut to what a reader needs, with a note.

A page is shown to others, and verdicts.json may be anybody's: so only files of the run itself are
taken: each lies, whatever name it was opened by, in the run's directory, and belongs, as every
directory on the way, to the run's owner. A log's beginning and its end are kept, where its
settings and its failure stand. Nothing else of the report reads files.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from hpcdl.regress.formats import Run
from hpcdl.regress.run_directory import is_named_as_run
from hpcdl.system.errors import BadInput
from hpcdl.system.inert import inert
from hpcdl.system.safe_read import open_regular
from hpcdl.system.text import plain

HEAD, TAIL = 8 * 1024, 40 * 1024
"""Bytes of a file's beginning and end that are kept."""


@dataclass(frozen=True)
class Attached:
    """A file as the report carries it; `note` says what was left out, or why it is not here."""

    path: str
    text: str
    note: str = ""


def directory_of(run: Run, named: Path, runs: Path) -> Path | None:
    """The directory of which a report may show files, None if it is unknown.

    `named` is what the verdicts were read from; `runs` is where the site's runs lie: verdicts that
    were copied away may name one of these.
    """
    place = (named if named.is_dir() else named.parent).resolve()
    if is_named_as_run(place):
        return place
    stated = Path(str(run.get("run") or ""))
    return stated if stated.parent == runs and is_named_as_run(stated) else None


def read_files(run: Run, directory: Path | None) -> list[Mapping[str, Attached]]:
    """Script and log of each verdict, in the verdicts' order."""
    above = [] if directory is None else [directory, Path(str(run.get("run") or directory))]
    return [
        {
            kind: attach(directory, above, str(verdict[kind]))
            for kind in ("script", "log")
            if verdict.get(kind)
        }
        for verdict in run["verdicts"]
    ]


def attach(directory: Path | None, above: Sequence[Path], path: str) -> Attached:
    """A file's text, its middle left out where it is long.

    `above` are the names by which the run's directory may stand in `path`.
    """
    inside = next(
        (Path(path).relative_to(one) for one in above if Path(path).is_relative_to(one)), None
    )
    if directory is None or inside is None or not inside.parts:
        return Attached(path, "", "it is not in the run's directory")
    try:
        with open_regular(directory / inside, "file") as file:
            if refusal := _refusal(directory.resolve(), file):
                return Attached(path, "", refusal)
            return Attached(path, *_cut(file))
    except BadInput as fault:
        why = fault.message.removeprefix(f"cannot read {directory / inside}: ")
        return Attached(path, "", f"it cannot be read: {why}")


def _refusal(directory: Path, file: BinaryIO) -> str:
    """Why an opened file is not shown, '' if it is; asked of the file itself, whatever its name."""
    place, status = Path(f"/proc/self/fd/{file.fileno()}").readlink(), os.fstat(file.fileno())
    if not place.is_relative_to(directory):
        return "it is not in the run's directory"
    owner = directory.stat().st_uid
    between = place.parents[: len(place.relative_to(directory).parts) - 1]
    if status.st_uid != owner or any(above.stat().st_uid != owner for above in between):
        return "it belongs to another user"
    # Another name of it may lie where only its owner can look.
    return "it has a second name (a hard link)" if status.st_nlink > 1 else ""


def _cut(file: BinaryIO) -> tuple[str, str]:
    size = file.seek(0, os.SEEK_END)
    file.seek(0)
    if size <= HEAD + TAIL:
        return _text(file.read(HEAD + TAIL)), ""
    head = file.read(HEAD)
    file.seek(-TAIL, os.SEEK_END)
    tail = file.read(TAIL)
    head, tail = head[: head.rfind(b"\n") + 1] or head, tail[tail.find(b"\n") + 1 :] or tail
    left_out = size - len(head) - len(tail)
    gap = f"\n[... {left_out:,} bytes are left out here ...]\n\n"
    return _text(head) + gap + _text(tail), f"{left_out:,} of {size:,} bytes are left out"


def _text(data: bytes) -> str:
    """Text without colours, and without what else a terminal would have obeyed."""
    text = plain(data.decode("utf-8", "replace")).replace("\r\n", "\n").replace("\r", "\n")
    return inert(text.replace("\0", ""))
