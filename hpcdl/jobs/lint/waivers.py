"""Waivers: `# hpcdl-lint: allow RULE reason` for the next line, `allow-file` for the whole file.

On a line of its own a waiver holds for the line that follows (with its continuation lines, and
past further waivers); behind code or a directive, for its own line. One that names no rule,
gives no reason or waives nothing is a finding itself.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from hpcdl.jobs.lint.job import Hit
from hpcdl.jobs.lint.parse import Line, Script

_WAIVER = re.compile(
    r"(?:^|(?<=\s))#[ \t]*hpcdl-lint:[ \t]*(allow(?:-file)?)(?:[ \t]+([^\s]+))?[ \t]*(.*)"
)


@dataclass(frozen=True)
class Waiver:
    """A waiver of one rule; `start` and `length` are its place in the text.

    It holds from line `first` to the end of the logical line there; `first` is 0 for the file.
    """

    rule: str
    reason: str
    start: int
    length: int
    first: int


class _Lines:
    """Where logical lines end, and which line a waiver is for: worked out once, from the end."""

    def __init__(self, script: Script) -> None:
        count = len(script.lines)
        self.end = list(range(count + 2))
        self.target = list(range(count + 2))
        for line in reversed(script.lines):
            number = line.number
            if number < count and line.text.endswith("\\"):
                self.end[number] = self.end[number + 1]
            if _is_comment(line) and "hpcdl-lint:" in line.text:
                self.target[number] = self.target[min(number + 1, count + 1)]


def _is_comment(line: Line) -> bool:
    return line.text.lstrip().startswith("#") and not line.text.startswith("#SBATCH")


def waivers(script: Script, lines: _Lines) -> tuple[Waiver, ...]:
    """The waivers of a script."""
    found = []
    for line in script.lines:
        match = _WAIVER.search(line.text) if "hpcdl-lint:" in line.text else None
        if match is None or script.in_body(line.start):
            continue
        kind, rules, reason = match.groups()
        first = 0 if kind == "allow-file" else lines.target[line.number]
        start, length = line.start + match.start(), len(match.group().rstrip())
        for rule in (rules or "").split(","):
            found.append(Waiver(rule, reason.strip(), start, length, first))
    return tuple(found)


def apply(
    script: Script, hits: Iterable[Hit], known: frozenset[str], active: frozenset[str]
) -> list[Hit]:
    """The hits that no waiver covers, and those of the waivers themselves.

    `known` are the ids of all rules; `active` of those that hold in the release: a waiver of a
    rule that does not hold there is not unused.
    """
    if "hpcdl-lint:" not in script.text:
        return list(hits)
    lines = _Lines(script)
    all_waivers = waivers(script, lines)
    earliest: dict[tuple[str, int], int] = {}
    for one in all_waivers:
        key = (one.rule, lines.end[one.first])
        earliest[key] = min(one.first, earliest.get(key, one.first))
    left, latest = [], dict[tuple[str, int], int]()
    for hit in hits:
        line, _ = script.place(hit.start)
        keys = [(hit.rule, 0), (hit.rule, lines.end[line])]
        for key in keys:
            latest[key] = max(line, latest.get(key, 0))
        if not any(earliest.get(key, line + 1) <= line for key in keys):
            left.append(hit)
    for one in all_waivers:
        used = latest.get((one.rule, lines.end[one.first]), -1) >= one.first
        left += _faults(one, used or one.rule not in active, known)
    return left


def _faults(one: Waiver, settled: bool, known: frozenset[str]) -> Iterator[Hit]:
    """What is wrong with a waiver itself; `settled` is whether it waives something, or may."""
    if one.rule not in known:
        detail = f"'{one.rule[:60]}'" if one.rule else "it names none"
        yield Hit("waiver-unknown", one.start, one.length, detail)
    elif not settled:
        yield Hit("waiver-unused", one.start, one.length, one.rule)
    elif not one.reason:
        yield Hit("waiver-reason", one.start, one.length, one.rule)
