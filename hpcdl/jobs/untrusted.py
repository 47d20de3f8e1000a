"""Values from files that any program may have written: taken as they should be, or not at all.

A user's own program writes result.json and progress.json; a job's folder may come from anybody.
What is no number counts as missing, and no text reaches a terminal as anything but text.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite
from typing import Any

from hpcdl.system.errors import visible

_LONGEST_TEXT = 200


def mapping(value: object) -> Mapping[str, Any]:
    """A mapping; empty where it is something else."""
    return value if isinstance(value, dict) else {}


def number(value: object) -> float | None:
    """A finite number; None where it is something else."""
    plain = isinstance(value, (int, float)) and not isinstance(value, bool)
    return float(value) if plain and isfinite(value) else None  # type: ignore[arg-type]


def positive(value: object) -> float | None:
    """A finite number above 0; None where it is something else."""
    found = number(value)
    return found if found is not None and found > 0 else None


def count(value: object) -> int | None:
    """A whole number from 1; None where it is something else."""
    found = number(value)
    return int(found) if found is not None and found == int(found) and 1 <= found < 2**31 else None


def numbers(value: object) -> list[float]:
    """The numbers of a list; none where one of them is something else."""
    found = [number(one) for one in value] if isinstance(value, list) else []
    return [one for one in found if one is not None] if None not in found else []


def text(value: object) -> str:
    """A short text that commands no terminal; empty where it is something else."""
    return visible(value[:_LONGEST_TEXT]).replace("\n", " ") if isinstance(value, str) else ""
