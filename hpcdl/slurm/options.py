"""The options of sbatch and srun by release, from facts/slurm_options.yaml; times and sizes."""

from __future__ import annotations

import re
from functools import cache
from typing import NamedTuple

from hpcdl.facts import load
from hpcdl.slurm.rules import Span, span

TIME = r"(\d{1,5}-)?\d{1,7}(:\d{1,7}){0,2}|\d{1,5}-"
"""What sbatch takes for a time limit, beside `unlimited`: seconds above 59 count as well."""
CHARGED = r"^[A-Za-z0-9_][A-Za-z0-9_.,:@+-]{0,127}$"
"""The name of an account or of a quality of service."""
_SIZE = re.compile(r"\+?(\d{1,12})(?:([KMGT])B?)?", re.ASCII | re.IGNORECASE)


class OptionFact(NamedTuple):
    """An option of a command: its name, its letter, its argument (required, optional, none)."""

    name: str
    letter: str
    argument: str
    span: Span


@cache
def known_options(command: str) -> dict[str, OptionFact]:
    """Return the options of all releases of a command (sbatch, srun) or a plug-in, by name."""
    facts = load("slurm_options")
    own = [row for row in facts["options"] if command in row["commands"]]
    return {
        row["name"]: OptionFact(
            row.get("means", row["name"]),
            row.get("short", ""),
            row.get("argument", "none"),
            span(row),
        )
        for row in (*own, *facts["plugins"])
    }


@cache
def letters(command: str) -> dict[str, OptionFact]:
    """The options of a command that have a letter, by letter."""
    return {fact.letter: fact for fact in known_options(command).values() if fact.letter}


@cache
def prefixes(command: str) -> dict[str, tuple[OptionFact, ...]]:
    """Every beginning of a name with the options that it may mean.

    More than one means that getopt calls it ambiguous, or that a release brought the second.
    """
    table: dict[str, tuple[OptionFact, ...]] = {}
    for name, fact in known_options(command).items():
        for length in range(1, len(name)):
            before = table.get(name[:length], ())
            # Two spellings of one option are not ambiguous: cpu-bind and cpu_bind.
            if fact.name not in {one.name for one in before}:
                table[name[:length]] = (*before, fact)
    return table


def slurm_minutes(text: str) -> int:
    """Slurm's time format in minutes, rounded up; `unlimited` is a year and a day.

    Slurm reads `M`, `M:S`, `H:M:S`, `D-H`, `D-H:M`, `D-H:M:S` (sbatch(1), --time).
    """
    if text.lower() in {"unlimited", "infinite"}:
        return 366 * 24 * 60
    days, _, rest = text.rpartition("-")
    parts = [int(part or 0) for part in rest.split(":")]
    if days:
        hours, minutes, seconds = [*parts, 0, 0][:3]
    elif len(parts) == 3:
        hours, minutes, seconds = parts
    else:
        hours, (minutes, seconds) = 0, [*parts, 0][:2]
    total = (int(days or 0) * 24 + hours) * 60 + minutes
    return total + -(-seconds // 60)


def megabytes(text: str) -> int | None:
    """A size as sbatch takes it, in MB and rounded up; None for what is none."""
    found = _SIZE.fullmatch(text)
    kilobytes = 1024 ** "KMGT".find((found[2] or "M").upper()) if found else 0
    return -(-int(found[1]) * kilobytes // 1024) if found else None


def walltime(minutes: int) -> str:
    """Minutes as D-HH:MM:SS without empty days."""
    days, rest = divmod(minutes, 24 * 60)
    return (f"{days}-" if days else "") + f"{rest // 60:02d}:{rest % 60:02d}:00"
