"""The gate: may this cluster, or this release, be used? And what people accept of its findings.

Three questions per series: did the last night fail, does the history of the last months show a
lasting change for the worse that still holds, and is one node slower than the others? A series
that falls silent closes the gate, for a month; then it has ended, and is only named.

`ask` is pure, over the history. PREFIX/references/accepted.yaml, which a team reviews, holds what
is accepted. The level that a change led to becomes the reference of its series, where the site has
one; the row that it replaces stays in the file, so that one command undoes it. Both files are
written together, and shown as one diff.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import date, datetime, timedelta, timezone
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

from hpcdl import facts
from hpcdl.regress.answer import (
    ENDED_DAYS,
    POOLED,
    RETIRED,
    SLOW_NODE,
    WARNING,
    Acceptance,
    Finding,
    GateAnswer,
    Rulings,
    Tonight,
    of_change,
    pooled,
    tonight,
)
from hpcdl.regress.drift import (
    as_rates,
    at_level,
    is_doubtful,
    learn_shared,
    may_be_worse,
    means_alike,
    worse,
)
from hpcdl.regress.history import (
    History,
    Means,
    Result,
    night_of,
    read_history,
    series_of,
    single_node,
)
from hpcdl.regress.identity import LOWER, Night, Series, better_of, name_of
from hpcdl.regress.nodes import COMPARED, slow_nodes
from hpcdl.regress.references import (
    Edit,
    Edits,
    Reference,
    edits_of,
    entry_of,
    load_references,
    read_references,
    reference_of,
    site_file,
    text_of,
)
from hpcdl.regress.verdict import WHOLE_RUN
from hpcdl.results.faults import NEUTRAL, Status
from hpcdl.site import Site
from hpcdl.slurm.execution import CLUSTER, ExecutionProfile, current_or_cluster
from hpcdl.system.document import check, read_document
from hpcdl.system.errors import BadInput
from hpcdl.system.text import did_you_mean

SCHEMA = 1
STALE_DAYS, UNKNOWN_DAYS = 3, 8
"""Silence that counts at least; of a series of one night, which may be weekly."""
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
    the runs of a night share; and what its last night says.
    """

    series: Series
    findings: Sequence[Finding] = ()
    lower: bool = False
    changed: Sequence[Night] = ()
    again: Sequence[Night] = ()
    tonight: Tonight | None = None


def ask(
    history: History,
    *,
    now: datetime,
    partitions: tuple[str, ...] = (),
    execution: ExecutionProfile = CLUSTER,
    rulings: Rulings | None = None,
) -> GateAnswer:
    """The gate's answer for the series of a history.

    It is about all partitions by default. `now` is for results that are too old to count;
    `execution` says by how much nodes differ by chance.
    """
    history, rulings = history.as_of(now), rulings or Rulings()
    in_history = history.series()
    newest = {
        series: time
        for series, time in in_history.items()
        if (not partitions or series.partition in partitions)
        and not rulings.is_retired(series, time)
    }
    question = _Question(history, newest, _latest(newest), now, execution.margin, rulings)
    alive = [series for series in newest if question.silent_days(series) <= ENDED_DAYS]
    # All series that are measured share the budget of nights that are closed by chance.
    watched = sum(bool(series.metric) for series in in_history)
    findings, accepted = _ruled(question, _of_all(question, alive, watched))
    findings += _unknown(partitions, {series.partition for series in in_history})
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
            change = worse(look.changed, watched=watched, shared=shared, lower=look.lower)
            each += [of_change(look.series, change)] if change else []
    if members := [look.tonight for look in looks if look.tonight]:
        night = date.fromisoformat(max(question.newest.values())[:10])
        each += pooled(members, shared.part, night)
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
    asked = []
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
        if is_doubtful(nights, shared, lower=lower)
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


def _unknown(asked: tuple[str, ...], there: set[str]) -> list[Finding]:
    """Return a finding for each requested partition that the history does not have."""
    return [
        Finding(Series("", "", name, ""), "unknown", f"the history has no partition {name}")
        for name in asked
        if name not in there
    ]


