"""A run's verdicts as text: for the terminal, Markdown, JUnit XML, a Prometheus text file. Pure.

Those for other programs start from the values of verdicts.json, so that a run of last night can be
printed again.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from hpcdl.jobs.watch import Snapshot, as_line, describe
from hpcdl.regress.answer import GateAnswer, beside, causes_of
from hpcdl.regress.history import History
from hpcdl.regress.identity import place_of
from hpcdl.regress.references import Reference
from hpcdl.regress.run_directory import JobEvent, RunDirectory, read_events
from hpcdl.regress.runner import CheckOutcome
from hpcdl.regress.verdict import Verdict, bounds_text, number
from hpcdl.results.faults import WORST, Status
from hpcdl.results.records import PROGRESS, VERDICTS
from hpcdl.system.errors import BadInput
from hpcdl.system.text import (
    duration,
    in_a_line,
    markdown_cell,
    paint,
    prometheus_label,
    table,
    xml_attribute,
)

Run = Mapping[str, Any]
_STATUSES = "PASS FAIL ERROR NO-REFERENCE STALE INSUFFICIENT-DATA SKIP XFAIL"
_STATUS_CODES = {status: code for code, status in enumerate(_STATUSES.split())}
_HELP = {
    "status": ", ".join(f"{code} {status}" for status, code in _STATUS_CODES.items()) + ".",
    "timestamp_seconds": "End of the run, since 1970 UTC.",
    "gate_open": "1 where the gate is open.",
    "cause": "How many findings have one cause.",
}


def read_run(path: Path) -> Run:
    """A run's verdicts, from its directory or its verdicts.json.

    The result can be written in every format: the types are those that a run writes, and every text
    can be written as UTF-8. Raises BadInput: there are none, or one of them is not as this version
    writes them.
    """
    hint = "name a run's directory below WORK/checks/runs; one that was stopped has none"
    none = BadInput(f"there are no verdicts in {path}", hint=hint)
    try:
        document = VERDICTS.read(path / VERDICTS.name if path.is_dir() else path)
    except BadInput as refused:
        raise BadInput(none.message, details=[refused.message], hint=hint) from refused
    if document.values.get("verdicts") is None:
        raise none
    for fault in document.faults.values():
        raise BadInput(
            f"the verdicts in {path} cannot be read: {fault}",
            hint="an hpcdl of another version, or another program, wrote or changed them",
        )
    return document.values


def as_markdown(run: Run, answer: GateAnswer | None = None) -> str:
    """The gate's causes and a table of verdicts, for a merge request or an issue."""
    lines = []
    if answer:
        lines += [f"**{answer.headline}**", ""]
        rows = [cause.line for cause in causes_of(answer)]
        rows += [f"{one.name}: {one.accepted} [{one.id}]" for one in answer.accepted]
        lines += [*markdown_table(["finding"], ([row] for row in rows)), ""] if rows else []
    cells = []
    for verdict in sorted(run["verdicts"], key=worst):
        metric = next((m for m in verdict["metrics"] if m["wanted"]), None)
        measured = f"{number(metric['value'])} {metric['unit']}" if metric else "-"
        reference = number(metric["reference"]) if metric else "-"
        word = verdict["status"] + (" (waived)" if verdict["waived"] else "")
        where = verdict_place(verdict) or "-"
        cells.append((verdict_name(verdict), where, word, measured, reference, verdict["reason"]))
    header = ("check", "partition", "verdict", "measured", "reference", "reason")
    return "\n".join([*lines, *markdown_table(header, cells)]) + "\n"


def markdown_table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """The lines of a table in Markdown, its cells harmless."""
    head, *body = ([*map(markdown_cell, row)] for row in (header, *rows))
    lines = [head, ["---"] * len(head), *body]
    return [f"| {' | '.join(line)} |" for line in lines]


def worst(verdict: Mapping[str, Any]) -> tuple[bool, int, str, str]:
    """Return the sort key of a verdict: those that need a person come first."""
    rank = WORST.index(Status(verdict["status"]))
    return bool(verdict["ok"]), rank, verdict_place(verdict), verdict_name(verdict)


