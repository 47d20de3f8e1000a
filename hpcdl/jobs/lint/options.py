"""Options of sbatch and srun, read as getopt reads them, from facts/slurm_options.yaml.

All spellings mean the same: `-N2`, `-N 2`, `--nodes 2`, `--nodes=2`, an unambiguous beginning of
a long name, flags in one cluster. Reading stops at the first word that is no option, as Slurm's
commands do. An option that no release knows is kept, marked unknown.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from hpcdl.facts import load
from hpcdl.jobs.lint.tokens import Word
from hpcdl.slurm.rules import Span, span

_OPTION_LIST = re.compile(r"OPT|ARG|FLAG|PARAM|\[[@*]\]", re.I)
"""In a variable's name: it holds options. Others hold a program, and what follows is its own."""


@dataclass(frozen=True)
class OptionFact:
    """What one command accepts: a name, its letter, its argument (required, optional, none)."""

    name: str
    letter: str
    argument: str
    span: Span


@dataclass(frozen=True)
class Option:
    """An option as given: its canonical name without dashes, its value, and its position.

    `value` is None where none was given. `fact` is None where no release knows the option.
    """

    name: str
    value: str | None
    start: int
    length: int
    fact: OptionFact | None

    @property
    def number(self) -> int | None:
        """The value as a whole number, None where it is something else."""
        text = (self.value or "").strip()
        return int(text) if text.isascii() and text.isdigit() and len(text) <= 9 else None

    @property
    def text(self) -> str:
        """The value, or nothing."""
        return self.value or ""


@dataclass(frozen=True)
class Options:
    """The options of one command line.

    `rest` are the words behind them. `opaque`: a variable among them may hold more options.
    """

    given: tuple[Option, ...]
    rest: tuple[Word, ...]
    opaque: bool = False

    def last(self, *names: str) -> Option | None:
        """The option of one of these names; the last one counts, as for Slurm."""
        return next((one for one in reversed(self.given) if one.name in names), None)

    def has(self, *names: str) -> bool:
        """Whether one of these names is given."""
        return any(one.name in names for one in self.given)

    def number(self, name: str) -> int | None:
        """The value of an option as a whole number, None where absent or something else."""
        option = self.last(name)
        return option.number if option else None


@cache
def known_options(command: str) -> dict[str, OptionFact]:
    """The options that some release of a command (sbatch, srun) or a plug-in knows, by name."""
    facts = load("slurm_options")
    own = [row for row in facts["options"] if command in row["commands"]]
    return {row["name"]: _fact(row) for row in (*own, *facts["plugins"])}


@cache
def letters(command: str) -> dict[str, OptionFact]:
    """Its options that have a letter, by letter."""
    return {fact.letter: fact for fact in known_options(command).values() if fact.letter}


@cache
def _prefixes(command: str) -> dict[str, OptionFact | None]:
    """Every beginning of a name; None where several names begin so that no release brought."""
    table: dict[str, OptionFact | None] = {}
    known = known_options(command).items()
    for name, fact in sorted(known, key=lambda item: item[1].span.since is not None):
        for length in range(2, len(name)):
            beginning = name[:length]
            fresh = beginning not in table
            if fresh or fact.span.since is None:
                table[beginning] = fact if fresh else None
    return table


def read_options(words: Sequence[Word], command: str, *, expands: bool = True) -> Options:
    """The options at the beginning of `words`, for sbatch or srun.

    `expands` is whether a shell reads them first, so that a variable may hold options.
    """
    given: list[Option] = []
    opaque = False
    index = 0
    while index < len(words):
        word, value = words[index], words[index].value
        if value == "--":
            return Options(tuple(given), tuple(words[index + 1 :]), opaque)
        if expands and word.raw.lstrip('"').startswith("$"):
            opaque = True
            if not _holds_options(words, index, command):
                break
            index += 1
        elif value.startswith("--"):
            option, taken = _long(words, index, command)
            given.append(option)
            index += taken
        elif value.startswith("-") and len(value) > 1:
            options, taken = _cluster(words, index, command)
            given += options
            index += taken
        else:
            break
    return Options(tuple(given), tuple(words[index:]), opaque)


def _holds_options(words: Sequence[Word], index: int, command: str) -> bool:
    """Whether the variable at `index` stands for options, so that more may follow."""
    after = words[index + 1].value if index + 1 < len(words) else ""
    name = after[2:].partition("=")[0] if after.startswith("--") else ""
    return name in known_options(command) or bool(_OPTION_LIST.search(words[index].raw))


def _long(words: Sequence[Word], index: int, command: str) -> tuple[Option, int]:
    """A long option, and how many words it takes."""
    word = words[index]
    name, equals, value = word.value[2:].partition("=")
    fact = known_options(command).get(name) or _prefixes(command).get(name)
    if fact is not None and fact.argument == "required" and not equals and index + 1 < len(words):
        after = words[index + 1]
        length = after.start + len(after.raw) - word.start
        return Option(fact.name, after.value, word.start, length, fact), 2
    text = value if equals else None
    return Option(fact.name if fact else name, text, word.start, len(word.raw), fact), 1


def _cluster(words: Sequence[Word], index: int, command: str) -> tuple[list[Option], int]:
    """Letters in one word; one that takes an argument ends the cluster."""
    word = words[index]
    text = word.value[1:]
    options: list[Option] = []
    for place, letter in enumerate(text):
        fact = letters(command).get(letter)
        if fact is None:
            return [*options, Option(letter, None, word.start, len(word.raw), None)], 1
        value: str | None = text[place + 1 :] or None
        if fact.argument == "required" and value is None and index + 1 < len(words):
            after = words[index + 1]
            length = after.start + len(after.raw) - word.start
            return [*options, Option(fact.name, after.value, word.start, length, fact)], 2
        if fact.argument == "none":
            options.append(Option(fact.name, None, word.start, len(word.raw), fact))
            continue
        return [*options, Option(fact.name, value, word.start, len(word.raw), fact)], 1
    return options, 1


def _fact(row: dict[str, Any]) -> OptionFact:
    name, letter = row.get("means", row["name"]), row.get("short", "")
    return OptionFact(name, letter, row.get("argument", "none"), span(row))