def _look_at(question: _Question, series: Series) -> _Looked:
    run = question.history.newest(series, question.newest[series])
    start = _days_before(run[-1].time, LOOK_BACK_DAYS)
    means = question.history.means(series, start) if series.metric else Means()
    of_last = list[Finding]()
    if not question.is_over(series):
        of_last = [
            one for result in _by_reason(run) for one in _of_last(question, series, result, means)
        ]
    if not means.days or not _better(series, run[-1]):  # a first night may be without a number
        return _Looked(series, of_last)
    looked = _of_history(question, series, run, means)
    return replace(looked, findings=[*of_last, *looked.findings])


def _better(series: Series, last: Result) -> str:
    """Which values of a series are better, by its last result."""
    return better_of(series.unit, last.low, last.high, last.better)


def _by_reason(run: Sequence[Result]) -> list[Result]:
    """Return one result for those of several nodes that failed for the same reason.

    A check that is measured again on other nodes has a result for each; its verdict is one.
    """
    if len(run) == 1:
        return [*run]
    grouped: dict[tuple[str, str], list[Result]] = {}
    for result in run:
        grouped.setdefault((result.status, result.reason), []).append(result)
    return [
        replace(results[0], nodes=",".join(sorted({result.nodes for result in results})))
        for results in grouped.values()
    ]


def _of_last(question: _Question, series: Series, last: Result, means: Means) -> list[Finding]:
    if last.status in NEUTRAL:
        return []
    if last.status != Status.PASS.value and not last.waived:
        where = f"{last.nodes}: " if last.nodes and last.nodes not in last.reason else ""
        return [Finding(series, last.status, where + (last.reason or "no reason given"))]
    silent = question.silent_days(series)
    if silent <= STALE_DAYS or question.is_skipped(series):
        return []
    # A series may be silent for twice as long as between its nights, and a day.
    days = [date.fromisoformat(day) for day in means.days[-_CADENCE_NIGHTS:]]
    gaps = [(after - before).days for before, after in pairwise(days)]
    old = silent > (2 * median(gaps) + 1 if gaps else UNKNOWN_DAYS)
    text = f"the last result is of {last.time[:10]}"
    return [Finding(series, "old", text)] if old else []


def _days_before(time: str, days: int) -> str:
    return (datetime.fromisoformat(time) - timedelta(days=days)).isoformat()[:10]


def _tonight(
    question: _Question, last: Result, series: Series, means: Means, *, lower: bool
) -> Tonight | None:
    """What a series that was measured on the last night says of it."""
    night = max(question.newest.values())[:10]
    if last.time[:10] != night or last.status == Status.ERROR.value or len(means.days) < 2:
        return None
    before, now = question.history.before(series, night), (last.release, last.driver)
    changed = (
        f"{what} {old} -> {new}"
        for what, old, new in zip(("release", "driver"), before, now, strict=True)
        if old and new and old != new
    )
    return tonight(series, means.values, means.runs[-1], next(changed, ""), lower=lower)


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


def _of_history(question: _Question, series: Series, run: list[Result], means: Means) -> _Looked:
    history, last, today = question.history, run[-1], question.now.date()
    lower = _better(series, last) == LOWER
    recent, start = (_days_before(last.time, days) for days in (NODES_DAYS, LOOK_BACK_DAYS))
    accepted = question.rulings.since(series, today)
    findings = _vanished(history, series, run)
    if any(single_node(result.nodes) for result in run):
        latest = means.since(recent)
        each = zip(latest.days, latest.first, latest.last, strict=True)
        several = [day for day, first_on, last_on in each if first_on != last_on]
        nights = history.nights(series, several[-COMPARED:][0]) if several else []
        slow = slow_nodes(as_rates(nights) if lower else nights, question.least)
        text = "{} is slower than the others"
        findings += [Finding(series, SLOW_NODE, text.format(node), node=node) for node in slow]
    level = means.since(accepted)  # nights before an accepted level count no more
    on = (
        level.first
        if level.first is level.last
        else [a if a == b else "" for a, b in zip(level.first, level.last, strict=True)]
    )
    look = bool(accepted) or may_be_worse(level.values, on, lower=lower)
    # Where each night has the same nodes, what they differ by is in every mean alike; the newest
    # may not be over.
    places = {*zip(level.runs[:-1], level.first[:-1], level.last[:-1], strict=True)}
    mixed = len(places) > 1 and any(first != last for _, first, last in places)
    again = max(means.runs) > 1 and median(means.runs) == 1
    nights = history.nights(series, start) if look or mixed or again else []
    nights = at_level(nights, accepted) if accepted else nights
    if mixed and not look:
        look = may_be_worse(*means_alike(nights), lower=lower)
    return _Looked(
        series,
        findings,
        lower,
        changed=nights if look else (),
        again=(as_rates(nights) if lower else nights) if again else (),
        tonight=_tonight(question, last, series, level, lower=lower),
    )


