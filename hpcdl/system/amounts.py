"""Numbers as options of the command line take them: argparse types with one clear refusal."""

from __future__ import annotations

import sys
from argparse import ArgumentTypeError
from collections.abc import Callable
from contextlib import suppress


def at_least(least: int, most: int | None = None) -> Callable[[str], int]:
    """What argparse takes for a number of things: a whole one, from `least` on, up to `most`."""

    def whole(text: str) -> int:
        with suppress(ValueError):  # thousands of digits are no number to Python either
            if text.isascii() and text.isdigit() and least <= int(text) <= (most or int(text)):
                return int(text)
        wanted = f"from {least} to {most}" if most else f">= {least}"
        raise ArgumentTypeError(f"'{text[:30]}' is not a whole number {wanted}")

    return whole


def positive(text: str) -> int:
    """A whole number from 1."""
    return _whole(text, 1)


def not_negative(text: str) -> int:
    """A whole number from 0."""
    return _whole(text, 0)


def seed(text: str) -> int:
    """A whole number from 0 that fits into 31 bits: TensorFlow's and NumPy's take no other."""
    return _whole(text, 0, 2**31 - 1)


def amount(text: str) -> float:
    """A finite number from 0."""
    return _real(text, 0, sys.float_info.max, "be a number of 0 or more")


def seconds(text: str) -> float:
    """A time from a hundredth of a second to a day."""
    return _real(text, 0.01, 86400, "be from 0.01 to 86400 seconds")


def fraction(text: str) -> float:
    """A number from 0 to 1."""
    return _real(text, 0, 1, "lie between 0 and 1")


def _whole(text: str, least: int, most: int | None = None) -> int:
    try:
        value = int(text)
    except ValueError as fault:
        raise ArgumentTypeError(f"must be a whole number, not {text!r}") from fault
    if value < least:
        raise ArgumentTypeError(f"must be {least} or more, not {text}")
    if most is not None and value > most:
        raise ArgumentTypeError(f"must be {most} or less, not {text}")
    return value


def _real(text: str, least: float, most: float, wanted: str) -> float:
    try:
        value = float(text)
    except ValueError as fault:
        raise ArgumentTypeError(f"must be a number, not {text!r}") from fault
    if not least <= value <= most:
        raise ArgumentTypeError(f"must {wanted}, not {text}")
    return value
