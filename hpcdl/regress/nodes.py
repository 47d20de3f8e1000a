"""One slow node among many: found from the same check run on every node, and named. Pure.

A node is compared with the others of the same night, not with a reference: what slows all of
them is the reference's business. The rule is drift's: below the median of the nodes by more
than four robust standard deviations and 4 %; of two nodes, the one that is 15 % slower.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import date
from statistics import median

from hpcdl.regress.drift import Night, slow_nodes
from hpcdl.regress.verdict import Status, Verdict
from hpcdl.slurm.hostlist import expand_hostlist

_JUDGED = frozenset({Status.PASS, Status.FAIL, Status.NO_REFERENCE, Status.STALE,
                     Status.INSUFFICIENT})  # fmt: skip
_TONIGHT = date(2000, 1, 1)


@dataclass(frozen=True)
class SlowNode:
    """A node, and the metric that shows it: `part` is its value over the median of all nodes."""

    node: str
    metric: str
    part: float
    others: int

    def in_words(self) -> str:
        """What is said of it."""
        return (
            f"slow node: {self.node} is {1 - self.part:.0%} slower than the median of "
            f"{self.others + 1} nodes ({self.metric})"
        )


def node_of(verdict: Verdict) -> str:
    """The node of a job on one node, '' for others."""
    names = expand_hostlist(str(verdict.job.get("nodes") or ""))
    return names[0] if len(names) == 1 else ""


def find_slow_nodes(verdicts: Sequence[Verdict]) -> tuple[SlowNode, ...]:
    """The nodes that are slower than the others in runs of one case.

    Args:
        verdicts: of one case on one partition; those of several nodes are left out.
    """
    judged = [verdict for verdict in verdicts if verdict.status in _JUDGED and node_of(verdict)]
    names = [metric.name for metric in judged[0].metrics if metric.wanted] if judged else []
    found: dict[str, SlowNode] = {}
    for name in names:
        nights = [
            Night(_TONIGHT, metric.value, node=node_of(verdict))
            for verdict in judged
            for metric in verdict.metrics
            if metric.name == name and metric.value is not None
        ]
        nodes = {night.node for night in nights}
        middle = median(night.value for night in nights) if nights else 0.0
        for node in slow_nodes(nights):
            value = median(night.value for night in nights if night.node == node)
            found.setdefault(node, SlowNode(node, name, value / middle, len(nodes) - 1))
    return tuple(found.values())


def name_slow_nodes(verdicts: Sequence[Verdict]) -> list[Verdict]:
    """The verdicts, with those of slow nodes failed and the node named.

    A verdict that passed, or that only lacked a fresh reference, becomes a failure; a failure
    says which node it is about.
    """
    groups: dict[tuple[str, str, str], list[Verdict]] = {}
    for verdict in verdicts:
        groups.setdefault((verdict.check, verdict.case, verdict.partition), []).append(verdict)
    slow = {
        (*key, one.node): one for key, group in groups.items() for one in find_slow_nodes(group)
    }
    return [_named(verdict, slow.get(_place(verdict))) for verdict in verdicts]


def _place(verdict: Verdict) -> tuple[str, str, str, str]:
    return verdict.check, verdict.case, verdict.partition, node_of(verdict)


def _named(verdict: Verdict, slow: SlowNode | None) -> Verdict:
    if slow is None or verdict.status not in _JUDGED:
        return verdict
    reason = "; ".join(part for part in (slow.in_words(), verdict.reason) if part)
    return replace(verdict, status=Status.FAIL, reason=reason)
