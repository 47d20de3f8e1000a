"""Lays values into one HTML file: its style, its script and its data are all inside.

Nothing from outside can run: the page's own script is named by its hash in a content security
policy, names and logs are escaped in HTML and written as text by the script, and data stands in
blocks of JSON in which no '<' occurs. Data blocks are read only when their figure comes in view.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta, timezone
from typing import Any

from hpcdl.regress.answer import Finding, GateAnswer, Rulings
from hpcdl.regress.causes import causes_of
from hpcdl.regress.formats import Run
from hpcdl.regress.gate import first_night
from hpcdl.regress.history import FigurePoint, History, single_node
from hpcdl.regress.identity import LOWER, Series, place_of
from hpcdl.regress.report import figures
from hpcdl.regress.report.figures import Figure, SeriesView, describe_metric, signed
from hpcdl.regress.report.files import Attached
from hpcdl.regress.run_directory import began
from hpcdl.regress.verdict import bounds_text, number
from hpcdl.results.faults import Status
from hpcdl.slurm.execution import recorded
from hpcdl.system.inert import inert_text, inert_values
from hpcdl.system.resources import folder, templates
from hpcdl.system.text import duration

_SCRIPTS = ("uplot/uPlot.iife.min.js", "figures.js", "page.js")
_STYLES = ("uplot/uPlot.min.css", "style.css")
_ORDER = ("ERROR", "FAIL", "NO-REFERENCE", "STALE", "INSUFFICIENT-DATA", "XFAIL", "SKIP", "PASS")


@dataclass(frozen=True)
class Row:
    """A verdict as the table shows it. `tone` is good, uncertain or bad."""

    name: str
    check: str
    case: str
    partition: str
    status: str
    tone: str
    waived: bool
    reason: str
    metrics: Sequence[Mapping[str, Any]]
    """Those that are judged first: the first is the one that the table shows."""
    facts: tuple[tuple[str, str], ...]
    node: str = ""
    """Where it ran, where the same case ran on several nodes."""


def night_page(
    run: Run,
    history: History,
    files: Sequence[Mapping[str, Attached]],
    *,
    site: str,
    answer: GateAnswer,
    rulings: Rulings,
    nights: int = 365,
    now: datetime | None = None,
) -> str:
    """The report of a run and of the nights before it, as one HTML file.

    It shows `nights` days of history that end `now`; `files` are what a reader may open, of each
    verdict (`read_files`), `answer` is the gate's.
    """
    now = now or datetime.now(timezone.utc)
    since = (now - timedelta(days=nights)).isoformat()[:10]
    by_series = {
        series: points for series in history.series() if (points := history.points(series, since))
    }
    each = _views(
        history,
        by_series,
        answer,
        recorded(run.get("machine")).margin,
        lambda series, last: first_night(series, last, rulings, now.date()),
    )
    shown = sorted(each, key=lambda view: (not view.alarm, view.series))
    rows = rows_of(run["verdicts"])
    places = {row.partition for _, row in rows} | {view.series.place for view in shown}
    return _render(
        f"{site}: {answer.headline}",
        _sections(by_series, shown),
        _blocks(files),
        site=site,
        run=str(run.get("run", "")).rpartition("/")[2],
        when=when(str(run.get("run", ""))),
        seconds=float(run.get("seconds") or 0.0),
        headline=answer.headline,
        open=answer.open,
        accepted=answer.accepted,
        rows=rows,
        counts=Counter(row.status for _, row in rows),
        attention=[*_attention(answer, rows, shown)],
        links=_first_figures(shown),
        sparks=_sparks(shown),
        verdicts=headline(run["verdicts"]),
        files=files,
        partitions=sorted(places),
    )


def _blocks(files: Sequence[Mapping[str, Attached]]) -> dict[str, dict[str, str]]:
    """Return the texts of files, by the ids that rows link to."""
    return {
        f"file-{index}-{kind}": {"text": content.text}
        for index, attached in enumerate(files)
        for kind, content in attached.items()
    }


def _first_figures(shown: Sequence[SeriesView]) -> dict[tuple[str, str, str], str]:
    """Return the id of the first figure of each case, to which its verdict links."""
    return {
        (view.series.check, view.series.case, view.series.place): f"s{index}"
        for index, view in reversed([*enumerate(shown)])
    }


def _sparks(shown: Sequence[SeriesView]) -> dict[tuple[str, str, str, str], str]:
    """Return the last nights of each series, as the path of a small line."""
    return {
        (view.series.check, view.series.case, view.series.place, view.series.metric): view.spark
        for view in shown
    }


def embedded_json(value: object) -> str:
    """Return JSON that is safe inside a script element: without '<', '>' and '&'."""
    text = json.dumps(inert_values(value), separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _views(
    history: History,
    found: Mapping[Series, list[FigurePoint]],
    answer: GateAnswer,
    least: float,
    first: Callable[[Series, str], str],
) -> list[SeriesView]:
    """Every series that has values; runs without any number belong to all series of their case."""
    watched = sum(bool(series.metric) for series in history.series())
    findings: dict[Series, tuple[Finding, ...]] = {}
    for finding in (*answer.findings, *answer.warnings):
        findings[finding.series] = (*findings.get(finding.series, ()), finding)
    work = []
    for series, points in found.items():
        if series.metric:
            without = found.get(series.of_case, ())
            lost = [p.time for p in without if p.status == Status.ERROR.value]
            since = first(series, points[-1].time)
            work.append((series, points, lost, least, watched, findings.get(series, ()), since))
    return [one for one in (figures.view(*each) for each in work) if one.values["value"]]


def _sections(
    found: Mapping[Series, list[FigurePoint]], shown: Sequence[SeriesView]
) -> list[dict[str, Any]]:
    """Headings with their figures by the identity that links have, `empty` where there is none."""
    maps = []
    for partition in sorted({series.partition for series in found}):
        each = [
            _as_rates(series.unit, points)
            for series, points in found.items()
            if series.partition == partition
        ]
        slow = [n for view in shown if view.series.partition == partition for n in view.slow_nodes]
        maps.append(figures.nodes_of(partition, each, slow))

    def named(letter: str, each: Iterable[Figure | None]) -> dict[str, Figure]:
        return {f"{letter}{index}": figure for index, figure in enumerate(filter(None, each))}

    return [
        {
            "name": "time",
            "heading": "Over time",
            "text": "Each dot is a night. The line is the level between changes, the band around "
            "it two standard deviations; grey lines are bounds, a dashed one is the reference.",
            "figures": named("s", [view.figure for view in shown]),
            "empty": "There is no history yet: each `hpcdl check run` adds a night.",
        },
        {
            "name": "scaling",
            "heading": "Scaling",
            "text": "The same training on more ranks, "
            "beside the smallest layout's rate times the ranks.",
            "figures": named("x", figures.scaling(shown)),
            "empty": "No training ran on more than one number of ranks.",
        },
        {
            "name": "nodes",
            "heading": "Nodes",
            "text": "Each cell is a node on a night, against "
            "the median of all nodes of that night.",
            "figures": named("n", maps),
            "empty": "No check ran on single nodes: `hpcdl check run --tag node --distribute` "
            "measures each.",
        },
    ]


def _as_rates(unit: str, points: Sequence[FigurePoint]) -> Sequence[FigurePoint]:
    if figures.better_of_points(unit, [one for one in points if one.value is not None]) != LOWER:
        return points
    return [one._replace(value=1 / one.value if one.value else None) for one in points]


def _attention(
    answer: GateAnswer,
    rows: Sequence[tuple[int, Row]],
    shown: Sequence[SeriesView],
) -> Iterator[dict[str, Any]]:
    """Yield the gate's causes, worst first, each with its findings; then verdicts that it lacks.

    The gate lacks those of a run that is not the last one of its history.
    """
    figure = {view.series: f"s{index}" for index, view in enumerate(shown)}
    listed_rows: set[tuple[str, str, str]] = set()
    row_of = {(row.check, row.case, row.partition): index for index, row in reversed(rows)}
    for cause in causes_of(answer):
        items = []
        for finding in cause.findings:
            key = (finding.series.check, finding.series.case, finding.series.place)
            listed_rows |= {key} if finding.of_last_night else set()
            verdict = f"v{row_of[key]}" if finding.of_last_night and key in row_of else ""
            items.append(
                {
                    "name": finding.name,
                    "description": f"{finding.description} (id {finding.id})",
                    "link": verdict or figure.get(finding.series, "time"),
                }
            )
        tone = "bad" if cause.closes else "uncertain"
        first = cause.findings[0]
        title = cause.title if len(items) > 1 else first.name
        yield {"tone": tone, "kind": first.kind, "title": title, "findings": items}
    for index, row in rows:
        if row.tone == "good" or row.waived or (row.check, row.case, row.partition) in listed_rows:
            continue
        name = f"{row.name} on {row.partition or 'no partition'}"
        item = {"name": name, "description": row.reason or "no reason given", "link": f"v{index}"}
        yield {"tone": row.tone, "kind": row.status, "title": name, "findings": [item]}


def _render(
    title: str,
    sections: Sequence[Mapping[str, Any]],
    blocks: Mapping[str, object],
    **values: object,
) -> str:
    place = folder("templates") / "report"
    environment = templates(
        "report",
        autoescape=True,
        finalize=inert_text,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=False,
    )
    environment.filters.update(
        number=number, change=change_text, bounds=bounds_text, named=describe_metric
    )
    style = "".join((place / name).read_text(encoding="utf-8") for name in _STYLES)
    script = "".join((place / name).read_text(encoding="utf-8") for name in _SCRIPTS)
    data = {
        name: one.values
        for section in sections
        for name, one in section["figures"].items()
        if one.kind != "nodes"
    }
    return environment.get_template("night.html.j2").render(
        title=title,
        sections=sections,
        blocks={name: embedded_json(value) for name, value in {**data, **blocks}.items()},
        style=style,
        script=script,
        style_hash=_hash(style),
        script_hash=_hash(script),
        **values,
    )


def _hash(text: str) -> str:
    digest = hashlib.sha256(text.encode()).digest()
    return f"sha256-{base64.b64encode(digest).decode()}"


def rows_of(verdicts: Sequence[Mapping[str, Any]]) -> list[tuple[int, Row]]:
    """The verdicts as rows, those that need a person first, each with its index in `verdicts`."""
    rows = [(index, _row(verdict)) for index, verdict in enumerate(verdicts)]
    often = Counter((row.name, row.partition) for _, row in rows)
    rows = [
        (index, row if often[row.name, row.partition] > 1 else replace(row, node=""))
        for index, row in rows
    ]

    def urgency(row: Row) -> tuple[bool, int, str, str]:
        place = _ORDER.index(row.status) if row.status in _ORDER else 0
        return row.tone == "good" or row.waived, place, row.partition, row.name

    return sorted(rows, key=lambda pair: urgency(pair[1]))


def when(run: str) -> str:
    """A run's local time from its directory's name, '' where it has another name."""
    at = began(run.rpartition("/")[2])
    return at.astimezone().strftime("%Y-%m-%d %H:%M") if at else ""


def headline(verdicts: Sequence[Mapping[str, Any]]) -> str:
    """The night in a sentence."""
    total = len(verdicts)
    bad = sum(not verdict["ok"] for verdict in verdicts)
    if not total:
        return "No check ran"
    if not bad:
        return "The check passes" if total == 1 else f"All {total} checks pass"
    if total == 1:
        return "The check does not pass"
    return f"{bad} of {total} checks {'does' if bad == 1 else 'do'} not pass"


def _row(verdict: Mapping[str, Any]) -> Row:
    status = str(verdict["status"])
    check, case = str(verdict["check"]), str(verdict.get("case") or "")
    metrics = [{"source": "", **metric} for metric in verdict.get("metrics") or ()]
    judged = sorted(metrics, key=lambda metric: not metric["wanted"])
    tone = {"PASS": "good", "FAIL": "bad", "ERROR": "bad"}.get(status, "uncertain")
    return Row(
        name=f"{check}/{case}" if case else check,
        check=check,
        case=case,
        partition=place_of(*(str(verdict.get(of) or "") for of in ("partition", "environment"))),
        status=status,
        tone=tone,
        waived=bool(verdict.get("waived")),
        reason=str(verdict.get("reason") or ""),
        metrics=judged,
        facts=tuple(_facts(verdict)),
        node=single_node(str((verdict.get("job") or {}).get("nodes") or "")),
    )


def change_text(value: float | None, reference: float | None) -> str:
    """Return how far a value is from its reference, '' if that is unknown."""
    return signed(value / reference - 1) if value is not None and reference else ""


def _facts(verdict: Mapping[str, Any]) -> list[tuple[str, str]]:
    job: Mapping[str, Any] = verdict.get("job") or {}
    seconds = [("waited", job.get("queue_wait_seconds")), ("ran", job.get("run_seconds"))]
    rows = [
        ("job", str(job.get("id") or "")),
        ("ended as", str(job.get("state") or "")),
        ("nodes", str(job.get("nodes") or "")),
        *((name, duration(value)) for name, value in seconds if value is not None),
        ("restarts", str(job.get("restarts") or "")),
        ("release", str(verdict.get("release") or "")),
        ("driver", str(verdict.get("driver") or "")),
    ]
    return [(name, text) for name, text in rows if text]
