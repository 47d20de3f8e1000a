"""The gate's answer as values and words: the same in the terminal, on the page, in exports. Pure.

A finding has an id that stays while it lasts: of a change for the worse whatever night it is seen
to begin with, of a slow node that node's. `gate` finds them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import date
from typing import Any

from hpcdl.regress.drift import Change
from hpcdl.regress.identity import Series, name_of
from hpcdl.regress.verdict import number
from hpcdl.results.faults import Status
from hpcdl.system.text import count_of

LOST_NODE, SLOW_NODE, WARNING = "lost node", "slow node", "not sure yet"
SILENT, UNKNOWN, FUTURE = "old", "unknown", "future"
"""Kinds of findings beside the verdicts' words and those of changes: drop, rise, breakage."""
_STATUSES = frozenset(status.value for status in Status)


@dataclass(frozen=True)
class Finding:
    """Something that speaks against a series: its kind, a sentence, and what it is about.

    `began` is the night on which a change began, `change` its size now as a fraction, `after` the
    level that it led to; `node` the slow one; `accepted` who accepted it until when, '' for nobody.
    """

    series: Series
    kind: str
    description: str
    began: date | None = None
    change: float | None = None
    after: float | None = None
    node: str = ""
    accepted: str = ""

    @property
    def name(self) -> str:
        """The series it is about."""
        return name_of(self.series)

    @property
    def of_last_night(self) -> bool:
        """Whether it is the verdict of a run, which the run's report has as well."""
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
    return Finding(series, kind, describe(change), change.began, round(change.change, 5),
                   change.after)  # fmt: skip


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
    """Whether the gate opens, and what speaks against it.

    `series` were asked about, of so many that are `known`; `ended` gave nothing for a month and
    are not among them. `warnings` are changes for the worse that are not sure yet; `accepted` is
    what would close the gate, if nobody had accepted it.
    """

    series: int
    findings: tuple[Finding, ...]
    known: int
    ended: tuple[Series, ...] = ()
    warnings: tuple[Finding, ...] = ()
    accepted: tuple[Finding, ...] = field(default=())

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
            return "Gate closed: there is no series of late"
        if self.open:
            return f"Gate open: {self.series} series"
        return f"Gate closed: {count_of(len(self.findings), 'finding')} in {self.series} series"

    def as_data(self) -> dict[str, Any]:
        """As plain values."""
        told = {name: [one.as_data() for one in getattr(self, name)]
                for name in ("findings", "warnings", "accepted")}  # fmt: skip
        return {"open": self.open, "headline": self.headline, "series": self.series, **told,
                "ended": [one._asdict() for one in self.ended]}  # fmt: skip


def beside(answer: GateAnswer, verdicts: Sequence[Mapping[str, Any]]) -> list[Finding]:
    """The findings that a run's verdicts do not tell themselves."""
    told = {(v["check"], v["case"], v["partition"] or "") for v in verdicts if not v["ok"]}
    return [
        one for one in answer.findings if not one.of_last_night or tuple(one.series[:3]) not in told
    ]
