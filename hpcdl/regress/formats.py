"""A run's verdicts for other programs: Markdown, JUnit XML, a Prometheus text file. Pure.

They start from the values of verdicts.json, so that a run of last night can be printed again.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from hpcdl.regress.answer import GateAnswer, beside
from hpcdl.regress.causes import causes_of
from hpcdl.regress.identity import place_of
from hpcdl.regress.verdict import number
from hpcdl.results.records import VERDICTS
from hpcdl.system.errors import BadInput
from hpcdl.system.inert import markdown_cell, prometheus_label, xml_attribute

Run = Mapping[str, Any]
_STATUS_CODES = {
    "PASS": 0,
    "FAIL": 1,
    "ERROR": 2,
    "NO-REFERENCE": 3,
    "STALE": 4,
    "INSUFFICIENT-DATA": 5,
    "SKIP": 6,
    "XFAIL": 7,
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
    """A table for a merge request or an issue."""
    lines = [
        *([f"**{answer.headline}**", ""] if answer else []),
        *_causes(answer),
        "| check | partition | verdict | measured | reference | reason |",
        "|---|---|---|---|---|---|",
    ]
    for verdict in sorted(run["verdicts"], key=_worst):
        metric = next((m for m in verdict["metrics"] if m["wanted"]), None)
        measured = f"{number(metric['value'])} {metric['unit']}" if metric else "-"
        reference = number(metric["reference"]) if metric else "-"
        word = verdict["status"] + (" (waived)" if verdict["waived"] else "")
        cells = [
            _name(verdict),
            _place(verdict) or "-",
            word,
            measured,
            reference,
            verdict["reason"],
        ]
        lines.append("| " + " | ".join(map(markdown_cell, cells)) + " |")
    return "\n".join(lines) + "\n"


def _causes(answer: GateAnswer | None) -> list[str]:
    """List the gate's findings by cause, worst first, then the accepted ones."""
    rows = (
        [
            [("" if one.closes else "not sure yet: ") + one.title, one.id]
            for one in causes_of(answer)
        ]
        if answer
        else []
    )
    rows += [[f"{one.name}: {one.accepted}", one.id] for one in answer.accepted] if answer else []
    lines = ["| " + " | ".join(map(markdown_cell, row)) + " |" for row in rows]
    return ["| finding | id |", "|---|---|", *lines, ""] if lines else []


def _worst(verdict: Mapping[str, Any]) -> tuple[bool, int]:
    """Return the sort key of a verdict: those that do not pass come first."""
    return bool(verdict["ok"]), -_STATUS_CODES[verdict["status"]]


def as_junit(run: Run, answer: GateAnswer | None = None) -> str:
    """JUnit XML: FAIL, unwaived verdicts and what closes the gate are failures, ERROR an error."""
    verdicts = [*run["verdicts"]]
    other = {finding.id for finding in beside(answer, verdicts)} if answer else set()
    for cause in causes_of(answer) if answer else ():
        if not cause.closes or not other & {finding.id for finding in cause.findings}:
            continue
        first = cause.findings[0]
        verdicts.append(
            {
                "check": first.name if len(cause.findings) == 1 else cause.title,
                "case": "",
                "partition": "gate",
                "status": first.kind,
                "ok": False,
                "reason": "; ".join(
                    f"{finding.name}: {finding.description}" for finding in cause.findings
                ),
                "seconds": 0.0,
            }
        )
    errors = sum(v["status"] == "ERROR" for v in verdicts)
    failures = sum(not v["ok"] for v in verdicts) - errors
    head = (
        f'<testsuite name="hpcdl check" tests="{len(verdicts)}" failures="{failures}" '
        f'errors="{errors}" time="{run["seconds"]:.2f}">'
    )
    cases = "\n".join(map(_junit_case, verdicts))
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{head}\n{cases}\n</testsuite>\n'


