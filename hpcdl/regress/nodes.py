"""The runs of one night: one slow node among many, and what is measured again. Pure.

A node is compared with the others of the same night, not with a reference: what slows all of
them is the reference's business. Slow are the few nodes, a quarter at most, that lie below the
median of the rest by more than the rest's own scatter explains: at least 4 %, and 15 % of two
nodes; 40 % is always enough. Few nodes tell little of scatter, so they need more.

What is suspicious is measured again: a single spike disappears among more runs, and a real drop is
sure. Suspicious is a metric beyond its bound, a node slower than the others, and what the history
finds doubtful. The runs alternate between the nodes of the first one and others, so that a slow
node is told from a slow release. All runs of the night are one verdict, by their median.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import date
from statistics import median
from typing import Any, NamedTuple

from hpcdl.regress.identity import LOWER, Night, better_of
from hpcdl.regress.references import WIDEST, spread_of
from hpcdl.regress.verdict import MetricVerdict, Verdict, number
from hpcdl.results.faults import FaultKind, JobFault, Status, describe, status_of
from hpcdl.site import Site
from hpcdl.slurm.execution import CLUSTER, ExecutionProfile
from hpcdl.slurm.hostlist import expand_hostlist

_SLOW = frozenset({FaultKind.BOUND, FaultKind.SLOW_NODE})
_JUDGED = frozenset(Status) - {Status.ERROR}
_LEAST, _LEAST_OF_TWO = 0.04, 0.15
_SPREADS, _FEW = 5.0, 8.0
COMPARED = 3
"""The last nights of several nodes, over which they are compared."""


def node_of(verdict: Verdict) -> str:
    """The node of a job on one node, '' for others."""
    names = expand_hostlist(str(verdict.job.get("nodes") or ""))
    return names[0] if len(names) == 1 else ""


def find_slow_nodes(verdicts: Sequence[Verdict], least: float = 0.0) -> dict[str, JobFault]:
    """The nodes that are slower than the others in runs of one case, and each node's fault.

    Verdicts of jobs on several nodes are left out. `least` is how far below the others' median
    counts at all, as a fraction.
    """
    judged = [verdict for verdict in verdicts if verdict.status in _JUDGED and node_of(verdict)]
    metrics = judged[0].metrics if judged else ()
    names = [m.name for m in metrics if m.wanted and better_of(m.unit, m.low, m.high, m.better)]
    faults: dict[str, JobFault] = {}
    for name in names:
        each = _by_node(judged, name)
        slow = slower_than_the_rest(each, least)
        rest = [value for node, values in each.items() if node not in slow for value in values]
        for node in slow:
            # One low run among good ones is a spike, not a slow node.
            if len(each[node]) > 1 and max(each[node]) >= min(rest):
                continue
            less, others = 1 - median(each[node]) / median(rest), len(each) - len(slow)
            text = (
                f"slow node: {node} is {less:.0%} slower than the others, {others} of them ({name})"
            )
            faults.setdefault(node, JobFault(FaultKind.SLOW_NODE, text, name, got=node))
    return faults


def slower_than_the_rest(
    each: Mapping[str, Sequence[float]], least: float = 0.0
) -> tuple[str, ...]:
    """Return the nodes whose values are below what the scatter of the rest explains.

    `each` has values by node, higher is better; `least` is as in `find_slow_nodes`.
    """
    ordered = sorted(each, key=lambda node: median(each[node]))
    for count in range(max(1, len(ordered) // 4), 0, -1):
        rest = [value for node in ordered[count:] for value in each[node]]
        if not rest or median(rest) <= 0:
            break
        chance = _SPREADS * (1 + _FEW / max(1, len(rest) - 1)) * spread_of(rest)
        margin = max(least, min(WIDEST, max(_least(len(ordered) - count), chance)))
        if median(each[ordered[count - 1]]) < median(rest) * (1 - margin):
            return tuple(ordered[:count])
    return ()


def slow_nodes(series: Iterable[Night], least: float = 0.0) -> tuple[str, ...]:
    """The nodes that are slower than the rest over the last nights, and on each of them.

    The last 3 nights on which several were measured count. `least` is as in `find_slow_nodes`.
    """
    runs: dict[date, dict[str, list[float]]] = {}
    for run in series:
        if run.node:
            runs.setdefault(run.date, {}).setdefault(run.node, []).append(run.value)
    nights = [{node: median(values) for node, values in runs[day].items()} for day in sorted(runs)]
    recent = [night for night in nights if len(night) > 1 and median(night.values()) > 0]
    each: dict[str, list[float]] = {}
    for night in recent[-COMPARED:]:
        middle = median(night.values())
        for node, value in night.items():
            each.setdefault(node, []).append(value / middle)
    slow = slower_than_the_rest(each, least)
    return tuple(n for n in slow if all(_trails(night, slow, n) for night in recent[-COMPARED:]))


def _trails(night: Mapping[str, float], slow: Sequence[str], node: str) -> bool:
    """Whether a node that is slow on the whole was so on this night, where it was measured."""
    rest = [value for name, value in night.items() if name not in slow]
    if node not in night or not rest:
        return True
    return night[node] < median(rest) * (1 - _least(len(rest)) / 2)


def _least(nodes: int) -> float:
    """Return the least difference that counts among so many nodes: more for two than for many."""
    return max(_LEAST, _LEAST_OF_TWO / nodes)


def as_run(verdict: Verdict) -> Mapping[str, Any]:
    """A run of a case, as verdicts.json lists it."""
    values = {metric.name: metric.value for metric in verdict.metrics}
    values = values if verdict.status in _JUDGED else {}
    return {"values": values, "job": dict(verdict.job), "node": node_of(verdict)}


def _by_node(verdicts: Sequence[Verdict], name: str) -> dict[str, list[float]]:
    """The values of all runs by node, higher is better: a time is compared as its rate."""
    by_node: dict[str, list[float]] = {}
    for verdict in verdicts:
        lower = any(one.name == name and one.better == LOWER for one in verdict.metrics)
        for run in verdict.runs or (as_run(verdict),):
            value = run["values"].get(name)
            if value is not None and run["node"]:
                rate = 1 / value if lower and value else value
                by_node.setdefault(run["node"], []).append(rate)
    return by_node


def name_slow_nodes(
    verdicts: Sequence[Verdict], execution: ExecutionProfile = CLUSTER
) -> list[Verdict]:
    """The verdicts, with those of slow nodes failed and the node named.

    A verdict that passed, or that only lacked a fresh reference, becomes a failure; a failure
    says which node it is about. A node must be slower by more than the profile's margin.
    """
    groups: dict[Key, list[Verdict]] = {}
    for verdict in verdicts:
        groups.setdefault(key_of(verdict)._replace(planned=""), []).append(verdict)
    slow = {
        key._replace(planned=node): fault
        for key, group in groups.items()
        for node, fault in find_slow_nodes(group, execution.margin).items()
    }
    return [_named(one, slow.get(key_of(one)._replace(planned=node_of(one)))) for one in verdicts]


def _named(verdict: Verdict, slow: JobFault | None) -> Verdict:
    if slow is None or verdict.status not in _JUDGED:
        return verdict
    reason = "; ".join(part for part in (slow.text, verdict.reason) if part)
    return replace(verdict, status=Status.FAIL, reason=reason, faults=(slow, *verdict.faults))


# ---- what is measured again ----


class Key(NamedTuple):
    """The key of a case of a night; `planned` is the node where each node has its own."""

    check: str
    case: str
    partition: str
    environment: str
    planned: str = ""


def key_of(verdict: Verdict) -> Key:
    """The case that a verdict is about."""
    return Key(verdict.check, verdict.case, verdict.partition, verdict.environment, verdict.planned)


def suspicious(verdicts: Sequence[Verdict], doubtful: Container[Key]) -> list[Verdict]:
    """The verdicts whose cases should be measured again; errors stay, whatever a retry gives."""
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