def as_junit(run: Run, answer: GateAnswer | None = None) -> str:
    """JUnit XML: FAIL, unwaived verdicts and what closes the gate are failures, ERROR an error."""
    verdicts = [*run["verdicts"]]
    others = {finding.id for finding in beside(answer, verdicts)} if answer else set()
    for cause in causes_of(answer) if answer else ():
        if cause.closes and others & {finding.id for finding in cause.findings}:
            first = cause.findings[0]
            each = (f"{finding.name}: {finding.description}" for finding in cause.findings)
            verdict = {
                "check": first.name if len(cause.findings) == 1 else cause.title,
                "reason": "; ".join(each),
                "status": first.kind,
            }
            verdicts.append(
                {"partition": "gate", "case": "", "ok": False, "seconds": 0.0} | verdict
            )
    errors = sum(v["status"] == "ERROR" for v in verdicts)
    failures = sum(not v["ok"] for v in verdicts) - errors
    head = (
        f'<testsuite name="hpcdl check" tests="{len(verdicts)}" failures="{failures}" '
        f'errors="{errors}" time="{run["seconds"]:.2f}">'
    )
    cases = "\n".join(map(_junit_case, verdicts))
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{head}\n{cases}\n</testsuite>\n'


def _junit_case(verdict: Mapping[str, Any]) -> str:
    head = (
        f"  <testcase classname={xml_attribute(verdict_place(verdict) or 'run')} "
        f'name={xml_attribute(verdict_name(verdict))} time="{verdict["seconds"]:.2f}"'
    )
    status, message = verdict["status"], f"message={xml_attribute(verdict['reason'])}"
    if status in {"SKIP", "XFAIL"}:
        return f"{head}><skipped {message}/></testcase>"
    if verdict["ok"]:
        return head + "/>"
    kind = "error" if status == "ERROR" else "failure"
    return f"{head}>\n    <{kind} type={xml_attribute(status)} {message}/>\n  </testcase>"


def as_prometheus(run: Run, answer: GateAnswer | None = None) -> str:
    """A file for node_exporter's textfile collector: verdicts, values, bounds, gate, findings.

    It takes no file in which a series is there twice: of repeats on the same nodes the last
    counts, with all that it measured.
    """
    families: dict[str, dict[str, float]] = {}
    site = {"site": str(run.get("site") or "")}
    for what, value, labels in (*_of_run(run), *(_of_gate(answer) if answer else ())):
        each = (site | {**labels} | site).items()  # first, and the run's own
        text = ",".join(f'{name}="{prometheus_label(str(label))}"' for name, label in each)
        families.setdefault(what, {})[text] = value
    lines = []
    for what, samples in families.items():
        lines += [f"# HELP hpcdl_check_{what} {_HELP[what]}"] if what in _HELP else []
        lines += [f"# TYPE hpcdl_check_{what} gauge"]
        lines += [f"hpcdl_check_{what}{{{labels}}} {value!r}" for labels, value in samples.items()]
    return "\n".join(lines) + "\n"


Sample = tuple[str, float, Mapping[str, object]]
"""What it is of, its value and its labels."""


def _of_run(run: Run) -> Iterator[Sample]:
    verdicts = {tuple(_labels(verdict).values()): verdict for verdict in run["verdicts"]}
    for verdict in verdicts.values():
        labels, waived = _labels(verdict), str(bool(verdict["waived"])).lower()
        yield "status", _STATUS_CODES[verdict["status"]], {**labels, "waived": waived}
        for metric in verdict["metrics"]:
            more = {"metric": metric["name"], "unit": metric["unit"]}
            more["better"] = metric.get("better") or ""
            for what in ("value", "reference", "low", "high"):
                if metric[what] is not None:
                    yield what, metric[what], {**labels, **more}
    if isinstance(time := run.get("time"), (int, float)):  # the collector takes no time of a sample
        yield "timestamp_seconds", time, {}


def _of_gate(answer: GateAnswer) -> Iterator[Sample]:
    yield "gate_open", int(answer.open), {}
    yield "series", answer.series, {}
    for cause in causes_of(answer):
        if cause.closes:
            yield "cause", len(cause.findings), {"kind": cause.kind, "cause": cause.title}
    for closes, findings in (("true", answer.findings), ("false", answer.warnings)):
        for finding in findings:
            what = {"node": finding.node, "kind": finding.kind, "closes": closes}
            yield "finding", 1, {**finding.series._asdict(), **what}


def as_json(run: Run, answer: GateAnswer | None = None) -> str:
    """Everything, with the gate's answer."""
    more = {"gate": answer.as_data()} if answer else {}
    return json.dumps({**run, **more}, indent=2) + "\n"


FORMATS: dict[str, Callable[..., str]] = {
    "markdown": as_markdown,
    "junit": as_junit,
    "prometheus": as_prometheus,
    "json": as_json,
}


def verdict_name(verdict: Mapping[str, Any]) -> str:
    """Check and case."""
    return "/".join(filter(None, (verdict["check"], verdict["case"])))


def verdict_place(verdict: Mapping[str, Any]) -> str:
    """Partition and environment."""
    return place_of(verdict.get("partition") or "", verdict.get("environment") or "")


