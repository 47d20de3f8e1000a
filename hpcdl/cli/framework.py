"""How a command is declared: one function, with an example and its arguments.

    @command("hpcdl cluster down", option("--purge", "remove logs, too"), changes=True)
    def _down(args: argparse.Namespace) -> ExitCode:
        'Stop the embedded cluster and all its processes.'

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
from hpcdl.system.text import did_you_mean, nearest, one_of

if TYPE_CHECKING:
    from hpcdl.site import Site

_EMPTY = "the value is empty"
_TAKES_NOTHING = "leave it out: the command takes nothing of its own"
_FIRST = 15
"""So many options of its own has a command's help; --help-all has all."""
_FEW = 8
"""So many are named in a hint."""
_SHARED = {"help", "site", "dry_run", "json", "verbose", "no_color"}
Configure = Callable[[argparse.ArgumentParser], None]
Run = Callable[[argparse.Namespace], ExitCode | int]


def option(names: str, *words: str, many: bool = False, **how: Any) -> Configure:
    """Declare an argument: its names, apart by blanks, what its value is called, and its help.

    An option without a name for its value is a switch; one of `many` may be repeated.
    """
    *metavar, what = words
    switch = names.startswith("-") and not metavar and "choices" not in how
    kind = {"action": "store_true"} if switch else {"metavar": metavar[0]} if metavar else {}
    several = {"action": "append", "default": []} if many else {}
    what += "; may be repeated" if many else ""

    def configure(parser: argparse.ArgumentParser) -> None:
        parser.add_argument(*names.split(), **{**kind, **several, "help": what, **how})

    return configure


def command_hint(key: str, word: str, *, of: bool = False) -> Any:
    """The row for `word` of the facts' command_hints: under `key`, or `of` that command."""
    from hpcdl import facts

    hints = facts.load("command_hints")
    rows = hints["of"].get(key, {}) if of else hints[key]
    return next((hint for words, hint in rows.items() if word in words.split()), "")


class Command(NamedTuple):
    """One command: `example` is a whole command line, shown first in its help."""

    name: str
    summary: str
    example: str
    run: Run
    arguments: tuple[Configure, ...] = ()
    changes: bool = False
    """Whether it changes something, and so takes --dry-run."""
    site: bool = True
    """Whether it reads the site file, and so takes --site."""
    rest: str = ""
    """What may follow two dashes."""


def command(
    example: str, *arguments: Configure, changes: bool = False, site: bool = True, rest: str = ""
) -> Callable[[Run], Command]:
    """Declare a function as a command, by its name; its docstring's first part is the summary."""

    def declare(run: Run) -> Command:
        summary = " ".join((run.__doc__ or "").partition("\n\n")[0].split())
        name = run.__name__.strip("_").replace("_", "-")
        return Command(name, summary, example, run, arguments, changes, site, rest)

    return declare


