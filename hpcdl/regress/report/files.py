"""The scripts and logs that a report carries: cut to what a reader needs, with a note.

A page is shown to others, and verdicts.json may be anybody's: so only files of the run itself are
taken. Each is opened from the run's directory down, without following a link, and belongs, as
every directory on the way, to the run's owner. A log's beginning and its end are kept, where its
settings and its failure stand. Nothing else of the report reads files.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from hpcdl.regress.formats import Run
from hpcdl.regress.run_directory import is_named_as_run
from hpcdl.system.inert import inert
from hpcdl.system.text import plain

HEAD, TAIL = 8 * 1024, 40 * 1024
"""Bytes of a file's beginning and end that are kept."""
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# Not blocking: to open a pipe without a writer would wait for ever.
_FILE = os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_NOCTTY | os.O_CLOEXEC


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
    if directory is None or inside is None or not inside.parts or ".." in inside.parts:
        return Attached(path, "", "it is not in the run's directory")
    try:
        with _opened(directory, inside) as (descriptor, refusal):
            return Attached(path, "", refusal) if refusal else Attached(path, *_cut(descriptor))
    except FileNotFoundError:
        return Attached(path, "", "the file is no longer there")
    except (OSError, ValueError) as fault:
        why = getattr(fault, "strerror", None) or "its name is impossible"
        return Attached(path, "", f"it cannot be read: {why}")


@contextmanager
def _opened(directory: Path, inside: Path) -> Iterator[tuple[int, str]]:
    """A descriptor of a file below a directory, and why it is not to be read, '' if it is."""
    with ExitStack() as open_ones:

        def step(name: str | Path, flags: int, at: int | None = None) -> int:
            descriptor = os.open(name, flags, dir_fd=at)
            open_ones.callback(os.close, descriptor)
            return descriptor

        here = step(directory, _DIRECTORY)
        owner = os.fstat(here).st_uid
        strange = False
        for name in inside.parts[:-1]:
            here = step(name, _DIRECTORY, here)
            strange = strange or os.fstat(here).st_uid != owner
        here = step(inside.name, _FILE, here)
        yield here, "it belongs to another user" if strange else _refusal(os.fstat(here), owner)


def _refusal(status: os.stat_result, owner: int) -> str:
    if not stat.S_ISREG(status.st_mode):
        return "it is no regular file"
    if status.st_uid != owner:
        return "it belongs to another user"
    # Another name of it may lie where only its owner can look.
    return "it has a second name (a hard link)" if status.st_nlink > 1 else ""


def _cut(descriptor: int) -> tuple[str, str]:
    with os.fdopen(os.dup(descriptor), "rb") as file:
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
