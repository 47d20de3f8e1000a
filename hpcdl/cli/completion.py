"""`hpcdl completion`: what a shell needs to complete commands and options, by shtab."""

from __future__ import annotations

import argparse
from pathlib import Path

from hpcdl.cli import GROUPS, load_group
from hpcdl.cli.framework import Command, Group, Parser, fill_parser, print_json
from hpcdl.system.errors import ExitCode

SHELLS = ("bash", "zsh")


def whole_parser() -> argparse.ArgumentParser:
    """One parser of all commands: too slow for every call, right for completions."""
    parser = Parser(prog="hpcdl", allow_abbrev=False)
    rooms = parser.add_subparsers()
    for name in GROUPS:
        entry = load_group(name)
        child = rooms.add_parser(name, help=entry.summary, allow_abbrev=False)
        if isinstance(entry, Group):
            commands = child.add_subparsers()
            for command in entry.commands:
                _fill(commands.add_parser(command.name, help=command.summary), command)
        else:
            _fill(child, entry)
    return parser


def _fill(parser: argparse.ArgumentParser, command: Command) -> None:
    """The arguments of a command, those that take a path marked for the shell."""
    import shtab

    fill_parser(parser, command)
    for action in parser._actions:
        if action.metavar == "DIR":
            action.complete = shtab.DIRECTORY  # type: ignore[attr-defined]
        elif action.type is Path or action.metavar == "FILE":
            action.complete = shtab.FILE  # type: ignore[attr-defined]


def _options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", choices=SHELLS, help="bash or zsh")


def _run(args: argparse.Namespace) -> ExitCode:
    import shtab

    text = shtab.complete(whole_parser(), shell=args.shell)
    if args.json:
        print_json({"shell": args.shell, "script": text})
    else:
        print(text)
    return ExitCode.OK


COMMAND = Command(
    "completion",
    "Print a completion script for the shell.",
    "hpcdl completion bash > ~/.local/share/bash-completion/completions/hpcdl",
    _run,
    _options,
    site=False,
)
