"""Follows a job: its state and why it waits, in words; progress; what came out.

Works with and without accounting. The training program renews progress.json in the job's
folder; a program that writes none is followed by its state alone.
"""

from __future__ import annotations

import json
import time
from collections.abc import Generator, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hpcdl import facts
from hpcdl.jobs.submission import Submission
from hpcdl.jobs.untrusted import number
from hpcdl.slurm import client
from hpcdl.slurm.parse import ACTIVE, JobRecord, Usage
from hpcdl.system.text import duration

POLL_SECONDS = 1.0
_UNKNOWN_SECONDS = 15.0


@dataclass(frozen=True)
class Snapshot:
    """A job at one moment. `progress` is the training program's, None where there is none."""

    job_id: int
    state: str
    words: str
    exit_code: int
    nodes: str
    restarts: int
    progress: dict[str, Any] | None

    @property
    def ended(self) -> bool:
        """Whether nothing more will happen."""
        return self.state not in ACTIVE

    @property
    def ok(self) -> bool:
        """Whether it ended well."""
        return self.state == "COMPLETED" and self.exit_code == 0


def follow(submission: Submission) -> Iterator[Snapshot]:
    """Snapshots until the job has ended, one per poll; a forgotten job ends as UNKNOWN.

    In a chain of jobs the next one is followed where one ended without having finished.
    """
    for job_id in submission.chain:
        last = yield from _follow_one(replace(submission, job_id=job_id))
        if last.ok or last.state == "CANCELLED":
            return


def _follow_one(submission: Submission) -> Generator[Snapshot, None, Snapshot]:
    forgotten_since: float | None = None
    while True:
        record = client.job(submission.job_id)
        if record is None:
            forgotten_since = forgotten_since or time.monotonic()
            if time.monotonic() - forgotten_since > _UNKNOWN_SECONDS:
                snapshot = _forgotten(submission)
                yield snapshot
                return snapshot
        else:
            forgotten_since = None
            snapshot = _snapshot(record, submission)
            yield snapshot
            if snapshot.ended:
                return snapshot
        time.sleep(POLL_SECONDS)


def look(submission: Submission) -> Snapshot:
    """The job now."""
    record = client.job(submission.job_id)
    return _snapshot(record, submission) if record else _forgotten(submission)


def as_line(snapshot: Snapshot) -> str:
    """A snapshot as one line for a person."""
    again = f", restart {snapshot.restarts}" if snapshot.restarts else ""
    head = f"job {snapshot.job_id}: {snapshot.words}{again}"
    progress = snapshot.progress
    if not progress or snapshot.state != "RUNNING":
        return head
    # Any program may write progress.json: only what is a number is shown.
    numbers = {key: found for key, said in progress.items() if (found := number(said)) is not None}
    parts = [f"step {numbers.get('step', 0):.0f}"]
    if numbers.get("steps"):
        parts[0] += f" of {numbers['steps']:.0f}"
    if numbers.get("images_per_second"):
        parts.append(f"{numbers['images_per_second']:,.0f} images/s")
    if "loss" in numbers:
        parts.append(f"loss {numbers['loss']:.3f}")
    if "seconds_left" in numbers:
        parts.append(f"{duration(numbers['seconds_left'])} left")
    return f"{head}, {', '.join(parts)}"


def in_words(state: str, reason: str = "", nodes: str = "") -> str:
    """A state, and the reason for it, as a sentence without a subject."""
    table = facts.load("slurm_reasons")
    words = str(table["states"].get(state, f"it is {state.lower()}"))
    if state == "PENDING":
        why = str(table["reasons"].get(reason.strip("()").split(",")[0], reason))
        return f"it waits: {why}" if why else words
    if state == "RUNNING" and nodes:
        return f"{words} on {nodes}"
    return words


def result_of(submission: Submission) -> dict[str, Any] | None:
    """The job's result.json, None where it wrote none."""
    return _json(submission.result)


def usage_of(submission: Submission) -> Usage | None:
    """What accounting says the job had and used; None without accounting."""
    return client.usage(submission.job_id)


def _snapshot(record: JobRecord, submission: Submission) -> Snapshot:
    return Snapshot(
        job_id=record.id,
        state=record.state,
        words=in_words(record.state, record.reason, record.nodes),
        exit_code=record.exit_code,
        nodes=record.nodes,
        restarts=record.restarts,
        progress=_json(submission.folder / "progress.json"),
    )


def _forgotten(submission: Submission) -> Snapshot:
    """Slurm no longer knows the job: a result that was written speaks for it, else nothing."""
    result = result_of(submission) or {}
    outcome = result.get("outcome")
    done = isinstance(outcome, dict) and outcome.get("status") == "completed"
    words = "Slurm has forgotten it; it wrote its result" if done else "Slurm does not know it"
    state = "COMPLETED" if done else "UNKNOWN"
    return Snapshot(submission.job_id, state, words, 0 if done else 1, "", 0, None)


def _json(path: Path) -> dict[str, Any] | None:
    try:
        value = json.loads(path.read_text())
    except (OSError, ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None
