"""Versions and ranges of versions, as the facts write them.

A version compares by its numbers (`2.9 < 2.18`). A range has Spack's form: `12.5:12` is from
12.5 to the last 12.x, `:11.8` everything up to 11.8 with its patches, `2.18` every 2.18.x, and
commas join ranges. Both are plain text outside and tuples of numbers inside.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

_PART = re.compile(r"\d+|[a-z]+", re.IGNORECASE)


@lru_cache(maxsize=4096)
def sort_key(version: str) -> tuple[tuple[bool, int | str], ...]:
    """What any version compares by: 2, 18, 1 for `2.18.1`; words come before all numbers."""
    return tuple((p.isdigit(), int(p) if p.isdigit() else p) for p in _PART.findall(version))


def newest_first(versions: set[str]) -> tuple[str, ...]:
    """Versions in the order in which they are tried."""
    return tuple(sorted(versions, key=sort_key, reverse=True))


@dataclass(frozen=True)
class Range:
    """A set of versions, written as Spack writes it."""

    text: str

    def allows(self, version: str) -> bool:
        """Whether `version` lies in the range."""
        return any(_within(part, version) for part in self.text.split(","))

    def describe(self) -> str:
        """The range for people: `>= 12.5`, `<= 11.8`, `12.5 to 12.x`, `2.18`."""
        return " or ".join(_words(part) for part in self.text.split(","))


@lru_cache(maxsize=65536)
def _within(part: str, version: str) -> bool:
    low, colon, high = part.partition(":")
    value, bottom, top = sort_key(version), sort_key(low), sort_key(high)
    if not colon:
        return value[: len(bottom)] == bottom
    return value >= bottom and (not high or value[: len(top)] <= top)


def _words(part: str) -> str:
    low, colon, high = part.partition(":")
    top = f"{high}.x" if high.isdigit() else high
    if not low:
        return f"<= {top}"
    return f"{low} to {top}" if high else f">= {low}" if colon else low
