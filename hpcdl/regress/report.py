"""The report of a night and of all nights before it: one HTML file that needs no network.

Its style, its script and its data are all inside. Nothing from outside can run: the page's own
script is named by its hash in a content security policy, names and logs are escaped in HTML and
written as text by the script, and data stands in blocks of JSON in which no '<' occurs. Data blocks
are read only when their figure comes in view. A page is shown to others: it names scripts and logs,
and has nothing of what is in them.

A night of a figure is one date with the value that drift sees; `low` and `high` are its runs'
extremes where there are several. Levels are the stretches between the changes that the gate found,
each with its robust spread. Every text that a reader sees is made here.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta, timezone
from itertools import groupby, pairwise
from statistics import median
from typing import Any

from hpcdl.regress.answer import WARNING, Finding, GateAnswer, causes_of
from hpcdl.regress.estimate import nightly, spread_of
from hpcdl.regress.formats import Run, verdict_name, verdict_place, worst
from hpcdl.regress.history import History, Result, single_node
from hpcdl.regress.identity import Series
from hpcdl.regress.run_directory import began
from hpcdl.regress.verdict import bounds_text, number
from hpcdl.results.faults import Status
from hpcdl.system.resources import folder, templates
from hpcdl.system.text import duration, inert_text, inert_values

_SCRIPTS = ("uplot/uPlot.iife.min.js", "figures.js", "page.js")
_STYLES = ("uplot/uPlot.min.css", "style.css")
_JOB_FACTS = {"job": "id", "ended as": "state", "nodes": "nodes", "restarts": "restarts"}
_JOB_FACTS |= {"waited": "queue_wait_seconds", "ran": "run_seconds"}

Row = dict[str, Any]
"""A verdict as the table shows it: with its place as `partition`, a tone and facts of its job."""


def night_page(
    run: Run,
    history: History,
    *,
    site: str,
    answer: GateAnswer,
    nights: int = 365,
    now: datetime | None = None,
) -> str:
    """The report of a run and of the nights before it, as one HTML file.

    It shows `nights` days of history that end `now`; `answer` is the gate's.
    """
    now = now or datetime.now(timezone.utc)
    since = (now - timedelta(days=nights)).isoformat()[:10]
    points = {
        series: found for series in history.series() if (found := history.points(series, since))
    }

    shown = sorted(_views(points, answer), key=lambda view: (view.tone != "bad", view.series))
    name, rows = str(run.get("run", "")).rpartition("/")[2], rows_of(run["verdicts"])
    return _render(
        shown,
        title=f"{site}: {answer.headline}",
        site=site,
        run=name,
        when=when(name),
        seconds=float(run.get("seconds") or 0.0),
        answer=answer,
        rows=rows,
        counts=Counter(row["status"] for row in rows),
        attention=[*_attention(answer, rows, shown)],
        links={_case(view.series): view.id for view in reversed(shown)},
        sparks={(*_case(view.series), view.series.metric): spark(view) for view in shown},
        verdicts=f"{sum(one['ok'] for one in run['verdicts'])} of {len(rows)} checks pass",
        partitions=sorted({row["partition"] for row in rows} | {one.series.place for one in shown}),
    )


def _case(series: Series) -> tuple[str, str, str]:
    return series.check, series.case, series.place


def _views(points: Mapping[Series, list[Result]], answer: GateAnswer) -> list[Figure]:
    """Every series that has values; runs without any number belong to all series of their case."""
    findings: dict[Series, list[Finding]] = {}
    for finding in (*answer.findings, *answer.warnings):
        findings.setdefault(finding.series, []).append(finding)
    views = []
    for index, (series, values) in enumerate(points.items()):
        if series.metric:
            lost = [one.time for one in points.get(series.of_case, ()) if one.status == "ERROR"]
            about = findings.get(series, ())
            views.append(view_of(series, values, lost, about, f"s{index}"))
    return [view for view in views if view.values["value"]]


def _attention(
    answer: GateAnswer, rows: Sequence[Row], shown: Sequence[Figure]
) -> Iterator[dict[str, Any]]:
    """Yield the gate's causes, worst first, each with its findings; then verdicts that it lacks.

    The gate lacks those of a run that is not the last one of its history.
    """
    figure = {view.series: view.id for view in shown}
    row_of = {(row["check"], row["case"], row["partition"]): row["id"] for row in reversed(rows)}
    listed_rows: set[tuple[str, str, str]] = set()
    for cause in causes_of(answer):
        items = []
        for finding in cause.findings:
            link = figure.get(finding.series, "time")
            if finding.of_last_night:
                listed_rows.add(_case(finding.series))
                link = row_of.get(_case(finding.series), link)
            text = f"{finding.description} (id {finding.id})"
            items.append({"name": finding.name, "description": text, "link": link})
        first = cause.findings[0]
        title = cause.title if len(items) > 1 else first.name
        tone = "bad" if cause.closes else "uncertain"
        yield {"tone": tone, "kind": first.kind, "title": title, "findings": items}
    for row in rows:
        key = (row["check"], row["case"], row["partition"])
        if row["tone"] != "good" and not row["waived"] and key not in listed_rows:
            name = f"{row['name']} on {row['partition'] or 'no partition'}"
            text = row["reason"] or "no reason given"
            item = {"name": name, "description": text, "link": row["id"]}
            yield {"tone": row["tone"], "kind": row["status"], "title": name, "findings": [item]}


def _render(shown: Sequence[Figure], **values: object) -> str:
    place = folder("templates") / "report"
    environment = templates(
        "report",
        autoescape=True,
        finalize=inert_text,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=False,
    )
    environment.filters.update(number=number, change=change_text, bounds=bounds_text)
    style = "".join((place / name).read_text(encoding="utf-8") for name in _STYLES)
    script = "".join((place / name).read_text(encoding="utf-8") for name in _SCRIPTS)
    return environment.get_template("night.html.j2").render(
        figures=shown,
        blocks={figure.id: embedded_json(figure.values) for figure in shown},
        style=style,
        script=script,
        style_hash=_hash(style),
        script_hash=_hash(script),
        **values,
    )


def embedded_json(value: object) -> str:
    """Return JSON that is safe inside a script element: without '<', '>' and '&'."""
    text = json.dumps(inert_values(value), separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _hash(text: str) -> str:
    digest = hashlib.sha256(text.encode()).digest()
    return f"sha256-{base64.b64encode(digest).decode()}"


def rows_of(verdicts: Sequence[Mapping[str, Any]]) -> list[Row]:
    """The verdicts as rows, those that need a person first."""
    rows = [_row(index, one) for index, one in enumerate(sorted(verdicts, key=worst))]
    often = Counter((row["name"], row["partition"]) for row in rows)
    for row in rows:
        if often[row["name"], row["partition"]] < 2:
            row["node"] = ""
    return rows


def _row(index: int, verdict: Mapping[str, Any]) -> Row:
    status = verdict["status"]
    metrics = [{"source": "", **metric} for metric in verdict.get("metrics") or ()]
    return {
        "id": f"v{index}",
        "index": index,
        "name": verdict_name(verdict),
        "check": verdict["check"],
        "case": verdict["case"],
        "partition": verdict_place(verdict),
        "status": status,
        "tone": {"PASS": "good", "FAIL": "bad", "ERROR": "bad"}.get(status, "uncertain"),
        "waived": bool(verdict.get("waived")),
        "reason": str(verdict.get("reason") or ""),
        # Those that are judged first: the first is the one that the table shows.
        "metrics": sorted(metrics, key=lambda metric: not metric["wanted"]),
        "facts": _facts(verdict),
        "node": single_node(str((verdict.get("job") or {}).get("nodes") or "")),
    }


def when(run: str) -> str:
    """A run's local time from its directory's name, '' where it has another name."""
    at = began(run)
    return at.astimezone().strftime("%Y-%m-%d %H:%M") if at else ""


def change_text(value: float | None, reference: float | None) -> str:
    """Return how far a value is from its reference, '' if that is unknown."""
    return signed(value / reference - 1) if value is not None and reference else ""


def _facts(verdict: Mapping[str, Any]) -> list[tuple[str, str]]:
    job: Mapping[str, Any] = verdict.get("job") or {}
    facts = {name: job.get(of) for name, of in _JOB_FACTS.items()}
    facts |= {of: verdict.get(of) for of in ("release", "driver", "script", "log")}
    return [
        (name, duration(value) if name in {"waited", "ran"} else str(value))
        for name, value in facts.items()
        if value
    ]


# ---- figures ----

_NAMED = 8
"""Nodes of a night that are named; of more, their number is told."""
_SPARKS = 30


@dataclass(frozen=True)
class Figure:
    """A figure of a page: `values` that figures.js draws.

    `words` are what the page's filter finds it by, beside its title; `series` is whose it is.
    """

    id: str
    title: str
    subtitle: str
    partition: str
    values: Mapping[str, Any]
    notes: tuple[str, ...]
    tone: str
    words: str
    series: Series


def view_of(
    series: Series,
    points: Sequence[Result],
    lost: Iterable[str] = (),
    findings: Sequence[Finding] = (),
    name: str = "",
) -> Figure:
    """A series of a history over time, with what the gate says of it.

    `lost` are times of runs of the same case that gave no number.
    """
    measured = [point for point in points if point.value is not None]
    nights = [(day, list(rows)) for day, rows in groupby(measured, lambda point: point.time[:10])]
    days = [day for day, _ in nights]
    without = {point.time[:10] for point in points if point.value is None}
    without |= {time[:10] for time in lost}
    columns = _columns(nights)
    changes = [change for finding in findings for change in _change(finding, days)]
    values = {
        "unit": series.unit,
        **columns,
        "lost": _offsets(sorted(without - {*days}), days[:1]),
        "levels": _levels(columns["value"], {change["night"] for change in changes}),
        "changes": changes,
    }
    lasting = [finding for finding in findings if not finding.of_last_night]
    words = {f"{finding.kind} {finding.description}" for finding in findings}
    words |= {text for at in measured for text in (at.release, at.driver)} | {*values["node"]}
    return Figure(
        name,
        series.case or series.check,
        f"{series.check} \N{MIDDLE DOT} {series.metric.replace('_', ' ')}",
        series.place,
        values,
        tuple(f"{finding.kind}: {finding.description}" for finding in lasting),
        "bad" if any(finding.kind != WARNING for finding in lasting) else "",
        " ".join(sorted(words)),
        series,
    )


def _columns(nights: Sequence[tuple[str, list[Result]]]) -> dict[str, Any]:
    """The nights column by column; `low` and `high` only where a night has several runs."""
    days = [day for day, _ in nights]
    each = [[point.value or 0.0 for point in rows] for _, rows in nights]  # as they were measured
    several = each if any(len(runs) > 1 for runs in each) else []
    failed = {Status.FAIL, Status.ERROR}
    return {
        "start": "".join(days[:1]),
        "day": _offsets(days, days[:1]),
        "value": [*map(rounded, nightly(each).values)],
        "low": [rounded(min(runs)) for runs in several],
        "high": [rounded(max(runs)) for runs in several],
        "runs": [len(runs) for runs in several],
        "bad": [n for n, (_, rows) in enumerate(nights) if failed & {at.status for at in rows}],
        "node": [_nodes(rows) for _, rows in nights],
        "bound": _steps(nights, lambda at: [*map(rounded, (at.reference, at.low, at.high))]),
        "release": _steps(nights, lambda at: at.release),
        "driver": _steps(nights, lambda at: at.driver),
    }


def spark(figure: Figure) -> str:
    """The last nights of a series as the path of a line of 60 by 16."""
    values = [value for value in figure.values["value"][-_SPARKS:] if value is not None]
    low, high = min(values, default=0.0), max(values, default=0.0)
    step = 60 / max(1, len(values) - 1)
    points = (
        f"{index * step:.1f} {15 - 14 * (value - low) / (high - low or 1):.1f}"
        for index, value in enumerate(values)
    )
    return "M" + "L".join(points) if len(values) > 1 else ""


def signed(fraction: float) -> str:
    """A fraction as a signed percentage with a true minus sign."""
    sign = "±" if abs(fraction) < 0.0005 else "+" if fraction > 0 else "\N{MINUS SIGN}"
    return f"{sign}{abs(fraction):.1%}".replace("%", "\N{NO-BREAK SPACE}%")


def rounded(value: float | None) -> float | None:
    """A value with the digits that a figure can show; keeps the page small."""
    return float(f"{value:.6g}") if value is not None else None


def _nodes(rows: Sequence[Result]) -> str:
    names = sorted({point.nodes for point in rows} - {""})
    return "+".join(names)[:80] if len(names) <= _NAMED else f"{len(names):,} nodes"


def _offsets(days: Sequence[str], start: Sequence[str]) -> list[int]:
    """Days after the first night; none where there is no night."""
    return [
        (date.fromisoformat(day) - date.fromisoformat(first)).days
        for first in start
        for day in days
    ]


def _steps(
    nights: Sequence[tuple[str, list[Result]]], what: Callable[[Result], Any]
) -> list[list[Any]]:
    """Where a value changes: pairs of the night's index and the value from then on."""
    found: list[list[Any]] = []
    for index, (_, rows) in enumerate(nights):
        value = what(rows[-1])
        if value and (not found or found[-1][1] != value):
            found.append([index, value])
    return found


def _levels(values: Sequence[float], changes: Iterable[int]) -> list[list[float | int | None]]:
    """Stretches between changes: first and last night, level, robust deviation."""
    levels: list[list[float | int | None]] = []
    for first, end in pairwise(sorted({0, *changes, len(values)})):
        level = median(values[first:end])
        spread = spread_of([value - level for value in values[first:end]])
        levels.append([first, end - 1, rounded(level), rounded(spread)])
    return levels


def _change(finding: Finding, days: Sequence[str]) -> list[dict[str, Any]]:
    """A change that the gate found, at its night; none where a finding is no such."""
    began = str(finding.began)
    if finding.change is None or began not in days:
        return []
    label = {"label": signed(finding.change), "text": finding.description}
    return [{"tone": "bad", "kind": finding.kind, "night": days.index(began), **label}]
