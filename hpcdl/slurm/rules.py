"""Slurm's rules by release, read from facts/slurm_rules.yaml.

A rule is a row of data with the span of releases in which it holds; code asks `rule`
or `fact`, and has no version itself. A release named without its point release ("22.05")
means the newest of its series; in a row's `since` and `until` it means the first one.
`until` is the first release in which the rule holds no more.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache, total_ordering
from typing import Any, NamedTuple

from hpcdl.facts import load
from hpcdl.system.errors import BadInput
from hpcdl.system.frozen import dataclass
from hpcdl.system.text import did_you_mean

SEVERITIES = ("error", "warning", "note", "advice")
"""Gravest first; advice is printed only where it is asked for."""

_NEWEST_POINT = 999
_RELEASE = re.compile(
    r"(?:slurm[-a-z]*\s+)?(\d{2})\.(\d{2})(?:\.(\d{1,3}))?(?:[-.~+a-z].*)?\Z", re.S | re.ASCII
)


@total_ordering
@dataclass(frozen=True)
class SlurmRelease:
    """A Slurm release: 22.05 (the newest of its series) or 22.05.8."""

    year: int
    month: int
    point: int | None = None

    @classmethod
    def parse(cls, text: str) -> SlurmRelease:
        """A release as people and `sinfo --version` write it ("slurm-wlm 22.05.8").

        Raises BadInput: it is none.
        """
        match = _RELEASE.match(text.strip())
        if match is None:
            hint = f"write it like 22.05 or 23.11.4; the newest known is {known_releases()[-1]}"
            raise BadInput(f"'{text[:40]}' is no Slurm release", hint=hint)
        year, month, point = match.groups()
        if not 1 <= int(month) <= 12:
            raise BadInput(f"'{text[:40]}' is no Slurm release", hint="they are YEAR.MONTH")
        return cls(int(year), int(month), None if point is None else int(point))

    @property
    def series(self) -> str:
        """The major release, "22.05" for 22.05.8."""
        return f"{self.year:02d}.{self.month:02d}"

    def __lt__(self, other: SlurmRelease) -> bool:
        return self._order < other._order

    @property
    def _order(self) -> tuple[int, int, int]:
        return self.year, self.month, _NEWEST_POINT if self.point is None else self.point

    def __str__(self) -> str:
        return self.series if self.point is None else f"{self.series}.{self.point}"


class Span(NamedTuple):
    """Releases from `since` on, up to but without `until`; None leaves an end open."""

    since: SlurmRelease | None = None
    until: SlurmRelease | None = None

    def holds(self, release: SlurmRelease) -> bool:
        """Whether a release is in the span."""
        begun = self.since is None or release >= self.since
        return begun and (self.until is None or release < self.until)

    def __str__(self) -> str:
        """`all releases`, `since 26.05`, `before 23.11`, `22.05 to before 23.11`."""
        if self.since is None:
            return "all releases" if self.until is None else f"before {_edge(self.until)}"
        if self.until is None:
            return f"since {_edge(self.since)}"
        return f"{_edge(self.since)} to before {_edge(self.until)}"


class SlurmRule(NamedTuple):
    """One rule: what holds, in which releases, what follows and what to write instead.

    `flags` are the options and variables concerned. `severity` is one of `SEVERITIES`, `proof`
    one of `hpcdl.facts.PROOFS`. `lint` is whether a script can show that it breaks the rule.
    `excludes` are pairs of options that one command may not have together, `needs` options that
    need one of others, `uses` is a regular expression of the words of a command: rules of these
    kinds need no code.
    """

    id: str
    span: Span
    severity: str
    flags: tuple[str, ...]
    title: str
    consequence: str
    fix: str
    source: str
    proof: str
    lint: bool
    excludes: tuple[tuple[str, ...], ...] = ()
    needs: tuple[tuple[str, frozenset[str]], ...] = ()
    uses: str = ""

    def holds(self, release: SlurmRelease) -> bool:
        """Whether the rule holds in a release."""
        return self.span.holds(release)


@cache
def known_releases() -> tuple[str, ...]:
    """The major releases that the rules cover, oldest first."""
    return tuple(load("slurm_rules")["releases"])


def known_release(version: str) -> SlurmRelease:
    """A release that scripts can be written for: one that the rules cover, or a newer one.

    Raises BadInput: `version` is no release, or older than all that we know.
    """
    release, oldest = SlurmRelease.parse(version), known_releases()[0]
    if release < SlurmRelease.parse(f"{oldest}.0"):
        message = f"Slurm {release} is older than the releases that hpcdl supports"
        raise BadInput(message, hint=f"releases from {oldest} to {known_releases()[-1]} are known")
    return release


@cache
def all_rules() -> tuple[SlurmRule, ...]:
    """Every rule, in the order of the data."""
    return tuple(_rule(row) for row in load("slurm_rules")["rules"])


def rule(rule_id: str) -> SlurmRule:
    """The rule of an id; of an unknown one, `BadInput` names the nearest."""
    rules = {one.id: one for one in all_rules()}
    if rule_id not in rules:
        raise BadInput(f"there is no rule '{rule_id[:60]}'", hint=did_you_mean(rule_id, rules))
    return rules[rule_id]


def mpi_plugins(version: str | SlurmRelease) -> tuple[str, ...]:
    """Return the values of `srun --mpi=` in a release, if Slurm was built with them."""
    release = as_release(version)
    rows = load("slurm_rules")["mpi"]
    return tuple(row["name"] for row in rows if span(row).holds(release))


def as_release(version: str | SlurmRelease) -> SlurmRelease:
    """A release from its text, or as it is; `BadInput` where the text names none."""
    return version if isinstance(version, SlurmRelease) else SlurmRelease.parse(version)


def span(row: Mapping[str, Any]) -> Span:
    """The span of a row of data with `since` and `until`."""
    return Span(_bound(row.get("since")), _bound(row.get("until")))


def _rule(row: dict[str, Any]) -> SlurmRule:
    plain = {
        key: row[key]
        for key in ("id", "severity", "title", "consequence", "fix", "source", "proof")
    }
    return SlurmRule(
        span=span(row),
        flags=tuple(row["flags"]),
        lint=row.get("lint", True),
        excludes=tuple(tuple(pair) for pair in row.get("excludes", ())),
        needs=tuple((name, frozenset(of.split())) for name, of in row.get("needs", {}).items()),
        uses=row.get("uses", ""),
        **plain,
    )


def _bound(text: str | None) -> SlurmRelease | None:
    """An end of a span: a series begins with its point release 0."""
    if text is None:
        return None
    release = SlurmRelease.parse(text)
    return SlurmRelease(release.year, release.month, release.point or 0)


def _edge(release: SlurmRelease) -> str:
    """An end of a span as text: point release 0 is the series itself."""
    return str(release) if release.point else release.series
