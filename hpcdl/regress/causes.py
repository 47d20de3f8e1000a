"""Findings by their cause: a release, a driver, a node, a night, references, one series. Pure.

A release that slows ten series is one cause, and so is a node, or a night without results. The
terminal, exports and notices name causes, worst first; the findings of their series are beneath.
What several series of one night say together, and none of them alone, is a finding of the site
(`pooled`): the higher criticism of the strengths of all series (Donoho and Jin 2004, Ann. Stat.
32:962).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from datetime import date
from statistics import NormalDist, median
from typing import NamedTuple

from hpcdl.regress.answer import SLOW_NODE, WARNING, Finding, GateAnswer
from hpcdl.regress.estimate import as_normal, level_of
from hpcdl.regress.identity import Series
from hpcdl.results.faults import Status

POOLED = "lower together"
"""The kind of a finding that several series of one night are only together."""
_RANKS = ("ERROR", "FAIL", "drop", "rise", SLOW_NODE, "lost node", "old")
_REFERENCES = {one.value for one in Status if one.waivable}
_LEVEL, _FEWEST = 60, 20
_STRENGTHS = (1.3, 1.7, 2.1, 2.5, 3.0, 3.7)
"""From which on series are counted, in standard errors."""
_RARE, _LEAST, _NORMAL = 1e-3, 3, NormalDist()
"""The chance that healthy series bring about a pooled finding; the fewest series of one."""


class Cause(NamedTuple):
    """Findings that have one cause, worst first; `closes` says whether they close the gate."""

    kind: str
    title: str
    findings: tuple[Finding, ...]
    closes: bool

    @property
    def line(self) -> str:
        """Its title as everybody is told it, with the id by which it is accepted.

        Of several findings, each is accepted by an id of its own.
        """
        mark = "" if self.closes or self.findings[0].kind == POOLED else f"{WARNING}: "
        ids = f" [{self.findings[0].id}]" if len(self.findings) == 1 else ""
        return f"{mark}{self.title.removeprefix(f'{WARNING}, ')}{ids}"


class Tonight(NamedTuple):
    """The last night of one series: how significantly lower, by how much, what changed with it."""

    series: Series
    strength: float
    change: float
    with_it: str


def causes_of(answer: GateAnswer) -> list[Cause]:
    """The findings and warnings of an answer by cause, the worst first."""
    closing = {id(finding) for finding in answer.findings}
    reported = [*answer.findings, *answer.warnings]
    slow = {finding.node for finding in reported if finding.node}
    groups: dict[tuple[str, str], list[Finding]] = {}
    for finding in reported:
        groups.setdefault(_cause(finding, slow), []).append(finding)
    causes = []
    for (kind, what), group in groups.items():
        group.sort(key=_severity)
        closes = any(id(finding) in closing for finding in group)
        causes.append(Cause(kind, _title(kind, what, group), tuple(group), closes))
    return sorted(causes, key=lambda cause: (not cause.closes, *_severity(cause.findings[0])))


def _cause(finding: Finding, slow: set[str]) -> tuple[str, str]:
    """The kind of a finding's cause, and its name."""
    node = finding.node or next(
        (one for one in slow if finding.description.startswith(f"slow node: {one} ")), ""
    )
    if node:
        return "node", node
    if finding.began:
        suspect = finding.suspects[0] if finding.suspects else ""
        return (suspect.partition(" ")[0], suspect) if suspect else ("night", str(finding.began))
    if finding.kind in _REFERENCES:
        return "reference", finding.kind
    if finding.kind == "old":
        return "silence", finding.description
    if finding.kind == Status.ERROR.value:
        return "error", finding.description
    if finding.kind == Status.FAIL.value:
        return "bound", finding.series.place
    return "series", finding.id


def _severity(finding: Finding) -> tuple[int, float]:
    rank = _RANKS.index(finding.kind) if finding.kind in _RANKS else len(_RANKS)
    return rank, -abs(finding.change or 0.0)


def _title(kind: str, what: str, group: Sequence[Finding]) -> str:
    first = group[0]
    if len(group) == 1:
        return f"{first.kind}, {first.name}: {first.description}"
    series, worst = f"{len({one.series for one in group})} series", first.name
    if kind in {"release", "driver", "node", "night"} and first.change is not None:
        sizes = [one.change for one in group if one.change is not None]
        since = f"since {what}" if kind == "night" else f"with {what}"
        return f"{first.kind} of {series} {since}, about {median(sizes):+.1%}; most: {worst}"
    if kind == "node":
        return f"node {what}: {series}, such as {worst}"
    if kind == "silence":
        return f"no results of {series}: {what}"
    if kind == "reference":
        return f"{what}: {series}, such as {worst}"
    if kind == "bound":
        return f"FAIL of {series} on {what}; most: {worst}: {first.description}"
    return f"{first.kind} of {series}: {what}"


def tonight(
    series: Series, values: Sequence[float], runs: int, with_it: str, shared: float, *, lower: bool
) -> Tonight | None:
    """How far the last of some nights is from those before; None if there are too few.

    `shared` is the part of a deviation that all `runs` of the last night share.
    """
    rates = [1 / value for value in values if value > 0] if lower else values
    past = rates[-_LEVEL - 1 : -1]
    if len(past) < _FEWEST or len(rates) != len(values):
        return None
    level, spread = level_of(past)
    error = spread * math.sqrt(shared + (1 - shared) / max(1, runs) + 1 / len(past))
    if not error:
        return None
    z = (level - rates[-1]) / error
    return Tonight(
        series, math.copysign(as_normal(z, len(past) - 1), z), rates[-1] / level - 1, with_it
    )


def pooled(each: Iterable[Tonight], night: date) -> list[Finding]:
    """Pool the series of one night: by what changed with them, else all of them."""
    groups: dict[str, list[Tonight]] = {}
    for one in each:
        groups.setdefault(one.with_it, []).append(one)
    return [found for what, group in groups.items() if (found := _pooled(group, what, night))]


def _pooled(group: Sequence[Tonight], what: str, night: date) -> Finding | None:
    count, tails = len(group), list[tuple[float, float]]()
    for least in _STRENGTHS:
        lower = sum(member.strength >= least for member in group)
        if lower >= _LEAST:
            tails.append((_tail(count, lower, _NORMAL.cdf(-least)), least))
    chance, least = min(tails, default=(1.0, 0.0))
    if chance * len(_STRENGTHS) > _RARE * (50 if what else 1):  # a release is a reason to look
        return None
    together = [member for member in group if member.strength >= least]
    size = median(member.change for member in together)
    text = f"{len(together)} of {count} series are lower tonight, by about {-size:.1%}"
    with_it = f"; with it: {what}" if what else ""
    names = Series("", "", "", "", site=group[0].series.site)
    return Finding(
        names, POOLED, text + with_it, night, round(size, 5), suspects=(what,) if what else ()
    )


def _tail(count: int, least: int, chance: float) -> float:
    """The chance of at least so many of `count`, each of which has this chance."""
    chance = max(chance, 1e-12)
    logs = (
        math.lgamma(count + 1)
        - math.lgamma(k + 1)
        - math.lgamma(count - k + 1)
        + k * math.log(chance)
        + (count - k) * math.log1p(-chance)
        for k in range(least, count + 1)
    )
    return min(1.0, sum(math.exp(one) for one in logs))
