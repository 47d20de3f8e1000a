"""The gate: may this cluster, or this release, be used? Pure, over the history.

Three questions per series: did the last night fail, does the history of the last months show a
lasting change for the worse that still holds, and is one node slower than the others? A series
that falls silent closes the gate, for a month; then it has ended, and is only named.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date, datetime, timedelta
from functools import partial
from itertools import pairwise
from statistics import median

from hpcdl.regress.answer import SLOW_NODE, WARNING, Finding, GateAnswer, Rulings, of_change
from hpcdl.regress.causes import POOLED, Tonight, pooled, tonight
from hpcdl.regress.drift import (
    analyse,
    as_rates,
    at_level,
    is_doubtful,
    learn_shared,
    may_be_worse,
    means_alike,
)
from hpcdl.regress.history import History, Mean, Result, night_of, series_of, single_node
from hpcdl.regress.identity import LOWER, Night, Series, better_of
from hpcdl.regress.nodes import COMPARED, slow_nodes
from hpcdl.regress.verdict import WHOLE_RUN
from hpcdl.results.faults import NEUTRAL, Status
from hpcdl.slurm.execution import CLUSTER, ExecutionProfile

STALE_DAYS, UNKNOWN_DAYS, ENDED_DAYS = 3, 8, 30
"""Silence that counts at least; of a series of one night, which may be weekly; that ends one."""
LOOK_BACK_DAYS, NODES_DAYS = 120, 14
"""Before a series' newest result: what level and spread rest on; what nodes are compared over."""
_CADENCE_NIGHTS = 10


@dataclass(frozen=True)
class _Question:
    """The gate's input: the time of each series' newest result, and the present time.

    `latest` is the newest time of each case, and of the runs on each partition.
    """

    history: History
    newest: Mapping[Series, str]
    latest: Mapping[Series, str]
    now: datetime
    least: float
    rulings: Rulings

    def silent_days(self, series: Series) -> float:
        """Days since a series' newest result."""
        return (self.now - datetime.fromisoformat(self.newest[series])) / timedelta(days=1)

    def is_skipped(self, series: Series) -> bool:
        """Return whether the check's last result was that it does not apply."""
        time = self.newest.get(series.of_case, "")
        newer = self.history.newest(series.of_case, time) if time > self.newest[series] else []
        return any(result.status in NEUTRAL for result in newer)

    def is_over(self, series: Series) -> bool:
        """Return whether the night that a series ends with was followed by a newer one.

        A series without metric holds nights that went wrong: newer ones of its case end it, and
        what was wrong with a whole run, any newer run there.
        """
        return self.newest[series] < self.latest[series.of_case]


@dataclass(frozen=True)
class _Looked:
    """What a series says.

    Its findings; its nights, where they may hold a change, or were measured again, which tells what
    the runs of a night share; and what its last night says, once that is known.
    """

    series: Series
    findings: Sequence[Finding] = ()
    lower: bool = False
    changed: Sequence[Night] = ()
    again: Sequence[Night] = ()
    tonight: Callable[[float], Tonight | None] = lambda _: None


def ask(
    history: History,
    *,
    now: datetime,
    partitions: tuple[str, ...] = (),
    names: tuple[str, ...] = (),
    execution: ExecutionProfile = CLUSTER,
    rulings: Rulings | None = None,
) -> GateAnswer:
    """The gate's answer for the series of a history.

    It is about all partitions and all checks (`names`) by default. `now` is for results that are
    too old to count; `execution` says by how much nodes differ by chance.
    """
    history, rulings = history.as_of(now), rulings or Rulings()
    in_history = history.series()
    newest = {
        series: time
        for series, time in in_history.items()
        if (not partitions or series.partition in partitions)
        and (not names or {series.check, series.name} & {*names})
        and not rulings.is_retired(series, time)
    }
    question = _Question(history, newest, _latest(newest), now, execution.margin, rulings)
    alive = [series for series in newest if question.silent_days(series) <= ENDED_DAYS]
    # All series that are measured share the budget of nights that are closed by chance.
    watched = sum(bool(series.metric) for series in in_history)
    findings, accepted = _ruled(question, _of_all(question, alive, watched))
    findings += _unknown(partitions, {series.partition for series in in_history}, "partition")
    there = {name for series in in_history for name in (series.check, series.name)}
    findings += _unknown(names, there, "check")
    over = [series for series in newest if question.silent_days(series) > ENDED_DAYS]
    ended = tuple(series for series in over if not question.is_over(series))
    unsure = {WARNING, POOLED}
    closing = tuple(finding for finding in findings if finding.kind not in unsure)
    warnings = tuple(finding for finding in findings if finding.kind in unsure)
    warnings = (*_of_future(history), *warnings)
    return GateAnswer(len(alive), closing, len(in_history), ended, warnings, tuple(accepted))


