"""From what ReFrame reports to one status per check. Pure.

Nothing passes by being silent: a case passes only when ReFrame says success, every metric has
a finite value and a reference with bounds, and every bound holds. All else has its own status
and a reason.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from hpcdl.regress.identity import HIGHER, better_of, place_of
from hpcdl.regress.references import MIN_RUNS, OWN_DEMAND
from hpcdl.results.faults import FaultKind, JobFault, Status, as_fault, describe, status_of
from hpcdl.slurm.execution import recorded

WHOLE_RUN = "(run)"
"""Instead of a check's name: what is wrong with a run as a whole."""
TOO_FAST = 1.5
"""Times a measured reference from which on a rate is taken for an error."""
FAR_TOO_FAST = 10.0
"""The same of a reference that nobody measured here."""
_NEUTRAL = {"skip": "SKIP", "xfail": "XFAIL"}
"""What ReFrame counts neither as a success nor as a failure, and the verdict's word for it."""
_PARAMETER = re.compile(r" %\w+=([^\s~]+)")
_JOB_PREFIX = re.compile(r"^(job error|[a-z ]*error): (\[jobid=\w*\] )?")


@dataclass(frozen=True)
class MetricVerdict:
    """A measured number beside its reference; `low` and `high` are the bounds in `unit`.

    One that is not `wanted` is shown, and not judged; `better` says which values are (`higher`,
    `lower`, '' where neither is known).
    """

    name: str
    value: float | None
    unit: str
    reference: float | None = None
    low: float | None = None
    high: float | None = None
    source: str = ""
    proof: str = ""
    wanted: bool = True
    better: str = ""

    @property
    def holds(self) -> bool:
        """Return whether it has a value, a bound, and is within its bounds."""
        if not self.wanted:
            return True
        if self.value is None or not math.isfinite(self.value) or not self.judged:
            return False
        low, high = (one if one is not None else self.value for one in (self.low, self.high))
        return low <= self.value <= high

    @property
    def judged(self) -> bool:
        """Return whether there is a bound to judge it by, or none is needed."""
        return not self.wanted or not (self.low is None and self.high is None)

    @property
    def change(self) -> float | None:
        """Difference from the reference as a fraction of it."""
        if self.value is None or not self.reference:
            return None
        return self.value / self.reference - 1

    @property
    def fault(self) -> JobFault:
        """Return the fault of a value beyond its bounds."""
        change = self.change or 0.0
        bound = self.low if change < 0 else self.high
        side = "below" if change < 0 else "above"
        text = (
            f"{self.name} {number(self.value)} {self.unit} is {abs(change):.0%} {side} its "
            f"reference {number(self.reference)}, beyond the bound {number(bound)}"
        )
        return JobFault(FaultKind.BOUND, text, self.name, wanted=bound, got=self.value)


@dataclass(frozen=True)
class Verdict:
    """The verdict on one case on one partition; its status follows from its faults.

    `planned` is the node that it was to run on, where it was for one; `hashcode` is ReFrame's name
    of the check with its parameters; `runs` are all runs of this night, where there were several:
    values by metric, job and node.
    """

    check: str
    case: str
    partition: str
    status: Status
    reason: str = ""
    faults: tuple[JobFault, ...] = ()
    waived: bool = False
    metrics: tuple[MetricVerdict, ...] = ()
    job: Mapping[str, Any] = field(default_factory=dict)
    release: str | None = None
    driver: str | None = None
    script: str = ""
    log: str = ""
    result: str = ""
    seconds: float = 0.0
    environment: str = ""
    planned: str = ""
    hashcode: str = ""
    runs: tuple[Mapping[str, Any], ...] = ()

    @property
    def name(self) -> str:
        """Check and case as one name."""
        return f"{self.check}/{self.case}" if self.case else self.check

    @property
    def place(self) -> str:
        """Partition and environment, for people; '-' where nothing got so far."""
        return place_of(self.partition, self.environment) or "-"

    @property
    def ok(self) -> bool:
        """Return whether it passes, is waived, or its check does not apply."""
        return self.status is Status.PASS or self.status.neutral or self.waived

    def as_data(self) -> dict[str, Any]:
        """As plain values, as verdicts.json has them."""
        faults = [fault.as_data() for fault in self.faults]
        return asdict(self) | {"status": self.status.value, "ok": self.ok, "faults": faults}


