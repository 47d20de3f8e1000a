"""Follows a job: its state, why it waits, its progress; and reports on it when it has ended.

Works with and without accounting. The training program renews progress.json in the job's
directory, and writes result.json: throughput, and where each step's time went. A program that
writes none is followed, and reported, by its state alone.
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
from hpcdl.results.records import PROGRESS, at
from hpcdl.slurm import client
from hpcdl.slurm.parse import ACTIVE, JobRecord
from hpcdl.system.errors import BadInput, Stopped
from hpcdl.system.files import read_regular
from hpcdl.system.signals import terminable
from hpcdl.system.text import duration, one_line, table
from hpcdl.system.trust import user_of

POLL_SECONDS = 1.0
_UNKNOWN_SECONDS = 15.0
_WHO = "by whom, only accounting (slurmdbd) and slurmctld's log say"
_GONE = "without accounting (slurmdbd) it forgets jobs minutes after their end"
_AWAY_SECONDS = 60.0
"""So long may slurmctld take to come back, as after a restart."""
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
    unknown = away = inf  # since when; not unknown while Slurm does not answer
    while True:
        now = time.monotonic()
        try:
            record = client.job(submission.job_id)
        except client.SlurmAway:
            away = min(away, now)
            if now - away > _AWAY_SECONDS:
                raise
        else:
            away, unknown = inf, inf if record else min(unknown, now)
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


# ---- after a job ----


def report_of(
    snapshot: Snapshot, result: Mapping[str, Any] | None, *, warned: bool = False
) -> dict[str, Any]:
    """What a job did, from its last state and its result.json.

    `shares` are parts of a step's time, 0 to 1; rates in images/s. `warned`: its ranks got USR2
    before the time limit.
    """
    summary = at(result, "summary") or {}
    phases = summary.get("phases") or {}
    shares = {one_line(name): part for name, part in phases.items() if part is not None}
    low, high = (summary.get(f"images_per_second_{part}") for part in ("p05", "p95"))
    seconds = at(result, "samples", "seconds") or ()
    failed = snapshot.ended and not snapshot.ok
    log = f"`hpcdl job log {snapshot.job_id}` shows what it wrote"
    return {
        **{key: getattr(snapshot, key) for key in ("job_id", "description", "ok", "restarts")},
        "images_per_second": summary.get("images_per_second"),
        "spread": (low, high) if low is not None and high is not None else None,
        "shares": shares,
        "ranks": at(result, "layout", "ranks"),
        "seconds": sum(seconds) if seconds and None not in seconds else None,
        "advice": log if failed else advise(shares),
        "loss": summary.get("loss"),
        "metrics": {one_line(name): one for name, one in (summary.get("metrics") or {}).items()},
        "warned": warned,
    }


def advise(shares: Mapping[str, float]) -> str:
    """Return one line about the largest share that is not computing; '' if all shares are small."""
    losses = [(part, name) for name, part in shares.items() if name in _ADVICE]
    part, worst = max(losses, key=lambda one: one[0], default=(0.0, ""))
    return _ADVICE[worst].format(share=f"{part:.0%}") if part >= _WORTH_ADVICE else ""


def as_text(report: Mapping[str, Any]) -> str:
    """A report as text."""
    times = "once" if report["restarts"] == 1 else f"{report['restarts']} times"
    again = f", requeued {times}" if report["restarts"] else ""
    rate, spread, ranks = (report[key] for key in ("images_per_second", "spread", "ranks"))
    lines = [f"job {report['job_id']}: {report['description']}{again}"]
    if rate is not None:
        between = f" ({spread[0]:,.0f} to {spread[1]:,.0f})" if spread else ""
        per_rank = f", {ranks} ranks" if ranks else ""
        lines.append(f"{rate:,.1f} images/s{between}{per_rank}")
    if report["seconds"] is not None:
        lines.append(f"{duration(report['seconds'])} of training")
    if report["warned"]:
        lines.append("the time limit was near: the ranks got USR2 (--signal-before says when)")
    scores = [("loss", report["loss"]), *report["metrics"].items()]
    reached = [f"{name} {score:.4g}" for name, score in scores if score is not None]
    lines += [", ".join(reached)] if reached else []
    shares = [(name, part) for name, part in report["shares"].items() if part >= 0.0005]
    rows = [(_NAMES.get(name, name), f"{part:6.1%}") for name, part in shares]
    lines += [*table(rows).splitlines(), *filter(None, [report["advice"]])]
    return "\n  ".join(lines)
