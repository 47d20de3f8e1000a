"""The TFRecord framing, read without TensorFlow: lengths, offsets, checksums.

A record is length (8 bytes), masked CRC-32C of it (4), data, masked CRC-32C of the data (4).
TensorFlow's reader checks the same but gives up a file at its first bad record; this one walks
on, so it can name every one.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from hpcdl.system.crc32c import crc32c

_HEADER = struct.Struct("<QI")


@dataclass(frozen=True)
class Record:
    """One record's place: `offset` of its frame and `length` of its data, in bytes.

    `fault` is empty, or says what is wrong with it.
    """

    offset: int
    length: int
    fault: str = ""


def walk(path: Path, *, check_data: bool) -> Iterator[Record]:
    """The records of a file in order; after a broken length nothing can be found, and it ends."""
    size = path.stat().st_size
    offset = 0
    with path.open("rb") as file:
        while offset < size:
            head = file.read(12)
            if len(head) < 12:
                yield Record(offset, 0, f"the file ends inside a header, at {size} bytes")
                return
            length, checksum = _HEADER.unpack(head)
            if masked_crc32c(head[:8]) != checksum:
                yield Record(offset, 0, "its length is damaged; nothing after it can be read")
                return
            end = offset + 16 + length
            if end > size:
                missing = end - size
                yield Record(offset, length, f"the file is truncated: {missing} bytes are missing")
                return
            sound = not check_data or _is_sound(file.read(length), file.read(4))
            yield Record(offset, length, "" if sound else "its checksum is wrong")
            offset = end
            file.seek(offset)


def read(path: Path, offset: int, length: int) -> bytes:
    """The data of the record whose frame starts at `offset`."""
    with path.open("rb") as file:
        file.seek(offset + 12)
        return file.read(length)


def find(files: Sequence[Path], data: bytes) -> tuple[Path, int]:
    """The file and offset of the first record that holds `data`; LookupError: none does."""
    for path in files:
        for record in walk(path, check_data=False):
            if record.length == len(data) and read(path, record.offset, record.length) == data:
                return path, record.offset
    raise LookupError("no record holds these bytes")


def _is_sound(data: bytes, checksum: bytes) -> bool:
    return masked_crc32c(data).to_bytes(4, "little") == checksum


def masked_crc32c(data: bytes) -> int:
    """The checksum as TFRecord stores it (tensorflow/core/lib/hash/crc32c.h)."""
    crc = crc32c(data)
    return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF
