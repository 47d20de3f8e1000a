"""A study as text and as plain values, and its report with a figure.

The report's tables are the lists of its plain values, so that report.md and report.json say the
same. Missing results and rules that are not decided come first.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from hpcdl import __version__
from hpcdl.system.chart import Panel, svg
from hpcdl.system.files import make_directory, write_atomic, write_json
from hpcdl.system.text import count_of, markdown_cell
from hpcdl.system.trust import require_own
from hpcdl.workflows.study.cells import StudyPlan
from hpcdl.workflows.study.charts import ResultTable
from hpcdl.workflows.study.declared import line_of
from hpcdl.workflows.study.findings import ANSWERS, Results
from hpcdl.workflows.study.measurements import alone

Row = Mapping[str, Any]
_JSON_ONLY = frozenset({"job_id", "release", "result"})


def _head(plan: StudyPlan) -> dict[str, Any]:
    site = {"scale": plan.name, "site": plan.site.name, "takes": plan.scale.takes}
    return {"schema": 4, "study": plan.study.name, **site}


def rules_of(plan: StudyPlan) -> list[dict[str, str]]:
    """The rules of a scale, as they are asked of no results."""
    nothing = Results(plan, plan.cells, (), (), (), 1, {})
    with line_of(plan.study.path):
        plan.scale.judge(nothing)
    return [{"rule": one.rule, "says": one.says} for one in nothing.protocol.verdicts]


def show_data(plan: StudyPlan) -> dict[str, Any]:
    """A study at a scale as plain values."""
    asked = {key: getattr(plan.study, key) for key in ("title", "question", "origin", "found")}
    cells = [
        {"id": cell.point.id, "values": dict(cell.named), "problem": cell.point.problem}
        for cell in plan.cells
    ]
    published = [one.label for one in plan.study.published]
    more = {"shows": plan.scale.shows, "cells": cells, "acceptance": rules_of(plan)}
    return {**_head(plan), **asked, **more, "published": published}


def show_text(plan: StudyPlan) -> str:
    """The question, the matrix, how long it takes, and the acceptance rules."""
    study, scale = plan.study, plan.scale
    problems = [f"{cell.name}: {cell.point.problem}" for cell in plan.cells if cell.point.problem]
    blocks = {
        f"scale {plan.name} on {plan.site.name}: {scale.shows}": [*_jobs_text(plan)],
        "must hold:": [rule["says"] for rule in rules_of(plan)],
        "set beside:": [one.label for one in study.published],
        "cannot run here, and is left out:": problems,
    }
    head = (
        f"{study.name}: {study.title}\n{study.question}\nfirst asked by {study.origin}\n"
        f"they found: {study.found}"
    )
    texts = ["\n  ".join([title, *lines]) for title, lines in blocks.items() if lines]
    return "\n\n".join([head, *texts, *([f"takes: {scale.takes}"] if scale.takes else [])])


def _jobs_text(plan: StudyPlan) -> Iterator[str]:
    for jobs in plan.scale.jobs:
        own = sum(cell.jobs is jobs for cell in plan.possible)
        named = "".join(f" {key}={value}" for key, value in jobs.named.items())
        left = "".join(f"; without {text}" for text in jobs.exclude)
        yield f"{jobs.name}: {count_of(own, 'job')}:{named} {jobs.over.strip()}{left}"


# ---- the report ----


def write_report(results: Results, target: Path) -> dict[str, Path]:
    """Write report.md, report.json and figure.svg; gives their paths.

    Raises MissingPrerequisite: another user has made the directory, or a link in its place.
    """
    make_directory(target)
    for place in (target.parent, target):
        require_own(place)
    with line_of(results.plan.study.path):
        parts = list(results.plan.study.report(results))
    panels = [part for part in parts if isinstance(part, Panel)]
    tables = {part.title: part.rows for part in parts if isinstance(part, ResultTable)}
    paths = {name: target / name for name in ("report.md", "report.json", "figure.svg")}
    write_atomic(paths["figure.svg"], svg(panels, _caption(results)))
    write_atomic(paths["report.md"], "\n\n".join(_markdown(results, tables)) + "\n")
    write_json(paths["report.json"], {**as_data(results), "tables": tables})
    return paths


def as_data(results: Results) -> dict[str, Any]:
    """The report as plain values."""
    return {
        **_head(results.plan),
        "accepted": results.accepted,
        "answer": results.answer,
        "machine": {"cores": results.cores, "others": dict(results.others)},
        "missing": [
            {"values": dict(gap.cell.named), "state": gap.state, "reason": gap.reason}
            for gap in results.missing
        ],
        "acceptance": [
            {"holds": ANSWERS[rule.ok], **vars(rule)} for rule in results.protocol.verdicts
        ],
        "measured": [*_measured(results)],
        "predicted": [
            {"values": dict(cell.values), **_without(vars(cell), "cell"), "error": cell.error}
            for cell in results.predicted
        ],
        "not_predicted": list(results.not_predicted),
        "published": [asdict(group) for group in results.plan.study.published],
    }


def _without(values: Row, *names: str) -> dict[str, Any]:
    return {key: value for key, value in values.items() if key not in names}


def _measured(results: Results) -> Iterator[dict[str, Any]]:
    for measured in results.measured:
        base = alone(results.every, measured)
        yield {
            "values": dict(measured.values),
            "ranks": measured.ranks,
            "nodes": len(measured.result["layout"]["nodes"]),
            "images_per_second": measured.rate,
            "p05": measured.spread[0],
            "p95": measured.spread[1],
            "speedup": measured.rate / base.rate if base else None,
            "efficiency": results.efficiency_of(measured),
            "seconds": dict(measured.parts),
            "metrics": measured.metrics,
            "job_id": measured.result["job"]["id"],
            "release": measured.result["release"],
            "result": str(measured.cell.results / "result.json"),
        }


def as_text(results: Results) -> str:
    """Return the report as text: the rules with their evidence, then the missing results."""
    lines = [
        f"[{ANSWERS[one.ok]:>11}] {one.says}\n              {one.evidence}"
        for one in results.protocol.verdicts
    ]
    missing = [f"  {one.cell.name}: {one.reason}" for one in results.missing]
    head = ["cells without a measurement:"] if missing else []
    busy = [f"note: {results.busy}"] if results.busy else []
    return "\n".join([*lines, f"accepted: {results.answer}", *busy, *head, *missing])


def _caption(results: Results) -> str:
    plan = results.plan
    cores = f", all ranks on {results.cores} cores" if results.shared else ""
    return (
        f"{plan.study.name}, scale {plan.name}, site {plan.site.name}{cores}. Filled markers are "
        "measured: the median step, bars the 5th to 95th percentile of the steps. Hollow markers "
        "are predicted from the run of one rank, on shared cores of two; bars: eight times in "
        "ten. Grey ones are published by others."
    )


def _markdown(results: Results, tables: Mapping[str, Sequence[Row]]) -> Iterator[str]:
    plan, study, data = results.plan, results.plan.study, as_data(results)
    yield f"# {study.title}"
    yield (
        f"Study `{study.name}` at scale `{plan.name}` on the site `{plan.site.name}`, "
        f"{time.strftime('%Y-%m-%d')}. Accepted: **{results.answer}**."
    )
    yield f"**Question:** {study.question}"
    yield f"**Original study:** {study.origin}"
    yield f"**Original result:** {study.found}"
    yield f"**What this scale can show:** {plan.scale.shows}"
    if results.busy:
        yield f"**Note:** {results.busy}"
    yield from _section("Missing results", data["missing"])
    yield f"![{study.title}](figure.svg)"
    yield from _section("Acceptance", [_without(row, "ok", "rule") for row in data["acceptance"]])
    for title, rows in tables.items():
        yield from _section(title, rows)
    for key in ("measured", "predicted", "published"):
        yield from _section(key.capitalize(), data[key])
    yield from (f"Not predicted: {gap}" for gap in results.not_predicted)
    releases = sorted({str(row["release"]) for row in data["measured"]})
    yield f"Release: {', '.join(releases)}. Written by hpcdl {__version__}."


def _section(title: str, rows: Sequence[Row]) -> Iterator[str]:
    """A table under its title: the keys of its rows, without those that are empty in all."""
    texts = [{key: _text(value) for key, value in row.items()} for row in rows]
    keys = dict.fromkeys(key for row in texts for key, text in row.items() if text)
    head = [key for key in keys if key not in _JSON_ONLY]
    lines = [[markdown_cell(key.replace("_", " ")) for key in head], ["---"] * len(head)]
    lines += [[markdown_cell(row.get(key, "")) for key in head] for row in texts]
    if rows:
        yield f"## {title}"
        yield "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _text(value: Any) -> str:
    """A plain value as text."""
    if isinstance(value, Mapping):
        return " ".join(f"{key}={_text(part)}" for key, part in value.items())
    if isinstance(value, (list, tuple)):
        return ", ".join(map(_text, value))
    return "" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)
