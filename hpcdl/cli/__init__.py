"""The command line: `hpcdl GROUP COMMAND ...`. Only the group that is asked for is imported."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from io import TextIOWrapper
from pathlib import Path

from hpcdl import __version__
from hpcdl.cli.framework import Command, Group, build_parser
from hpcdl.system.errors import BadInput, ExitCode, HpcdlError, MissingPrerequisite
from hpcdl.system.text import did_you_mean

# Name of a module of this package -> what the overview says of it. The module holds a GROUP or
# a COMMAND of that name.
ROOMS: dict[str, str] = {
    "site": "describe the cluster: write, check and show its site file",
    "cluster": "the embedded cluster: a real Slurm on this machine",
    "stack": "the software: build, verify, publish and roll back releases",
    "job": "batch scripts: render, submit and follow training jobs",
    "preflight": "what every job checks first",
    "stage": "a data set on the node's own disk",
    "data": "data sets: make and inspect TFRecords",
    "train": "the training program that jobs run",
    "predict": "how training will scale: time, cost and limits before a job is submitted",
    "study": "published studies, run again: on the embedded cluster or at their own size",
    "check": "nightly checks: settings, runs, references and verdicts",
    "doctor": "what this machine has and lacks",
    "completion": "shell completions for bash and zsh",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code. Never a traceback for what a user can cause."""
    words = list(sys.argv[1:] if argv is None else argv)
    if "--no-color" in words[: words.index("--")] if "--" in words else "--no-color" in words:
        os.environ["NO_COLOR"] = "1"
    _prepare_streams()
    try:
        code = int(_dispatch(words))
        sys.stdout.flush()  # here, where a full disk or a reader that left can still be told
        return code
    except HpcdlError as error:
        with suppress(OSError):  # what was said before it comes before it
            sys.stdout.flush()
        print(error.render(), file=sys.stderr)
        return int(error.exit_code)
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        return int(ExitCode.STOPPED)
    except BrokenPipeError:
        # The reader (`| head`) went away: not an error, and nothing more can be printed.
        _discard_output()
        return 128 + signal.SIGPIPE
    except OSError as fault:
        # What no room foresaw: the file system's own words, and no traceback.
        reason = fault.strerror or type(fault).__name__
        lacks = MissingPrerequisite(f"{fault.filename}: {reason}" if fault.filename else reason)
        print(lacks.render(), file=sys.stderr)
        _discard_output()
        return int(lacks.exit_code)


def _prepare_streams() -> None:
    """Text that the terminal's encoding lacks becomes an escape; a closed stream is no error."""
    if sys.stdout is None:
        sys.stdout = Path(os.devnull).open("w")  # noqa: SIM115 - as long-lived as we are
    if sys.stderr is None:
        sys.stderr = sys.stdout
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


def _discard_output() -> None:
    """Let the interpreter end quietly though its output can go nowhere."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def load_group(name: str) -> Group | Command:
    """The declaration of a command group, imported now."""
    module = import_module(f"hpcdl.cli.{name}")
    found: Group | Command = getattr(module, "GROUP", None) or module.COMMAND
    return found


def _dispatch(words: list[str]) -> ExitCode | int:
    if not words or words[0] in {"-h", "--help", "help"}:
        print(overview())
        return ExitCode.OK
    if words[0] in {"-V", "--version"}:
        print(f"hpcdl {__version__}")
        return ExitCode.OK
    if words[0] not in ROOMS:
        raise BadInput(f"unknown command '{words[0]}'", hint=did_you_mean(words[0], ROOMS))
    room = load_group(words[0])
    if isinstance(room, Command):
        return _run(f"hpcdl {room.name}", room, words[1:])
    return _run_in_group(room, words[1:])


def _run_in_group(group: Group, words: list[str]) -> ExitCode | int:
    commands = {command.name: command for command in group.commands}
    if not words or words[0] in {"-h", "--help"}:
        print(group_overview(group))
        return ExitCode.OK
    if group.default and words[0].startswith("-"):
        return _run(f"hpcdl {group.name}", commands[group.default], words)
    if words[0] not in commands:
        raise BadInput(
            f"'hpcdl {group.name}' has no command '{words[0]}'",
            hint=did_you_mean(words[0], commands),
        )
    return _run(f"hpcdl {group.name} {words[0]}", commands[words[0]], words[1:])


def _run(prog: str, command: Command, words: list[str]) -> ExitCode | int:
    parser = build_parser(prog, command)
    # What follows `--` belongs to the user's program and must reach it untouched.
    cut = words.index("--") if "--" in words else len(words)
    args = parser.parse_args(words[:cut])
    args.rest = words[cut + 1 :]
    if args.rest and not getattr(args, "takes_program", False):
        raise BadInput(f"'{prog}' takes nothing after '--'")
    return command.run(args)


def overview() -> str:
    """What `hpcdl --help` prints: an example first, then the groups."""
    width = max(map(len, ROOMS))
    rooms = "\n".join(f"  {name:<{width}}  {summary}" for name, summary in ROOMS.items())
    return (
        "example: hpcdl job submit --partition p100 --gpus 8\n\n"
        "From bare Slurm to verified TensorFlow training, from one site file.\n\n"
        f"usage: hpcdl COMMAND ...\n\n{rooms}\n\n"
        "`hpcdl COMMAND --help` shows each one's examples; every command takes --site FILE."
    )


def group_overview(group: Group) -> str:
    """What `hpcdl GROUP --help` prints: an example first, then its commands."""
    width = max(len(command.name) for command in group.commands)
    lines = "\n".join(f"  {c.name:<{width}}  {c.summary}" for c in group.commands)
    summary = group.summary[0].upper() + group.summary[1:]
    return (
        f"example: {group.commands[0].example}\n\n{summary}.\n\n"
        f"usage: hpcdl {group.name} COMMAND ...\n\n{lines}"
    )
