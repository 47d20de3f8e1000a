"""The gate's answer as values and words, by causes; what people decided about findings. Pure.

The answer is the same in the terminal, on the page and in exports. A finding has an id that stays
while it lasts: of a change for the worse whatever night it is seen to begin with, of a slow node
that node's. `gate` finds them.

An accepted level is the normal one from its first night on: nights before it count no more. A
finding that sleeps closes no gate until its day. A reference that was measured after a change,
at the level that it led to, answers it.

A cause is a release, a driver, a node, a night, references, or one series: a release that slows
ten series is one cause, and so is a night without results. The terminal, exports and notices name
causes, worst first; the findings of their series are beneath.
What several series of one night say together, and none of them alone, is a finding of the site
(`pooled`): the higher criticism of the strengths of all series (Donoho and Jin 2004, Ann. Stat.
32:962).
"""

from __future__ import annotations

import datetime
import hashlib
import math
import shutil
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date
from statistics import NormalDist, median
from typing import Any, NamedTuple

from hpcdl.regress.drift import Change
from hpcdl.regress.estimate import as_normal, level_of
from hpcdl.regress.identity import Series, name_of
from hpcdl.regress.references import Reference, ReferenceKey
from hpcdl.regress.verdict import number
from hpcdl.results.faults import Status
from hpcdl.system.text import count_of, in_a_line, table

SLOW_NODE, WARNING = "slow node", "not sure yet"
"""Kinds of findings, beside the verdicts' words, those of changes (drop, rise), and
`lost node`, `old`, `unknown` and `future`, as `gate` finds them."""
RETIRED = "retired"
"""In place of a finding's id: the series gives no more results, and is not missed."""
ENDED_DAYS = 30
"""Silence of a series that ends it."""
_LISTED = 9
"""Causes that are listed; more are counted."""
_STATUSES = frozenset(status.value for status in Status)


@dataclass(frozen=True)
class Finding:
    """Something that speaks against a series: its kind, a sentence, and what it is about.

    `began` is the night on which a change began, `change` its size now as a fraction, `after` the
    level that it led to; `suspects` is what changed with it; `node` the slow one; `accepted` who
    accepted it until when, '' if it is not accepted.
    """

    series: Series
    kind: str
    description: str
    began: datetime.date | None = None
    change: float | None = None
    after: float | None = None
    node: str = ""
    accepted: str = ""
    suspects: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The series it is about."""
        return name_of(self.series)

    @property
    def of_last_night(self) -> bool:
        """Return whether it is the verdict of a run, which the run's report has as well."""
        return self.kind in _STATUSES

    @property
    def id(self) -> str:
        """Eight digits by which it is accepted."""
        about = "verdict" if self.of_last_night else "change" if self.began else self.kind
        about = f"{self.kind} {self.node}" if self.node else about
        return hashlib.sha256(repr((tuple(self.series), about)).encode()).hexdigest()[:8]

    def as_data(self) -> dict[str, Any]:
        """As plain values."""
        series = self.series._asdict()
        began = self.began.isoformat() if self.began else None
        return {**vars(self), "series": series, "began": began, "id": self.id, "name": self.name}


def of_change(series: Series, change: Change) -> Finding:
    """A change for the worse as a finding; a warning while it is not sure."""
    kind = change.word if change.sure else WARNING
    return Finding(
        series,
        kind,
        describe(change),
        change.began,
        round(change.change, 5),
        change.after,
        suspects=change.suspects,
    )


def describe(change: Change) -> str:
    """A change in a sentence: how much, since when, what changed with it."""
    with_it = f"; with it: {', '.join(change.suspects)}" if change.suspects else ""
    return (
        f"{change.change:+.1%} since {change.began}: {number(change.before)} -> "
        f"{number(change.after)}{with_it}"
    )


