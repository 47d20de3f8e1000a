"""Slurm's compact lists of nodes: `p100-[01-04,07],login`. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from hpcdl.system.errors import BadInput

MOST_NODES = 100_000
_PART = re.compile(r"(?:[^\[\],\s]|\[[0-9]+(?:-[0-9]+)?(?:,[0-9]+(?:-[0-9]+)?)*\])+\Z")
_RANGES = re.compile(r"\[([0-9,-]+)\]")


def expand_hostlist(hostlist: str) -> tuple[str, ...]:
    """The names of a hostlist, like `scontrol show hostnames`.

    Raises:
        BadInput: it is none, a range runs backwards, or it names more than `MOST_NODES`.
    """
    names: list[str] = []
    for part in _split(hostlist):
        if not _PART.match(part):
            raise BadInput(
                f"'{hostlist[:80]}' is no list of nodes", hint="write it like p100-[01-04,07],login"
            )
        names += _expand(part, MOST_NODES - len(names))
    return tuple(names)


def _split(hostlist: str) -> Iterator[str]:
    """Split at the commas outside brackets."""
    depth, start = 0, 0
    for index, character in enumerate(hostlist):
        depth += (character == "[") - (character == "]")
        if character == "," and depth == 0:
            yield hostlist[start:index]
            start = index + 1
    if hostlist[start:]:
        yield hostlist[start:]


def _expand(part: str, limit: int) -> list[str]:
    """The names of one part; several brackets in it count like digits of a number."""
    pieces = _RANGES.split(part)
    names = [pieces[0]]
    for ranges, tail in zip(pieces[1::2], pieces[2::2], strict=True):
        numbers = list(_numbers(ranges, limit))
        if len(names) * len(numbers) > limit:
            raise _too_many(part)
        names = [f"{name}{number}{tail}" for name in names for number in numbers]
    return names


def _numbers(ranges: str, limit: int) -> Iterable[str]:
    for piece in ranges.split(","):
        low, _, high = piece.partition("-")
        first, last = int(low), int(high or low)
        if last < first:
            raise BadInput(f"the range {piece[:40]} in a list of nodes runs backwards")
        if last - first >= limit:
            raise _too_many(ranges)
        yield from (f"{number:0{len(low)}d}" for number in range(first, last + 1))


def _too_many(text: str) -> BadInput:
    return BadInput(f"'{text[:80]}' names more than {MOST_NODES:,} nodes")
