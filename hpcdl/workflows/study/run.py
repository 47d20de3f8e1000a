"""Runs a study: makes its data, queues what is missing, waits. The one place here that acts.

Data sets are made by jobs of the generator, cells are sweeps: whatever is done stays done, so
that an interrupted study resumes where it stopped. Where a scale asks for one job at a
time, each array waits for the one before it.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from hpcdl.jobs import sweep_run
from hpcdl.jobs.intent import embedded_cluster
from hpcdl.jobs.script import JobScript
from hpcdl.jobs.spec import JobSpec, Module
from hpcdl.jobs.submission import submit
from hpcdl.jobs.sweep_run import ACTIVE, MISSING, QUEUED, Modules, RunStatus
from hpcdl.jobs.watch import follow
from hpcdl.site import Site
from hpcdl.slurm import client
from hpcdl.system.errors import BadInput, MissingPrerequisite, PartlyDone
from hpcdl.system.files import locked, write_atomic
from hpcdl.system.resources import scratch_directory
from hpcdl.system.run import CommandFailed, run
from hpcdl.system.safe_read import last_text
from hpcdl.system.text import count_of
from hpcdl.workflows.study.collect import note_machine
from hpcdl.workflows.study.model import DataSet, Run
from hpcdl.workflows.study.study_plan import Plan, Round, data_folder, library

Say = Callable[[str], None]
_POLL_SECONDS = 2.0
_PATIENCE_SECONDS = 60.0
_AWAY = ("DOWN", "DRAIN", "FAIL", "NOT_RESPONDING", "POWERED_DOWN", "*")


def run_statuses(plan: Plan, *, ask: bool = True) -> tuple[RunStatus, ...]:
    """The status of every cell, by its result and, if Slurm is to be asked, by its job."""
    return tuple(
        one
        for part in plan.rounds
        for one in sweep_run.run_statuses(part.folder, part.points, ask=ask)
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


def start(plan: Plan, modules: Modules, say: Say) -> None:
    """Make the data that are missing and queue every cell that has no result and no job."""
    with locked(plan.folder / ".lock"):
        note_machine(plan)
        names = {cell.data for cell in plan.possible}
        for data in (data for name, data in plan.scale.data.items() if name in names):
            make_data(plan, data, modules, say)
        if any(run.reads for run in plan.scale.runs):
            compile_library(plan.site)
        before: tuple[int, ...] = ()
        for part in plan.rounds:
            statuses = sweep_run.submit(
                plan.site,
                part.folder,
                part.points,
                _modules_of(part, modules),
                1 if plan.scale.in_turn else None,
                after=before if plan.scale.in_turn else (),
            )
            before += tuple(
                {status.job_id for status in statuses if status.job_id and status.state in ACTIVE}
            )


def _modules_of(part: Round, modules: Modules) -> Modules:
    return dict.fromkeys(modules, Module(())) if part.in_image else modules


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
            time.sleep(_POLL_SECONDS)
            continue
        patience = _PATIENCE_SECONDS
        yield statuses
        if not any(status.state in ACTIVE for status in statuses):
            return
        time.sleep(_POLL_SECONDS)


def summary(found: Sequence[RunStatus]) -> str:
    """`6 cells: 4 done, 2 queued`."""
    counts = Counter(one.state for one in found)
    return f"{len(found)} cells: " + ", ".join(f"{n} {state}" for state, n in counts.items())


def make_data(plan: Plan, data: DataSet, modules: Modules, say: Say) -> None:
    """Make a data set by a job, unless it is there; one that is given and not there is refused."""
    folder = data_folder(plan.site, data)
    if (folder / "dataset.json").is_file():
        return
    if data.kind == "given":
        hint = "put it there as TFRecords; `hpcdl data inspect --index DIR` makes it known"
        raise BadInput(f"there is no data set {folder} ('{data.name}' of the study)", hint=hint)
    say(f"making the data set {data.name}")
    options = [one for key, value in data.options.items() for one in (f"--{key}", value)]
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
            f"the data set '{data.name}' could not be made: {ended.description}",
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
class Checked:
    """A script that was rendered and not queued: what lint and bash say of it."""

    run: Run
    partition: str
    tasks: int
    script: JobScript
    errors: tuple[str, ...]
    warnings: tuple[str, ...]


def check_scripts(plan: Plan, modules: Modules) -> tuple[Checked, ...]:
    """Render every script of a study, and check each by lint and by `bash -n`. Writes nothing."""
    from hpcdl.jobs.limits import limits_of
    from hpcdl.jobs.lint import lint

    checked, at_once = [], 1 if plan.scale.in_turn else None
    for part in plan.rounds:
        anew = [RunStatus(point, MISSING) for point in part.points if not point.problem]
        loaded = _modules_of(part, modules)
        for group, script, *_ in sweep_run.preview(plan.site, part.folder, anew, loaded, at_once):
            partition = plan.site.partition(group.spec.partition)
            findings = lint(
                script.text,
                name=f"{part.run.name}.sh",
                version=plan.site.slurm.version,
                partition=limits_of(partition),
            )
            errors, warnings = (
                [
                    f"line {finding.line}: {finding.message}"
                    for finding in findings
                    if finding.severity == severity
                ]
                for severity in ("error", "warning")
            )
            parsed = run(["bash", "-n"], stdin=script.text, check=False, timeout=30)
            if not parsed.ok:
                errors += [f"bash -n: {line}" for line in parsed.stderr.splitlines()]
            checked.append(
                Checked(
                    part.run,
                    group.spec.partition,
                    len(group.points),
                    script,
                    tuple(errors),
                    tuple(warnings),
                )
            )
    return tuple(checked)
