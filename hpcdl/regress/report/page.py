"""Lays values into one HTML file: its style, its script and its data are all inside.

Nothing from outside can run: the page's own script is named by its hash in a content security
policy, names and logs are escaped in HTML and written as text by the script, and data stands in
blocks of JSON in which no '<' occurs. Data blocks are read only when their figure comes in view.

A page is shown to others, and verdicts.json may be anybody's: so of scripts and logs only files of
the run itself are taken: each lies, whatever name it was opened by, in the run's directory, and
belongs, as every directory on the way, to the run's owner. A log's beginning and its end are kept,
where its settings and its failure stand.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any, BinaryIO

from hpcdl.regress.answer import SLOW_NODE, Finding, GateAnswer, causes_of
from hpcdl.regress.formats import Run
from hpcdl.regress.history import History, Result, single_node
from hpcdl.regress.identity import LOWER, Series, place_of
from hpcdl.regress.report import figures
from hpcdl.regress.report.figures import Figure, describe_metric, signed
from hpcdl.regress.run_directory import began, is_named_as_run
from hpcdl.regress.verdict import bounds_text, number
from hpcdl.system.errors import BadInput
from hpcdl.system.files import open_regular
from hpcdl.system.resources import folder, templates
from hpcdl.system.text import duration, inert, inert_text, inert_values, plain

_SCRIPTS = ("uplot/uPlot.iife.min.js", "figures.js", "page.js")
_STYLES = ("uplot/uPlot.min.css", "style.css")
_JOB_FACTS = {"job": "id", "ended as": "state", "nodes": "nodes", "restarts": "restarts"}
_JOB_FACTS |= {"waited": "queue_wait_seconds", "ran": "run_seconds"}
_ORDER = ("ERROR", "FAIL", "NO-REFERENCE", "STALE", "INSUFFICIENT-DATA", "XFAIL", "SKIP", "PASS")

HEAD, TAIL = 8 * 1024, 40 * 1024
"""Bytes of a file's beginning and end that are kept."""

Row = Mapping[str, Any]
"""A verdict as the table shows it: with its place as `partition`, a tone and facts of its job."""


