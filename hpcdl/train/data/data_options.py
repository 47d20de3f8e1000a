"""Arguments of the data commands, and the command lines made of them; no TensorFlow here."""

from __future__ import annotations

import argparse
from collections.abc import Callable

from hpcdl.system.amounts import at_least, fraction, not_negative, positive, seconds, seed

KINDS = ("digits", "photos", "folder")
PIPELINES = ("new", "old")
TASKS = ("classes", "findings")
_SHARED = ("json", "dry_run")
_MOST_SHARDS = 99_999
"""Their names have five digits."""
_MOST_PIXELS = 8000


def configure_make(parser: argparse.ArgumentParser) -> None:
    """Arguments of `data make`."""
    parser.add_argument("kind", choices=KINDS, help="kind of data set")
    parser.add_argument("folder", metavar="DIR", help="directory of the records")
    parser.add_argument("--seed", type=seed, default=1, help="random seed (default 1)")
    parser.add_argument("--shards", type=at_least(1, _MOST_SHARDS), default=16, metavar="N",
                        help="number of training files (default 16)")  # fmt: skip
    parser.add_argument("--threads", type=positive, metavar="N",
                        help="shards written in parallel (default: CPUs)")  # fmt: skip
    photos = parser.add_argument_group("kind photos: JPEGs like photographs, for studies of input")
    photos.add_argument("--count", type=positive, default=1280, metavar="N",
                        help="training images (default 1280)")  # fmt: skip
    photos.add_argument("--test-count", type=not_negative, default=0, metavar="N",
                        help="test images (default 0)")  # fmt: skip
    photos.add_argument("--size", type=_size, default="500x375", metavar="WxH",
                        help="pixels (default 500x375, ImageNet's most common)")  # fmt: skip
    photos.add_argument("--bytes", type=positive, default=77_000, metavar="N",
                        help="mean bytes of an image (default 77000)")  # fmt: skip
    photos.add_argument("--classes", type=positive, default=1000, metavar="N",
                        help="number of classes (default 1000)")  # fmt: skip
    photos.add_argument("--task", choices=TASKS, default="classes",
                        help="one class, or ChestX-ray14's 14 findings")  # fmt: skip
    images = parser.add_argument_group("kind folder: records from your own images")
    images.add_argument("--images", metavar="DIR", help="directory of the images")
    images.add_argument("--labels", metavar="CSV", help="rows of: file name, class or classes|...")
    images.add_argument("--test", type=fraction, default=0.1, metavar="X",
                        help="fraction of test images (default 0.1)")  # fmt: skip


def configure_inspect(parser: argparse.ArgumentParser) -> None:
    """Arguments of `data inspect`."""
    parser.add_argument("folder", metavar="DIR", help="a directory of TFRecord files")
    parser.add_argument("--index", action="store_true",
                        help="write dataset.json, which `hpcdl train` needs")  # fmt: skip
    parser.add_argument("--classes", type=positive, default=1000, metavar="N",
                        help="with --index: number of classes (default 1000)")  # fmt: skip
    parser.add_argument("--task", choices=TASKS, default="classes", help="with --index")
    parser.add_argument("--label-offset", type=not_negative, default=1, metavar="N",
                        help="with --index: number of the first class (default 1)")  # fmt: skip
    parser.add_argument("--threads", type=positive, metavar="N",
                        help="shards read in parallel (default: CPUs)")  # fmt: skip


def configure_bench(parser: argparse.ArgumentParser) -> None:
    """Arguments of `data bench`."""
    parser.add_argument("folder", metavar="DIR", help="a data set of JPEG records")
    parser.add_argument("--pipeline", choices=PIPELINES, default="new",
                        help="new (default), or old: slow, for comparison")  # fmt: skip
    parser.add_argument("--crop", type=at_least(1, _MOST_PIXELS), default=224, metavar="PX",
                        help="side of the cropped images (default 224)")  # fmt: skip
    parser.add_argument("--batch", type=positive, default=64, metavar="N",
                        help="images per batch (default 64)")  # fmt: skip
    parser.add_argument("--seconds", type=seconds, default=8.0, metavar="S",
                        help="how long to measure (default 8)")  # fmt: skip
    parser.add_argument("--threads", type=positive, metavar="N",
                        help="CPU threads (default: those this process may use)")  # fmt: skip


COMMANDS: dict[str, Callable[[argparse.ArgumentParser], None]] = {
    "make": configure_make,
    "inspect": configure_inspect,
    "bench": configure_bench,
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
            argv.append(flag if value is True else f"{flag}={_text(value)}")
    argv += [f"--{name.replace('_', '-')}" for name in _SHARED if getattr(args, name, False)]
    return argv


def _text(value: object) -> str:
    return "x".join(map(str, value)) if isinstance(value, tuple) else str(value)


def _size(text: str) -> tuple[int, int]:
    width, _, height = text.partition("x")
    if not (width.isdigit() and height.isdigit()) or not min(int(width), int(height)) >= 8:
        raise argparse.ArgumentTypeError(f"must be like 500x375, not {text}")
    if max(int(width), int(height)) > _MOST_PIXELS:
        said = f"must be at most {_MOST_PIXELS} pixels wide and high, not {text}"
        raise argparse.ArgumentTypeError(said)
    return int(width), int(height)
