"""Numbers as options of the command line take them: argparse types with one clear refusal."""

from __future__ import annotations

import sys
from argparse import ArgumentTypeError
from collections.abc import Callable
from contextlib import suppress


def at_least(least: int, most: int | None = None) -> Callable[[str], int]:
    """Return the argparse type of an integer from `least` to `most`."""

    def whole(text: str) -> int:
        with suppress(ValueError):  # thousands of digits are no number to Python either
            if text.isascii() and text.isdigit() and least <= int(text) <= (most or int(text)):
                return int(text)
        wanted = f"from {least} to {most}" if most else f">= {least}"
        raise ArgumentTypeError(f"'{text[:30]}' is not a whole number {wanted}")

    return whole


def _whole(least: int, most: int | None = None) -> Callable[[str], int]:
    def read(text: str) -> int:
        try:
            value = int(text)
        except ValueError as fault:
            raise ArgumentTypeError(f"must be a whole number, not {text!r}") from fault
        if value < least:
            raise ArgumentTypeError(f"must be {least} or more, not {text}")
        if most is not None and value > most:
            raise ArgumentTypeError(f"must be {most} or less, not {text}")
        return value

    return read


def _real(least: float, most: float, wanted: str) -> Callable[[str], float]:
    def read(text: str) -> float:
        try:
            value = float(text)
        except ValueError as fault:
            raise ArgumentTypeError(f"must be a number, not {text!r}") from fault
        if not least <= value <= most:
            raise ArgumentTypeError(f"must {wanted}, not {text}")
        return value

    return read


positive, not_negative = _whole(1), _whole(0)
seed = _whole(0, 2**31 - 1)
"""What fits into 31 bits: TensorFlow and NumPy take no other."""
amount = _real(0, sys.float_info.max, "be a number of 0 or more")
fraction = _real(0, 1, "lie between 0 and 1")
seconds = _real(0.01, 86400, "be from 0.01 to 86400 seconds")
"""From a hundredth of a second to a day."""
