"""Runs a study: makes its data, queues what is missing, waits. The one place here that acts.

Data sets are made by jobs of the generator, cells are sweeps: whatever is done stays done, so
that an interrupted study resumes where it stopped. On a single node each array waits for the one
before it.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from hpcdl.jobs import sweep
from hpcdl.jobs.layout import cluster_of
from hpcdl.jobs.lint import lint
from hpcdl.jobs.script import JobScript
from hpcdl.jobs.spec import JobSpec
from hpcdl.jobs.submission import submit
from hpcdl.jobs.sweep import ACTIVE, MISSING, QUEUED, Modules, RunStatus
from hpcdl.jobs.watch import follow
from hpcdl.site import Site
from hpcdl.slurm import client
from hpcdl.slurm.once import embedded_cluster
from hpcdl.system.errors import BadInput, MissingPrerequisite, PartlyDone
from hpcdl.system.files import locked, write_atomic
from hpcdl.system.resources import scratch_directory
from hpcdl.system.run import CommandFailed, run
from hpcdl.system.safe_read import last_text
from hpcdl.system.text import count_of
from hpcdl.workflows.study.cells import Plan, data_folder, library
from hpcdl.workflows.study.findings import Results
from hpcdl.workflows.study.forecast import predict
from hpcdl.workflows.study.load import line_of
from hpcdl.workflows.study.measurements import (
    CellMeasured,
    MissingResult,
    look,
    merged,
    note_machine,
    noted_machine,
)

_POLL_SECONDS = 2.0
_PATIENCE_SECONDS = 60.0
_AWAY = ("DOWN", "DRAIN", "FAIL", "NOT_RESPONDING", "POWERED_DOWN", "*")


def run_statuses(plan: Plan, *, ask: bool = True) -> tuple[RunStatus, ...]:
    """The status of every cell, by its result and, if Slurm is to be asked, by its job."""
    return tuple(
        status
        for folder, points in plan.rounds.items()
        for status in sweep.run_statuses(folder, points, ask=ask)
    )


def last_run_statuses(plan: Plan) -> tuple[RunStatus, ...]:
    """The status of every cell, also when Slurm does not answer: results outlive the cluster."""
    try:
        statuses, here = run_statuses(plan), embedded_cluster()
    except MissingPrerequisite:
        statuses, here = run_statuses(plan, ask=False), None
    # A job that the Slurm of this shell was not asked about, or does not have, may still be queued.
    return tuple(
        replace(status, state=QUEUED)
        if status.job_id is not None and status.state == MISSING and status.cluster != here
        else status
        for status in statuses
    )


def collect(plan: Plan, statuses: Sequence[RunStatus]) -> Results:
    """Read every cell's result, predict, and judge the rules."""
    by_point = {status.point.id: status for status in statuses}
    found = [look(plan, cell, by_point[cell.point.id]) for cell in plan.cells]
    missing = tuple(one for one in found if isinstance(one, MissingResult))
    measured = merged([one for one in found if isinstance(one, CellMeasured)])
    machine = noted_machine(plan)
    results = predict(Results(plan, plan.cells, measured, missing, measured, *machine))
    with line_of(plan.study.path):
        plan.scale.judge(results)
    return results


def nodes_down(plan: Plan) -> tuple[str, ...]:
    """The partitions of a study none of whose nodes can run jobs, each with Slurm's reason."""
    names = dict.fromkeys(cell.point.spec.partition for cell in plan.possible)
    lines, nodes = [], client.nodes()
    for name in names:
        own = [node for node in nodes if name in node.partitions]
        away = [node for node in own if any(word in node.state.upper() for word in _AWAY)]
        if own and len(away) == len(own):
            reasons = " / ".join(dict.fromkeys(node.reason or node.state for node in away))
            lines.append(
                f"no node of '{name}' can run jobs now ({count_of(len(own), 'node')}: {reasons}); "
                "its jobs wait until one returns"
            )
    return tuple(lines)


def start(plan: Plan, modules: Modules) -> Iterator[str]:
    """Make the data that are missing and queue every cell that has no result and no job.

    Yields what it is about to do, where that takes long.
    """
    with locked(plan.folder / ".lock"):
        note_machine(plan)
        names = {cell.data for cell in plan.possible}
        for name in (name for name in plan.scale.data if name in names):
            yield from make_data(plan, name, modules)
        if any(jobs.reads for jobs in plan.scale.jobs):
            compile_library(plan.site)
        running = 1 if plan.scale.single_node else None
        before: tuple[int, ...] = ()
        for folder, points in plan.rounds.items():
            after = before if running else ()
            statuses = sweep.submit(plan.site, folder, points, modules, running, after=after)
            active = {status.job_id for status in statuses if status.state in ACTIVE}
            before += tuple(job for job in active if job)


