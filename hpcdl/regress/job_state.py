"""The meaning of a job's end for a check. Pure: the ReFrame back end asks, and acts on it.

Slurm's states are many, a check's are two: it ended and its output may be judged, or it did
not end by itself, and then nothing that it printed counts.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from hpcdl import facts
from hpcdl.results.faults import FaultKind, JobFault
from hpcdl.slurm.parse import JobRecord, is_out

JUDGED = frozenset({"COMPLETED", "FAILED"})
SILENCE_SECONDS = 600.0
PATIENCE_SECONDS = 4 * 3600.0
"""How long a check waits for its nodes: half of what a night may take."""
DEAD_SECONDS = 300.0
"""How long it waits for nodes that are down: they may be starting."""
SILENCE_AFTER_RESTART_SECONDS = 30.0
_ENDS = {
    "NODE_FAIL": (FaultKind.NODE_LOST, "node lost"),
    "TIMEOUT": (FaultKind.TIMEOUT, "time-out"),
}


def fault_of(
    record: JobRecord | None, allowed_restarts: int = 0, was_on: str = ""
) -> JobFault | None:
    """Why nothing of this job counts, or None: it is still running, or ended by itself.

    `record` is what Slurm says of it, None when Slurm does not know it; `allowed_restarts` is how
    often the check expects it to be queued again; `was_on` are the nodes on which it last ran.
    """
    if record is None:
        text = "lost: Slurm has no record of the job any more, so how it ended is unknown"
        return JobFault(FaultKind.JOB_LOST, text)
    if record.restarts > allowed_restarts:
        on = f" after it ran on {was_on}" if was_on else ""
        text = (
            f"node lost: Slurm put the job back into the queue{on} (restart {record.restarts});"
            " its numbers would not be those of one run"
        )
        return JobFault(FaultKind.NODE_LOST, text, "restarts", allowed_restarts, record.restarts)
    if record.active or record.state in JUDGED:
        return None
    kind, ending = _ENDS.get(record.state, (FaultKind.ENDED_EARLY, "ended early"))
    why = facts.load("slurm_reasons")["states"].get(record.state, "Slurm gives no reason")
    text = (
        f"{ending}: the job ended as {record.state}: {why}; time limit {record.time_limit}, "
        f"nodes {record.nodes or was_on or 'unknown'}, restarts {record.restarts}"
    )
    return JobFault(kind, text, wanted="COMPLETED", got=record.state)


def exit_fault(code: int | None) -> JobFault:
    """Return the fault that a job's exit code means."""
    text = f"the job ended with exit code {code}; its log says why"
    return JobFault(FaultKind.EXIT_CODE, text, wanted=0, got=code)


def unavailable(record: JobRecord, states: Mapping[str, str]) -> JobFault | None:
    """Why a job cannot start at all, or None: a node that it must have takes no jobs.

    `states` are those of the nodes that it must have, by name.
    """
    if record.state != "PENDING":
        return None
    out = [f"{name} is {state}" for name, state in states.items() if is_out(state)]
    if not out and (not states or "ReqNodeNotAvail" not in record.reason):
        return None
    reason = ", ".join(out) or f"{', '.join(states)}: {record.reason}"
    return JobFault(
        FaultKind.NODE_LOST, f"node lost: the node of this check takes no jobs ({reason})"
    )


def dead_wait(record: JobRecord) -> bool:
    """Return whether a job waits for nodes of which there are not enough that work."""
    return record.state == "PENDING" and "DOWN" in record.reason.upper()


def waits_too_long(record: JobRecord, seconds: float, limit: float) -> JobFault | None:
    """Why a job that waits for its nodes is given up, or None."""
    if record.state != "PENDING" or seconds <= limit:
        return None
    waited = f"{seconds / 3600:.1f} h" if seconds >= 3600 else f"{seconds:.0f} s"
    text = f"time-out: it got no nodes within {waited} ({record.reason or 'no reason given'})"
    return JobFault(FaultKind.TIMEOUT, text, "queue_wait_seconds", wanted=limit, got=seconds)


@dataclass
class Watchdog:
    """Notices a job that Slurm calls RUNNING but that shows no sign of life.

    A node that dies and comes back before SlurmdTimeout leaves such a job. Signs of life are
    changes of its files, whatever their clock; `limit` is in seconds.
    """

    limit: float = SILENCE_SECONDS
    _signs: object = None
    _since: float = field(default_factory=time.monotonic)

    def silence(self, signs: object, now: float | None = None) -> float:
        """Seconds since the signs last changed; call it at every poll."""
        now = time.monotonic() if now is None else now
        if signs != self._signs:
            self._signs, self._since = signs, now
        return now - self._since

    def fault(self, silence: float, node_restarted: Callable[[], bool]) -> JobFault | None:
        """Why the job is given up, or None; its nodes are asked about after so much silence."""
        if silence <= min(self.limit, SILENCE_AFTER_RESTART_SECONDS):
            return None
        restarted = node_restarted()
        limit = SILENCE_AFTER_RESTART_SECONDS if restarted else self.limit
        if silence <= limit:
            return None
        kind, why = FaultKind.HANG, "hangs:"
        if restarted:
            kind = FaultKind.NODE_LOST
            why = "node lost: a node of it started again while the job ran, and since then"
        text = f"{why} no output and no progress for {silence:.0f} s while Slurm calls it RUNNING"
        return JobFault(kind, text, wanted=limit, got=silence)