def as_prometheus(run: Run, answer: GateAnswer | None = None) -> str:
    """A file for node_exporter's textfile collector: verdicts, values, bounds, gate, findings.

    It takes no file in which a series is there twice: of repeats on the same nodes the last
    counts, with all that it measured.
    """
    lines = [
        "# HELP hpcdl_check_status 0 PASS, 1 FAIL, 2 ERROR, 3 NO-REFERENCE, 4 STALE, "
        "5 INSUFFICIENT-DATA, 6 SKIP, 7 XFAIL."
    ]
    site = str(run.get("site") or "")
    verdicts = {_labels(site, verdict): verdict for verdict in run["verdicts"]}
    lines += _gauge(
        "status",
        (
            (
                f'{labels},waived="{str(bool(verdict["waived"])).lower()}"',
                _STATUS_CODES[verdict["status"]],
            )
            for labels, verdict in verdicts.items()
        ),
    )
    for what in ("value", "reference", "low", "high"):
        lines += _gauge(
            what,
            (
                (_labels(site, verdict, metric), metric[what])
                for verdict in verdicts.values()
                for metric in verdict["metrics"]
                if metric[what] is not None
            ),
        )
    if isinstance(time := run.get("time"), (int, float)):  # the collector takes no time of a sample
        lines += [
            "# HELP hpcdl_check_timestamp_seconds End of the run, since 1970 UTC.",
            *_gauge("timestamp_seconds", [(_joined({"site": site}), time)]),
        ]
    lines += _of_gate(site, answer) if answer else []
    return "\n".join(lines) + "\n"


def _of_gate(site: str, answer: GateAnswer) -> list[str]:
    here = _joined({"site": site})
    findings = (
        (
            _joined(
                {
                    **finding.series._asdict(),
                    "site": site,
                    "node": finding.node,
                    "kind": finding.kind,
                    "closes": closes,
                }
            ),
            1,
        )
        for closes, group in (("true", answer.findings), ("false", answer.warnings))
        for finding in group
    )
    causes = (
        (_joined({"site": site, "kind": cause.kind, "cause": cause.title}), len(cause.findings))
        for cause in causes_of(answer)
        if cause.closes
    )
    return [
        "# HELP hpcdl_check_gate_open 1 where the gate is open.",
        *_gauge("gate_open", [(here, int(answer.open))]),
        *_gauge("series", [(here, answer.series)]),
        *_gauge("finding", findings),
        "# HELP hpcdl_check_cause How many findings have one cause.",
        *_gauge("cause", causes),
    ]


def _joined(labels: Mapping[str, object]) -> str:
    return ",".join(f'{name}="{prometheus_label(str(value))}"' for name, value in labels.items())


def _gauge(what: str, samples: Iterable[tuple[str, float]]) -> list[str]:
    series = dict(samples).items()
    return [f"# TYPE hpcdl_check_{what} gauge"] + [
        f"hpcdl_check_{what}{{{labels}}} {value!r}" for labels, value in series
    ]


def as_json(run: Run, answer: GateAnswer | None = None) -> str:
    """Everything, with the gate's answer."""
    more = {"gate": answer.as_data()} if answer else {}
    return json.dumps({**run, **more}, indent=2) + "\n"


def as_openmetrics(run: Run, answer: GateAnswer | None = None) -> str:
    """The same as OpenMetrics 1.0, for readers over HTTP."""
    return as_prometheus(run, answer) + "# EOF\n"


FORMATS: dict[str, Callable[..., str]] = {
    "markdown": as_markdown,
    "junit": as_junit,
    "prometheus": as_prometheus,
    "openmetrics": as_openmetrics,
    "json": as_json,
}


def _name(verdict: Mapping[str, Any]) -> str:
    return f"{verdict['check']}/{verdict['case']}" if verdict["case"] else str(verdict["check"])


def _place(verdict: Mapping[str, Any]) -> str:
    return place_of(str(verdict["partition"] or ""), str(verdict.get("environment") or ""))


def _junit_case(verdict: Mapping[str, Any]) -> str:
    head = (
        f"  <testcase classname={xml_attribute(_place(verdict) or 'run')} "
        f'name={xml_attribute(_name(verdict))} time="{verdict["seconds"]:.2f}"'
    )
    if verdict["status"] in {"SKIP", "XFAIL"}:
        return f"{head}><skipped message={xml_attribute(verdict['reason'])}/></testcase>"
    if verdict["ok"]:
        return head + "/>"
    kind = "error" if verdict["status"] == "ERROR" else "failure"
    attributes = (
        f"type={xml_attribute(verdict['status'])} message={xml_attribute(verdict['reason'])}"
    )
    return f"{head}>\n    <{kind} {attributes}/>\n  </testcase>"


def _labels(site: str, verdict: Mapping[str, Any], metric: Mapping[str, Any] | None = None) -> str:
    labels = {"site": site} | {name: verdict[name] or "" for name in ("check", "case", "partition")}
    labels["environment"] = verdict.get("environment") or ""
    labels["node"] = (verdict.get("job") or {}).get("nodes") or ""
    if metric is not None:
        labels |= {
            "metric": metric["name"],
            "unit": metric["unit"],
            "better": metric.get("better") or "",
        }
    return _joined(labels)
