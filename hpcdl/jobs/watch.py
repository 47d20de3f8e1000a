"""Follows a job: its state, why it waits, its progress and its result.

Works with and without accounting. The training program renews progress.json in the job's
directory; a program that writes none is followed by its state alone.
"""

from __future__ import annotations

import re
import time
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from math import inf
from pathlib import Path
from typing import Any

from hpcdl import facts
from hpcdl.jobs.submission import Submission
from hpcdl.results.records import PROGRESS
from hpcdl.slurm import client
from hpcdl.slurm.parse import ACTIVE, JobRecord
from hpcdl.system.errors import BadInput, Stopped
from hpcdl.system.files import read_regular
from hpcdl.system.signals import terminable
from hpcdl.system.text import duration
from hpcdl.system.trust import user_of

POLL_SECONDS = 1.0
_UNKNOWN_SECONDS = 15.0
_WHO = "by whom, only accounting (slurmdbd) and slurmctld's log say"
_GONE = "without accounting (slurmdbd) it forgets jobs minutes after their end"
_AWAY_SECONDS = 60.0
"""So long may slurmctld take to come back, as after a restart."""


@dataclass(frozen=True)
class Snapshot:
    """A job at one moment. `progress` is the training program's, None where there is none.

    `cancelled_by` is the user who cancelled it, '' where that is not known.
    """

    job_id: int
    state: str
    description: str
    exit_code: int
    nodes: str
    restarts: int
    progress: dict[str, Any] | None
    cancelled_by: str = ""

    @property
    def ended(self) -> bool:
        """Whether nothing more will happen."""
        return self.state not in ACTIVE

    @property
    def ok(self) -> bool:
        """Whether it ended well."""
        return self.state == "COMPLETED" and self.exit_code == 0


@contextmanager
def watched(submission: Submission) -> Iterator[None]:
    """Where a job is followed: Ctrl-C or SIGTERM ends that (Stopped), not the job."""
    try:
        with terminable():
            yield
    except KeyboardInterrupt:
        number = submission.job_id
        hint = f"`hpcdl job watch {number}` looks again, `hpcdl job cancel {number}` ends it"
        raise Stopped(f"stopped watching; job {number} continues", hint=hint) from None


def follow(submission: Submission) -> Iterator[Snapshot]:
    """Snapshots until the job has ended, one per poll; a forgotten job ends as UNKNOWN.

    In a chain of jobs the next one is followed where one ended without having finished.
    """
    for job_id in submission.chain:
        last = yield from _follow_one(replace(submission, job_id=job_id))
        if last.ok or last.state == "CANCELLED":
            return


def _follow_one(submission: Submission) -> Generator[Snapshot, None, Snapshot]:
    unknown = inf  # since when; not while Slurm does not answer
    while True:
        record, now = _asked(submission.job_id), time.monotonic()
        unknown = inf if record else min(unknown, now)
        if record or now - unknown > _UNKNOWN_SECONDS:
            snapshot = _snapshot(record, submission)
            yield snapshot
            if snapshot.ended:
                return snapshot
        time.sleep(POLL_SECONDS)


def look(submission: Submission, records: Mapping[int, JobRecord] | None = None) -> Snapshot:
    """The job now; of a chain the one that has the status of the run.

    That is the job that runs, else the one that finished, the next, or the last that ran. `records`
    is what Slurm knows of all jobs, where it has been asked already.
    """
    ask = client.job if records is None else records.get
    chain = [_snapshot(ask(one), replace(submission, job_id=one)) for one in submission.chain]
    runs = [one for one in chain if not one.ended and one.state != "PENDING"]
    finished = [one for one in chain if one.ok]
    waits = [one for one in chain if not one.ended]
    ran = [one for one in chain if one.nodes]
    return [*runs[:1], *finished[-1:], *waits[:1], *ran[-1:], *chain][0]


def _asked(job_id: int) -> JobRecord | None:
    """Return Slurm's record of a job; waits while the controller restarts."""
    end = time.monotonic() + _AWAY_SECONDS
    while True:
        try:
            return client.job(job_id)
        except client.SlurmAway:
            if time.monotonic() > end:
                raise
            time.sleep(POLL_SECONDS)


def as_line(snapshot: Snapshot) -> str:
    """A snapshot as one line for a terminal."""
    again = f", restart {snapshot.restarts}" if snapshot.restarts else ""
    head = f"job {snapshot.job_id}: {snapshot.description}{again}"
    progress = snapshot.progress
    if not progress or snapshot.state != "RUNNING":
        return head
    parts = [f"step {progress.get('step') or 0}"]
    if progress.get("steps"):
        parts[0] += f" of {progress['steps']}"
    if progress.get("images_per_second"):
        parts.append(f"{progress['images_per_second']:,.0f} images/s")
    if progress.get("loss") is not None:
        parts.append(f"loss {progress['loss']:.3f}")
    if progress.get("seconds_left") is not None:
        parts.append(f"{duration(progress['seconds_left'])} left")
    return ", ".join([head, *parts])


def describe(state: str, reason: str = "", nodes: str = "", code: int = 0) -> str:
    """A state, and the reason for it, as a sentence without a subject; `code` is its exit code."""
    table = facts.load("slurm_reasons")
    text = str(table["states"].get(state, f"it is {state.lower()}"))
    if state == "PENDING":
        why = str(table["reasons"].get(reason.strip("()").split(",")[0], reason))
        return f"it waits: {why}" if why else text
    if state == "RUNNING" and nodes:
        return f"{text} on {nodes}"
    if state == "FAILED" and code:
        meaning = table["exit_codes"].get(code)
        return f"{text} with exit code {code}" + (f": {meaning}" if meaning else "")
    return text


def _forgotten(submission: Submission) -> Snapshot:
    """Return the state of a job that Slurm has no record of, from the job's files."""
    state, description, code = "UNKNOWN", f"Slurm has no record of it; {_GONE}", 1
    ended = exit_code(submission.folder / "exit_code")
    if ended is not None:
        how = f"it ended with exit code {ended}" if ended else "it ended well"
        state, code = "FAILED" if ended else "COMPLETED", ended
        description = f"Slurm has forgotten it; {how}"
    return Snapshot(submission.job_id, state, description, code, "", 0, None)


def _snapshot(record: JobRecord | None, submission: Submission) -> Snapshot:
    if record is None:
        return _forgotten(submission)
    description = describe(record.state, record.reason, record.nodes, record.exit_code)
    who = "" if record.cancelled_by is None else user_of(record.cancelled_by)
    if record.state == "CANCELLED":
        description += f" by {who}" if who else f"; {_WHO}"
    return Snapshot(
        job_id=record.id,
        state=record.state,
        description=description,
        exit_code=record.exit_code,
        nodes=record.nodes,
        restarts=record.restarts,
        progress=PROGRESS.find(submission.folder),
        cancelled_by=who,
    )


def exit_code(path: Path) -> int | None:
    """The number that a job's script wrote, None where it wrote none."""
    try:
        text = read_regular(path, 100).decode().strip()
    except (BadInput, ValueError):
        return None
    return int(text) if re.fullmatch("[0-9]{1,3}", text) else None
