"""A study's report: one value, written as Markdown, as a page that needs nothing else, as JSON.

The page carries its figure inside (SVG); the Markdown file names figure.png beside it. Missing
results and rules that cannot be evaluated come first.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hpcdl import __version__
from hpcdl.system.files import write_atomic, write_json
from hpcdl.system.inert import inert_text
from hpcdl.system.resources import templates
from hpcdl.workflows.study.collect import CellMeasured, Findings, alone, efficiency, shown
from hpcdl.workflows.study.forecast import Predicted, predict
from hpcdl.workflows.study.judge import RuleVerdict, judge
from hpcdl.workflows.study.model import Table as StudyTable
from hpcdl.workflows.study.model import Values, matches
from hpcdl.workflows.study.panels import caption, draw

_YES = {True: "yes", False: "no", None: "not decided"}
_UNFINISHED = "unfinished"
_PENDING = frozenset({"queued", "running", "missing"})
# Rules that do not depend on how fast jobs ran.
_UNTIMED = frozenset({"complete", "one-rank-per-gpu"})


@dataclass(frozen=True)
class Report:
    """All that a report says."""

    findings: Findings
    predicted: tuple[Predicted, ...]
    gaps: tuple[str, ...]
    verdicts: tuple[RuleVerdict, ...]

    @property
    def accepted(self) -> bool | None:
        """Whether every rule holds; None where jobs have not ended, or a rule is not decided."""
        if any(one.ok is False for one in self.verdicts):
            return False
        return None if any(one.ok is None for one in self.verdicts) else True

    @property
    def answer(self) -> str:
        """`yes`, `no`, `unfinished` while jobs have not ended, or `not decided`."""
        return _UNFINISHED if unfinished(self.findings) else _YES[self.accepted]


def unfinished(findings: Findings) -> bool:
    """Return whether cells have not run yet; those that failed have."""
    return any(one.state in _PENDING for one in findings.missing)


def make_report(findings: Findings) -> Report:
    """Predict, and check the rules.

    No rule fails before all jobs have ended; none that compares times fails on a busy machine.
    """
    predicted, gaps = predict(findings)
    verdicts, busy = judge(findings, predicted), bool(_busy(findings))
    why = "; jobs have not ended" if unfinished(findings) else "; the machine was busy"
    return Report(
        findings,
        predicted,
        gaps,
        tuple(
            replace(one, ok=None, evidence=one.evidence + why)
            if one.ok is False
            and (unfinished(findings) or (busy and one.rule.rule not in _UNTIMED))
            else one
            for one in verdicts
        ),
    )


def write_report(report: Report, target: Path) -> dict[str, Path]:
    """Write report.md, report.html, report.json, figure.svg and figure.png; gives their paths."""
    figure = draw(report.findings, report.predicted)
    paths = {suffix: target / f"figure.{suffix}" for suffix in figure}
    for suffix, data in figure.items():
        write_atomic(paths[suffix], data)
    svg = figure["svg"].decode()
    values = {**_values(report), "svg": svg[svg.index("<svg") :]}  # without its XML head
    for suffix in ("md", "html"):
        paths[suffix] = target / f"report.{suffix}"
        environment = templates(
            "study",
            autoescape=suffix == "html",
            trim_blocks=True,
            lstrip_blocks=True,
            finalize=inert_text,
        )
        environment.filters["cell"] = lambda text: " ".join(text.split()).replace("|", "\\|")
        text = environment.get_template(f"report.{suffix}.j2").render(values)
        write_atomic(paths[suffix], text)
    paths["json"] = target / "report.json"
    write_json(paths["json"], as_data(report))
    return paths


def as_data(report: Report) -> dict[str, Any]:
    """The report as plain values."""
    plan = report.findings.plan
    return {
        "schema": 2,
        "study": plan.study.name,
        "scale": plan.scale.name,
        "site": plan.site.name,
        "accepted": report.accepted,
        "answer": report.answer,
        "machine": {"cores": report.findings.cores, "load": report.findings.load},
        "acceptance": [
            {
                "rule": verdict.rule.rule,
                "says": verdict.rule.says,
                "ok": verdict.ok,
                "evidence": verdict.evidence,
            }
            for verdict in report.verdicts
        ],
        "measured": [_cell_data(report.findings, result) for result in report.findings.measured],
        "predicted": [*map(_prediction_data, report.predicted)],
        "missing": [
            {
                "run": gap.cell.run.name,
                "values": dict(gap.cell.values),
                "state": gap.state,
                "reason": gap.reason,
            }
            for gap in report.findings.missing
        ],
        "not_predicted": list(report.gaps),
        "tables": [
            {"title": table.title, "head": head, "rows": rows}
            for table in plan.study.tables
            for head, rows in [_side_by_side(report.findings, table)]
        ],
        "original": [*map(vars, plan.study.original)],
        "published": [
            {
                "label": series.label,
                "source": series.source,
                "points": [vars(p) for p in series.points],
            }
            for series in plan.study.published
        ],
    }


def as_text(report: Report) -> str:
    """Return the report as text: the rules with their evidence, then the missing results."""
    lines = [
        f"[{_YES[v.ok]:>11}] {v.rule.says}\n              {v.evidence}" for v in report.verdicts
    ]
    missing = [f"  {one.cell.label}: {one.reason}" for one in report.findings.missing]
    head = ["cells without a measurement:"] if missing else []
    lines.append(f"accepted: {report.answer}")
    return "\n".join([*lines, *filter(None, [_busy(report.findings)]), *head, *missing])


def _prediction_data(prediction: Predicted) -> dict[str, Any]:
    return {
        "run": prediction.run.name,
        "values": dict(prediction.values),
        "gpus": prediction.gpus,
        "images_per_second": round(prediction.rate, 3),
        "low": _rounded(prediction.low),
        "high": _rounded(prediction.high),
        "measured": prediction.measured,
        "relative_error": prediction.error,
        "from_itself": prediction.from_itself,
    }


def _cell_data(findings: Findings, one: CellMeasured) -> dict[str, Any]:
    base = alone(findings.measured, one)
    return {
        "run": one.cell.run.name,
        "values": dict(one.cell.values),
        "ranks": one.ranks,
        "jobs": one.jobs,
        "nodes": len(one.result["layout"]["nodes"]),
        "steps": len(one.rates),
        "images_per_second": round(one.rate, 3),
        "p05": round(one.spread[0], 3),
        "p95": round(one.spread[1], 3),
        "speedup": round(one.rate / base.rate, 4) if base else None,
        "efficiency": _rounded(efficiency(findings, one)),
        "seconds": {name: round(seconds, 6) for name, seconds in one.parts.items()},
        "data_bytes": one.size,
        "epoch_seconds": one.epoch_seconds,
        "metrics": one.metrics,
        "job_id": one.result["job"]["id"],
        "release": one.result["release"],
        "result": str(one.folder / "result.json"),
    }


def _values(report: Report) -> dict[str, Any]:
    plan = report.findings.plan
    return {
        "study": plan.study,
        "scale": plan.scale,
        "site": plan.site.name,
        "accepted": report.answer,
        "verdicts": [
            (_YES[verdict.ok], verdict.rule.says, verdict.evidence) for verdict in report.verdicts
        ],
        "measured": _measured_table(report),
        "tables": [
            (table.title, *_side_by_side(report.findings, table)) for table in plan.study.tables
        ],
        "original": [
            (item.item, "; ".join(item.by) or "not repeated", item.note)
            for item in plan.study.original
        ],
        "predicted": _predicted_table(report.predicted),
        "taught": any(prediction.from_itself for prediction in report.predicted),
        "published": (
            ("what", "GPUs", "images/s", "speed-up", "source"),
            [
                (
                    group.label,
                    str(point.gpus),
                    _number(point.images_per_second, "g"),
                    _number(point.speedup, "g"),
                    group.source,
                )
                for group in plan.study.published
                for point in group.points
            ],
        ),
        "missing": [(gap.cell.label, gap.state, gap.reason) for gap in report.findings.missing],
        "gaps": report.gaps,
        "caption": caption(report.findings),
        "busy": _busy(report.findings),
        "releases": sorted({str(result.result["release"]) for result in report.findings.measured}),
        "date": time.strftime("%Y-%m-%d"),
        "version": __version__,
    }


def _busy(findings: Findings) -> str:
    """A warning where other programs worked on the machine that all ranks share; else nothing."""
    if not findings.shared or findings.load < findings.cores / 2:
        return ""
    return (
        f"The machine was busy when this was queued: a load of {findings.load:.0f} on "
        f"{findings.cores} cores. Times depend on the other work as much as on the study."
    )


Table = tuple[Sequence[str], Sequence[Sequence[str]]]


def _measured_table(report: Report) -> Table:
    kept = "of the cores" if report.findings.shared else "efficiency"
    head = (
        "cell",
        "jobs",
        "ranks",
        "nodes",
        "images/s",
        "5 to 95 %",
        "speed-up",
        kept,
        "waiting for input",
        "not hidden",
        "seconds/epoch",
        "scores",
    )
    rows = []
    for result in report.findings.measured:
        base = alone(report.findings.measured, result)
        part = efficiency(report.findings, result)
        scores = (name for name in ("accuracy", "auroc") if name in result.metrics)
        rows.append(
            (
                f"{result.cell.run.name}: {result.cell.label}",
                str(result.jobs) if result.jobs > 1 else "",
                str(result.ranks),
                str(len(result.result["layout"]["nodes"])),
                f"{result.rate:.4g}",
                f"{result.spread[0]:.4g} to {result.spread[1]:.4g}",
                f"{result.rate / base.rate:.2f}" if base else "",
                "" if part is None else f"{part:.0%}",
                f"{result.shares['input']:.1%}",
                f"{result.shares['communication']:.1%}",
                f"{result.epoch_seconds:.3g}" if result.epoch_seconds else "",
                ", ".join(f"{name} {result.metrics[name]:.3f}" for name in scores),
            )
        )
    return _without_empty(head, rows)


def _side_by_side(findings: Findings, asked: StudyTable) -> Table:
    """A column for each value of a key, also for one that has no result: its cells say `-`."""
    rows: dict[tuple[str, ...], dict[str, str]] = {}
    for cell in findings.plan.cells:
        if matches(cell.named, asked.where) and asked.columns in cell.values:
            row = rows.setdefault(_row_of(findings, cell.values, asked), {})
            row[cell.values[asked.columns]] = "-"
    for result in findings.measured:
        with_result = rows.get(_row_of(findings, result.cell.values, asked))
        if with_result and matches(result.values, asked.where):
            value = _value_of(result, asked.value)
            with_result[result.values[asked.columns]] = "-" if value is None else f"{value:.4g}"
    columns = list(dict.fromkeys(name for row in rows.values() for name in row))
    return ("", *columns), [
        (", ".join(row), *(values.get(name, "") for name in columns))
        for row, values in rows.items()
    ]


def _row_of(findings: Findings, values: Values, asked: StudyTable) -> tuple[str, ...]:
    """Return the name of a row: `resnet50`, `gpus 2`."""
    return tuple(
        shown(findings, key, value) if key == "model" else f"{key} {value}"
        for key, value in values.items()
        if key != asked.columns and key not in asked.where
    )


def _value_of(one: CellMeasured, name: str) -> float | None:
    """A measurement's value for a table; None if its job has none."""
    if name == "accuracy":
        return one.metrics.get(name)
    if name == "staleness":
        return float(one.result.get("asynchronous", {}).get("mean_staleness", 0.0))
    milliseconds = {key: 1e3 * seconds for key, seconds in one.parts.items()}
    return {**milliseconds, "rate": one.rate, "step": 1e3 * one.step_seconds}[name]


def _predicted_table(predicted: Sequence[Predicted]) -> Table:
    head = ("cell", "predicted images/s", "likely", "measured", "error")
    rows = []
    for prediction in predicted:
        named = (f"{key}={value}" for key, value in prediction.values.items() if key != "run")
        error = "" if prediction.error is None else f"{prediction.error:+.1%}"
        rows.append(
            (
                f"{prediction.run.name}: {' '.join(named)}",
                f"{prediction.rate:.4g}",
                "" if prediction.low is None else f"{prediction.low:.4g} to {prediction.high:.4g}",
                _number(prediction.measured),
                "starts from it" if prediction.from_itself else error,
            )
        )
    return _without_empty(head, rows)


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 3)


def _number(value: float | None, form: str = ".4g") -> str:
    return "" if value is None else format(value, form)


def _without_empty(head: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    kept = [i for i in range(len(head)) if any(row[i] for row in rows)]
    return tuple(head[i] for i in kept), [tuple(row[i] for i in kept) for row in rows]
