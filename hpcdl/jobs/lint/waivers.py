"""Waivers: `# hpcdl-lint: allow RULE reason` for the next line, `allow-file` for the whole file.

On a line of its own a waiver holds for the line that follows (with its continuation lines, and
past further waivers); behind code or a directive, for its own line. One that names no rule,
gives no reason or waives nothing is a finding itself.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from hpcdl.jobs.lint.job import Hit
from hpcdl.jobs.lint.parse import Line, Script

_WAIVER = re.compile(
    r"(?:^|(?<=\s))#[ \t]*hpcdl-lint:[ \t]*(allow(?:-file)?)(?:[ \t]+([^\s]+))?[ \t]*(.*)"
)


@dataclass(frozen=True)
class Waiver:
    """A waiver of one rule for the lines from `first` to `last`; `start` is its offset."""

    rule: str
    reason: str
    start: int
    length: int
    first: int
    last: int

    def covers(self, rule: str, line: int) -> bool:
        """Whether it waives a finding of a rule in a line."""
        return self.rule == rule and self.first <= line <= self.last


def waivers(script: Script) -> tuple[Waiver, ...]:
    """The waivers of a script."""
    if "hpcdl-lint:" not in script.text:
        return ()
    found = []
    for line in script.lines:
        match = _WAIVER.search(line.text) if "hpcdl-lint:" in line.text else None
        if match is None or script.in_body(line.start):
            continue
        kind, rules, reason = match.groups()
        first, last = (1, len(script.lines)) if kind == "allow-file" else _target(script, line)
        start, length = line.start + match.start(), len(match.group().rstrip())
        for rule in (rules or "").split(","):
            found.append(Waiver(rule, reason.strip(), start, length, first, last))
    return tuple(found)


def _target(script: Script, line: Line) -> tuple[int, int]:
    """The lines that a waiver in a line holds for."""
    if not line.text.lstrip().startswith("#") or line.text.startswith("#SBATCH"):
        return line.number, line.number
    index = line.number
    while index < len(script.lines) and _is_waiver(script.lines[index]):
        index += 1
    last = index
    while last < len(script.lines) - 1 and script.lines[last].text.endswith("\\"):
        last += 1
    return index + 1, last + 1


def _is_waiver(line: Line) -> bool:
    text = line.text.lstrip()
    return text.startswith("#") and not text.startswith("#SBATCH") and "hpcdl-lint:" in text


def apply(
    script: Script, hits: Iterable[Hit], known: frozenset[str], active: frozenset[str]
) -> list[Hit]:
    """The hits that no waiver covers, and those of the waivers themselves.

    `known` are the ids of all rules; `active` of those that hold in the release: a waiver of a
    rule that does not hold there is not unused.
    """
    all_waivers = waivers(script)
    used: set[Waiver] = set()
    left = []
    for hit in hits:
        line, _ = script.place(hit.start)
        covering = [one for one in all_waivers if one.covers(hit.rule, line)]
        used.update(covering)
        if not covering:
            left.append(hit)
    for one in all_waivers:
        if one.rule not in known:
            detail = f"'{one.rule[:60]}'" if one.rule else "it names none"
            left.append(Hit("waiver-unknown", one.start, one.length, detail))
        elif one.rule in active and one not in used:
            left.append(Hit("waiver-unused", one.start, one.length, one.rule))
        elif not one.reason:
            left.append(Hit("waiver-reason", one.start, one.length, one.rule))
    return left
