"""How a command is declared: a name, one example, its arguments, and one function.

A file of this package per command group holds a `GROUP` (or a single `COMMAND`) and no logic:
it turns arguments into values, calls another package, and prints what comes back. Packages are
imported inside the functions, so that a command pays for nothing but itself.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

from hpcdl.system.errors import ExitCode
from hpcdl.system.files import as_json
from hpcdl.system.resources import folder
from hpcdl.system.text import did_you_mean, narrow, nearest, one_of

if TYPE_CHECKING:
    from hpcdl.site import Site

_EMPTY = "the value is empty"
Configure = Callable[[argparse.ArgumentParser], None]
Run = Callable[[argparse.Namespace], ExitCode | int]


def option(*names: str, **how: Any) -> Configure:
    """The type of argparse's subparsers."""

    def configure(parser: argparse.ArgumentParser) -> None:
        parser.add_argument(*names, **how)
        if "metavar" in how and names[0].startswith("-"):
            parser.set_defaults(behind=names[-1])

    return configure


def command_hint(key: str, word: str) -> Any:
    """Return the hint for `word` under `key` of facts/command_hints.yaml; '' if there is none."""
    from hpcdl import facts

    rows = facts.load("command_hints").get(key, {})
    return next((hint for words, hint in rows.items() if word in words.split()), "")


class Command(NamedTuple):
    """One command: `example` is a whole command line, shown first in its help."""

    name: str
    summary: str
    example: str
    run: Run
    configure: Configure = lambda _: None
    changes: bool = False
    """Whether it changes something, and so takes --dry-run."""
    site: bool = True
    """Whether it reads the site file, and so takes --site."""


class Group(NamedTuple):
    """Commands that share a group name."""

    name: str
    summary: str
    commands: tuple[Command, ...] = ()
    default: str = ""
    """The default command, if options follow the group's name."""


