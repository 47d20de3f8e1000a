"""From what ReFrame reports to one word per check. Pure.

Nothing passes by being silent: a case passes only when ReFrame says success, every metric has
a finite value and a reference with bounds, and every bound holds. All else has its own word
and a reason.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any

from hpcdl.regress.references import MIN_RUNS, OWN_DEMAND


class Status(str, Enum):
    """The words of a verdict."""

    PASS = "PASS"  # noqa: S105 - no password
    FAIL = "FAIL"
    NO_REFERENCE = "NO-REFERENCE"
    STALE = "STALE"
    INSUFFICIENT = "INSUFFICIENT-DATA"
    ERROR = "ERROR"


WHOLE_RUN = "(run)"
"""Instead of a check's name: what is wrong with a run as a whole."""
WAIVABLE = frozenset({Status.NO_REFERENCE, Status.STALE, Status.INSUFFICIENT})
"""Verdicts that a person may waive by name; FAIL and ERROR stand."""

TOO_LITTLE = "insufficient data"
"""How the fault of a run begins that measured too little."""
_ERROR_SIGNS = ("missing", "the job ended", "node lost", "time-out", "lost:", "hangs:")
_PARAMETER = re.compile(r" %\w+=([^\s~]+)")
_JOB_PREFIX = re.compile(r"^(job error|[a-z ]*error): (\[jobid=\w*\] )?")


@dataclass(frozen=True)
class MetricVerdict:
    """A measured number beside its reference; `low` and `high` are the bounds in `unit`."""

    name: str
    value: float | None
    unit: str
    reference: float | None = None
    low: float | None = None
    high: float | None = None
    source: str = ""
    proof: str = ""
    wanted: bool = True
    """Whether it is to be judged; others are shown only."""

    @property
    def ruled(self) -> bool:
        """Whether the check itself demands its value, so that no measurement may."""
        return self.source == OWN_DEMAND

    @property
    def holds(self) -> bool:
        """Whether it has a value, a bound, and lies within its bounds."""
        if not self.wanted:
            return True
        if self.value is None or not math.isfinite(self.value) or not self.judged:
            return False
        above = self.low is None or self.value >= self.low
        return above and (self.high is None or self.value <= self.high)

    @property
    def judged(self) -> bool:
        """Whether there is a bound to judge it by, or none is needed."""
        return not self.wanted or not (self.low is None and self.high is None)

    @property
    def change(self) -> float | None:
        """Difference from the reference as a fraction of it."""
        if self.value is None or not self.reference:
            return None
        return self.value / self.reference - 1

    def describe(self) -> str:
        """What is wrong with it."""
        if self.value is None:
            return f"{self.name} was not measured"
        change = self.change or 0.0
        bound = self.low if change < 0 else self.high
        side = "below" if change < 0 else "above"
        return (
            f"{self.name} {number(self.value)} {self.unit} is {abs(change):.0%} {side} its "
            f"reference {number(self.reference)}, beyond the bound {number(bound)}"
        )


@dataclass(frozen=True)
class Verdict:
    """What is to be said of one case on one partition."""

    check: str
    case: str
    partition: str
    status: Status
    reason: str = ""
    waived: bool = False
    metrics: tuple[MetricVerdict, ...] = ()
    job: Mapping[str, Any] = field(default_factory=dict)
    release: str | None = None
    driver: str | None = None
    script: str = ""
    log: str = ""
    result: str = ""
    seconds: float = 0.0

    @property
    def name(self) -> str:
        """Check and case as one word."""
        return f"{self.check}/{self.case}" if self.case else self.check

    @property
    def ok(self) -> bool:
        """Whether it passes, or somebody waived it."""
        return self.status is Status.PASS or self.waived


