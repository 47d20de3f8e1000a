"""Runs a study: makes its data, queues what is missing, waits. The one place here that acts.

While it waits it watches what other programs take of the cores that the ranks of one machine share.
Cells are the points of one sweep: whatever is done stays done, so that an interrupted study resumes
where it stopped.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from hpcdl.cluster.processes import of_cluster
from hpcdl.jobs import sweep
from hpcdl.jobs.manifest import RunStatus
from hpcdl.jobs.spec import JobSpec
from hpcdl.jobs.submission import submit
from hpcdl.jobs.sweep import ACTIVE, MISSING, QUEUED, RUNNING, Modules
from hpcdl.jobs.watch import follow
from hpcdl.slurm import client
from hpcdl.slurm.once import embedded_cluster
from hpcdl.slurm.parse import takes_jobs
from hpcdl.system.errors import BadInput, MissingPrerequisite, PartlyDone
from hpcdl.system.files import last_text, locked, make_directory, process_fields
from hpcdl.system.text import count_of
from hpcdl.system.trust import require_own
from hpcdl.workflows.study.cells import StudyPlan, data_folder, look, note_others, note_run
from hpcdl.workflows.study.declared import line_of
from hpcdl.workflows.study.findings import Results, predict

_POLL_SECONDS = 2.0
_PATIENCE_SECONDS = 60.0


def last_run_statuses(plan: StudyPlan) -> tuple[RunStatus, ...]:
    """The status of every cell, also when Slurm does not answer: results outlive the cluster."""
    try:
        statuses, here = sweep.run_statuses(plan.folder, plan.points), embedded_cluster()
    except MissingPrerequisite:
        statuses, here = sweep.run_statuses(plan.folder, plan.points, ask=False), None
    # A job that the Slurm of this shell was not asked about, or does not have, may still be queued.
    return tuple(
        status._replace(state=QUEUED)
        if status.job_id is not None and status.state == MISSING and status.cluster != here
        else status
        for status in statuses
    )


def collect(plan: StudyPlan, statuses: Sequence[RunStatus]) -> Results:
    """Read every cell's result, predict, and judge the rules."""
    cells = tuple(look(cell, status) for cell, status in zip(plan.cells, statuses, strict=True))
    results = predict(Results(plan, cells, cells))
    with line_of(plan.study.path):
        plan.scale.judge(results)
    return results


def nodes_down(plan: StudyPlan) -> tuple[str, ...]:
    """The partitions of a study none of whose nodes can run jobs, each with Slurm's reason."""
    names = dict.fromkeys(cell.point.spec.partition for cell in plan.possible)
    lines, nodes = [], client.nodes()
    for name in names:
        own = [node for node in nodes if name in node.partitions]
        if own and not any(takes_jobs(node.state) for node in own):
            reasons = " / ".join(dict.fromkeys(node.reason or node.state for node in own))
            lines.append(
                f"no node of '{name}' can run jobs now ({count_of(len(own), 'node')}: {reasons}); "
                "its jobs wait until one returns"
            )
    return tuple(lines)


def start(plan: StudyPlan, modules: Modules) -> Iterator[str]:
    """Make the data that are missing and queue every cell that has no result and no job.

    Yields what it is about to do, where that takes long.
    """
    make_directory(plan.folder)
    require_own(plan.folder)  # before anything is written: a lock, too
    with locked(plan.folder / ".study-lock"):
        note_run(plan)
        names = {cell.data for cell in plan.possible}
        for name in (name for name in plan.scale.data if name in names):
            yield from _make_data(plan, name, modules)
        running = 1 if plan.scale.single_node else None
        sweep.submit(plan.site, plan.folder, plan.points, modules, running)


