"""Follows a job: its state, why it waits, its progress; reports on it when it has ended; lists all.

Works with and without accounting. The training program renews progress.json in the job's
directory, and writes result.json: throughput, and where each step's time went. A program that
writes none is followed, and reported, by its state alone.
"""

from __future__ import annotations

import os
import re
import time
from collections import Counter
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from itertools import chain, islice
from math import inf
from pathlib import Path
from typing import Any

from hpcdl import facts
from hpcdl.jobs.manifest import RunStatus, located, of_this_cluster, read_manifest
from hpcdl.jobs.submission import Submission, Unsettled, asked, find, index, settle
from hpcdl.results.records import PROGRESS, at
from hpcdl.site import Site
from hpcdl.slurm import client
from hpcdl.slurm.once import SETTLED_SECONDS
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
    jobs = [_snapshot(ask(one), replace(submission, job_id=one)) for one in submission.chain]
    runs = [one for one in jobs if not one.ended and one.state != "PENDING"]
    finished = [one for one in jobs if one.ok]
    waits = [one for one in jobs if not one.ended]
    ran = [one for one in jobs if one.nodes]
    return [*runs[:1], *finished[-1:], *waits[:1], *ran[-1:], *jobs][0]


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


# ---- all runs ----
#
# Those that a user has submitted at a site, arrays of sweeps among them, the newest first. Slurm is
# asked once for all of them, and accounting once of those that slurmctld has forgotten or that were
# cancelled; else the jobs' files say how they ended.

_SWEEPS = ("sweeps/*/sweep.json", "studies/*/*/sweep.json")


@dataclass(frozen=True)
class Array:
    """An array of a sweep or study: its points' rows of the manifest; submitted when (epoch).

    `job_id` is None where a stopped command left a token that no job is known of.
    """

    job_id: int | None
    folder: Path
    partition: str
    submitted: float
    rows: tuple[RunStatus, ...]


@dataclass(frozen=True)
class Listed:
    """A run: the job that has its status, what was asked, and its age in seconds.

    `job_id` is None if it is unknown whether Slurm accepted the job (UNCONFIRMED), or if it did not
    (NOT QUEUED); such a run is listed once. `cancelled_by` is the user who cancelled it, '' if
    that is unknown.
    """

    job_id: int | None
    name: str
    partition: str
    state: str
    description: str
    age_seconds: float
    folder: Path
    cancelled_by: str = ""


def own_jobs(site: Site, most: int) -> tuple[Listed, ...]:
    """The newest `most` runs of this user; a chain of jobs is one run, and so is an array."""
    unsettled = settle(site)
    newest_runs = tuple(islice(_submissions(site), most))
    queued = tuple(arrays(site, most))
    chained = sorted({job for run, _ in newest_runs for job in run.chain})
    own = [*chained, *(array.job_id for array in queued if array.job_id)]
    slurm_jobs = client.queue(mine=True, jobs=own)  # also for none: it raises where Slurm is away
    records = client.with_accounting({record.id: record for record in slurm_jobs}, chained)
    rows = []
    for run, submitted in newest_runs:
        now, folder = look(run, records), run.folder
        how = (submitted, now.state, now.description, now.job_id, now.cancelled_by)
        rows.append(_listed(folder, asked(folder), *how))
    tasks: dict[int | None, list[JobRecord]] = {}
    for record in slurm_jobs:
        tasks.setdefault(record.array_job, []).append(record)
    rows += [_array(array, tasks.get(array.job_id, [])) for array in queued]
    newest = sorted(rows, key=lambda row: row.age_seconds)[:most]
    return (*(_unsettled(begun) for begun in unsettled), *newest)


def arrays(site: Site, most: int | None = None) -> Iterator[Array]:
    """The arrays that the `most` sweeps that changed last (None: all) have on this cluster.

    Raises SlurmAway: a command was stopped while it submitted; it is unknown if its job is queued.
    """
    manifests = []
    for path in chain.from_iterable(site.paths.work.glob(place) for place in _SWEEPS):
        with suppress(OSError):
            if {path.stat().st_uid, path.parent.stat().st_uid} == {os.geteuid()}:
                manifests.append((path.stat().st_mtime, path.parent))
    for changed, folder in sorted(manifests, reverse=True)[:most]:
        with suppress(BadInput):  # one that cannot be read is its sweep's to report
            yield from _arrays_of(folder, changed)


