"""Measures again, the same night, what is suspicious: which cases, on which nodes, for how long.

A single spike disappears among more runs, and a real drop is sure the same night. Suspicious is a
metric beyond its bound, a node slower than the others, and what the history finds doubtful. The
runs alternate between the nodes of the first one and others, so that a slow node is told from a
slow release. All runs of the night are one verdict, by their median; the budget is the site's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from statistics import median
from typing import Any, NamedTuple

from hpcdl.regress.nodes import as_run
from hpcdl.regress.verdict import MetricVerdict, Verdict, number
from hpcdl.results.faults import FaultKind, Status, describe, status_of
from hpcdl.site import Site
from hpcdl.slurm.hostlist import expand_hostlist

_SLOW = frozenset({FaultKind.BOUND, FaultKind.SLOW_NODE})


class Key(NamedTuple):
    """The key of a case of a night; `planned` is the node where each node has its own."""

    check: str
    case: str
    partition: str
    environment: str
    planned: str = ""


Doubts = Callable[[Sequence[Verdict]], set[Key]]
"""The cases of which the history says that tonight's values may be a drop."""


def key_of(verdict: Verdict) -> Key:
    """The case that a verdict is about."""
    return Key(verdict.check, verdict.case, verdict.partition, verdict.environment, verdict.planned)


def suspicious(verdicts: Sequence[Verdict], doubts: Doubts | None) -> list[Verdict]:
    """The verdicts whose cases should be measured again; errors stay, whatever a retry gives."""
    doubtful = doubts(verdicts) if doubts else set[Key]()
    return [
        one
        for one in verdicts
        if one.hashcode
        and one.status is not Status.ERROR
        and any(metric.value is not None for metric in one.metrics)
        and (key_of(one) in doubtful or (one.faults and {f.kind for f in one.faults} <= _SLOW))
    ]


def place_for(site: Site, verdict: Verdict, number_of_run: int) -> tuple[str, ...]:
    """Slurm's options that place a further run: first on the same nodes, then on others."""
    nodes = expand_hostlist(str(verdict.job.get("nodes") or ""))
    if verdict.planned or not nodes:
        return ()
    if number_of_run % 2:
        return (f"--nodelist={','.join(nodes)}",)
    has = {part.label: part.nodes for part in site.by_groups()}
    spare = has.get(verdict.partition, 0) >= 2 * len(nodes)
    return (f"--exclude={','.join(nodes)}",) if spare else ()


def joined(verdicts: Iterable[Verdict]) -> list[Verdict]:
    """One verdict per case, in the order of their first runs; each counts all runs of its case."""
    groups: dict[Key, list[Verdict]] = {}
    for verdict in verdicts:
        groups.setdefault(key_of(verdict), []).append(verdict)
    return [_joined(group) if len(group) > 1 else group[0] for group in groups.values()]


def _joined(group: Sequence[Verdict]) -> Verdict:
    first, *others = group
    if first.status is Status.ERROR:
        return first
    measured = [verdict for verdict in group if verdict.status is not Status.ERROR]
    runs = tuple(run for verdict in group for run in (verdict.runs or (as_run(verdict),)))
    metrics = tuple(_median(metric, runs) for metric in first.metrics)
    beyond = tuple(metric.fault for metric in metrics if metric.judged and not metric.holds)
    # A value beyond its bound hides what else is to be said, such as that its reference is stale.
    plain = next((verdict for verdict in measured if not _slow(verdict)), first)
    faults = beyond or tuple(fault for fault in plain.faults if fault.kind not in _SLOW)
    failed = [verdict.reason for verdict in others if verdict.status is Status.ERROR]
    reasons = [
        describe(faults),
        *_runs_text(metrics, runs),
        *(f"a further run: {why}" for why in failed),
    ]
    return replace(
        first,
        metrics=metrics,
        runs=runs,
        faults=faults,
        status=status_of(faults),
        reason="; ".join(part for part in reasons if part),
    )


def _slow(verdict: Verdict) -> bool:
    return any(one.kind in _SLOW for one in verdict.faults)


def _median(metric: MetricVerdict, runs: Sequence[Mapping[str, Any]]) -> MetricVerdict:
    values = _values(metric, runs)
    return replace(metric, value=median(values)) if values else metric


def _values(metric: MetricVerdict, runs: Sequence[Mapping[str, Any]]) -> list[float]:
    found = (run["values"].get(metric.name) for run in runs)
    return [value for value in found if value is not None]


def _runs_text(metrics: Sequence[MetricVerdict], runs: Sequence[Mapping[str, Any]]) -> list[str]:
    """The values of all runs of the first metric that is judged."""
    metric = next((one for one in metrics if one.wanted), None)
    values = [number(value) for value in _values(metric, runs)] if metric else []
    return [f"median of {len(values)} runs: {', '.join(values)}"] if len(values) > 1 else []
