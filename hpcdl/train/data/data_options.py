"""Arguments of the data commands, and the command lines made of them; no TensorFlow here."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable
from typing import Any

from hpcdl.system.amounts import amount, at_least, positive
from hpcdl.train.data.dataset import FINDINGS

_SHARED = ("json", "dry_run")
_MOST_SHARDS = 99_999
"""Their names have five digits."""
_MOST_PIXELS = 8000


def _add(
    parser: Any, flag: str, default: Any, text: str, kind: Any = positive, metavar: str = "N"
) -> None:
    parser.add_argument(flag, type=kind, default=default, metavar=metavar, help=text)


def _make(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("kind", choices=("digits", "photos"), help="kind of data set")
    parser.add_argument("folder", metavar="DIR", help="directory of the records")
    shards = at_least(1, _MOST_SHARDS)
    _add(parser, "--shards", 16, "number of training files (default 16; digits: always 4)", shards)
    photos = parser.add_argument_group("kind photos: JPEGs like photographs, for studies of input")
    _add(photos, "--count", 1280, "training images (default 1280)")
    _add(photos, "--test", 0.0, "test images, or a part of `--count` (default none)", amount, "X")
    size_help = "pixels (default 500x375, ImageNet's most common)"
    _add(photos, "--size", "500x375", size_help, _size, "WxH")
    _add(photos, "--bytes", 77_000, "mean bytes of an image (default 77000)")
    _classes(photos, "number of classes (default 1000), or 'findings': ChestX-ray14's 14")


def _inspect(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", metavar="DIR", help="a directory of TFRecord files")
    parser.add_argument(
        "--index", action="store_true", help="write dataset.json, which `hpcdl train` needs"
    )
    _classes(parser, "with --index: 1000 (the default) is 1 to 1000; or '0-999', or 'findings'")
    parser.add_argument(
        "--decode", action="store_true", help="decode every image and look at its label, too"
    )


COMMANDS: dict[str, Callable[[argparse.ArgumentParser], None]] = {
    "make": _make,
    "inspect": _inspect,
}


def build_parser() -> argparse.ArgumentParser:
    """The parser of `python -m hpcdl.train.data`."""
    parser = argparse.ArgumentParser(prog="hpcdl data", allow_abbrev=False)
    commands = parser.add_subparsers(dest="command", required=True)
    for name, configure in COMMANDS.items():
        command = commands.add_parser(name, allow_abbrev=False)
        configure(command)
        for shared in _SHARED:
            flag = f"--{shared.replace('_', '-')}"
            command.add_argument(flag, action="store_true", help=argparse.SUPPRESS)
    return parser


def to_argv(command: str, args: argparse.Namespace) -> list[str]:
    """The command line of `python -m hpcdl.train.data` for these parsed arguments."""
    parser = argparse.ArgumentParser(add_help=False)
    COMMANDS[command](parser)
    argv = [command]
    for action in parser._actions:
        value = getattr(args, action.dest)
        if not action.option_strings:
            argv.append(str(value))
        elif value != action.default:
            flag = action.option_strings[0]
            text = "x".join(map(str, value)) if isinstance(value, tuple) else value
            argv.append(flag if value is True else f"{flag}={text}")
    argv += [f"--{name.replace('_', '-')}" for name in _SHARED if getattr(args, name, False)]
    return argv


def _classes(parser: Any, text: str) -> None:
    parser.add_argument("--classes", type=_labels, default="1000", metavar="N", help=text)


def _labels(text: str) -> str:
    if not re.fullmatch(r"findings|[1-9][0-9]{0,5}|[0-9]{1,6}-[0-9]{1,6}", text):
        raise argparse.ArgumentTypeError(f"must be like 1000, 0-999 or findings, not {text}")
    return text


def labels_of(classes: str) -> tuple[str, int, int]:
    """Task, number of classes, and number of the first, of `--classes`."""
    if classes == "findings":
        return classes, len(FINDINGS), 0
    first, _, last = classes.rpartition("-")
    return "classes", int(last) - int(first or 1) + 1, int(first or 1)


def _size(text: str) -> tuple[int, int]:
    width, _, height = text.partition("x")
    if not (width.isdigit() and height.isdigit()) or not min(int(width), int(height)) >= 8:
        raise argparse.ArgumentTypeError(f"must be like 500x375, not {text}")
    if max(int(width), int(height)) > _MOST_PIXELS:
        message = f"must be at most {_MOST_PIXELS} pixels wide and high, not {text}"
        raise argparse.ArgumentTypeError(message)
    return int(width), int(height)