def _arrays_of(folder: Path, changed: float) -> Iterator[Array]:
    manifest = read_manifest(folder)
    shared: dict[str, list[RunStatus]] = {}
    for row in located(of_this_cluster(manifest.rows.values())):
        if row.token:
            shared.setdefault(row.token, []).append(row)
    asked_for = (manifest.request or {}).get("partition") or ""
    for token, rows in shared.items():
        submitted = changed
        with suppress(OSError):  # its script's link is as old as its submission
            submitted = (folder / f"{token}.sh").lstat().st_mtime
        partition = str(rows[0].values.get("partition") or asked_for)
        yield Array(rows[0].job_id, folder, partition, submitted, tuple(rows))


def _array(array: Array, records: Sequence[JobRecord]) -> Listed:
    """The state of an array as a whole, and how many of its tasks have which.

    `records` are Slurm's of this array; a task that it forgot has its exit code.
    """
    single = {record.array_tasks: record for record in records}
    several = [record for record in records if not record.array_tasks.isdigit()]
    counts: Counter[str] = Counter()
    active = set()
    for row in array.rows:
        task = row.task or 0
        task_record = single.get(str(task)) or next((r for r in several if r.has_task(task)), None)
        if task_record:
            state = task_record.state
            active |= {state} if task_record.active else set()
        else:
            code = exit_code(Path(row.directory) / "exit_code")
            state = "UNKNOWN" if code is None else "FAILED" if code else "COMPLETED"
        counts[state] += 1
    order = [
        *sorted(active, key=lambda state: state == "PENDING"),
        *(state for state in counts if state != "COMPLETED"),
        *counts,
    ]
    parts = ", ".join(f"{count} {state.lower()}" for state, count in counts.items())
    state, description = order[0], f"{len(array.rows)} tasks: {parts}"
    if array.job_id is None:
        state, description = "UNCONFIRMED", "the same sweep again looks for it"
    folder = array.folder
    study = f"{folder.parent.name}/" if folder.parent.parent.name == "studies" else ""
    request = {"name": study + folder.name, "partition": array.partition}
    return _listed(folder, request, array.submitted, state, description, array.job_id)


def _unsettled(begun: Unsettled) -> Listed:
    state, description = "NOT QUEUED", "Slurm never accepted it: submit it again"
    if not begun.dead:
        left = duration(max(0.0, begun.since + SETTLED_SECONDS - time.time()))
        state = "UNCONFIRMED"
        description = f"Slurm did not confirm the submission: look again within {left}, or submit "
        description += "it again, which looks"
    return _listed(begun.folder, begun.asked, begun.since, state, description)


def _listed(
    folder: Path,
    request: Mapping[str, Any],
    since: float,
    state: str,
    description: str,
    job_id: int | None = None,
    cancelled_by: str = "",
) -> Listed:
    name, partition = (request.get(key) or "" for key in ("name", "partition"))
    age = max(0.0, time.time() - since)
    return Listed(job_id, name, partition, state, description, age, folder, cancelled_by)


def list_text(rows: Sequence[Listed]) -> str:
    """The runs as a table; of a cancelled one by whom, `?` where that is not known."""
    lines = []
    for row in rows:
        by = f" by {row.cancelled_by or '?'}" if row.state == "CANCELLED" else ""
        age, job = duration(row.age_seconds), row.job_id or "-"
        lines.append([*map(str, (job, row.name, row.partition, row.state + by, age, row.folder))])
    unclear = [f"{row.folder}: {row.description}" for row in rows if row.job_id is None]
    head = ("job", "name", "partition", "state", "age", "directory")
    return "\n".join([table(lines, head), *unclear])


def _submissions(site: Site) -> Iterator[tuple[Submission, float]]:
    """This user's submissions and when they were made, the newest first."""
    links = []
    with suppress(OSError), os.scandir(index(site)) as entries:
        stats = (
            (entry.stat(follow_symlinks=False), entry.path)
            for entry in entries
            if entry.name.partition(".")[0].isdigit()
        )
        # Others may have any number of links there.
        links = [(stat.st_mtime, path) for stat, path in stats if stat.st_uid == os.geteuid()]
    seen = set()
    for submitted, path in sorted(links, reverse=True):
        with suppress(BadInput, OSError):  # its directory was removed, or cannot be read
            submission = find(site, path)
            folder = submission.folder
            if folder.stat().st_uid == os.geteuid() and folder not in seen:
                seen.add(folder)
                yield submission, submitted