def judge(case: Mapping[str, Any], machine: str | None = None) -> Verdict:
    """The verdict on one test case of ReFrame's report.

    `machine` is this machine's fingerprint, to know references of another one.
    """
    evidence: Mapping[str, Any] = case.get("evidence") or {}
    shown = str(case.get("display_name") or "")
    metrics = _metrics(case, evidence)
    neutral = _NEUTRAL.get(str(case.get("result")))
    faults = () if neutral else _faults(case, evidence, metrics, machine)
    why = _JOB_PREFIX.sub("", str(case.get("neutral") or "")) or "no reason given"
    notes = [why] if neutral else []
    notes += _suspects(faults, evidence, machine)
    if "metrics" not in evidence and not (faults or neutral):
        notes += [f"no reference yet for {one.name}" for one in metrics if not one.judged]
    return Verdict(
        check=str(evidence.get("check") or case.get("name")),
        # One that never got so far as to say so itself is known by its parameters.
        case=str(evidence.get("case", "-".join(_PARAMETER.findall(shown)) or "default")),
        partition=str(evidence.get("partition") or case.get("partition") or ""),
        environment=str(evidence.get("environment") or ""),
        planned=str((evidence.get("job") or {}).get("planned") or ""),
        status=Status(neutral) if neutral else status_of(faults),
        reason="; ".join(part for part in (describe(faults), *notes) if part),
        faults=faults,
        metrics=metrics,
        job=evidence.get("job") or {"id": case.get("jobid")},
        release=evidence.get("release"),
        driver=evidence.get("driver"),
        script=str(evidence.get("script") or ""),
        log=str(evidence.get("log") or case.get("stagedir") or ""),
        result=str(evidence.get("result") or ""),
        hashcode=str(case.get("hashcode") or ""),
        seconds=float(case.get("time_total") or 0.0),
    )


def waive(verdicts: Iterable[Verdict], names: Sequence[str]) -> list[Verdict]:
    """The verdicts with those waived that a name means: `check` or `check/case`."""
    return [
        replace(one, waived=one.status.waivable and bool({one.check, one.name} & {*names}))
        for one in verdicts
    ]


def number(value: float | None) -> str:
    """A number for a table: four digits, thousands separated."""
    if value is None:
        return "-"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def bounds_text(low: float | None, high: float | None) -> str:
    """Bounds for people: `from 1,200 to 1,500`; '' where there are none."""
    found = (("from", low), ("to", high))
    return " ".join(f"{word} {number(value)}" for word, value in found if value is not None)


def _metrics(case: Mapping[str, Any], evidence: Mapping[str, Any]) -> tuple[MetricVerdict, ...]:
    if "metrics" in evidence:
        return tuple(_metric(*item) for item in (evidence["metrics"] or {}).items())
    return tuple(_foreign_metric(*item) for item in (case.get("perfvalues") or {}).items())


def _metric(name: str, entry: Mapping[str, Any]) -> MetricVerdict:
    row = entry.get("reference") or {}
    low, high, value = row.get("lower"), row.get("upper"), row.get("value")
    unit = str(entry.get("unit", ""))
    return MetricVerdict(
        name=name,
        value=entry.get("value"),
        unit=unit,
        reference=value,
        low=None if low is None else value * (1 + low),
        high=None if high is None else value * (1 + high),
        source=str(row.get("source", "")),
        proof=str(row.get("proof", "")),
        wanted=bool(row or entry.get("judged", True)),
        better=better_of(unit, low, high, str(entry.get("better") or "")),
    )


def _foreign_metric(key: str, entry: Sequence[Any]) -> MetricVerdict:
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
        better=better_of(str(unit or ""), lower, upper),
    )


def _faults(
    case: Mapping[str, Any],
    evidence: Mapping[str, Any],
    metrics: tuple[MetricVerdict, ...],
    machine: str | None,
) -> tuple[JobFault, ...]:
    """Return a case's gravest faults; what follows from them is left out."""
    faults = tuple(as_fault(entry) for entry in evidence.get("faults") or ())
    result, phase = case.get("result"), case.get("fail_phase")
    if not faults and result == "xpass":
        return (JobFault(FaultKind.CHECK, "it was expected to fail, and did not"),)
    if not faults and result not in {"success", "pass"} and phase != "performance":
        return (JobFault(FaultKind.RUN, _reason(case)),)
    return (
        faults
        or tuple(_without_number(metrics))
        or tuple(JobFault(FaultKind.WARNING, text) for text in case.get("warnings") or ())
        or tuple(_of_other_units(evidence))
        or tuple(_impossible(metrics, evidence))
        or tuple(
            JobFault(FaultKind.NO_REFERENCE, f"no reference for {one.name}", one.name)
            for one in metrics
            if not one.judged and "metrics" in evidence  # of a plain check nobody asked for one
        )
        or tuple(_too_fast(metrics, evidence, machine))
        or tuple(metric.fault for metric in metrics if metric.judged and not metric.holds)
        or ((JobFault(FaultKind.BOUND, _reason(case)),) if phase == "performance" else ())
        or tuple(_of_references(evidence, machine))
    )


def _without_number(metrics: Iterable[MetricVerdict]) -> Iterator[JobFault]:
    """Metrics that gave no number."""
    for name, value in ((one.name, one.value) for one in metrics):
        if value is None:
            yield JobFault(FaultKind.NO_METRIC, f"missing metric: {name}", name)
        elif not math.isfinite(value):
            text = f"missing metric: {name} is {value}, which is no measurement"
            yield JobFault(FaultKind.NO_METRIC, text, name)


