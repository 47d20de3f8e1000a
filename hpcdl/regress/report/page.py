"""Lays values into one HTML file: its style, its script and its data are all inside.

Nothing from outside can run: the page's own script is named by its hash in a content security
policy, names and logs are escaped in HTML and written as text by the script, and data stands in
blocks of JSON in which no '<' occurs. Data blocks are read only when their figure comes in view.

A page is shown to others: it names scripts and logs, and has nothing of what is in them.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta, timezone
from typing import Any

from hpcdl.regress.answer import Finding, GateAnswer, causes_of
from hpcdl.regress.formats import Run
from hpcdl.regress.history import History, Result, single_node
from hpcdl.regress.identity import Series, place_of
from hpcdl.regress.report import figures
from hpcdl.regress.report.figures import Figure, describe_metric, signed
from hpcdl.regress.run_directory import began
from hpcdl.regress.verdict import bounds_text, number
from hpcdl.system.resources import folder, templates
from hpcdl.system.text import duration, inert_text, inert_values

_SCRIPTS = ("uplot/uPlot.iife.min.js", "figures.js", "page.js")
_STYLES = ("uplot/uPlot.min.css", "style.css")
_JOB_FACTS = {"job": "id", "ended as": "state", "nodes": "nodes", "restarts": "restarts"}
_JOB_FACTS |= {"waited": "queue_wait_seconds", "ran": "run_seconds"}
_ORDER = ("ERROR", "FAIL", "NO-REFERENCE", "STALE", "INSUFFICIENT-DATA", "XFAIL", "SKIP", "PASS")

Row = Mapping[str, Any]
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
        sparks={(*_case(view.series), view.series.metric): figures.spark(view) for view in shown},
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
            views.append(figures.view(series, values, lost, about, f"s{index}"))
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
    environment.filters.update(
        number=number, change=change_text, bounds=bounds_text, named=describe_metric
    )
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
    rows = [_row(index, verdict) for index, verdict in enumerate(verdicts)]
    often = Counter((row["name"], row["partition"]) for row in rows)
    for row in rows:
        if often[row["name"], row["partition"]] < 2:
            row["node"] = ""

    def urgency(row: Row) -> tuple[bool, int, str, str]:
        place = _ORDER.index(row["status"]) if row["status"] in _ORDER else 0
        passes = row["tone"] == "good" or row["waived"]
        return passes, place, row["partition"], row["name"]

    return sorted(rows, key=urgency)


def _row(index: int, verdict: Mapping[str, Any]) -> dict[str, Any]:
    check, case, status = (str(verdict.get(of) or "") for of in ("check", "case", "status"))
    metrics = [{"source": "", **metric} for metric in verdict.get("metrics") or ()]
    return {
        "id": f"v{index}",
        "index": index,
        "name": f"{check}/{case}" if case else check,
        "check": check,
        "case": case,
        "partition": place_of(*(str(verdict.get(of) or "") for of in ("partition", "environment"))),
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