class _Help(argparse.HelpFormatter):
    """Formats help: wraps a command's description, and keeps its example on one line."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        example, _, rest = text.rpartition("\n\n")
        return example + "\n\n" * bool(example) + super()._fill_text(rest, width, indent)


class Parser(argparse.ArgumentParser):
    """An argument parser that suggests the nearest option and shows an example first."""

    def format_help(self) -> str:
        """The help: the example first, then what argparse prints."""
        text = super().format_help()
        usage, _, rest = text.partition("\n\n")
        example, _, rest = rest.partition("\n\n")
        return f"{example}\n\n{usage}\n\n{rest}" if self.description else text

    _mixing = False

    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> tuple[argparse.Namespace, list[str]]:
        """As argparse, which however takes `check history import --site F FILE` for no files.

        Its "any number of arguments" ends at the first option, with none (python/cpython#59317).
        """
        places = self._get_positional_actions()
        if self._mixing or len(places) < 2 or places[-1].nargs != "*":
            return super().parse_known_args(args, namespace)
        self._mixing = True
        try:
            return self.parse_known_intermixed_args(args, namespace)
        finally:
            self._mixing = False

    def _get_values(self, action: argparse.Action, words: list[str]) -> Any:
        """As argparse, but reject empty values: usually an unset shell variable."""
        if "" in words:
            raise argparse.ArgumentError(action, _EMPTY)
        if action.option_strings and words == ["--"]:  # argparse would take it for no value
            raise argparse.ArgumentError(action, "expected one argument")
        return super()._get_values(action, words)

    def error(self, message: str) -> NoReturn:
        """Print one line of what is wrong and the nearest valid name; exit 2."""
        hint = f"`{self.prog} --help` shows an example"
        prefix, _, rest = message.partition("unrecognized arguments: ")
        if rest and not prefix:
            word = (rest.split() or [rest])[0]  # an argument may be a blank
            message = f"unknown argument '{word}'"
            hint = (self._near(word) if word.startswith("-") else self._place(word)) or hint
        elif message.endswith(_EMPTY):
            hint = "is a variable of the shell not set? Give a value, or leave it out"
        elif short := re.match(r"argument (-\S+): expected .*one argument", message):
            typed = f"write {self._typed(short[1])}; `{self.prog} --help` says what it is"
            hint = command_hint("any", short[1]) or typed
        elif choice := self._first_choice(message):
            message, hint = choice
        elif missing := message.partition("are required: ")[2]:
            typed = " ".join(map(self._typed, missing.split(", ")))
            hint = command_hint("any", missing) or f"write {self.prog} ... {typed}"
        else:
            hint = _wanted(message) or hint
            if hint.startswith("use one of"):
                hint += command_hint(
                    self.prog.removeprefix("hpcdl "), message.split()[1].strip(":")
                )
        print(f"error: {message}\nhelp: {hint}", file=sys.stderr)
        raise SystemExit(ExitCode.USAGE)

    def _first_choice(self, message: str) -> tuple[str, str] | None:
        """Return the message and hint if the first argument, one of a few words, is missing."""
        name = message.partition("are required: ")[2].split(",")[0]
        for one in self._actions:
            if one.choices and name in (one.dest, one.metavar):
                return f"the {name} is missing", f"say {one_of(map(str, one.choices))}"
        return None

    def _typed(self, names: str) -> str:
        """An argument as it is typed, an option with what its value is called."""
        option = self._option_string_actions.get(name := names.split("/")[-1])
        return f"{name} {option.metavar or 'VALUE'}" if option else name

    def _near(self, word: str) -> str:
        """Return the hint for an unknown option: the nearest known option."""
        name, options = word.split("=")[0], list(self._option_string_actions)
        parts = set(name.strip("-").split("-"))
        close = [flag for flag in options if flag == f"-{name}"]
        for action in self._get_positional_actions():
            if name == f"--{action.dest}":
                value = action.metavar or "|".join(action.choices or [action.dest])
                return f"write it without {name}: {self.prog} {value}"
        if not close and (hint := self._elsewhere(name)):
            return hint
        close += filter(None, [nearest(name, options, cutoff=0.8)])
        alike = {command_hint("alike", name), command_hint("alike", name[:2])}
        close += [flag for flag in options if flag in alike]
        here = command_hint("any", name.strip("-"))
        if not close and (here or len(name) == 2):  # no letter is like another
            return str(here)
        close += [flag for flag in options if parts < set(flag.strip("-").split("-"))]
        bare = {flag.strip("-"): flag for flag in options}
        close += [bare[flag] for flag in filter(None, [nearest(name.strip("-"), bare)])]
        return f"did you mean '{close[0]}'?" if close else ""

    def _elsewhere(self, name: str) -> str:
        """Return the hint for an option that another command or program takes."""
        key, others = self.prog.removeprefix("hpcdl "), self.get_default("elsewhere")
        letter = "" if name.startswith("--") else name[1:2]
        return (
            command_hint(key, name.strip("-"))
            or command_hint(key, letter)
            or (others(name) if others else "")
        )

    def _place(self, word: str) -> str:
        """Return the hint for a misplaced argument: where it belongs."""
        site = folder("templates") / "sites" / f"{Path(word).name}.yaml"
        described, options = word.endswith((".yaml", ".yml")), self._option_string_actions
        if described and "--file" in options:
            return f"name a job file behind its option: --file {word}; a site file: --site {word}"
        if "--site" in options and (site.is_file() or described):
            return f"name a site file behind its option: --site {word}"
        if f"--{word.partition('=')[0]}" in options:
            return f"did you mean '--{word}'?"
        if "--over" in self._option_string_actions and "=" in word:
            return "write all values of a key together, and each key behind its own --over: KEY=A,B"
        if hint := command_hint(self.prog.removeprefix("hpcdl "), re.split("[=<>!]", word)[0]):
            return str(hint)
        if "--env" in options and re.match(r"[A-Za-z_]\w*=", word):
            return f"give each variable its own --env: --env {word}"
        if behind := self.get_default("behind"):
            behind = behind(word) if callable(behind) else behind
            behind = one if (one := command_hint("words", word)) in options else behind
            return f"write it behind its option: {self.prog} {behind} {word}"
        if word.isdecimal() and self.prog.startswith("hpcdl job"):
            return f"`hpcdl job watch {word}` says how a job is, or why it waits"
        if self.get_default("takes_program"):
            hint = f"put the program after two dashes: {self.prog} ... -- {word} ..."
            return hint + f"; `hpcdl job lint {word}` checks it" * word.endswith(".sh")
        return ""


def _wanted(message: str) -> str:
    """Return the hint for a value that argparse refuses."""
    if kind := re.search(": invalid (int|float) value: ", message):
        return f"it is {command_hint('any', kind[1])}"
    found = re.search(r"invalid choice: '?(.*?)'? \(choose from (.*)\)", message)
    return did_you_mean(found[1], found[2].replace("'", "").split(", ")) if found else ""


def build_parser(prog: str, command: Command) -> Parser:
    """The parser of one command, with the options that all commands share."""
    description, usage = f"example: {command.example}\n\n{command.summary}", f"{prog} [options]"
    parser = Parser(
        prog=prog,
        usage=usage if narrow() else None,
        description=description,
        formatter_class=_Help,
        allow_abbrev=False,
    )
    fill_parser(parser, command)
    return parser


def fill_parser(parser: argparse.ArgumentParser, command: Command) -> None:
    """Give a parser the arguments of a command and those that all commands share."""
    command.configure(parser)
    shared = parser.add_argument_group("options of every command")
    if command.site:
        shared.add_argument("--site", metavar="FILE", help="site file (default: HPCDL_SITE)")
    if command.changes:
        shared.add_argument("--dry-run", action="store_true", help="show what would be done")
    shared.add_argument("--json", action="store_true", help="print JSON")
    shared.add_argument("-v", "--verbose", action="store_true", help="print more details")
    shared.add_argument("--no-color", action="store_true", help="no colours (also NO_COLOR)")
    parser.set_defaults(run=command.run)


def the_site(args: argparse.Namespace) -> Site:
    """The site a command works on: `--site`, HPCDL_SITE or the installed prefix's.

    Raises:
        BadInput: none is named, or the file has faults.
    """
    from hpcdl.site import find_site_file, load_site

    return load_site(find_site_file(args.site))


def a_day(text: str) -> str:
    """Return an ISO 8601 date, for argparse."""
    from datetime import date

    with suppress(ValueError):
        return date.fromisoformat(text).isoformat()
    raise argparse.ArgumentTypeError(f"'{text[:30]}' is not a date like 2026-01-31")


def show(
    args: argparse.Namespace, data: Any, text: str, *, ok: bool = True, end: str = "\n"
) -> ExitCode:
    """Print a command's result, as JSON with `--json`, else as text; return 1 unless `ok`."""
    print_json(data) if args.json else print(text, end=end)
    return ExitCode.OK if ok else ExitCode.NO


def print_json(value: Any) -> None:
    """A value as JSON on standard output; paths and the like become text."""
    print(as_json(value, default=str))