def _of_all(question: _Question, alive: Sequence[Series], watched: int) -> list[Finding]:
    """Return the findings of each series, of its changes, and of all series together."""
    looks = [_look_at(question, series) for series in alive]
    each = [finding for look in looks for finding in look.findings]
    # What all series tell of the runs of a night is known last.
    shared = learn_shared([look.again for look in looks if look.again])
    for look in looks:
        if look.changed:
            analysis = analyse(look.changed, watched=watched, shared=shared, lower=look.lower)
            each += [of_change(look.series, analysis.worse)] if analysis.worse else []
    if members := [member for look in looks if (member := look.tonight(shared.part))]:
        each += pooled(members, date.fromisoformat(max(question.newest.values())[:10]))
    return [
        *{(finding.id, finding.kind, finding.description): finding for finding in each}.values()
    ]


def _of_future(history: History) -> Iterator[Finding]:
    if later := history.later():
        text = f"{later} results are dated in the future and count nowhere: is a clock wrong?"
        yield Finding(Series("", "", "", ""), "future", text)


def doubtful(history: History, tonight: Sequence[Result], rulings: Rulings) -> set[Series]:
    """The series, without metric, of which tonight's results should be measured again.

    They are not in the history yet. The runs of many nodes are compared with each other instead.
    """
    watched, asked = sum(bool(series.metric) for series in history.series()), []
    each: dict[Series, list[Result]] = {}
    for result in tonight:
        if result.metric and result.value is not None:
            each.setdefault(series_of(result), []).append(result)
    for series, results in each.items():
        last, better = results[-1], _better(series, results[-1])
        if not better:
            continue
        accepted = rulings.since(series, date.fromisoformat(last.time[:10]))
        nights = history.nights(series, _days_before(last.time, LOOK_BACK_DAYS))
        nights = at_level([*nights, *map(night_of, results)], accepted)
        asked.append((series, nights, better == LOWER))
    shared = learn_shared([as_rates(nights) if lower else nights for _, nights, lower in asked])
    return {
        series.of_case
        for series, nights, lower in asked
        if is_doubtful(nights, max(1, watched), shared, lower=lower)
    }


def _ruled(question: _Question, findings: list[Finding]) -> tuple[list[Finding], list[Finding]]:
    standing, accepted = list[Finding](), question.rulings.levels(question.now.date())
    for finding in findings:
        newest = question.newest.get(finding.series)
        last = date.fromisoformat(newest[:10]) if newest else None
        ruled = question.rulings.over(finding, question.now.date(), last)
        (standing if ruled is None else accepted).append(ruled or finding)
    return standing, accepted


def _latest(newest: dict[Series, str]) -> dict[Series, str]:
    """The newest time of each case, whatever its metric, and of the runs on each partition."""
    found: dict[Series, str] = {}
    for series, time in newest.items():
        whole = Series(WHOLE_RUN, "", series.partition, "", site=series.site)
        for key in (series.of_case, whole, whole._replace(partition="")):
            found[key] = max(time, found.get(key, ""))
    return found


def _unknown(asked: tuple[str, ...], there: set[str], what: str) -> list[Finding]:
    """Return a finding for each requested name that the history does not have."""
    none = Series("", "", "", "")
    return [
        Finding(none._replace(**{what: name}), "unknown", f"the history has no {what} {name}")
        for name in asked
        if name not in there
    ]


def _look_at(question: _Question, series: Series) -> _Looked:
    run = question.history.newest(series, question.newest[series])
    of_last = list[Finding]()
    if not question.is_over(series):
        of_last = [one for result in _by_reason(run) for one in _of_last(question, series, result)]
    if not series.metric or not _better(series, run[-1]):
        return _Looked(series, of_last)
    looked = _of_history(question, series, run)
    return replace(looked, findings=[*of_last, *looked.findings])


def _better(series: Series, last: Result) -> str:
    """Which values of a series are better, by its last result."""
    return better_of(series.unit, last.low, last.high, last.better)


def _by_reason(run: Sequence[Result]) -> list[Result]:
    """Return one result for those of several nodes that failed for the same reason.

    A check that is measured again on other nodes has a result for each; its verdict is one.
    """
    grouped: dict[tuple[str, str], list[Result]] = {}
    for result in run:
        grouped.setdefault((result.status, result.reason), []).append(result)
    return [
        replace(results[0], nodes=",".join(sorted({result.nodes for result in results})))
        for results in grouped.values()
    ]


