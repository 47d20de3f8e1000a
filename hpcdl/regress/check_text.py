"""Verdicts and progress as text."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from hpcdl.jobs.watch import Snapshot, as_line, describe
from hpcdl.regress.history import History
from hpcdl.regress.references import Reference
from hpcdl.regress.run_directory import JobEvent, RunDirectory, read_events
from hpcdl.regress.runner import CheckOutcome
from hpcdl.regress.verdict import Verdict, bounds_text, number
from hpcdl.results.faults import Status
from hpcdl.results.records import PROGRESS
from hpcdl.system.text import duration, in_a_line, paint, table

_STYLES = {Status.PASS: "green", Status.FAIL: "red", Status.ERROR: "red"}
_HEADER = ("check", "partition", "verdict", "measured", "reference", "change", "bounds")


def outcome_text(outcome: CheckOutcome) -> str:
    """Everything a person wants to see after a run: a line per metric, the reasons, files."""
    reasons = [
        f"{_word(one)} {one.name} on {one.place}: {in_a_line(one.reason)}"
        for one in outcome.verdicts
        if one.reason
    ]
    rows = [row for verdict in outcome.verdicts for row in _rows(verdict)]
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
        return f"{done} jobs have ended, ReFrame judges them", ("judge", done)
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


def _rows(verdict: Verdict) -> list[list[str]]:
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