class Group(NamedTuple):
    """Commands that share a group name."""

    name: str
    commands: tuple[Command, ...]
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
        """The help: the example first, then what argparse prints, of many options the first."""
        hidden = [] if self.whole else self._own()[_FIRST:]
        for action in hidden:
            action.help = argparse.SUPPRESS
        more = f"--help-all shows {len(hidden)} more options" if hidden else None
        self.epilog = "\n\n".join(filter(None, [self.epilog, more]))
        text = super().format_help()
        usage, _, rest = text.partition("\n\n")
        example, _, rest = rest.partition("\n\n")
        return f"{example}\n\n{usage}\n\n{rest}" if self.description else text

    rest = ""
    """What may follow two dashes."""
    whole = False
    """Whether the help has all options."""
    _mixing = False
    _words: Sequence[str] = ()

    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> tuple[argparse.Namespace, list[str]]:
        """As argparse, which however takes `check history import --site F FILE` for no files.

        Its "any number of arguments" ends at the first option, with none (python/cpython#59317).
        """
        places, self._words = self._get_positional_actions(), list(args or ())
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
        """Print one line of what is wrong and what to write instead; exit 2."""
        hint = f"`{self.prog} --help` shows an example"
        prefix, _, rest = message.partition("unrecognized arguments: ")
        names = re.search(r"argument (-\S+): expected .*one argument|are required: (.*)", message)
        choice = re.search(
            r"argument (.*): invalid choice: '?(.*?)'? \(choose from (.*)\)", message
        )
        missed = (names and names[2]) or (choice and choice[2] in self._words)
        if missed and (unknown := self._unknown()):
            prefix, rest = "", unknown
        if rest and not prefix:
            word = (rest.split() or [rest])[0]  # an argument may be a blank
            message = f"unknown argument '{word}'"
            hint = (self._option(word) if word.startswith("-") else self._place(word)) or hint
        elif message.endswith(_EMPTY):
            hint = "is a variable of the shell not set? Give a value, or leave it out"
        elif names:
            name = names[1] or names[2]
            typed = " ".join(map(self._typed, name.split(", ")))
            hint = command_hint("any", name) or f"write {self.prog} ... {typed}"
        elif choice:
            hint = did_you_mean(choice[2], choice[3].replace("'", "").split(", "))
            hint += (
                command_hint(self._key, choice[1], of=True) if hint.startswith("use one of") else ""
            )
        elif kind := re.search(": invalid (int|float) value: ", message):
            hint = f"it is {command_hint('any', kind[1])}"
        elif switch := re.match("argument (-[^:]*): ignored explicit argument", message):
            message, hint = (
                f"{switch[1].split('/')[-1]} takes no value",
                "leave '=' and the rest out",
            )
        elif wrong := re.match("argument (-[^:]*): ('.*' is not a|must be)", message):
            hint = f"write {self.prog} ... {self._typed(wrong[1])}"
        print(f"error: {message}\nhelp: {hint}", file=sys.stderr)
        raise SystemExit(ExitCode.USAGE)

    @property
    def _key(self) -> str:
        return self.prog.removeprefix("hpcdl ")

    def _unknown(self) -> str:
        """Return the first unknown option: argparse may name a missing argument before it."""
        known = self._option_string_actions
        options = (one for one in self._words if re.match("--?[a-z]", one))
        return next((one for one in options if one.split("=")[0] not in known), "")

    def _typed(self, names: str) -> str:
        """Return an argument as it is typed: an option with its value's name, or the choices."""
        name = names.split("/")[-1]
        for action in self._actions:
            if name in action.option_strings:
                return f"{name} {action.metavar or action.dest.upper()}"
            if name in (action.dest, action.metavar):
                return "|".join(map(str, action.choices or [action.metavar or name.upper()]))
        return name

    def _option(self, word: str) -> str:
        """Return what to write for an unknown option: a row of the hints, or the nearest option."""
        name, options = word.split("=")[0], list(self._option_string_actions)
        bare, others = name.strip("-"), self.get_default("elsewhere")
        letter = "" if name.startswith("--") else name[1:2]
        hint = command_hint(self._key, bare, of=True) or command_hint(self._key, letter, of=True)
        if not hint and others:
            hint = others(name)
        if hint and f"-{name}" not in options:
            return str(hint)
        alike = {f"-{name}", command_hint("alike", name), command_hint("alike", name[:2])}
        close = [*filter(None, [nearest(name, options, 0.8)]), *(o for o in options if o in alike)]
        if not close and (here := command_hint("any", bare)):
            return str(here)
        if not close and len(name) > 2:
            close = self._near(bare)
        if close:
            return f"did you mean '{close[0]}'?"
        return self._takes()

    def _takes(self) -> str:
        """Return what the command takes: its arguments and options."""
        own = [one.option_strings[-1] for one in self._own()]
        places = [self._typed(one.dest) for one in self._get_positional_actions()]
        if len(own) > _FIRST:
            return f"`{self.prog} --help-all` lists its options"
        return f"it takes {', '.join([*places, *own])}" if places or own else _TAKES_NOTHING

    def _near(self, bare: str) -> list[str]:
        """Return the options that a misspelt one may be, without its dashes; or one word of it."""
        options = {flag.strip("-"): flag for flag in self._option_string_actions}
        own = [one.option_strings[-1].strip("-") for one in self._own()]
        near = nearest(bare, options)
        # `--strict` is not `--site`, which every command has.
        if near and near not in own and nearest(bare, [near], 0.75) is None:
            near = nearest(bare, own)
        if near:
            return [options[near]]
        parts = {part: name for name in reversed(own) for part in name.split("-") if len(part) > 3}
        return [
            f"--{parts[part]}" for word in bare.split("-") if (part := nearest(word, parts, 0.8))
        ]

    def _own(self) -> list[argparse.Action]:
        """Return the options that only this command has."""
        return [one for one in self._actions if one.option_strings and one.dest not in _SHARED]

    def _place(self, word: str) -> str:
        """Return where a misplaced argument belongs: behind an option, or after two dashes."""
        options = self._option_string_actions
        *_, flag, before = ["", "", *self._words[: [*self._words, word].index(word)]]
        pairs = flag in options and re.search("=|^OPTION", str(options[flag].metavar))
        if pairs and "=" not in before:
            return f"write it in one word: {flag} {before}={word}"
        site = folder("templates") / "sites" / f"{Path(word).name}.yaml"
        if "--site" in options and (site.is_file() or word.endswith((".yaml", ".yml"))):
            job = f"; a job file: --file {word}" * ("--file" in options)
            return f"name a site file behind its option: --site {word}{job}"
        if f"--{word.partition('=')[0]}" in options:
            return f"did you mean '--{word}'?"
        name = "0" if re.fullmatch(r"[0-9.,]+", word) else re.split(r"[=<>!]|-\d", word)[0]
        if hint := command_hint(self._key, name, of=True) or command_hint("any", name):
            return str(hint)
        if "--env" in options and re.match(r"[A-Za-z_]\w*=", word):
            return f"each variable is behind an option of its own: --env {word}"
        if self.rest.startswith("the program"):
            return f"put the program after two dashes: {self.prog} ... -- {word} ..."
        takes = [one.option_strings[-1] for one in self._own() if one.nargs != 0]
        if len(takes) == 1:
            return f"a value follows its option: {self.prog} {takes[0]} {word}"
        more = ["another of --help-all"] if len(takes) > _FEW else []
        if takes:
            return f"a value follows its option: {one_of(takes[:_FEW] + more)}"
        return self._takes()


def build_parser(prog: str, command: Command) -> Parser:
    """The parser of one command, with the options that all commands share."""
    parser = Parser(
        prog=prog,
        description=f"example: {command.example}\n\n{command.summary}",
        formatter_class=_Help,
        allow_abbrev=False,
    )
    fill_parser(parser, command)
    parser.rest = command.rest
    return parser


def fill_parser(parser: argparse.ArgumentParser, command: Command) -> None:
    """Give a parser the arguments of a command and those that all commands share."""
    for add in command.arguments:
        add(parser)
    if command.rest:
        parser.epilog = f"after --: {command.rest}"
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
    """The site a command works on: `--site`, HPCDL_SITE or the installed prefix's."""
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
