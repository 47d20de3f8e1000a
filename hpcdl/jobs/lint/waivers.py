"""Waivers: `# hpcdl-lint: allow RULE reason` for the next line, `allow-file` for the whole file.

On a line of its own a waiver holds for the line that follows (with its continuation lines, and
past further waivers); behind code or a directive, for its own line. One that names no rule,
gives no reason or waives nothing is a finding itself.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from hpcdl.jobs.lint.job import Hit
from hpcdl.jobs.lint.parse import Script
from hpcdl.slurm.rules import all_rules

_WAIVER = re.compile(
    r"(?:^|(?<=\s))#[ \t]*hpcdl-lint:[ \t]*(allow(?:-file)?)(?:[ \t]+([^\s]+))?[ \t]*(.*)"
)
_FILE = 0


class _Waiver(NamedTuple):
    """A waiver of one rule, with its place in the text, and the last of the lines it holds for."""

    rule: str
    reason: str
    start: int
    length: int
    end: int


def apply(script: Script, hits: Iterable[Hit], active: frozenset[str]) -> list[Hit]:
    """The hits that no waiver covers, and those of the waivers themselves.

    `active` are the ids of the rules that hold in the release: a waiver of a rule that does not
    hold there is not unused.
    """
    if "hpcdl-lint:" not in script.text:
        return list(hits)
    # Where the logical line of each line ends, continuation lines included.
    ends = list(range(len(script.lines) + 2))
    for line in reversed(script.lines[:-1]):
        if line.text.endswith("\\"):
            ends[line.number] = ends[line.number + 1]
    waivers = list(_waivers(script, ends))
    covered = {(one.rule, one.end) for one in waivers}
    left, used = [], set()
    for hit in hits:
        places = {(hit.rule, _FILE), (hit.rule, ends[script.place(hit.start)[0]])} & covered
        used |= places
        left += [] if places else [hit]
    known = {one.id for one in all_rules()}
    for one in waivers:
        if one.rule not in known:
            detail = f"'{one.rule[:60]}'" if one.rule else "it names none"
            left.append(Hit("waiver-unknown", one.start, one.length, detail))
        elif one.rule in active and (one.rule, one.end) not in used:
            left.append(Hit("waiver-unused", one.start, one.length, one.rule))
        elif not one.reason:
            left.append(Hit("waiver-reason", one.start, one.length, one.rule))
    return left


def _waivers(script: Script, ends: list[int]) -> Iterator[_Waiver]:
    following = len(script.lines) + 1  # the next line that is no waiver
    for line in reversed(script.lines):
        text = line.text
        marked = "hpcdl-lint:" in text
        alone = marked and text.lstrip().startswith("#") and not text.startswith("#SBATCH")
        following = following if alone else line.number
        match = _WAIVER.search(text) if marked else None
        if match is None or script.in_body(line.start):
            continue
        kind, rules, reason = match.groups()
        end = _FILE if kind == "allow-file" else ends[following]
        start, length = line.start + match.start(), len(match.group().rstrip())
        for rule in (rules or "").split(","):
            yield _Waiver(rule, reason.strip(), start, length, end)
