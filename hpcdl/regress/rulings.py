"""What people decided about series: accepted levels, findings that sleep, new references. Pure.

An accepted level is the normal one from its first night on: nights before it count no more. A
finding that sleeps closes no gate until its day. A reference that was measured after a change,
at the level that it led to, answers it.
"""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from hpcdl.regress.answer import Finding
from hpcdl.regress.identity import Series
from hpcdl.regress.references import Key, Reference


@dataclass(frozen=True)
class Acceptance:
    """That somebody accepted a finding: which, who, when and why.

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
        """Whether it is in force."""
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

    def levels(self, today: datetime.date) -> list[Finding]:
        """The levels that are accepted, to be shown."""
        return [Finding(one.series, "level", f"normal since {one.since}", accepted=one.describe())
                for one in self.accepted if one.since and one.holds(today)]  # fmt: skip

    def over(
        self, finding: Finding, today: datetime.date, last: datetime.date | None
    ) -> Finding | None:
        """The finding as accepted, None where it stands.

        `last` is the day of its newest result: what failed before its level was accepted is
        accepted.
        """
        for one in self.accepted:
            asleep = not one.since and one.id == finding.id
            was_failing = (
                one.since and one.series == finding.series and finding.kind == "FAIL"
                and last is not None and last <= datetime.date.fromisoformat(one.date)
            )  # fmt: skip
            if (asleep or was_failing) and one.holds(today):
                return replace(finding, accepted=one.describe())
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
