"""Arguments of the data commands; no TensorFlow here."""

from __future__ import annotations

import argparse
import re

from hpcdl.train.data.dataset import FINDINGS


def make_arguments(parser: argparse.ArgumentParser) -> None:
    """Add those of `data make`."""
    parser.add_argument("kind", choices=("digits",), help="kind of data set")
    parser.add_argument("folder", metavar="DIR", help="directory of the records")


def inspect_arguments(parser: argparse.ArgumentParser) -> None:
    """Add those of `data inspect`."""
    parser.add_argument("folder", metavar="DIR", help="a directory of TFRecord files")
    parser.add_argument(
        "--index", action="store_true", help="write dataset.json, which `hpcdl train` needs"
    )
    parser.add_argument(
        "--classes",
        type=_labels,
        default=("classes", 1000, 1),
        metavar="N",
        help="with --index: 1000 (the default) is 1 to 1000; or '0-999', or 'findings'",
    )
    parser.add_argument(
        "--decode", action="store_true", help="decode every image and look at its label, too"
    )


def _labels(text: str) -> tuple[str, int, int]:
    """Task, number of classes, and number of the first."""
    if text == "findings":
        return text, len(FINDINGS), 0
    if not re.fullmatch(r"[1-9][0-9]{0,5}|[0-9]{1,6}-[0-9]{1,6}", text):
        raise argparse.ArgumentTypeError(f"must be like 1000, 0-999 or findings, not {text}")
    first, _, last = text.rpartition("-")
    return "classes", int(last) - int(first or 1) + 1, int(first or 1)
