"""Arguments of the data commands, and the command line made of them; no TensorFlow here."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable

from hpcdl.train.data.dataset import FINDINGS

_SWITCHES = ("index", "decode", "json", "dry_run")


def _make(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("kind", choices=("digits",), help="kind of data set")
    parser.add_argument("folder", metavar="DIR", help="directory of the records")


def _inspect(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", metavar="DIR", help="a directory of TFRecord files")
    parser.add_argument(
        "--index", action="store_true", help="write dataset.json, which `hpcdl train` needs"
    )
    parser.add_argument(
        "--classes",
        type=_labels,
        default="1000",
        metavar="N",
        help="with --index: 1000 (the default) is 1 to 1000; or '0-999', or 'findings'",
    )
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
        for flag in ("--json", "--dry-run"):
            command.add_argument(flag, action="store_true")
    return parser


def to_argv(command: str, args: argparse.Namespace) -> list[str]:
    """The command line of `python -m hpcdl.train.data` for these parsed arguments."""
    own = [f"--classes={args.classes}"] if command == "inspect" else [args.kind]
    flags = [f"--{name.replace('_', '-')}" for name in _SWITCHES if getattr(args, name, False)]
    return [command, *flags, *own, "--", args.folder]


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
