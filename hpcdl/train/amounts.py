"""Numbers as options of the command line take them: argparse types with one clear refusal."""

from __future__ import annotations

import argparse


def positive(text: str) -> int:
    """A whole number from 1."""
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"must be 1 or more, not {text}")
    return value


def not_negative(text: str) -> int:
    """A whole number from 0."""
    value = int(text)
    if value < 0:
        raise argparse.ArgumentTypeError(f"must be 0 or more, not {text}")
    return value