def night_page(
    run: Run,
    history: History,
    files: Sequence[Mapping[str, Attached]],
    *,
    site: str,
    answer: GateAnswer,
    nights: int = 365,
    now: datetime | None = None,
) -> str:
    """The report of a run and of the nights before it, as one HTML file.

    It shows `nights` days of history that end `now`; `files` are what a reader may open, of each
    verdict (`read_files`), `answer` is the gate's.
    """
    now = now or datetime.now(timezone.utc)
    since = (now - timedelta(days=nights)).isoformat()[:10]
    points = {
        series: found for series in history.series() if (found := history.points(series, since))
    }

    shown = sorted(_views(points, answer), key=lambda view: (view.tone != "bad", view.series))
    name, rows = str(run.get("run", "")).rpartition("/")[2], rows_of(run["verdicts"])
    return _render(
        _sections(points, shown, answer),
        files,
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


def _sections(
    points: Mapping[Series, list[Result]], shown: Sequence[Figure], answer: GateAnswer
) -> dict[str, Sequence[Figure]]:
    """The figures of each section of the page."""
    slow = [hit for hit in (*answer.findings, *answer.warnings) if hit.kind == SLOW_NODE]
    maps = [
        figures.nodes_of(
            partition,
            [_as_rates(key.unit, rows) for key, rows in points.items() if key[2] == partition],
            [hit.node for hit in slow if hit.series.partition == partition],
            f"n{index}",
        )
        for index, partition in enumerate(sorted({series.partition for series in points}))
    ]
    drawn = [table for table in maps if table]
    return {"time": shown, "nodes": drawn}


def _as_rates(unit: str, points: Sequence[Result]) -> Sequence[Result]:
    if figures.better_of_points(unit, [one for one in points if one.value is not None]) != LOWER:
        return points
    return [replace(one, value=1 / one.value if one.value else None) for one in points]


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


def _render(
    sections: Mapping[str, Sequence[Figure]],
    files: Sequence[Mapping[str, Attached]],
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
    data: dict[str, object] = {figure.id: figure.values for figure in sections["time"]}
    for index, attached in enumerate(files):
        data |= {f"file-{index}-{kind}": {"text": file.text} for kind, file in attached.items()}
    return environment.get_template("night.html.j2").render(
        sections=sections,
        files=files,
        blocks={name: embedded_json(value) for name, value in data.items()},
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
    facts |= {of: verdict.get(of) for of in ("release", "driver")}
    return [
        (name, duration(value) if name in {"waited", "ran"} else str(value))
        for name, value in facts.items()
        if value
    ]


# ---- the scripts and logs that a page carries ----


@dataclass(frozen=True)
class Attached:
    """A file as the report carries it; `note` says what was left out, or why it is not here."""

    path: str
    text: str
    note: str = ""


def directory_of(run: Run, named: Path, runs: Path) -> Path | None:
    """The directory of which a report may show files, None if it is unknown.

    `named` is what the verdicts were read from; `runs` is where the site's runs lie: verdicts that
    were copied away may name one of these. There a group may write, and a link with a run's name
    would show what is elsewhere: the directory is resolved once, and must be what it is called.
    """
    place = (named if named.is_dir() else named.parent).resolve()
    if is_named_as_run(place):
        return place
    stated = Path(str(run.get("run") or ""))
    place = runs.resolve() / stated.name
    ours = stated.parent == runs and is_named_as_run(stated) and place.resolve() == place
    return place if ours else None


def read_files(run: Run, directory: Path | None) -> list[Mapping[str, Attached]]:
    """Script and log of each verdict, in the verdicts' order."""
    above = [] if directory is None else [directory, Path(str(run.get("run") or directory))]
    return [
        {
            kind: attach(directory, above, str(verdict[kind]))
            for kind in ("script", "log")
            if verdict.get(kind)
        }
        for verdict in run["verdicts"]
    ]


def attach(directory: Path | None, above: Sequence[Path], path: str) -> Attached:
    """A file's text, its middle left out where it is long.

    `directory` is resolved; `above` are the names by which it may stand in `path`.
    """
    inside = next(
        (Path(path).relative_to(one) for one in above if Path(path).is_relative_to(one)), None
    )
    if directory is None or inside is None or not inside.parts:
        return Attached(path, "", "it is not in the run's directory")
    try:
        with open_regular(directory / inside, "file") as file:
            if refusal := _refusal(directory, file):
                return Attached(path, "", refusal)
            return Attached(path, *_cut(file))
    except BadInput as fault:
        why = fault.message.removeprefix(f"cannot read {directory / inside}: ")
        return Attached(path, "", f"it cannot be read: {why}")


def _refusal(directory: Path, file: BinaryIO) -> str:
    """Why an opened file is not shown, '' if it is; asked of the file itself, whatever its name."""
    place, status = Path(f"/proc/self/fd/{file.fileno()}").readlink(), os.fstat(file.fileno())
    if not place.is_relative_to(directory):
        return "it is not in the run's directory"
    owner = directory.stat().st_uid
    between = place.parents[: len(place.relative_to(directory).parts) - 1]
    if status.st_uid != owner or any(above.stat().st_uid != owner for above in between):
        return "it belongs to another user"
    # Another name of it may lie where only its owner can look.
    return "it has a second name (a hard link)" if status.st_nlink > 1 else ""


def _cut(file: BinaryIO) -> tuple[str, str]:
    size = file.seek(0, os.SEEK_END)
    file.seek(0)
    if size <= HEAD + TAIL:
        return _text(file.read(HEAD + TAIL)), ""
    head = file.read(HEAD)
    file.seek(-TAIL, os.SEEK_END)
    tail = file.read(TAIL)
    head, tail = head[: head.rfind(b"\n") + 1] or head, tail[tail.find(b"\n") + 1 :] or tail
    left_out = size - len(head) - len(tail)
    gap = f"\n[... {left_out:,} bytes are left out here ...]\n\n"
    return _text(head) + gap + _text(tail), f"{left_out:,} of {size:,} bytes are left out"


def _text(data: bytes) -> str:
    """Text without colours, and without what else a terminal would have obeyed."""
    text = plain(data.decode("utf-8", "replace")).replace("\r\n", "\n").replace("\r", "\n")
    return inert(text.replace("\0", ""))
