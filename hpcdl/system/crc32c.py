"""CRC-32C (Castagnoli, RFC 3720), as fast as NumPy has it.

CRC is linear, so blocks are done side by side by table and then folded pairwise.
"""

from __future__ import annotations

from functools import cache

import numpy as np
from numpy.typing import NDArray

_POLYNOMIAL = 0x82F63B78
_BLOCK = 128
_WORDS = NDArray[np.uint32]


def crc32c(data: bytes) -> int:
    """The checksum of any number of bytes."""
    blocks = len(data) // _BLOCK
    head = len(data) - blocks * _BLOCK
    crc = _bytewise(0xFFFFFFFF, data[:head])
    if blocks:
        crc = _fold(crc, np.frombuffer(data, np.uint8, offset=head).reshape(blocks, _BLOCK))
    return crc ^ 0xFFFFFFFF


def _bytewise(crc: int, data: bytes) -> int:
    table = _byte_table()
    for byte in data:
        crc = (crc >> 8) ^ table[(crc ^ byte) & 0xFF]
    return crc


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
    """What a byte at each place of a block adds to the register at the block's end."""
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
