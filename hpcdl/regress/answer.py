"""The gate's answer as values and words, and what people decided about its findings. Pure.

The answer is the same in the terminal, on the page and in exports. A finding has an id that stays
while it lasts: of a change for the worse whatever night it is seen to begin with, of a slow node
that node's. `gate` finds them.

An accepted level is the normal one from its first night on: nights before it count no more. A
finding that sleeps closes no gate until its day. A reference that was measured after a change,
at the level that it led to, answers it.
"""

from __future__ import annotations

import datetime
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from hpcdl.regress.drift import Change
from hpcdl.regress.identity import Series, name_of
from hpcdl.regress.references import Key, Reference
from hpcdl.regress.verdict import number
from hpcdl.results.faults import Status
from hpcdl.system.text import count_of

SLOW_NODE, WARNING = "slow node", "not sure yet"
"""Kinds of findings, beside the verdicts' words, those of changes (drop, rise), and
`lost node`, `old`, `unknown` and `future`, as `gate` finds them."""
RETIRED = "retired"
"""In place of a finding's id: the series gives no more results, and is not missed."""
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
        return {**asdict(self), "series": series, "began": began, "id": self.id, "name": self.name}


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
    over = f"; over since {change.ended}" if change.ended else ""
    return (
        f"{change.change:+.1%} since {change.began}: {number(change.before)} -> "
        f"{number(change.after)}{with_it}{over}"
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
    references: Mapping[Key, Reference] = field(default_factory=dict)

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
