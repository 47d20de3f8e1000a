"""A run's verdicts for other programs: Markdown, JUnit XML, a Prometheus text file. Pure.

They start from the values of verdicts.json, so that a run of last night can be told again.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any
from xml.sax.saxutils import quoteattr

from hpcdl.regress.verdict import number
from hpcdl.system.errors import BadInput

Run = Mapping[str, Any]
_CONTROL = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_STATUS_CODES = {"PASS": 0, "FAIL": 1, "ERROR": 2, "NO-REFERENCE": 3, "STALE": 4,
                 "INSUFFICIENT-DATA": 5}  # fmt: skip

_Keys = Mapping[str, tuple[type, ...]]
_FLAG, _TEXT, _NUMBER, _NONE = (bool,), (str,), (int, float), type(None)
_MAYBE_TEXT, _MAYBE_NUMBER = (*_TEXT, _NONE), (*_NUMBER, _NONE)
_RUN: _Keys = {"verdicts": (list,)}
_RUN_MAY: _Keys = {"run": _MAYBE_TEXT, "seconds": _NUMBER}
_VERDICT: _Keys = {"check": _TEXT, "case": _TEXT, "status": _TEXT, "reason": _TEXT,
                   "partition": _MAYBE_TEXT, "ok": _FLAG, "waived": _FLAG, "seconds": _NUMBER,
                   "metrics": (list,)}  # fmt: skip
_VERDICT_MAY: _Keys = {"job": (dict, _NONE), "release": _MAYBE_TEXT, "driver": _MAYBE_TEXT,
                       "script": _MAYBE_TEXT, "log": _MAYBE_TEXT}  # fmt: skip
_JOB_MAY: _Keys = {"nodes": _MAYBE_TEXT, "queue_wait_seconds": _MAYBE_NUMBER,
                   "run_seconds": _MAYBE_NUMBER}  # fmt: skip
_METRIC: _Keys = {"name": _TEXT, "unit": _TEXT, "wanted": _FLAG, "value": _MAYBE_NUMBER,
                  "reference": _MAYBE_NUMBER, "low": _MAYBE_NUMBER,
                  "high": _MAYBE_NUMBER}  # fmt: skip
_METRIC_MAY: _Keys = {"source": _MAYBE_TEXT}


def read_run(path: Path) -> Run:
    """A run's verdicts, from its folder or its verdicts.json.

    What it gives can be told in every format: the types are those that a run writes, and every
    text can be written as UTF-8.

    Raises:
        BadInput: there are none, or one of them is not as this version writes them.
    """
    file = path / "verdicts.json" if path.is_dir() else path
    try:
        value = json.loads(file.read_text(encoding="utf-8"))
        # A reason may hold half a character as an escape, which no file and no terminal takes.
        value = json.loads(json.dumps(value, ensure_ascii=False).encode("utf-8", "replace"))
    except (OSError, ValueError, RecursionError):
        value = None
    if not isinstance(value, dict) or _fault(value, _RUN, {}):
        raise BadInput(
            f"there are no verdicts in {path}",
            hint="name a run's folder below WORK/checks/runs; one that was stopped has none",
        )
    fault = _fault_of_run(value)
    if fault:
        raise BadInput(
            f"the verdicts in {path} cannot be read: {fault}",
            hint="an hpcdl of another version, or another program, wrote or changed them",
        )
    return {"seconds": 0.0, **value}


def as_markdown(run: Run) -> str:
    """A table for a merge request or an issue."""
    lines = ["| check | partition | verdict | measured | reference | reason |",
             "|---|---|---|---|---|---|"]  # fmt: skip
    for verdict in run["verdicts"]:
        metric = next((m for m in verdict["metrics"] if m["wanted"]), None)
        measured = f"{number(metric['value'])} {metric['unit']}" if metric else "-"
        reference = number(metric["reference"]) if metric else "-"
        word = verdict["status"] + (" (waived)" if verdict["waived"] else "")
        cells = [_name(verdict), verdict["partition"] or "-", word, measured, reference,
                 verdict["reason"]]  # fmt: skip
        lines.append("| " + " | ".join(map(_cell, cells)) + " |")
    return "\n".join(lines) + "\n"


def as_junit(run: Run) -> str:
    """JUnit XML: FAIL and unwaived verdicts are failures, ERROR is an error."""
    verdicts = run["verdicts"]
    errors = sum(v["status"] == "ERROR" for v in verdicts)
    failures = sum(not v["ok"] for v in verdicts) - errors
    head = (
        f'<testsuite name="hpcdl check" tests="{len(verdicts)}" failures="{failures}" '
        f'errors="{errors}" time="{run["seconds"]:.2f}">'
    )
    cases = "\n".join(map(_junit_case, verdicts))
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{head}\n{cases}\n</testsuite>\n'


def as_prometheus(run: Run) -> str:
    """A file for node_exporter's textfile collector: status, value and bounds of every metric.

    It takes no file in which a series is there twice: of repeats on the same nodes the last
    counts, with all that it measured.
    """
    lines = ["# HELP hpcdl_check_status 0 PASS, 1 FAIL, 2 ERROR, 3 NO-REFERENCE, 4 STALE, "
             "5 INSUFFICIENT-DATA."]  # fmt: skip
    verdicts = {_labels(verdict): verdict for verdict in run["verdicts"]}
    codes = ((labels, _STATUS_CODES[one["status"]]) for labels, one in verdicts.items())
    lines += _gauge("status", codes)
    for what in ("value", "reference", "low", "high"):
        lines += _gauge(what, (
            (_labels(verdict, metric), metric[what])
            for verdict in verdicts.values()
            for metric in verdict["metrics"]
            if metric[what] is not None
        ))  # fmt: skip
    return "\n".join(lines) + "\n"


def _gauge(what: str, samples: Iterable[tuple[str, float]]) -> list[str]:
    """The lines of one metric of Prometheus, from labels and values."""
    series = dict(samples).items()
    return [f"# TYPE hpcdl_check_{what} gauge"] + [
        f"hpcdl_check_{what}{{{labels}}} {value!r}" for labels, value in series
    ]


FORMATS: dict[str, Callable[[Run], str]] = {
    "markdown": as_markdown,
    "junit": as_junit,
    "prometheus": as_prometheus,
    "json": lambda run: json.dumps(run, indent=2) + "\n",
}


def _fault_of_run(run: Run) -> str:
    """The first thing that keeps a run from being told, '' where there is none."""
    found = [("the file", _fault(run, {}, _RUN_MAY))]
    found += [(f"verdict {n}", _fault_of_verdict(one)) for n, one in enumerate(run["verdicts"], 1)]
    return next((f"{what} {fault}" for what, fault in found if fault), "")


def _fault_of_verdict(verdict: object) -> str:
    fault = _fault(verdict, _VERDICT, _VERDICT_MAY)
    if fault or not isinstance(verdict, dict):
        return fault
    if verdict["status"] not in _STATUS_CODES:
        return f"has the status {verdict['status'][:40]!r}, which this hpcdl does not know"
    fault = _fault(verdict.get("job") or {}, {}, _JOB_MAY)
    if fault:
        return f"has a job that {fault}"
    # A value may be NaN and a bound infinite: a check that went wrong, a bound that is open.
    faults = (_fault(m, _METRIC, _METRIC_MAY, finite=False) for m in verdict["metrics"])
    return next((f"has a metric that {fault}" for fault in faults if fault), "")


def _fault(value: object, must: _Keys, may: _Keys, *, finite: bool = True) -> str:
    """What is wrong with a mapping: its keys and the types of their values; '' for nothing."""
    if not isinstance(value, dict):
        return "is no mapping"
    for name, kinds in {**must, **may}.items():
        if name not in value and name in must:
            return f"lacks '{name}'"
        # The very type: true and false are whole numbers to isinstance.
        if name in value and type(value[name]) not in kinds:
            return f"has a '{name}' of the wrong type"
        if type(value.get(name)) in _NUMBER and not _fits(value[name], finite):
            return f"has a '{name}' that nobody can count with"
    return ""


def _fits(number: float, finite: bool) -> bool:
    """Whether a number can be counted with; a whole one may be longer than any float."""
    if isinstance(number, int):
        return abs(number) < 2**63
    return math.isfinite(number) or not finite


def _name(verdict: Mapping[str, Any]) -> str:
    return f"{verdict['check']}/{verdict['case']}" if verdict["case"] else str(verdict["check"])


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;")


def _junit_case(verdict: Mapping[str, Any]) -> str:
    head = (
        f"  <testcase classname={_attribute(verdict['partition'] or 'run')} "
        f'name={_attribute(_name(verdict))} time="{verdict["seconds"]:.2f}"'
    )
    if verdict["ok"]:
        return head + "/>"
    kind = "error" if verdict["status"] == "ERROR" else "failure"
    message = _attribute(verdict["reason"])
    return f"{head}>\n    <{kind} type={_attribute(verdict['status'])} message={message}/>\n  </testcase>"  # noqa: E501


def _attribute(text: str) -> str:
    return quoteattr(_CONTROL.sub("?", text))


def _labels(verdict: Mapping[str, Any], metric: Mapping[str, Any] | None = None) -> str:
    labels = {name: verdict[name] or "" for name in ("check", "case", "partition")}
    labels["node"] = (verdict.get("job") or {}).get("nodes") or ""
    if metric is not None:
        labels |= {"metric": metric["name"], "unit": metric["unit"]}
    return ",".join(f'{name}="{_escaped(str(value))}"' for name, value in labels.items())


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
