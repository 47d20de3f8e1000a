"""`hpcdl completion`: what a shell needs to complete commands, options, and names of the site.

Made by shtab, which knows no fish: that makes its own of the manual pages (`make man`, then
fish_update_completions).
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Mapping
from pathlib import Path

from hpcdl.cli import GROUPS, load_group
from hpcdl.cli.framework import Command, Group, Parser, command, fill_parser, option, show, the_site
from hpcdl.system.errors import BadInput, ExitCode

Names = Mapping[str, Iterable[str]]
_NONE: Names = {}


def names_of(args: argparse.Namespace) -> Names:
    """Return the completions of options and arguments: partitions, stacks, studies, models."""
    from hpcdl import facts
    from hpcdl.jobs.spec import JobSpec
    from hpcdl.system.declare import entries
    from hpcdl.workflows.study.declared import shipped

    models = facts.load("models")["models"]
    one_of = {str(one.flag): one.schema["enum"] for one in entries(JobSpec) if "enum" in one.schema}
    names: Names = {"STUDY": shipped(), "--model": models, **one_of}
    try:
        site = the_site(args)
    except BadInput:  # none is named, or that of HPCDL_SITE cannot be read
        if args.site:
            raise
        return names
    return {**names, "--partition": site.partitions, "STACK": site.stacks}


def whole_parser(names: Names = _NONE) -> argparse.ArgumentParser:
    """One parser of all commands: too slow for every call, right for completions."""
    parser = Parser(prog="hpcdl", allow_abbrev=False)
    rooms = parser.add_subparsers()
    for name in GROUPS:
        entry = load_group(name)
        child = rooms.add_parser(name, help=GROUPS[name], allow_abbrev=False)
        if isinstance(entry, Group):
            commands = child.add_subparsers()
            for command in entry.commands:
                _fill(commands.add_parser(command.name, help=command.summary), command, names)
                if command.name == entry.default:
                    _fill(child, command, names)
        else:
            _fill(child, entry, names)
    return parser


def _fill(parser: argparse.ArgumentParser, command: Command, names: Names) -> None:
    """The arguments of a command, those that take a path marked for the shell."""
    import shtab

    fill_parser(parser, command)
    for action in parser._actions:
        if action.metavar == "DIR":
            action.complete = shtab.DIRECTORY  # type: ignore[attr-defined]
        elif action.type is Path or action.metavar == "FILE":
            action.complete = shtab.FILE  # type: ignore[attr-defined]
        elif not action.choices:
            keys = [str(action.metavar), *action.option_strings]
            action.choices = next((names[key] for key in keys if key in names), None)


def script(shell: str, names: Names = _NONE) -> str:
    """Return the completion script of a shell; `names` complete their options and arguments."""
    import shtab

    text: str = shtab.complete(whole_parser(names), shell)
    # In zsh a file that is sourced registers, as one that is evaluated does.
    return text.replace("$zsh_eval_context[-1] == eval ", "$zsh_eval_context[-1] == (eval|file) ")


@command(
    "hpcdl completion bash > ~/.local/share/bash-completion/completions/hpcdl",
    option("shell", "bash or zsh", choices=("bash", "zsh")),
)
def _completion(args: argparse.Namespace) -> ExitCode:
    """Print a completion script for the shell, with the names of the site."""
    text = script(args.shell, names_of(args))
    return show(args, {"shell": args.shell, "script": text}, text)


COMMAND = _completion