@dataclass(frozen=True)
class GateAnswer:
    """The gate's answer: open or closed, with the findings.

    `series` were asked about, of so many that are `known`; `ended` gave nothing for a month and
    are not among them. `warnings` are changes for the worse that are not sure yet; `accepted` is
    what would close the gate, if it were not accepted.
    """

    series: int
    findings: tuple[Finding, ...]
    known: int
    ended: tuple[Series, ...] = ()
    warnings: tuple[Finding, ...] = ()
    accepted: tuple[Finding, ...] = ()

    @property
    def open(self) -> bool:
        """True when there is a history and nothing speaks against it."""
        return self.series > 0 and not self.findings

    @property
    def headline(self) -> str:
        """The answer in a few words."""
        if not self.known:
            return "Gate closed: there is no history"
        if not self.series:
            return "Gate closed: there is no recent series"
        if self.open:
            return f"Gate open: {self.series} series"
        return f"Gate closed: {count_of(len(self.findings), 'finding')} in {self.series} series"

    def as_data(self) -> dict[str, Any]:
        """As plain values."""
        lists = {
            name: [finding.as_data() for finding in getattr(self, name)]
            for name in ("findings", "warnings", "accepted")
        }
        return {
            "open": self.open,
            "headline": self.headline,
            "series": self.series,
            **lists,
            "ended": [series._asdict() for series in self.ended],
        }


def beside(answer: GateAnswer, verdicts: Sequence[Mapping[str, Any]]) -> list[Finding]:
    """Return the findings that a run's verdicts do not show."""
    reported = {(v["check"], v["case"], v["partition"] or "") for v in verdicts if not v["ok"]}
    return [
        finding
        for finding in answer.findings
        if not finding.of_last_night or tuple(finding.series[:3]) not in reported
    ]


@dataclass(frozen=True)
class Acceptance:
    """The acceptance of a finding: which, by whom, when and why.

    With `since` (a date) the level from then on is the normal one; else the finding sleeps, until
    the day `until` (inclusive). Dates are ISO 8601. `replaced` is the reference before, as its
    file had it, so that it can be undone.
    """

    id: str
    series: Series
    by: str
    because: str
    date: str
    since: str = ""
    until: str = ""
    replaced: Mapping[str, object] | None = None

    def holds(self, today: datetime.date) -> bool:
        """Return whether it is in force."""
        return not self.until or datetime.date.fromisoformat(self.until) >= today

    def describe(self) -> str:
        """Who accepted it, until when, and why."""
        until = f" until {self.until}" if self.until else ""
        return f"accepted by {self.by} on {self.date}{until}: {self.because}"


@dataclass(frozen=True)
class Rulings:
    """All that is decided, and the references, of a site."""

    accepted: Sequence[Acceptance] = ()
    references: Mapping[ReferenceKey, Reference] = field(default_factory=dict)

    def since(self, series: Series, today: datetime.date) -> str:
        """The first night that counts of a series, '' where all do."""
        held = (one for one in self.accepted if one.series == series and one.holds(today))
        return max((one.since for one in held), default="")

    def is_retired(self, series: Series, newest: str) -> bool:
        """Return whether a series is retired and has no result since; `newest` is its last time."""
        return any(
            one.id == RETIRED and one.series == series and newest[:10] <= one.date
            for one in self.accepted
        )

    def levels(self, today: datetime.date) -> list[Finding]:
        """The levels that are accepted, to be shown."""
        return [
            Finding(one.series, "level", f"normal since {one.since}", accepted=one.describe())
            for one in self.accepted
            if one.since and one.holds(today)
        ]

    def over(
        self, finding: Finding, today: datetime.date, last: datetime.date | None
    ) -> Finding | None:
        """Return the finding as accepted, or None if it is not accepted.

        `last` is the day of its newest result: what failed before its level was accepted is
        accepted.
        """
        for acceptance in self.accepted:
            asleep = not acceptance.since and acceptance.id == finding.id
            was_failing = (
                acceptance.since
                and acceptance.series == finding.series
                and finding.kind == "FAIL"
                and last is not None
                and last <= datetime.date.fromisoformat(acceptance.date)
            )
            if (asleep or was_failing) and acceptance.holds(today):
                return replace(finding, accepted=acceptance.describe())
        return self._answered(finding)

    def _answered(self, finding: Finding) -> Finding | None:
        """A change that a reference of its new level, measured since, answers."""
        check, case, partition, metric = finding.series[:4]
        row = self.references.get((check, case, partition, metric))
        if row is None or finding.began is None or not finding.after:
            return None
        near = abs(finding.after / row.value - 1) <= abs(finding.change or 0.0) / 2
        if row.is_rule or not near or row.date < finding.began.isoformat():
            return None
        return replace(finding, accepted=f"answered by the reference of {row.date} ({row.source})")


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
    """The last night of one series: by how many spreads it is lower, by how much, and with what.

    It is the mean of `runs`; its level is that of so many nights.
    """

    series: Series
    lower: float
    change: float
    with_it: str
    runs: int
    nights: int

    def strength(self, shared: float) -> float:
        """How significantly it is lower; `shared` is what all runs of a night have in common."""
        error = math.sqrt(shared + (1 - shared) / max(1, self.runs) + 1 / self.nights)
        return math.copysign(as_normal(self.lower / error, self.nights - 1), self.lower)


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
    series: Series, values: Sequence[float], runs: int, with_it: str, *, lower: bool
) -> Tonight | None:
    """How far the last of some nights is from those before; None if there are too few."""
    rates = [1 / value for value in values if value > 0] if lower else values
    past = rates[-_LEVEL - 1 : -1]
    if len(past) < _FEWEST or len(rates) != len(values):
        return None
    level, spread = level_of(past)
    if not spread:
        return None
    last = rates[-1]
    return Tonight(series, (level - last) / spread, last / level - 1, with_it, runs, len(past))


