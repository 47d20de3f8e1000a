"""Which libraries a shared object asks for, and where it says they lie: its dynamic section.

Read from the file, without binutils. The format is System V's (ELF-64, little-endian); see elf(5).
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SEGMENT = struct.Struct("<IIQQQQQQ")
_ENTRY = struct.Struct("<qQ")
_LOAD, _DYNAMIC = 1, 2
_NEEDED, _STRINGS, _SONAME, _RPATH, _RUNPATH = 1, 5, 14, 15, 29


@dataclass(frozen=True)
class Dynamic:
    """Names of needed libraries, the object's own name, and the directories where it looks."""

    needed: tuple[str, ...] = ()
    soname: str = ""
    folders: tuple[Path, ...] = ()


def read_dynamic(path: Path) -> Dynamic:
    """The dynamic section of a file; an empty one of what is no 64-bit ELF file."""
    with opened(path) as data, suppress(struct.error):  # cut off in the middle
        if data is not None:
            return _read(data, path)
    return Dynamic()


@contextmanager
def opened(path: Path) -> Iterator[mmap.mmap | None]:
    """The bytes of a 64-bit ELF file; None of any other."""
    if path.stat().st_size < HEADER.size:
        yield None
        return
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        yield data if data[:6] == b"\x7fELF\x02\x01" else None


def _read(data: mmap.mmap, path: Path) -> Dynamic:
    header = HEADER.unpack_from(data)
    segments = [
        _SEGMENT.unpack_from(data, header[5] + index * header[9]) for index in range(header[10])
    ]
    sections = (data[one[2] : one[2] + one[5]] for one in segments if one[0] == _DYNAMIC)
    entries = [entry for section in sections for entry in _ENTRY.iter_unpack(section)]
    address = next((value for tag, value in entries if tag == _STRINGS), 0)
    loaded = (one for one in segments if one[0] == _LOAD and one[3] <= address < one[3] + one[5])
    strings = next((address - one[3] + one[2] for one in loaded), 0)

    def texts(*tags: int) -> list[str]:
        starts = [strings + value for tag, value in entries if tag in tags]
        return [data[start : data.find(b"\0", start)].decode() for start in starts]

    folders = (one for text in texts(_RPATH, _RUNPATH) for one in text.split(":") if one)
    origin = str(path.absolute().parent)  # of a link not what it leads to: so does the loader
    expanded = (one.replace("${ORIGIN}", origin).replace("$ORIGIN", origin) for one in folders)
    found = (Path(one).resolve() for one in expanded)
    soname = (*texts(_SONAME), "")[0]
    return Dynamic(tuple(texts(_NEEDED)), soname, tuple(dict.fromkeys(found)))