def _make_data(plan: StudyPlan, name: str, modules: Modules) -> Iterator[str]:
    """Make a data set by a job, unless it is there; one that is given and not there is refused."""
    data, folder = plan.scale.data[name], Path(data_folder(plan.site, plan.scale, name))
    if (folder / "dataset.json").is_file():
        return
    if data.path:
        hint = "put it there as TFRecords; `hpcdl data inspect --index DIR` makes it known"
        raise BadInput(f"there is no data set {folder} ('{name}' of the study)", hint=hint)
    yield f"making the data set {name}"
    spec = JobSpec(
        partition=plan.possible[0].point.spec.partition,
        minutes=60,
        name="study-data",
        launcher="single",
        program=(*data.make, str(folder)),
    )
    submission = submit(plan.site, spec, modules[spec.partition])
    ended = list(follow(submission))[-1]
    if not ended.ok:
        raise PartlyDone(
            f"the data set '{name}' could not be made: {ended.description}",
            details=last_text(submission.log).splitlines()[-8:],
            hint=f"its log is {submission.log}; run the study again to resume",
        )


def scripts(plan: StudyPlan, modules: Modules) -> Iterator[tuple[int, str]]:
    """The job scripts of a study as they would be queued, each with its number of jobs."""
    anew = [cell.point for cell in plan.possible]
    running = 1 if plan.scale.single_node else None
    for group, script, *_ in sweep.preview(plan.site, plan.folder, anew, modules, running):
        yield len(group), script.text


def wait(plan: StudyPlan) -> Iterator[tuple[RunStatus, ...]]:
    """The status of the cells, again and again until no job is left.

    Slurm may be silent for as long as its controller takes to restart.
    """
    patience, watched, first, last = _PATIENCE_SECONDS, "", _NO_WORK, _NO_WORK
    shared = plan.scale.single_node and bool(embedded_cluster())
    while True:
        try:
            statuses = sweep.run_statuses(plan.folder, plan.points)
        except MissingPrerequisite as lack:
            if patience <= 0:
                raise MissingPrerequisite(
                    "Slurm went away while the study ran",
                    details=[lack.message, *lack.details],
                    hint="results are kept: once Slurm answers, the same command resumes",
                ) from lack
            patience -= _POLL_SECONDS
        else:
            patience = _PATIENCE_SECONDS
            # One cell runs at a time: what others took since it was seen first is noted with it.
            if cell := next((one.id for one in statuses if shared and one.state == RUNNING), ""):
                now = _work()
                if cell != watched:
                    watched, first = cell, now
                elif now.cluster >= last.cluster:  # else its program has ended, and is no more seen
                    taken = now.every - now.cluster - (first.every - first.cluster)
                    note_others(plan, cell, min(1.0, max(0.0, taken / (now.given - first.given))))
                last = now
            yield statuses
            if not any(status.state in ACTIVE for status in statuses):
                return
        time.sleep(_POLL_SECONDS)


class _Work(NamedTuple):
    """CPU seconds: what the machine gave so far, what all programs had but this, and the cluster's.

    The hypervisor's other guests are among all. A process's own count has those of its children
    that have ended, but nobody counts those of slurmstepd.
    """

    given: float
    every: float
    cluster: float


_NO_WORK = _Work(0.0, 0.0, 0.0)


def _work() -> _Work:
    names = {f"cpu{number}" for number in os.sched_getaffinity(0)}
    lines = (line.split() for line in Path("/proc/stat").read_text().splitlines())
    # user, nice, system, irq, softirq, steal: without idle and iowait
    every = sum(sum(map(int, line[1:4] + line[6:9])) for line in lines if line[0] in names)
    directory = Path(os.environ["SLURM_CONF"]).parent.parent
    of_jobs = (process_fields(one.pid) for one in of_cluster(directory, by_files=False))
    jobs = sum(sum(map(int, fields[11:15])) for fields in of_jobs if fields)
    tick = os.sysconf("SC_CLK_TCK")
    return _Work(time.monotonic() * len(names), every / tick - sum(os.times()[:4]), jobs / tick)
