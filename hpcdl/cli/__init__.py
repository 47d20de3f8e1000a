"""The command line: `hpcdl GROUP COMMAND ...`. Only the group that is asked for is imported."""

from __future__ import annotations

import errno
import os
import re
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from io import TextIOWrapper
from itertools import chain
from pathlib import Path

from hpcdl import __version__
from hpcdl.cli.framework import Command, Group, build_parser, command_hint
from hpcdl.system.errors import BadInput, ExitCode, HpcdlError, of_the_system
from hpcdl.system.files import careful_umask
from hpcdl.system.text import did_you_mean, discard, inert_output, listed, nearest, one_of, wrapped

# For whom -> name of a module of this package -> what the overview says of it. The module holds a
# GROUP or a COMMAND of that name.
_ROLES: dict[str, dict[str, str]] = {
    "jobs": {
        "job": "batch jobs: render, submit, watch and report on training jobs",
        "train": "the training program that jobs run",
        "data": "data sets: make and inspect TFRecords",
        "predict": "how training will scale: time, cost and bottleneck, before you submit",
    },
    "the cluster": {
        "site": "describe the cluster: write, check and show its site file",
        "stack": "the software stack: build, verify, publish and roll back releases",
        "cluster": "the embedded cluster: a real Slurm on this machine",
        "doctor": "check this machine's prerequisites",
        "clean": "remove old runs, logs and cached files that nothing needs",
        "completion": "shell completions for bash and zsh",
    },
    "operation": {
        "check": "nightly regression checks: runs, references, verdicts, history, gate",
        "study": "reproduce published scaling studies, small or at full size",
    },
}
MACHINERY = {
    "preflight": "the checks that every job runs before its program",
    "stage": "copy a data set to the node's own disk",
    "schema": "JSON Schemas of the site file and of job files, for editors",
}
"""Called by scripts and editors; the overview leaves them out."""
GROUPS = {name: what for rows in (*_ROLES.values(), MACHINERY) for name, what in rows.items()}

_HELP = {"-h", "--help", "--help-all"}
_DASHES = "\u2010\u2011\u2012\u2013\u2014\u2015\u2212"
_SHARED = frozenset({"--site", "--json", "-v", "--verbose", "--no-color", "--dry-run"})


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code. Never a traceback for what a user can cause."""
    argv = list(sys.argv[1:] if argv is None else argv)
    if "--no-color" in argv[: argv.index("--")] if "--" in argv else "--no-color" in argv:
        os.environ["NO_COLOR"] = "1"
    _prepare_streams()
    with inert_output(), careful_umask():
        return _answer(argv)


def _answer(argv: list[str]) -> int:
    try:
        code = int(_dispatch(argv))
        sys.stdout.flush()  # here, where a full disk or a closed pipe can still be reported
        return code
    except HpcdlError as error:
        with suppress(OSError):  # what was said before it comes before it
            sys.stdout.flush()
        print(error.render(), file=sys.stderr)
        return int(error.exit_code)
    except RuntimeError as fault:
        if "Symlink loop" not in str(fault):  # Path.resolve, before Python 3.13
            raise
        print(BadInput(str(fault), hint="remove that link").render(), file=sys.stderr)
        return int(ExitCode.USAGE)
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        return int(ExitCode.STOPPED)
    except BrokenPipeError:
        # The reader (`| head`) went away: not an error, and nothing more can be printed.
        discard(sys.stdout)
        return 128 + signal.SIGPIPE
    except OSError as fault:
        if fault.errno == errno.ENOSPC and fault.filename is None:
            fault.filename = "the output cannot be written"
        print(of_the_system(fault).render(), file=sys.stderr)
        discard(sys.stdout)
        return int(ExitCode.MISSING_PREREQUISITE)


def _prepare_streams() -> None:
    """Text that the terminal's encoding lacks becomes an escape; a closed stream is no error."""
    if sys.stdout is None:
        sys.stdout = Path(os.devnull).open("w")  # noqa: SIM115 - as long-lived as we are
    if sys.stderr is None:
        sys.stderr = sys.stdout
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


def load_group(name: str) -> Group | Command:
    """The declaration of a command group, imported now."""
    module = import_module(f"hpcdl.cli.{name}")
    found: Group | Command = getattr(module, "GROUP", None) or module.COMMAND
    return found


def _options_last(argv: list[str]) -> list[str]:
    """Move options of all commands that come before the command's name behind that name."""
    place = 0
    while argv[place:] and argv[place].split("=")[0] in _SHARED:
        place += 2 if argv[place] == "--site" else 1
    name = argv[place : place + 1]
    if name == ["help"]:
        return [*argv[place + 1 :], *argv[:place], "--help"]
    return [*name, *argv[:place], *argv[place + 1 :]] if name and name[0][:1] != "-" else argv


