"""One slow node among many: found from runs of the same check on several nodes, named. Pure.

A node is compared with the others of the same night, not with a reference: what slows all of
them is the reference's business. Slow are the few nodes, a quarter at most, that lie below the
median of the rest by more than the rest's own scatter explains: at least 4 %, and 15 % of two
nodes; 40 % is always enough. Few nodes tell little of scatter, so they need more.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import date
from statistics import median
from typing import Any

from hpcdl.regress.identity import LOWER, Night, better_of
from hpcdl.regress.references import WIDEST, spread_of
from hpcdl.regress.verdict import Verdict
from hpcdl.results.faults import FaultKind, JobFault, Status
from hpcdl.slurm.execution import CLUSTER, ExecutionProfile
from hpcdl.slurm.hostlist import expand_hostlist

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
        each = _values(judged, name)
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


def _values(verdicts: Sequence[Verdict], name: str) -> dict[str, list[float]]:
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

    def place(one: Verdict) -> tuple[str, ...]:
        return one.check, one.case, one.partition, one.environment

    groups: dict[tuple[str, ...], list[Verdict]] = {}
    for verdict in verdicts:
        groups.setdefault(place(verdict), []).append(verdict)
    slow = {
        (*key, node): fault
        for key, group in groups.items()
        for node, fault in find_slow_nodes(group, execution.margin).items()
    }
    return [_named(one, slow.get((*place(one), node_of(one)))) for one in verdicts]


def _named(verdict: Verdict, slow: JobFault | None) -> Verdict:
    if slow is None or verdict.status not in _JUDGED:
        return verdict
    reason = "; ".join(part for part in (slow.text, verdict.reason) if part)
    return replace(verdict, status=Status.FAIL, reason=reason, faults=(slow, *verdict.faults))