def accepted_file(site: Site) -> Path:
    """Where a site keeps what is accepted."""
    return site.paths.prefix / "references" / "accepted.yaml"


def rulings_of(site: Site) -> Rulings:
    """All that is decided about a site's series. Raises BadInput: a file has faults."""
    return Rulings(read_accepted(accepted_file(site)), load_references(site))


def answer_now(site: Site, *, partitions: tuple[str, ...] = ()) -> GateAnswer:
    """The gate's answer now, from a site's history and what people decided about its series.

    It is about all partitions by default.
    """
    with read_history(site) as history:
        return ask(
            history,
            partitions=partitions,
            now=datetime.now(timezone.utc),
            execution=current_or_cluster(),
            rulings=rulings_of(site),
        )


def read_accepted(path: Path) -> tuple[Acceptance, ...]:
    """Return a file's acceptances; none if it does not exist.

    Raises BadInput: every fault of the file at once.
    """
    if not path.exists():
        return ()
    document = read_document(path, if_empty="`hpcdl check accept` writes it")
    values = check(document, facts.load("check_formats")["accepted"])
    document.raise_faults()
    return tuple(
        Acceptance(**{**row, "series": Series(**{"metric": "", **row["series"]})})
        for row in values["accepted"]
    )


def accept(site: Site, history: History, answer: GateAnswer, what: str, given: Acceptance) -> Edits:
    """Accept a finding: its level, or until a day.

    `what` is a finding's id, or the name of its series. Raises BadInput: there is no such finding,
    or it cannot be accepted so.
    """
    accepted = read_accepted(accepted_file(site))
    finding = _find(answer, what, accepted)
    run = history.newest(finding.series, history.series().get(finding.series, ""))
    last = run[-1] if run else None
    value = finding.after or (last.value if last and finding.kind == "FAIL" else None)
    if not given.until and (value is None or last is None):
        message = f"{finding.kind} of {finding.name} has no level that could become the normal one"
        raise BadInput(message, hint="let it sleep until a day: --until YEAR-MONTH-DAY")
    since = "" if given.until or last is None else str(finding.began or last.time[:10])
    row = None if given.until else _reference(site, finding.series)
    new = replace(
        given,
        id=finding.id,
        series=finding.series,
        since=since,
        replaced=entry_of(row) if row else None,
    )
    kept = [entry for entry in accepted if (entry.id, bool(entry.since)) != (new.id, bool(since))]
    levels = []
    if row is not None and value is not None and last is not None:
        level = float(f"{value:.6g}")
        source, release = _source(given), last.release or None
        levels = [replace(row, value=level, date=given.date, release=release, source=source)]
    return _edits(site, [*kept, new], levels, f"{finding.id} {finding.name}: {new.describe()}")