def judge(case: Mapping[str, Any], machine: str | None = None) -> Verdict:
    """The verdict on one test case of ReFrame's report.

    Args:
        case: the test case as the report has it.
        machine: this machine's fingerprint, to know references of another one.
    """
    evidence: Mapping[str, Any] = case.get("evidence") or {}
    metrics = _metrics(case, evidence)
    status, reason = _status(case, evidence, metrics, machine)
    return Verdict(
        check=str(evidence.get("check") or case.get("unique_name") or case.get("name")),
        case=str(evidence.get("case") or (_variant(case) if evidence else "")),
        partition=str(evidence.get("partition") or case.get("partition") or ""),
        status=status,
        reason=reason,
        metrics=metrics,
        job=evidence.get("job") or {"id": case.get("jobid")},
        release=evidence.get("release"),
        driver=evidence.get("driver"),
        script=str(evidence.get("script") or ""),
        log=str(evidence.get("log") or case.get("stagedir") or ""),
        result=str(evidence.get("result") or ""),
        seconds=float(case.get("time_total") or 0.0),
    )


def judge_tries(
    cases: Sequence[Mapping[str, Any]], machine: str | None = None, *, any_fault: bool = True
) -> Verdict:
    """The verdict on a case that ran once or several times: the last one's, with the first fault.

    Args:
        cases: the tries, in order.
        machine: as in `judge`.
        any_fault: whether whatever failed may be tried again; else rates only, and any other
            fault of the first try stands.
    """
    first, last = judge(cases[0], machine), judge(cases[-1], machine)
    if len(cases) == 1 or not (any_fault or _only_slow(cases[0], first)):
        return first
    before = f"try {len(cases)}; the first was {first.status.value}: {first.reason}"
    return replace(last, reason="; ".join(part for part in (last.reason, before) if part))


def _only_slow(case: Mapping[str, Any], verdict: Verdict) -> bool:
    """Whether all that is wrong with a case is a rate beyond its bound."""
    sound = not (case.get("evidence") or {}).get("faults")
    measured = bool(verdict.metrics) and any(not metric.holds for metric in verdict.metrics)
    return sound and measured and verdict.status is Status.FAIL


def _variant(case: Mapping[str, Any]) -> str:
    """Which variant of a check it is that never got so far as to say so itself."""
    values = _PARAMETER.findall(str(case.get("display_name") or ""))
    return "-".join(values) or "default"


def waive(verdicts: Iterable[Verdict], names: Sequence[str]) -> list[Verdict]:
    """The verdicts with those waived that a name means: `check` or `check/case`."""
    return [
        replace(verdict, waived=True)
        if verdict.status in WAIVABLE and {verdict.check, verdict.name} & set(names)
        else verdict
        for verdict in verdicts
    ]


def number(value: float | None) -> str:
    """A number for a table: four digits, thousands separated."""
    if value is None:
        return "-"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def _metrics(case: Mapping[str, Any], evidence: Mapping[str, Any]) -> tuple[MetricVerdict, ...]:
    """Our own checks' metrics with their references, else what ReFrame knows of others'."""
    if evidence:
        found = evidence.get("metrics") or {}
        return tuple(_metric(name, entry) for name, entry in found.items())
    values = case.get("perfvalues") or {}
    return tuple(_foreign_metric(key, entry) for key, entry in values.items())


def _metric(name: str, entry: Mapping[str, Any]) -> MetricVerdict:
    row = entry.get("reference")
    wanted = bool(entry.get("judged", True))
    if not row:
        value, unit = entry.get("value"), str(entry.get("unit", ""))
        return MetricVerdict(name, value, unit, wanted=wanted)
    low, high = row.get("lower"), row.get("upper")
    return MetricVerdict(
        name=name,
        value=entry.get("value"),
        unit=str(entry.get("unit", "")),
        reference=row["value"],
        low=None if low is None else row["value"] * (1 + low),
        high=None if high is None else row["value"] * (1 + high),
        source=str(row.get("source", "")),
        proof=str(row.get("proof", "")),
    )


def _foreign_metric(key: str, entry: Sequence[Any]) -> MetricVerdict:
    """A performance variable of a check in ReFrame's own way."""
    value, reference, lower, upper, unit = (*entry, *[None] * 5)[:5]
    base = float(reference or 0)
    return MetricVerdict(
        name=key.split(":")[-1],
        value=value if isinstance(value, (int, float)) else None,
        unit=str(unit or ""),
        reference=base or None,
        low=None if lower is None else base + abs(base or 1) * lower,
        high=None if upper is None else base + abs(base or 1) * upper,
        source="the check itself",
    )


