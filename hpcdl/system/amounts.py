"""Numbers as options of the command line take them: argparse types with one clear refusal."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from contextlib import suppress


def positive(text: str) -> int:
    """A whole number from 1."""
    return _within(_whole(text), 1, None, text)


def not_negative(text: str) -> int:
    """A whole number from 0."""
    return _within(_whole(text), 0, None, text)


def at_least(least: int, most: int | None = None) -> Callable[[str], int]:
    """What argparse takes for a number of things: a whole one, from `least` on, up to `most`."""

    def whole(text: str) -> int:
        with suppress(ValueError):  # thousands of digits are no number to Python either
            if text.isascii() and text.isdigit() and least <= int(text) <= (most or int(text)):
                return int(text)
        wanted = f"from {least} to {most}" if most else f">= {least}"
        raise argparse.ArgumentTypeError(f"'{text[:30]}' is not a whole number {wanted}")

    return whole


def seed(text: str) -> int:
    """A whole number from 0 that fits into 31 bits: TensorFlow's and NumPy's take no other."""
    return _within(_whole(text), 0, 2**31 - 1, text)


def amount(text: str) -> float:
    """A finite number from 0."""
    value = _number(text)
    if not 0 <= value < float("inf"):
        raise argparse.ArgumentTypeError(f"must be a number of 0 or more, not {text}")
    return value


def seconds(text: str) -> float:
    """A time from a hundredth of a second to a day."""
    value = _number(text)
    if not 0.01 <= value <= 86400:
        raise argparse.ArgumentTypeError(f"must be from 0.01 to 86400 seconds, not {text}")
    return value


def fraction(text: str) -> float:
    """A number from 0 to 1."""
    value = _number(text)
    if not 0 <= value <= 1:
        raise argparse.ArgumentTypeError(f"must lie between 0 and 1, not {text}")
    return value


def _within(value: int, least: int, most: int | None, text: str) -> int:
    if value < least:
        raise argparse.ArgumentTypeError(f"must be {least} or more, not {text}")
    if most is not None and value > most:
        raise argparse.ArgumentTypeError(f"must be {most} or less, not {text}")
    return value


def _whole(text: str) -> int:
    try:
        return int(text)
    except ValueError as fault:
        raise argparse.ArgumentTypeError(f"must be a whole number, not {text!r}") from fault


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError as fault:
        raise argparse.ArgumentTypeError(f"must be a number, not {text!r}") from fault
