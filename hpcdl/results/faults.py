"""Faults of checks: kinds with their verdict, and faults with their numbers. Pure.

The kind decides, never a fault's words: what status follows, and what a person may waive. What
a check of a team's own says in words is a fault of the kind CHECK, whatever the words are.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from enum import Enum
from typing import Any


class Status(str, Enum):
    """The words of a verdict."""

    PASS = "PASS"  # noqa: S105 - no password
    FAIL = "FAIL"
    NO_REFERENCE = "NO-REFERENCE"
    STALE = "STALE"
    INSUFFICIENT = "INSUFFICIENT-DATA"
    ERROR = "ERROR"
    SKIP = "SKIP"
    XFAIL = "XFAIL"

    @property
    def neutral(self) -> bool:
        """Whether the check itself reported that it does not apply or is expected to fail."""
        return self.value in NEUTRAL

    @property
    def waivable(self) -> bool:
        """Whether a person may waive it by name; FAIL and ERROR cannot be waived."""
        return self in {Status.NO_REFERENCE, Status.STALE, Status.INSUFFICIENT}


NEUTRAL = frozenset({Status.SKIP.value, Status.XFAIL.value})
"""Verdicts by which a check itself reports that it does not count."""


class FaultKind(str, Enum):
    """Kinds of faults, as verdicts.json names them, and the verdicts that follow."""

    status: Status

    def __new__(cls, name: str, status: Status = Status.FAIL) -> FaultKind:
        """A kind; by default a failure of what was checked follows."""
        kind = str.__new__(cls, name)
        kind._value_, kind.status = name, status
        return kind

    CHECK = "check"
    RANKS = "ranks"
    NODES = "nodes"
    RELEASE = "release"
    GPU = "gpu"
    OUTCOME = "outcome"
    BINDING = "binding"
    VERSION = "version"
    NCCL = "nccl"
    LOSS = "loss"
    STEPS = "steps"
    CHECKPOINT = "checkpoint"
    RESTARTS = "restarts"
    BOUND = "bound"
    SLOW_NODE = "slow-node"
    RUN = "run", Status.ERROR
    SELECTION = "selection", Status.ERROR
    NO_RESULT = "no-result", Status.ERROR
    FOREIGN = "foreign-result", Status.ERROR
    UNIT = "unit", Status.ERROR
    TOO_FAST = "too-fast", Status.ERROR
    NO_METRIC = "no-metric", Status.ERROR
    WARNING = "reframe-warning", Status.ERROR
    EXIT_CODE = "exit-code", Status.ERROR
    ENDED_EARLY = "ended-early", Status.ERROR
    TIMEOUT = "timeout", Status.ERROR
    NODE_LOST = "node-lost", Status.ERROR
    JOB_LOST = "job-lost", Status.ERROR
    HANG = "hang", Status.ERROR
    SLURM_AWAY = "slurm-away", Status.ERROR
    FEW_STEPS = "few-steps", Status.INSUFFICIENT
    FEW_RUNS = "few-runs", Status.INSUFFICIENT
    NO_REFERENCE = "no-reference", Status.NO_REFERENCE
    STALE_REFERENCE = "stale-reference", Status.STALE


WORST = (
    *(Status.ERROR, Status.FAIL, Status.INSUFFICIENT, Status.NO_REFERENCE, Status.STALE),
    *(Status.XFAIL, Status.SKIP, Status.PASS),
)


@dataclass(frozen=True)
class JobFault:
    """One thing that is wrong: its kind, a sentence for a person, and what it is about.

    `wanted` and `got` are in the unit of the metric, or in that of which the sentence speaks.
    """

    kind: FaultKind
    text: str
    metric: str = ""
    wanted: float | str | None = None
    got: float | str | None = None

    def __str__(self) -> str:
        return self.text

    def as_data(self) -> dict[str, Any]:
        """As plain values."""
        return {**asdict(self), "kind": self.kind.value}


def as_fault(values: object) -> JobFault:
    """A fault from its plain values; words alone are a check's own."""
    if isinstance(values, JobFault):
        return values
    if not isinstance(values, Mapping):
        return JobFault(FaultKind.CHECK, str(values))
    known = {kind.value: kind for kind in FaultKind}
    kind = known.get(str(values.get("kind")), FaultKind.CHECK)
    wanted, got = values.get("wanted"), values.get("got")
    return JobFault(
        kind, str(values.get("text") or ""), str(values.get("metric") or ""), wanted, got
    )


def status_of(faults: Iterable[JobFault]) -> Status:
    """The verdict on all of them: the worst; PASS where there is none."""
    found = {fault.kind.status for fault in faults}
    return next((status for status in WORST if status in found), Status.PASS)


def describe(faults: Iterable[JobFault]) -> str:
    """Return the sentences of faults, joined."""
    return "; ".join(fault.text for fault in faults)