def wait(plan: Plan) -> Iterator[tuple[RunStatus, ...]]:
    """The status of the cells, again and again until no job is left.

    Slurm may be silent for as long as its controller takes to restart.
    """
    patience = _PATIENCE_SECONDS
    while True:
        try:
            statuses = run_statuses(plan)
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
            yield statuses
            if not any(status.state in ACTIVE for status in statuses):
                return
        time.sleep(_POLL_SECONDS)


def summary(statuses: Sequence[RunStatus]) -> str:
    """`6 cells: 4 done, 2 queued`."""
    counts = Counter(status.state for status in statuses)
    return f"{len(statuses)} cells: " + ", ".join(f"{n} {state}" for state, n in counts.items())


def make_data(plan: Plan, name: str, modules: Modules) -> Iterator[str]:
    """Make a data set by a job, unless it is there; one that is given and not there is refused."""
    data, folder = plan.scale.data[name], Path(data_folder(plan.site, plan.scale, name))
    if (folder / "dataset.json").is_file():
        return
    if data.kind == "given":
        hint = "put it there as TFRecords; `hpcdl data inspect --index DIR` makes it known"
        raise BadInput(f"there is no data set {folder} ('{name}' of the study)", hint=hint)
    yield f"making the data set {name}"
    options = [word for key, value in data.options.items() for word in (f"--{key}", value)]
    partition = plan.possible[0].point.spec.partition
    spec = JobSpec(
        partition=partition,
        minutes=60,
        name="study-data",
        launcher="single",
        program=("hpcdl", "data", "make", data.kind, str(folder), *options),
    )
    submission = submit(plan.site, spec, modules[partition])
    ended = list(follow(submission))[-1]
    if not ended.ok:
        raise PartlyDone(
            f"the data set '{name}' could not be made: {ended.description}",
            details=last_text(submission.log).splitlines()[-8:],
            hint=f"its log is {submission.log}; run the study again to resume",
        )


def compile_library(site: Site) -> None:
    """Compile slow_reads.c, which jobs with `reads` preload."""
    source = Path(__file__).with_name("slow_reads.c")
    target = library(site)
    with suppress(FileNotFoundError):
        if target.stat().st_mtime >= source.stat().st_mtime:
            return
    with scratch_directory() as scratch:
        part = scratch / target.name
        try:
            run(["cc", "-O2", "-shared", "-fPIC", "-o", part, source, "-ldl"], timeout=60)
        except CommandFailed as fault:
            raise MissingPrerequisite(
                "the library that slows reads down cannot be compiled",
                details=fault.result.last_lines(),
                hint="`hpcdl doctor` says how to get a C compiler",
            ) from fault
        write_atomic(target, part.read_bytes(), mode=0o755)


@dataclass(frozen=True)
class CheckedScript:
    """A script that was rendered and not queued: what lint and bash say of it."""

    run: str
    partition: str
    tasks: int
    script: JobScript
    errors: tuple[str, ...]


def check_scripts(plan: Plan, modules: Modules) -> Iterator[CheckedScript]:
    """Render every script of a study, and check each by lint and by `bash -n`. Writes nothing."""
    cluster = cluster_of(plan.site)
    for folder, points in plan.rounds.items():
        anew = [point for point in points if not point.problem]
        running = 1 if plan.scale.single_node else None
        for group, script, *_ in sweep.preview(plan.site, folder, anew, modules, running):
            findings = lint(
                script.text,
                name=f"{folder.name}.sh",
                version=plan.site.slurm.version,
                cluster=cluster,
            )
            errors = [
                f"line {one.line}: {one.message}" for one in findings if one.severity == "error"
            ]
            parsed = run(["bash", "-n"], stdin=script.text, check=False, timeout=30)
            if not parsed.ok:
                errors += [f"bash -n: {line}" for line in parsed.stderr.splitlines()]
            yield CheckedScript(
                folder.name, group.spec.partition, len(group.points), script, tuple(errors)
            )
