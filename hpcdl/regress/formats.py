"""A run's verdicts for other programs: Markdown, JUnit XML, a Prometheus text file. Pure.

They start from the values of verdicts.json, so that a run of last night can be printed again.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from hpcdl.regress.answer import GateAnswer, beside, causes_of
from hpcdl.regress.identity import place_of
from hpcdl.regress.verdict import number
from hpcdl.results.records import VERDICTS
from hpcdl.system.errors import BadInput
from hpcdl.system.text import markdown_cell, prometheus_label, xml_attribute

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
        lines += [*_table(["finding"], ([row] for row in rows)), ""] if rows else []
    cells = []
    for verdict in sorted(run["verdicts"], key=_worst):
        metric = next((m for m in verdict["metrics"] if m["wanted"]), None)
        measured = f"{number(metric['value'])} {metric['unit']}" if metric else "-"
        reference = number(metric["reference"]) if metric else "-"
        word = verdict["status"] + (" (waived)" if verdict["waived"] else "")
        where = _place(verdict) or "-"
        cells.append((_name(verdict), where, word, measured, reference, verdict["reason"]))
    header = ("check", "partition", "verdict", "measured", "reference", "reason")
    return "\n".join([*lines, *_table(header, cells)]) + "\n"


def _table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    lines = [[*header], ["---"] * len(header), *([*map(markdown_cell, row)] for row in rows)]
    return [f"| {' | '.join(line)} |" for line in lines]


def _worst(verdict: Mapping[str, Any]) -> tuple[bool, int]:
    """Return the sort key of a verdict: those that do not pass come first."""
    return bool(verdict["ok"]), -_STATUS_CODES[verdict["status"]]


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
        f"  <testcase classname={xml_attribute(_place(verdict) or 'run')} "
        f'name={xml_attribute(_name(verdict))} time="{verdict["seconds"]:.2f}"'
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


def _name(verdict: Mapping[str, Any]) -> str:
    return f"{verdict['check']}/{verdict['case']}" if verdict["case"] else str(verdict["check"])


def _place(verdict: Mapping[str, Any]) -> str:
    return place_of(str(verdict["partition"] or ""), str(verdict.get("environment") or ""))


def _labels(verdict: Mapping[str, Any]) -> dict[str, str]:
    labels = {name: verdict.get(name) or "" for name in ("check", "case", "partition")}
    labels["environment"] = verdict.get("environment") or ""
    return {**labels, "node": (verdict.get("job") or {}).get("nodes") or ""}
