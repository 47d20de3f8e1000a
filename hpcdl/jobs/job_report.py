"""After a job: throughput, where each step's time went, and one line of advice. Pure.

The shares come from result.json (`summary.phases`); a job whose program wrote none is
reported by its state, and by what accounting says it had and used.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import fmean
from typing import Any

from hpcdl.jobs.watch import Snapshot
from hpcdl.results.records import at
from hpcdl.slurm.parse import Usage
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
    "input": "input-bound: {share} of each step waits for data; {cpus}",
    "communication": "communication-bound: {share} of each step waits for gradients; use larger "
    "batches per GPU, fp16 compression, or fewer nodes",
    "checkpoint": "{share} of the time is spent on checkpoints; write them less often",
    "other": "{share} of each step is spent outside the model; look at the profile (--profile)",
}
_WORTH_ADVICE = 0.15
_POINTS = 40
_LEVELS = "▁▂▃▄▅▆▇█"


@dataclass(frozen=True)
class JobReport:
    """What a job did. `shares` are parts of a step's time, 0 to 1; rates in images/s.

    `curve` is the loss of the whole run, earlier starts included, as means of equal parts.
    """

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
    usage: Usage | None = None
    loss: float | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)
    curve: Sequence[float] = ()
    warned: bool = False


def summarize(
    snapshot: Snapshot,
    result: Mapping[str, Any] | None,
    asked: Mapping[str, Any],
    usage: Usage | None = None,
    node_cpus: int | None = None,
    *,
    warned: bool = False,
) -> JobReport:
    """The report of a job from its last state, its result.json, its job.json and accounting.

    Both files are as `hpcdl.results` reads them. `node_cpus` are the CPUs of a node of its
    partition, None where that is not known. `warned`: its ranks got USR2 before the time limit.
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
        else advise(shares, at(asked, "layout") or {}, node_cpus),
        usage=usage,
        warned=warned,
        loss=summary.get("loss"),
        metrics={one_line(name): score for name, score in (summary.get("metrics") or {}).items()},
        curve=_curve(at(result, "curve", "loss") or at(result, "samples", "loss") or ()),
    )


def _curve(losses: Sequence[float | None]) -> tuple[float, ...]:
    """A loss per step as at most _POINTS means of equal parts of the run."""
    known = [loss for loss in losses if loss is not None]
    count = min(_POINTS, len(known))
    bounds = [len(known) * part // count for part in range(count + 1)] if count else []
    return tuple(fmean(known[low:high]) for low, high in pairwise(bounds))


def advise(
    shares: Mapping[str, float], layout: Mapping[str, Any], node_cpus: int | None = None
) -> str:
    """Return one line about the largest share that is not computing; '' if all shares are small."""
    losses = [(part, name) for name, part in shares.items() if name in _ADVICE]
    part, worst = max(losses, key=lambda one: one[0], default=(0.0, ""))
    if part < _WORTH_ADVICE:
        return ""
    cpus = _more_cpus(layout, node_cpus) if worst == "input" else ""
    return _ADVICE[worst].format(share=f"{part:.0%}", cpus=cpus)


def _more_cpus(layout: Mapping[str, Any], node_cpus: int | None) -> str:
    """Return the advice on more CPUs per rank, as far as the nodes have more."""
    now, tasks = layout.get("cpus_per_task"), layout.get("tasks_per_node")
    if now is None:
        return "give the input pipeline more CPUs"
    most = node_cpus // tasks if node_cpus and tasks else 2 * now
    if most > now:
        return f"raise --cpus-per-task from {now} to {min(2 * now, most)}"
    return (
        "its ranks have all CPUs of their nodes: copy the data to the nodes' disks (--stage-data), "
        "or take fewer GPUs of each node"
    )


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
    lines += _learnt(report)
    lines += _used(report.usage) if report.usage else []
    rows = [
        (f"  {_NAMES.get(name, name)}", f"{part:6.1%}")
        for name, part in report.shares.items()
        if part >= 0.0005
    ]
    shares = [table(rows)] if report.shares else []
    advice = [f"  {report.advice}"] if report.advice else []
    head = f"job {report.job_id}: {report.description}{again}"
    return "\n".join([head, *(f"  {line}" for line in lines), *shares, *advice])


def _learnt(report: JobReport) -> list[str]:
    scores = [f"loss {report.loss:.4g}"] if report.loss is not None else []
    scores += [f"{name} {score:.4g}" for name, score in report.metrics.items() if score is not None]
    lines = [", ".join(scores)] if scores else []
    if len(report.curve) > 1:
        low, step = min(report.curve), (max(report.curve) - min(report.curve)) / len(_LEVELS[1:])
        drawn = "".join(_LEVELS[round((loss - low) / (step or 1.0))] for loss in report.curve)
        lines.append(f"loss {report.curve[0]:.4g} {drawn} {report.curve[-1]:.4g}")
    return lines


def _used(usage: Usage) -> list[str]:
    typed = any(name.startswith("gres/gpu:") for name in usage.allocated)
    shown = {k: text for k, text in usage.allocated.items() if not (typed and k == "gres/gpu")}
    had = ", ".join(f"{name.removeprefix('gres/')} {text}" for name, text in shown.items())
    lines = [f"had {had} for {duration(usage.elapsed_seconds)}"] if had else []
    used = []
    if usage.cpus_busy is not None:
        used.append(f"{usage.cpus_busy:.0%} of its CPUs' time")
    if usage.max_rss_mb is not None:
        used.append(f"at most {usage.max_rss_mb:,.0f} MB in one task ({usage.max_rss_node})")
    return lines + ([f"used {', '.join(used)}"] if used else [])
