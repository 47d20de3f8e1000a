"""Slurm's compact lists of nodes: `p100-[01-04,07],login`. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable

from hpcdl.system.errors import BadInput

MOST_NODES = 100_000
_MOST_DIGITS = 18
_PARTS = re.compile(r"((?:\[[^\]]*\]?|[^,\[])*)(?:,|\Z)")  # at the commas outside brackets
_PART = re.compile(r"(?:[^\[\],\s]|\[[0-9]+(?:-[0-9]+)?(?:,[0-9]+(?:-[0-9]+)?)*\])+\Z")
_RANGES = re.compile(r"\[([0-9,-]+)\]")


def expand_hostlist(hostlist: str) -> tuple[str, ...]:
    """The names of a hostlist, like `scontrol show hostnames`.

    Raises BadInput: it is none, a range runs backwards, or it names more than `MOST_NODES`.
    """
    names: list[str] = []
    for part in _PARTS.findall(hostlist)[:-1]:
        if not _PART.match(part):
            raise BadInput(
                f"'{hostlist[:80]}' is no list of nodes", hint="write it like p100-[01-04,07],login"
            )
        names += _expand(part, MOST_NODES - len(names))
    return tuple(names)


def fold_hostlist(names: Iterable[str]) -> str:
    """Names as a Slurm host list: runs of equal width are folded (`p100-[01-04],login`)."""
    runs: list[tuple[str, str, str]] = []  # head, first number, last number
    for name in names:
        head = name.rstrip("0123456789")
        number = name[len(head) :]
        if runs and number and runs[-1][0] == head and _follows(runs[-1][2], number):
            runs[-1] = (head, runs[-1][1], number)
        else:
            runs.append((head, number, number))
    return ",".join(
        f"{head}{low}" if low == high else f"{head}[{low}-{high}]" for head, low, high in runs
    )


def _follows(last: str, number: str) -> bool:
    return bool(last) and len(last) == len(number) and int(number) == int(last) + 1


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
        if max(len(low), len(high)) > _MOST_DIGITS:
            raise _too_many(ranges)
        first, last = int(low), int(high or low)
        if last < first:
            raise BadInput(f"the range {piece[:40]} in a list of nodes runs backwards")
        if last - first >= limit:
            raise _too_many(ranges)
        yield from (f"{number:0{len(low)}d}" for number in range(first, last + 1))


def _too_many(text: str) -> BadInput:
    return BadInput(f"'{text[:80]}' names more than {MOST_NODES:,} nodes")
