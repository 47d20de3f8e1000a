"""Numbers as options of the command line take them: argparse types with one clear refusal."""

from __future__ import annotations

import re
import sys
from argparse import ArgumentTypeError
from collections.abc import Callable
from contextlib import suppress


def at_least(least: int, most: int | None = None) -> Callable[[str], int]:
    """Return the argparse type of an integer from `least` to `most`."""

    def read(text: str) -> int:
        with suppress(ValueError):  # thousands of digits are no number to Python either
            if text.isascii() and text.isdigit() and least <= int(text) <= (most or int(text)):
                return int(text)
        wanted = f"from {least} to {most}" if most else f">= {least}"
        raise ArgumentTypeError(f"'{text[:30]}' is not a whole number {wanted}")

    return read


def _real(least: float, most: float, wanted: str) -> Callable[[str], float]:
    def read(text: str) -> float:
        with suppress(ValueError):  # Python has numbers such as `1_0`, which nobody else reads
            if re.fullmatch(r"[0-9.]+(e[+-]?[0-9]+)?", text) and least <= float(text) <= most:
                return float(text)
        raise ArgumentTypeError(f"'{text[:30]}' is not a number {wanted}")

    return read


positive = at_least(1)
amount = _real(0, sys.float_info.max, "of 0 or more")
seconds = _real(0.01, 86400, "from 0.01 to 86400 seconds")
"""From a hundredth of a second to a day."""
