"""The gate: may this cluster, or this release, go on? Pure, over the history.

Three questions per series: did the last night fail, does the history of the last months show a
lasting change for the worse that still holds, and is one node slower than the others?
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from hpcdl.regress.drift import Change, analyse, is_alarming, slow_nodes
from hpcdl.regress.history import History, Result, Series, more_is_better, single_node
from hpcdl.regress.verdict import Status, number

STALE_DAYS = 3
LOOK_BACK_DAYS, NODES_DAYS = 120, 14
"""Before a series' newest result: what level and spread rest on; what nodes are compared over."""


@dataclass(frozen=True)
class Finding:
    """A reason to stop: the series, what kind it is, and the reason in words."""

    series: Series
    kind: str
    words: str

    @property
    def name(self) -> str:
        """The series as one word for people."""
        check, case, partition, metric = self.series
        return f"{check}/{case} on {partition}" + (f", {metric}" if metric else "")


@dataclass(frozen=True)
class GateAnswer:
    """Whether the gate opens, and what speaks against it.

    `series` were asked about, of so many that are `known`.
    """

    series: int
    findings: tuple[Finding, ...]
    known: int

    @property
    def open(self) -> bool:
        """True when there is a history and nothing speaks against it."""
        return self.series > 0 and not self.findings


def ask(history: History, *, partitions: tuple[str, ...] = (), names: tuple[str, ...] = (),
        now: datetime | None = None) -> GateAnswer:  # fmt: skip
    """The gate's answer for the series of a history.

    Args:
        history: the results of all nights.
        partitions: only these; all by default.
        names: only these checks; all by default.
        now: the time, for results that are too old to count.
    """
    known = history.series()
    chosen = [
        series
        for series in known
        if (not partitions or series[2] in partitions) and (not names or series[0] in names)
    ]
    newest = _newest(history, chosen)
    findings = [found for series in chosen for found in _findings(history, series, newest, now)]
    return GateAnswer(len(chosen), tuple(findings), len(known))


def _newest(history: History, chosen: list[Series]) -> dict[tuple[str, str, str], str]:
    """The time of the newest result of every case, whatever metric it has."""
    found: dict[tuple[str, str, str], str] = {}
    for series in chosen:
        last = history.last(series)
        if last is not None:
            found[series[:3]] = max(last.time, found.get(series[:3], ""))
    return found


def _findings(
    history: History,
    series: Series,
    newest: dict[tuple[str, str, str], str],
    now: datetime | None,
) -> list[Finding]:
    run = history.newest(series)
    if not run:
        return []
    found = []
    # A series without metric holds nights that went wrong; newer good nights end it.
    if run[-1].time >= newest[series[:3]]:
        found += [finding for result in run for finding in _of_last(series, result, now)]
    if series[3] and more_is_better(run[-1].unit, run[-1].low):
        found += _of_history(history, series, run)
    return list(dict.fromkeys(found))


def _of_last(series: Series, last: Result, now: datetime | None) -> list[Finding]:
    if last.status != Status.PASS.value and not last.waived:
        where = f"{last.nodes}: " if last.nodes and last.nodes not in last.reason else ""
        return [Finding(series, last.status, where + (last.reason or "no reason given"))]
    if now is not None and now - datetime.fromisoformat(last.time) > timedelta(days=STALE_DAYS):
        return [Finding(series, "old", f"the last result is of {last.time[:10]}")]
    return []


def _since(last: Result, days: int) -> str:
    return (datetime.fromisoformat(last.time) - timedelta(days=days)).isoformat()[:10]


def _of_history(history: History, series: Series, run: list[Result]) -> list[Finding]:
    found = []
    if any(single_node(result.nodes) for result in run):
        nights = history.nights(series, _since(run[-1], NODES_DAYS))
        found = [Finding(series, "slow node", f"{node} is slower than the others")
                 for node in slow_nodes(nights)]  # fmt: skip
    since = _since(run[-1], LOOK_BACK_DAYS)
    if is_alarming(history.values(series, since)):
        alarm = analyse(history.nights(series, since)).alarm
        found += [Finding(series, alarm.kind.value, _in_words(alarm))] if alarm else []
    return found


def _in_words(alarm: Change) -> str:
    with_it = f"; with it: {', '.join(alarm.suspects)}" if alarm.suspects else ""
    return (
        f"{alarm.change:+.1%} since {alarm.began}: {number(alarm.before)} -> "
        f"{number(alarm.after)}{with_it}"
    )
