"""TFRecord files record by record: where each is, and which of them are damaged.

A record is length (8 bytes), masked CRC-32C of it (4), data, masked CRC-32C of the data (4).
TensorFlow's reader of whole files gives up at the first bad record. Here the lengths are followed
from record to record, so that every bad one gets its name; TensorFlow judges the data.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

_HEADER = struct.Struct("<QI")
_POLYNOMIAL = 0x82F63B78


@dataclass(frozen=True)
class RecordPlace:
    """One record's place: `offset` of its frame and `length` of its data, in bytes.

    `fault` is empty, or says what is wrong with it.
    """

    offset: int
    length: int
    fault: str = ""


def walk(path: Path) -> Iterator[RecordPlace]:
    """The records of a file in order; after a broken length nothing can be found, and it ends."""
    size = path.stat().st_size
    offset = 0
    with path.open("rb") as file:
        while offset < size:
            file.seek(offset)
            head = file.read(12)
            if len(head) < 12:
                yield RecordPlace(offset, 0, f"the file ends inside a header, at {size} bytes")
                return
            length, checksum = _HEADER.unpack(head)
            if masked_crc32c(head[:8]) != checksum:
                yield RecordPlace(offset, 0, "its length is damaged; nothing after it can be read")
                return
            end = offset + 16 + length
            if end > size:
                fault = f"the file is truncated: {end - size} bytes are missing"
                yield RecordPlace(offset, length, fault)
                return
            yield RecordPlace(offset, length)
            offset = end


def checked(path: Path) -> Iterator[tuple[RecordPlace, bytes]]:
    """The records as `walk` gives them, and their data; TensorFlow verifies the checksums."""
    import tensorflow as tf
    from tensorflow.python.lib.io import tf_record

    # The one reader of TensorFlow that goes on behind a damaged record.
    reader = tf_record.tf_record_random_reader(str(path))
    for record in walk(path):
        data = b""
        if not record.fault:
            try:
                data, _ = reader.read(record.offset)
            except tf.errors.DataLossError:
                record = replace(record, fault="its checksum is wrong")
        yield record, data


def masked_crc32c(data: bytes) -> int:
    """The checksum as TFRecord stores it (tensorflow/core/lib/hash/crc32c.h), of a few bytes."""
    crc, table = 0xFFFFFFFF, _table()
    for byte in data:
        crc = (crc >> 8) ^ table[(crc ^ byte) & 0xFF]
    crc ^= 0xFFFFFFFF
    return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF


@cache
def _table() -> tuple[int, ...]:
    """CRC-32C (Castagnoli, RFC 3720) of each byte."""
    table = []
    for value in range(256):
        for _ in range(8):
            value = (value >> 1) ^ (_POLYNOMIAL if value & 1 else 0)
        table.append(value)
    return tuple(table)
