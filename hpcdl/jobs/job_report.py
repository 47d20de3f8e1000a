"""After a job: throughput, where each step's time went, and one line of advice. Pure.

The shares come from result.json (`summary.phases`); a job whose program wrote none is
reported by its state. What it had and used of the nodes, sacct has.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from hpcdl.jobs.watch import Snapshot
from hpcdl.results.records import at
from hpcdl.system.text import duration, one_line, table

_NAMES = {
    "input": "waiting for input",
    "compute": "computing",
    "communication": "communicating, not hidden",
    "update": "updating weights",
    "checkpoint": "writing checkpoints",
    "other": "everything else",
}
_ADVICE = {
    "input": "input-bound: {share} of each step waits for data; ask for more --cpus-per-task, for "
    "fewer GPUs of each node, or for stage_data",
    "communication": "communication-bound: {share} of each step waits for gradients; use larger "
    "batches per GPU, fp16 compression, or fewer nodes",
    "checkpoint": "{share} of the time is spent on checkpoints; write them less often",
    "other": "{share} of each step is spent outside the model; look at the profile (--profile)",
}
_WORTH_ADVICE = 0.15


@dataclass(frozen=True)
class JobReport:
    """What a job did. `shares` are parts of a step's time, 0 to 1; rates in images/s."""

    job_id: int
    description: str
    ok: bool
    restarts: int
    images_per_second: float | None
    spread: tuple[float, float] | None
    shares: Mapping[str, float]
    ranks: int | None
    seconds: float | None
    advice: str
    loss: float | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)
    warned: bool = False


def summarize(
    snapshot: Snapshot, result: Mapping[str, Any] | None, *, warned: bool = False
) -> JobReport:
    """The report of a job from its last state and its result.json.

    `warned`: its ranks got USR2 before the time limit.
    """
    summary = at(result, "summary") or {}
    phases = summary.get("phases") or {}
    shares = {one_line(name): part for name, part in phases.items() if part is not None}
    low, high = (summary.get(f"images_per_second_{part}") for part in ("p05", "p95"))
    seconds = at(result, "samples", "seconds") or ()
    return JobReport(
        job_id=snapshot.job_id,
        description=snapshot.description,
        ok=snapshot.ok,
        restarts=snapshot.restarts,
        images_per_second=summary.get("images_per_second"),
        spread=(low, high) if low is not None and high is not None else None,
        shares=shares,
        ranks=at(result, "layout", "ranks"),
        seconds=sum(seconds) if seconds and None not in seconds else None,
        advice=f"`hpcdl job log {snapshot.job_id}` shows what it wrote"
        if snapshot.ended and not snapshot.ok
        else advise(shares),
        warned=warned,
        loss=summary.get("loss"),
        metrics={one_line(name): score for name, score in (summary.get("metrics") or {}).items()},
    )


def advise(shares: Mapping[str, float]) -> str:
    """Return one line about the largest share that is not computing; '' if all shares are small."""
    losses = [(part, name) for name, part in shares.items() if name in _ADVICE]
    part, worst = max(losses, key=lambda one: one[0], default=(0.0, ""))
    return _ADVICE[worst].format(share=f"{part:.0%}") if part >= _WORTH_ADVICE else ""


def as_text(report: JobReport) -> str:
    """A report as text."""
    times = "once" if report.restarts == 1 else f"{report.restarts} times"
    again = f", requeued {times}" if report.restarts else ""
    lines = []
    if report.images_per_second is not None:
        between = f" ({report.spread[0]:,.0f} to {report.spread[1]:,.0f})" if report.spread else ""
        per_rank = f", {report.ranks} ranks" if report.ranks else ""
        lines.append(f"{report.images_per_second:,.1f} images/s{between}{per_rank}")
    if report.seconds is not None:
        lines.append(f"{duration(report.seconds)} of training")
    if report.warned:
        lines.append("the time limit was near: the ranks got USR2 (--signal-before says when)")
    scores = [f"loss {report.loss:.4g}"] if report.loss is not None else []
    scores += [f"{name} {score:.4g}" for name, score in report.metrics.items() if score is not None]
    lines += [", ".join(scores)] if scores else []
    rows = [
        (f"  {_NAMES.get(name, name)}", f"{part:6.1%}")
        for name, part in report.shares.items()
        if part >= 0.0005
    ]
    shares = [table(rows)] if report.shares else []
    advice = [f"  {report.advice}"] if report.advice else []
    head = f"job {report.job_id}: {report.description}{again}"
    return "\n".join([head, *(f"  {line}" for line in lines), *shares, *advice])