def _of_other_units(evidence: Mapping[str, Any]) -> Iterator[JobFault]:
    """References in another unit than the metric: no number of them can be compared."""
    for name, row in _references(evidence).items():
        wanted = str(row.get("unit") or "")
        unit = str(evidence["metrics"][name].get("unit") or "")
        if wanted and wanted != unit:
            text = f"the reference of {name} is in {wanted}, and it was measured in {unit or '1'}"
            yield JobFault(FaultKind.UNIT, text, name, wanted=wanted, got=unit)


def _impossible(
    metrics: Iterable[MetricVerdict], evidence: Mapping[str, Any]
) -> Iterator[JobFault]:
    """Rates that the hardware cannot give, whatever they are compared with."""
    for metric in metrics:
        most = (evidence.get("metrics") or {}).get(metric.name, {}).get("most")
        if most and metric.value is not None and metric.value > most:
            text = (
                f"too fast to be true: {metric.name} {number(metric.value)} {metric.unit} is more "
                f"than the {number(most)} that this hardware can give at its peak"
            )
            yield JobFault(FaultKind.TOO_FAST, text, metric.name, wanted=most, got=metric.value)


def _too_fast(
    metrics: Iterable[MetricVerdict], evidence: Mapping[str, Any], machine: str | None
) -> Iterator[JobFault]:
    """Numbers that nothing but an error explains, unless the reference is of another machine."""
    rows = _references(evidence)
    for metric in metrics:
        value, reference = metric.value, metric.reference
        elsewhere = rows.get(metric.name, {}).get("machine") not in {None, machine}
        aside = metric.source == OWN_DEMAND or elsewhere
        if aside or not value or not reference or min(value, reference) < 0:
            continue
        times = value / reference if metric.better == HIGHER else reference / value
        # Where one machine emulates all nodes, rates are less regular. A bandwidth is the
        # hardware's: whoever wrote its reference had such.
        near = metric.proof == "run" or metric.unit.endswith("B/s")
        limit = (TOO_FAST if near else FAR_TOO_FAST) / (1 - recorded(machine).margin)
        if metric.better and times > limit:
            text = (
                f"too fast to be true: {metric.name} {number(value)} {metric.unit} is {times:.1f} "
                f"times as good as its reference {number(reference)}; if it is real, measure the "
                "reference anew"
            )
            wanted = reference * limit if metric.better == HIGHER else reference / limit
            yield JobFault(FaultKind.TOO_FAST, text, metric.name, wanted=wanted, got=value)


def _of_references(evidence: Mapping[str, Any], machine: str | None) -> Iterator[JobFault]:
    for name, row in _references(evidence).items():
        runs = int(row.get("runs") or 0)
        if row.get("proof") == "run" and 0 < runs < MIN_RUNS:
            text = f"the reference of {name} rests on {runs} runs"
            yield JobFault(FaultKind.FEW_RUNS, text, name, wanted=MIN_RUNS, got=runs)
        for what, current in outdated(row, evidence, machine):
            text = (
                f"the reference of {name} was measured with {what} '{row[what]}', "
                f"this is '{current}'"
            )
            yield JobFault(FaultKind.STALE_REFERENCE, text, name, wanted=row[what], got=current)


def _references(evidence: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    metrics = evidence.get("metrics") or {}
    return {name: entry.get("reference") or {} for name, entry in metrics.items()}


def outdated(
    row: Mapping[str, Any], evidence: Mapping[str, Any], machine: str | None
) -> Iterator[tuple[str, str]]:
    """Yield what differs from when a reference was measured: its name, and its present value."""
    now = {"release": evidence.get("release"), "driver": evidence.get("driver"), "machine": machine}
    for what, current in now.items():
        if row.get(what) and current and row[what] != current:
            yield what, current


def _suspects(
    faults: Sequence[JobFault], evidence: Mapping[str, Any], machine: str | None
) -> list[str]:
    """Return what has changed since the references of values beyond bounds were measured."""
    slow = {fault.metric for fault in faults if fault.kind is FaultKind.BOUND}
    rows = [row for name, row in _references(evidence).items() if name in slow]
    found = [
        f"since that was measured: {what} {row[what]} -> {current}"
        for row in rows
        for what, current in outdated(row, evidence, machine)
    ]
    return list(dict.fromkeys(found))


def _reason(case: Mapping[str, Any]) -> str:
    result, phase = case.get("result"), case.get("fail_phase")
    reason = str(case.get("fail_reason") or "").strip()
    text = _JOB_PREFIX.sub("", " ".join(reason.split()))
    if result == "abort":
        return "aborted before it ended"
    if phase in {"setup", "run", "compile", "cleanup"}:
        return f"{phase} failed: {text or 'no reason given'}"
    return text or f"ReFrame says '{result}' and gives no reason"
