"""Arguments of the data commands, and the command lines made of them; no TensorFlow here."""

from __future__ import annotations

import argparse

KINDS = ("digits",)


def configure_make(parser: argparse.ArgumentParser) -> None:
    """Arguments of `data make`."""
    parser.add_argument("kind", choices=KINDS, help="what to make")
    parser.add_argument("folder", metavar="DIR", help="where the records go")
    parser.add_argument("--seed", type=int, default=1, help="of all that is drawn (default 1)")


def configure_shared(parser: argparse.ArgumentParser) -> None:
    """What the command line adds to every command, for when it is not in front."""
    parser.add_argument("--json", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--dry-run", action="store_true", help=argparse.SUPPRESS)


def make_words(args: argparse.Namespace) -> list[str]:
    """The command line of `python -m hpcdl.train.data` for a parsed `data make`."""
    words = ["make", args.kind, args.folder, f"--seed={args.seed}"]
    return [*words, *_shared_words(args)]


def _shared_words(args: argparse.Namespace) -> list[str]:
    return [f"--{name.replace('_', '-')}" for name in ("json", "dry_run") if getattr(args, name)]