def retire(site: Site, history: History, what: str, given: Acceptance) -> Edits:
    """Retire the series of a name, which give no more results: no gate misses them.

    One that gives a result again is watched again. Raises BadInput: the history has none.
    """
    series = history.series()
    meant = [candidate for candidate in series if what in {name_of(candidate), candidate.name}]
    if not meant:
        hint = did_you_mean(what, [candidate.name for candidate in series])
        raise BadInput(f"the history has no series '{what}'", hint=hint or _LIST)
    known = read_accepted(accepted_file(site))
    kept = [entry for entry in known if entry.id != RETIRED or entry.series not in meant]
    new = [replace(given, id=RETIRED, series=candidate) for candidate in meant]
    summary = f"{what}: {len(meant)} series retired"
    return _edits(site, [*kept, *new], [], summary)


def undo(site: Site, what: str) -> Edits:
    """Undo an acceptance, and restore the earlier reference of its series.

    Raises BadInput: nothing of that id or name is accepted.
    """
    accepted = read_accepted(accepted_file(site))
    gone = [entry for entry in accepted if what in {entry.series.name, *_names(entry)}]
    if not gone:
        names = [name for entry in accepted for name in _names(entry)]
        raise BadInput(f"'{what}' is not accepted", hint=did_you_mean(what, names) or _LIST)
    kept, rows = [entry for entry in accepted if entry not in gone], []
    summary = "; ".join(f"{entry.id} {name_of(entry.series)}" for entry in gone)
    for entry in gone:
        row = _reference(site, entry.series) if entry.replaced else None
        if entry.replaced and (row is None or row.source == _source(entry)):
            rows.append(reference_of(entry.replaced))
        elif row:
            summary += f"; the reference of {name_of(entry.series)} was set anew since, and stays"
    return _edits(site, kept, rows, f"undone: {summary}")


def _source(accepted: Acceptance) -> str:
    return f"accepted by {accepted.by}: {accepted.because}"


def _names(entry: Finding | Acceptance) -> tuple[str, str]:
    return entry.id, name_of(entry.series)


_LIST = "`hpcdl check accept` lists what is accepted, `hpcdl check gate` what can be"


def _find(answer: GateAnswer, what: str, acceptances: Sequence[Acceptance]) -> Finding:
    there = [*answer.findings, *answer.warnings]
    meant = [finding for finding in there if what in {finding.series.name, *_names(finding)}]
    if len(meant) == 1:
        return meant[0]
    if not meant:
        for entry in acceptances:
            if what in _names(entry):
                message = f"{entry.id} {name_of(entry.series)} is accepted: {entry.describe()}"
                raise BadInput(
                    message, hint=f"take it back first: hpcdl check accept {entry.id} --undo"
                )
        names = [name for finding in there for name in _names(finding)]
        raise BadInput(f"there is no finding '{what}'", hint=did_you_mean(what, names) or _LIST)
    details = [
        f"{finding.id}  {finding.kind}  {finding.name}: {finding.description}" for finding in meant
    ]
    message = f"'{what}' has {len(meant)} findings"
    raise BadInput(message, details=details, hint="name one by its id")


def _reference(site: Site, series: Series) -> Reference | None:
    """The site's own reference of a series."""
    here = (part for part in site.by_groups() if part.label == series.partition)
    rows = (row for part in here for row in read_references(site_file(site, part.reference_set)))
    key = None if series.environment else tuple(series[:4])
    return next((row for row in rows if row.key == key), None)


def _edits(
    site: Site, accepted: Sequence[Acceptance], rows: Sequence[Reference], summary: str
) -> Edits:
    """The change of the file of what is accepted, and of the references of its series."""
    import yaml

    path = accepted_file(site)
    each = [_filled({**asdict(row), "series": _filled(row.series._asdict())}) for row in accepted]
    values = {"schema": SCHEMA, "accepted": each}
    head = (
        "# Findings of the nightly checks that somebody accepted. `hpcdl check accept` writes it,\n"
        "# `--undo` takes one back; a change is reviewed like code.\n"
    )
    text = head + str(yaml.safe_dump(values, sort_keys=False, width=96, allow_unicode=True))
    return Edits((Edit(path, text_of(path), text), *edits_of(site, rows).files), summary)


def _filled(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values that are set."""
    return {key: value for key, value in values.items() if value not in (None, "")}