def _labels(verdict: Mapping[str, Any]) -> dict[str, str]:
    labels = {name: verdict.get(name) or "" for name in ("check", "case", "partition")}
    labels["environment"] = verdict.get("environment") or ""
    return {**labels, "node": (verdict.get("job") or {}).get("nodes") or ""}


# ---- for the terminal ----

_STYLES = {Status.PASS: "green", Status.FAIL: "red", Status.ERROR: "red"}
_HEADER = ("check", "partition", "verdict", "measured", "reference", "change", "bounds")


def outcome_text(outcome: CheckOutcome) -> str:
    """Everything a person wants to see after a run: a line per metric, the reasons, files."""
    reasons = [
        f"{_word(one)} {one.name} on {one.place}: {in_a_line(one.reason)}"
        for one in outcome.verdicts
        if one.reason
    ]
    rows = [row for verdict in outcome.verdicts for row in _metric_rows(verdict)]
    lines = [table(rows, _HEADER), *(["", *reasons] if reasons else []), ""]
    for verdict in outcome.verdicts:
        if verdict.result:
            lines += [f"{verdict.name} on {verdict.place}:", *_files(verdict)]
    lines += [f"note   {in_a_line(note)}" for note in outcome.notes]
    passed = sum(verdict.ok for verdict in outcome.verdicts)
    counts = f"{passed} of {len(outcome.verdicts)} pass, {duration(outcome.seconds)}"
    return "\n".join([*lines, f"run    {outcome.directory.path}", counts])


def progress_line(directory: RunDirectory) -> tuple[str, object]:
    """Return a run's progress, and a key that changes with the state of its jobs."""
    events = list(read_events(directory.events).values())
    if not events:
        return "ReFrame prepares the checks", "start"
    done = sum(event.ended for event in events)
    active = [event for event in events if not event.ended]
    if not active:
        return f"jobs ended: {done}; ReFrame judges them", ("judge", done)
    event = active[-1]
    head = f"{done} done, {len(active)} queued or running; " if len(events) > 1 else ""
    text = f"{head}{event.name}: {as_line(_snapshot(event))}"
    return text, (done, len(active), event.job, event.state)


def _snapshot(event: JobEvent) -> Snapshot:
    text = describe(event.state, event.why, event.nodes)
    if event.state == "SUBMITTED":
        text = "it is handed to Slurm"
    return Snapshot(
        event.job, event.state, text, 0, event.nodes, event.restarts, PROGRESS.find(event.directory)
    )


def _metric_rows(verdict: Verdict) -> list[list[str]]:
    head = [verdict.name, verdict.place, _word(verdict)]
    if not verdict.metrics:
        return [[*head, "-", "-", "-", "-"]]
    numbers = [
        [
            f"{number(one.value)} {one.unit}",
            number(one.reference),
            "-" if one.change is None else f"{one.change:+.1%}",
            bounds_text(one.low, one.high) or "-",
        ]
        for one in verdict.metrics
    ]
    return [[*head, *numbers[0]], *(["", "", "", *row] for row in numbers[1:])]


def _word(verdict: Verdict) -> str:
    word = paint(verdict.status.value, _STYLES.get(verdict.status, "yellow"))
    return f"{word} (waived)" if verdict.waived else word


def _files(verdict: Verdict) -> list[str]:
    job = verdict.job.get("id")
    nodes = verdict.job.get("nodes")
    lines = [f"  job    {job} on {nodes}"] if job else []
    sources = {metric.source for metric in verdict.metrics if metric.source}
    lines += [f"  source {source}" for source in sorted(sources)]
    files = ("script", verdict.script), ("log   ", verdict.log), ("result", verdict.result)
    return lines + [f"  {name} {path}" for name, path in files]


def references_text(rows: Sequence[Reference]) -> str:
    """References as a table."""
    if not rows:
        return "no references; `hpcdl check references measure` makes them"
    header = ["check", "partition", "metric", "reference", "bounds"]
    header += ["runs", "spread", "evidence", "source"]
    cells = []
    for row in rows:
        value, bounds = f"{number(row.value)} {row.unit}", bounds_text(*row.bounds)
        what = [f"{row.check}/{row.case}", row.partition, row.metric, value, bounds]
        cells.append([*what, str(row.runs), f"{row.spread:.1%}", row.proof, row.source])
    return table(cells, header)


def history_text(history: History, path: Path) -> str:
    """The series of a history with their last values."""
    rows = []
    for series, time in history.series().items():
        last = history.newest(series, time)[-1]
        value = f"{number(last.value)} {series.unit}".strip()
        where = (series.name, series.place, series.metric or "-")
        rows.append([*where, time[:16], value, last.status])
    header = ("check", "partition", "metric", "last", "value", "verdict")
    return table(rows, header) if rows else f"no results yet in {path}"