def _dispatch(argv: list[str]) -> ExitCode | int:
    end = argv.index("--") if "--" in argv else len(argv)
    asked = ("--help" if one in {"-?", "/?"} else one for one in argv[:end])
    argv = _options_last([*asked, *argv[end:]])
    if not argv or argv[0] in _HELP:
        print(overview())
        return ExitCode.OK
    if argv[0] in {"-V", "--version", "version"}:
        print(f"hpcdl {__version__}")
        return ExitCode.OK
    if argv[0].partition("=")[0] in _SHARED:
        raise BadInput("the command after the options is missing", hint="`hpcdl --help` shows all")
    if argv[0] not in GROUPS:
        raise BadInput(f"unknown command '{argv[0]}'", hint=_meant(argv[0]))
    entry = load_group(argv[0])
    if isinstance(entry, Command):
        return _run(f"hpcdl {entry.name}", entry, argv[1:])
    return _run_in_group(entry, argv[1:])


def _meant(word: str) -> str:
    """Return a hint: the command whose group was left out, else the nearest name."""
    if gone := command_hint("gone", word):
        return str(gone)
    groups = [entry for entry in map(load_group, GROUPS) if isinstance(entry, Group)]
    commands = [
        f"hpcdl {one.name} {command.name}"
        for one in groups
        for command in one.commands
        if command.name in {word, *command_hint("commands", word)}
        or re.split(r"[^a-z]", word) == [one.name, command.name]
    ]
    names = ["--help", "--version"] if word.startswith("-") else [*chain(*_ROLES.values())]
    return f"did you mean {one_of(commands)}?" if commands else did_you_mean(word, names)


def _run_in_group(group: Group, argv: list[str]) -> ExitCode | int:
    commands = {command.name: command for command in group.commands}
    argv = _options_last(argv)
    if not argv or argv[0] in _HELP:
        if len(commands) == 1 and argv:
            return _run(f"hpcdl {group.name}", commands[group.default], argv)
        print(group_overview(group))
        return ExitCode.OK
    if group.default and (argv[0].startswith("-") or nearest(argv[0], commands) is None):
        return _run(f"hpcdl {group.name}", commands[group.default], argv)
    if argv[0].startswith("-"):
        hint = f"`hpcdl {group.name} --help` shows all"
        raise BadInput(f"'hpcdl {group.name}' needs a command", hint=hint)
    if argv[0] not in commands:
        meant = [one for one in command_hint("commands", argv[0]) if one in commands]
        hint = command_hint("gone", argv[0]) or did_you_mean([*meant, argv[0]][0], commands)
        raise BadInput(f"'hpcdl {group.name}' has no command '{argv[0]}'", hint=hint)
    return _run(f"hpcdl {group.name} {argv[0]}", commands[argv[0]], argv[1:])


def _run(prog: str, command: Command, argv: list[str]) -> ExitCode | int:
    parser = build_parser(prog, command)
    # What follows `--` belongs to the user's program and must reach it untouched.
    end = argv.index("--") if "--" in argv else len(argv)
    for word in argv[: end + 2]:
        if re.match(rf"[{_DASHES}]+(\w|$)", word):
            typed = f"--{word.lstrip(f'{_DASHES}-')}"
            raise BadInput(f"'{word}' begins with a typographic dash", hint=f"type {typed}")
    parser.whole = "--help-all" in argv[:end]
    args = parser.parse_args(["--help"] if parser.whole else argv[:end])
    args.rest = argv[end + 1 :]
    if args.rest and not command.rest:
        raise BadInput(f"'{prog}' takes nothing after '--'", hint="leave '--' and the rest out")
    return command.run(args)


def overview() -> str:
    """Return the text of `hpcdl --help`: an example first, then the groups."""
    what = wrapped("From bare Slurm to verified TensorFlow training, from one site file.")
    roles = "\n\n".join(f"{role}:\n{listed(rows)}" for role, rows in _ROLES.items())
    more = "`hpcdl COMMAND --help` shows an example. Commands that read the site file take --site."
    return (
        f"example: hpcdl job submit --partition p100 --gpus 8\n\n{what}\n\n"
        f"usage: hpcdl COMMAND ...\n\n{roles}\n\n{wrapped(more)}"
    )


def group_overview(group: Group) -> str:
    """Return the text of `hpcdl GROUP --help`: an example first, then its commands."""
    summary = GROUPS[group.name]
    summary = wrapped(f"{summary[0].upper()}{summary[1:]}.")
    return (
        f"example: {group.commands[0].example}\n\n{summary}\n\n"
        f"usage: hpcdl {group.name} COMMAND ...\n\n"
        + listed({command.name: command.summary for command in group.commands})
    )