def _of_last(question: _Question, series: Series, last: Result) -> list[Finding]:
    if last.status in NEUTRAL:
        return []
    if last.status != Status.PASS.value and not last.waived:
        where = f"{last.nodes}: " if last.nodes and last.nodes not in last.reason else ""
        return [Finding(series, last.status, where + (last.reason or "no reason given"))]
    silent = question.silent_days(series)
    if silent <= STALE_DAYS or question.is_skipped(series):
        return []
    # A series may be silent for twice as long as between its nights, and a day.
    means = question.history.means(series, _days_before(last.time, LOOK_BACK_DAYS))
    days = [date.fromisoformat(night.day) for night in means][-_CADENCE_NIGHTS:]
    gaps = [(after - before).days for before, after in pairwise(days)]
    old = silent > (2 * median(gaps) + 1 if gaps else UNKNOWN_DAYS)
    text = f"the last result is of {last.time[:10]}"
    return [Finding(series, "old", text)] if old else []


def _days_before(time: str, days: int) -> str:
    return (datetime.fromisoformat(time) - timedelta(days=days)).isoformat()[:10]


def _tonight(
    question: _Question, last: Result, series: Series, nights: Sequence[Mean], *, lower: bool
) -> Callable[[float], Tonight | None]:
    """What a series that was measured on the last night will say of it."""
    night = max(question.newest.values())[:10]
    if last.time[:10] != night or last.status == Status.ERROR.value or len(nights) < 2:
        return lambda _: None
    before, now = question.history.before(series, night), (last.release, last.driver)
    changed = (
        f"{what} {old} -> {new}"
        for what, old, new in zip(("release", "driver"), before, now, strict=True)
        if old and new and old != new
    )
    values, with_it = [mean.value for mean in nights], next(changed, "")
    return partial(tonight, series, values, nights[-1].runs, with_it, lower=lower)


def _vanished(history: History, series: Series, run: list[Result]) -> list[Finding]:
    """Nodes that were measured with the others before, and not in the newest run of several."""
    now = {single_node(result.nodes) for result in run}
    if len(now) < 2:
        return []
    nights = history.nights(series, _days_before(run[-1].time, NODES_DAYS))
    before = {night.node: night.date for night in nights if night.node}
    about = Series("", "", series.partition, "", site=series.site)
    text = "{} gave no result beside the other nodes; its last is of {}"
    return [
        Finding(about, "lost node", text.format(node, day), node=node)
        for node, day in sorted(before.items())
        if node not in now
    ]


def first_night(series: Series, last: str, rulings: Rulings, today: date) -> str:
    """The first night that a series' changes are looked for in.

    `last` is the time of its newest result, `today` the day for what is accepted until a day.
    """
    return max(_days_before(last, LOOK_BACK_DAYS), rulings.since(series, today))


def _of_history(question: _Question, series: Series, run: list[Result]) -> _Looked:
    history, last, today = question.history, run[-1], question.now.date()
    lower = _better(series, last) == LOWER
    recent, start = (_days_before(last.time, days) for days in (NODES_DAYS, LOOK_BACK_DAYS))
    since = first_night(series, last.time, question.rulings, today)
    accepted = question.rulings.since(series, today)
    means = history.means(series, min(recent, start if accepted else since))
    findings = _vanished(history, series, run)
    if any(single_node(result.nodes) for result in run):
        several = [mean.day for mean in means if mean.day >= recent and mean.first != mean.last]
        nights = history.nights(series, several[-COMPARED:][0]) if several else []
        slow = slow_nodes(as_rates(nights) if lower else nights, question.least)
        text = "{} is slower than the others"
        findings += [Finding(series, SLOW_NODE, text.format(node), node=node) for node in slow]
    of_level = [mean for mean in means if mean.day >= since]
    values = [(one.value, one.first if one.first == one.last else "") for one in of_level]
    look = bool(accepted) or may_be_worse(values, lower=lower)
    # Where each night has the same nodes, what they differ by is in every mean alike; the newest
    # may not be over.
    places = {one[2:] for one in of_level if one is not means[-1]}
    mixed = len(places) > 1 and any(first != last for _, first, last in places)
    again = max(mean.runs for mean in means) > 1 and median(mean.runs for mean in means) == 1
    nights = history.nights(series, start if accepted else since) if look or mixed or again else []
    nights = at_level(nights, accepted) if accepted else nights
    look = look or (mixed and may_be_worse(means_alike(nights), lower=lower))
    return _Looked(
        series,
        findings,
        lower,
        changed=nights if look else (),
        again=(as_rates(nights) if lower else nights) if again else (),
        tonight=_tonight(question, last, series, of_level, lower=lower),
    )
