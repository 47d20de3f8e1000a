"""The TFRecord framing, read without TensorFlow: lengths, offsets, checksums.

A record is length (8 bytes), masked CRC-32C of it (4), data, masked CRC-32C of the data (4).
TensorFlow's reader checks the same but gives up a file at its first bad record; this one walks
on, so it can name every one. `Repairs` lets a run continue without them: a shard with damaged
records is read from then on as a copy without these, in the temporary directory of the node.
"""

from __future__ import annotations

import shutil
import struct
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from hpcdl.system.errors import BadInput
from hpcdl.system.files import explain_os_errors

_HEADER = struct.Struct("<QI")
_POLYNOMIAL = 0x82F63B78
_BLOCK = 128
_WORDS = NDArray[np.uint32]


@dataclass(frozen=True)
class RecordPlace:
    """One record's place: `offset` of its frame and `length` of its data, in bytes.

    `fault` is empty, or says what is wrong with it.
    """

    offset: int
    length: int
    fault: str = ""


def walk(path: Path, *, check_data: bool) -> Iterator[RecordPlace]:
    """The records of a file in order; after a broken length nothing can be found, and it ends."""
    size = path.stat().st_size
    offset = 0
    with path.open("rb") as file:
        while offset < size:
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
                missing = end - size
                yield RecordPlace(
                    offset, length, f"the file is truncated: {missing} bytes are missing"
                )
                return
            sound = not check_data or masked_crc32c(file.read(length)) == int.from_bytes(
                file.read(4), "little"
            )
            yield RecordPlace(offset, length, "" if sound else "its checksum is wrong")
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


class Repairs:
    """Damaged records of this rank's run, at most `limit`; `places` names them.

    `sound` says quickly whether a shard can be read whole; `say` is called for every damaged
    record, `read` after each shard that was looked through.
    """

    def __init__(
        self,
        limit: int,
        sound: Callable[[Path], bool],
        say: Callable[[str], None],
        read: Callable[[], None] = lambda: None,
    ) -> None:
        self.places: set[str] = set()
        self._limit = limit
        self._sound = sound
        self._say = say
        self._read = read
        self._copies: dict[Path, Path] = {}
        self._folder: Path | None = None

    def path(self, shard: Path) -> Path:
        """The file to read for a shard: itself, or its copy without damaged records."""
        return self._copies.get(shard, shard)

    def repair(self, shards: Sequence[Path], why: str) -> None:
        """Find the damaged shards, copy what is sound in them; BadInput: too many records, none."""
        damaged = []
        for shard in shards:
            if shard not in self._copies:
                damaged += [] if self._sound(shard) else [shard]
                self._read()
        if not damaged:
            raise BadInput(f"a record is damaged, but no shard shows it: {why}")
        for shard in damaged:
            self._copies[shard] = self._copy(shard)
            self._read()

    def close(self) -> None:
        """Remove the copies."""
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)

    def _copy(self, shard: Path) -> Path:
        if self._folder is None:
            self._folder = Path(tempfile.mkdtemp(prefix="hpcdl-repaired-"))
        copy = self._folder / f"{len(self._copies)}-{shard.name}"
        with explain_os_errors(copy), shard.open("rb") as old, copy.open("wb") as new:
            for record in walk(shard, check_data=True):
                if record.fault:
                    self.skip(shard, record.offset, record.fault)
                    continue
                old.seek(record.offset)
                new.write(old.read(record.length + 16))
        return copy

    def skip(self, shard: Path, offset: int, fault: str) -> None:
        """Count and name a record that is left out; BadInput: it is one too many."""
        self.places.add(f"{shard} at byte {offset}")
        place = f"{shard} at byte {offset}: {fault}"
        if len(self.places) > self._limit:
            raise BadInput(
                f"more than {self._limit} records are damaged; the last one is {place}",
                hint="`hpcdl data inspect` names all; --max-damaged N allows more",
            )
        self._say(f"skipped a damaged record: {place}")


# ---- CRC-32C (Castagnoli, RFC 3720), as fast as NumPy has it ----


def masked_crc32c(data: bytes) -> int:
    """The checksum as TFRecord stores it (tensorflow/core/lib/hash/crc32c.h)."""
    crc = crc32c(data)
    return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF


def crc32c(data: bytes) -> int:
    """The checksum of any number of bytes.

    CRC is linear, so blocks are done side by side by table and then folded pairwise.
    """
    blocks = len(data) // _BLOCK
    head = len(data) - blocks * _BLOCK
    crc, table = 0xFFFFFFFF, _byte_table()
    for byte in data[:head]:
        crc = (crc >> 8) ^ table[(crc ^ byte) & 0xFF]
    if blocks:
        crc = _fold(crc, np.frombuffer(data, np.uint8, offset=head).reshape(blocks, _BLOCK))
    return crc ^ 0xFFFFFFFF


def _fold(start: int, blocks: NDArray[np.uint8]) -> int:
    """The CRC register after `blocks`, from the register `start`."""
    table = _position_table()
    parts: _WORDS = np.bitwise_xor.reduce(table[np.arange(_BLOCK), blocks], axis=1)
    # The register before the first block counts as bits shifted through all blocks.
    parts = np.concatenate([np.array([start], np.uint32), parts])
    length = _BLOCK
    while len(parts) > 1:
        if len(parts) % 2:
            parts = np.concatenate([np.zeros(1, np.uint32), parts])
        parts = _apply(_shift_tables(length), parts[0::2]) ^ parts[1::2]
        length *= 2
    return int(parts[0])


@cache
def _byte_table() -> tuple[int, ...]:
    table = []
    for value in range(256):
        for _ in range(8):
            value = (value >> 1) ^ (_POLYNOMIAL if value & 1 else 0)
        table.append(value)
    return tuple(table)


@cache
def _position_table() -> _WORDS:
    """Return what a byte at each place of a block adds to the register at the block's end."""
    table = np.zeros((_BLOCK, 256), np.uint32)
    table[_BLOCK - 1] = np.array(_byte_table(), np.uint32)
    for place in range(_BLOCK - 2, -1, -1):
        later = table[place + 1]
        table[place] = (later >> np.uint32(8)) ^ table[_BLOCK - 1][later & 0xFF]
    return table


@cache
def _shift_tables(length: int) -> _WORDS:
    """Per byte of a register: what it becomes after `length` zero bytes."""
    if length == _BLOCK:
        # A register's byte b behaves like data byte b of a block of zeros.
        return _position_table()[:4]
    half = _shift_tables(length // 2)
    return np.stack([_apply(half, half[byte]) for byte in range(4)])


def _apply(tables: _WORDS, registers: _WORDS) -> _WORDS:
    """Every register after the zero bytes of the tables."""
    moved: _WORDS = tables[0][registers & 0xFF]
    for byte in range(1, 4):
        moved = moved ^ tables[byte][(registers >> np.uint32(8 * byte)) & 0xFF]
    return moved