def _status(
    case: Mapping[str, Any],
    evidence: Mapping[str, Any],
    metrics: tuple[MetricVerdict, ...],
    machine: str | None,
) -> tuple[Status, str]:
    faults = list(evidence.get("faults") or ())
    if faults:
        return _of_faults(faults)
    result, phase = case.get("result"), case.get("fail_phase")
    if result not in {"success", "pass"} and phase != "performance":
        return Status.ERROR, _reason(case)
    unmeasured = [m for m in metrics if m.value is None or not math.isfinite(m.value)]
    if unmeasured:
        return Status.ERROR, f"missing metric: {', '.join(m.name for m in unmeasured)}"
    unjudged = [metric.name for metric in metrics if not metric.judged]
    if unjudged:
        return Status.NO_REFERENCE, f"no reference for {', '.join(unjudged)}"
    failed = [metric for metric in metrics if not metric.holds]
    if failed:
        words = [metric.describe() for metric in failed]
        return Status.FAIL, "; ".join([*words, *_suspects(failed, evidence, machine)])
    if phase == "performance":
        return Status.FAIL, _reason(case)
    return _of_references(evidence, machine)


def _of_faults(faults: Sequence[str]) -> tuple[Status, str]:
    text = "; ".join(faults)
    if any(fault.startswith(_ERROR_SIGNS) for fault in faults):
        return Status.ERROR, text
    if all(fault.startswith(TOO_LITTLE) for fault in faults):
        return Status.INSUFFICIENT, text
    return Status.FAIL, text


def _of_references(evidence: Mapping[str, Any], machine: str | None) -> tuple[Status, str]:
    """PASS, unless what the numbers were compared with is not to be trusted."""
    stale: list[str] = []
    for name, entry in (evidence.get("metrics") or {}).items():
        row = entry.get("reference") or {}
        if row.get("proof") == "run" and 0 < int(row.get("runs") or 0) < MIN_RUNS:
            return Status.INSUFFICIENT, f"the reference of {name} rests on {row['runs']} runs"
        stale += _stale(name, row, evidence, machine)
    return (Status.STALE, "; ".join(stale)) if stale else (Status.PASS, "")


def _stale(
    name: str, row: Mapping[str, Any], evidence: Mapping[str, Any], machine: str | None
) -> list[str]:
    now = {"release": evidence.get("release"), "driver": evidence.get("driver"), "machine": machine}
    return [
        f"the reference of {name} was measured with {what} '{row[what]}', this is '{current}'"
        for what, current in now.items()
        if row.get(what) and current and row[what] != current
    ]


def _suspects(
    failed: Sequence[MetricVerdict], evidence: Mapping[str, Any], machine: str | None
) -> list[str]:
    """What has changed since the references of failed metrics were measured."""
    entries = evidence.get("metrics") or {}
    rows = [(entries.get(metric.name) or {}).get("reference") or {} for metric in failed]
    now = {"release": evidence.get("release"), "driver": evidence.get("driver"), "machine": machine}
    found = [
        f"since that was measured: {what} {row[what]} -> {current}"
        for row in rows
        for what, current in now.items()
        if row.get(what) and current and row[what] != current
    ]
    return list(dict.fromkeys(found))


def _reason(case: Mapping[str, Any]) -> str:
    """Why a case did not succeed, in ReFrame's words without its ornaments."""
    result, phase = case.get("result"), case.get("fail_phase")
    said = str(case.get("fail_reason") or "").strip()
    text = _JOB_PREFIX.sub("", " ".join(said.split()))
    if result == "skip":
        return f"skipped: {text or 'ReFrame gives no reason'}"
    if result == "abort":
        return "aborted before it ended"
    if phase in {"setup", "run", "compile", "cleanup"}:
        return f"{phase} failed: {text or 'no reason given'}"
    return text or f"ReFrame says '{result}' and gives no reason"