def pooled(each: Iterable[Tonight], shared: float, night: date) -> list[Finding]:
    """Pool the series of one night: by what changed with them, else all of them."""
    groups: dict[str, list[tuple[float, Tonight]]] = {}
    for one in each:
        groups.setdefault(one.with_it, []).append((one.strength(shared), one))
    return [found for what, group in groups.items() if (found := _pooled(group, what, night))]


def _pooled(group: Sequence[tuple[float, Tonight]], what: str, night: date) -> Finding | None:
    count, tails = len(group), list[tuple[float, float]]()
    for least in _STRENGTHS:
        lower = sum(strength >= least for strength, _ in group)
        if lower >= _LEAST:
            tails.append((_tail(count, lower, _NORMAL.cdf(-least)), least))
    chance, least = min(tails, default=(1.0, 0.0))
    if chance * len(_STRENGTHS) > _RARE * (50 if what else 1):  # a release is a reason to look
        return None
    together = [member for strength, member in group if strength >= least]
    size = median(member.change for member in together)
    text = f"{len(together)} of {count} series are lower tonight, by about {-size:.1%}"
    with_it = f"; with it: {what}" if what else ""
    names = Series("", "", "", "", site=together[0].series.site)
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


def gate_text(answer: GateAnswer, *, every: bool = False) -> str:
    """The gate's answer for a person: its causes, worst first, or `every` finding in a table."""
    if not answer.known:
        return f"{answer.headline}; `hpcdl check run` starts one"
    if not answer.series and not answer.ended:
        return f"{answer.headline}: none of the {answer.known} in the history fits what was asked"
    if not every:
        causes = causes_of(answer)
        lines, rest = [cause.line for cause in causes[:_LISTED]], causes[_LISTED:]
        if rest:
            findings = count_of(sum(len(cause.findings) for cause in rest), "finding")
            lines.append(f"and {count_of(len(rest), 'more cause')} ({findings}); --all lists")
        lines += [f"accepted: {len(answer.accepted)}"] * bool(answer.accepted)
        if answer.ended:
            names = [*map(name_of, answer.ended)]
            more = [f"{len(names) - 2} more"] * (len(names) > 2)
            lines.append(f"ended, nothing for {ENDED_DAYS} days: {'; '.join([*names[:2], *more])}")
        return "\n".join([answer.headline, *map(_in_width, lines)])
    rows = [*map(_finding_row, (*answer.findings, *answer.warnings))]
    slept = [[*_finding_row(it), in_a_line(it.accepted)] for it in answer.accepted]
    lines = [answer.headline, *([table(rows)] if rows else [])]
    lines += ["accepted:", table(slept)] if slept else []
    ended = f"ended, nothing for {ENDED_DAYS} days:"
    return "\n".join(
        [*lines, *(f"{ended} {in_a_line(name_of(series))}" for series in answer.ended)]
    )


def _in_width(line: str) -> str:
    """A line that fits the terminal, where there is one; what is cut is the middle, not the id."""
    line, width = in_a_line(line), shutil.get_terminal_size().columns
    if not sys.stdout.isatty() or len(line) <= width or width < 40:
        return line
    return f"{line[: width - 15]} ... {line[-10:]}"


def _finding_row(finding: Finding) -> list[str]:
    return [finding.kind, finding.name, finding.description, finding.id]
