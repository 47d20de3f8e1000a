"""The gate through real jobs: a release is tested on every partition that it would serve.

One small job per partition, all at once: two ranks load the staged module as users will and run
the gate's program; hpcdl's own job script starts them. What they saw, the job, its nodes and its
log go into the record. A job that fails, or gets no node in time, is a check that fails; jobs that
are still there at the end, or when a signal comes, are cancelled.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from hpcdl.jobs import submission
from hpcdl.jobs.script import default_job_dir
from hpcdl.jobs.spec import JobSpec, Module
from hpcdl.jobs.submission import Submission
from hpcdl.jobs.watch import Snapshot, follow, look
from hpcdl.site import Partition, Site
from hpcdl.slurm import client
from hpcdl.stack import verify
from hpcdl.stack.modules import has_code_for
from hpcdl.stack.publish import serves
from hpcdl.stack.release import Release
from hpcdl.stack.verify import RANKS, Check, Gate, GateRun, Proof, check_files, judge, read_seen
from hpcdl.system.errors import BadInput, HpcdlError, MissingPrerequisite, Stopped
from hpcdl.system.files import last_text, write_atomic
from hpcdl.system.signals import terminable, undivided
from hpcdl.system.text import utc_now, utc_stamp

Say = Callable[[str], None]
WAIT_MINUTES = 30
_RUN_MINUTES = 10
_POLL_SECONDS = 1.0
_LATE_SECONDS = 10.0
_LOG_LINES = 8
_CPUS_PER_RANK = 4
_OUT = "gate.json"
_PYTHONS = ("PYTHONPATH", "PYTHONHOME")


@dataclass(frozen=True)
class JobGate:
    """A gate that submits jobs.

    `partitions` are the ones to try; `wait_seconds` is how long a job may wait for its nodes.
    """

    say: Say
    partitions: tuple[str, ...]
    wait_seconds: float = WAIT_MINUTES * 60.0

    def __call__(self, site: Site, release: Release) -> Proof:
        """Test a release.

        Raises:
            BadInput: there is no partition to try.
            MissingPrerequisite: Slurm does not answer.
            Stopped: by a signal; its jobs are cancelled.
        """
        if not self.partitions:
            message = f"{release.id} would serve no partition of '{site.name}'"
            raise BadInput(message, hint="name one to test it on: --partition NAME")
        _require_slurm()
        queued: dict[str, Submission] = {}
        try:
            with terminable():
                return self._prove(site, release, queued)
        except KeyboardInterrupt:
            jobs = [*queued.values()]
            queued.clear()
            done = _cancel(jobs, self.say) and bool(jobs)
            numbers = ", ".join(str(job.job_id) for job in jobs)
            text = f"; the gate's jobs {numbers} are cancelled" if done else ""
            raise Stopped(f"stopped{text}", hint="what is published stayed as it was") from None
        finally:
            _cancel(list(queued.values()), self.say)

    def _prove(self, site: Site, release: Release, queued: dict[str, Submission]) -> Proof:
        """Submit a job per partition, noted in `queued` at once, and check their results."""
        tried = {name: dict(_groups(site, release, name)) for name in self.partitions}
        lack = "no job was started: the release has device code for none of its GPUs, "
        checks = [
            Check(
                "job", False, lack + ", ".join(site.partition(name).gpu_models), 0.0, partition=name
            )
            for name, groups in tried.items()
            if not groups
        ]
        nodes = {label: group for groups in tried.values() for label, group in groups.items()}
        for name, group in nodes.items():
            try:
                with undivided():  # no signal between Slurm's answer and our note of it
                    queued[name] = _submit(site, release, group)
                self.say(f"job {queued[name].job_id} tries it on {name}")
            except BadInput as refusal:
                problem = "; ".join([refusal.message, *refusal.details])
                checks.append(Check("job", False, problem, 0.0, partition=group.name))
        checks += check_files(site, release, self.partitions, run_there=True)
        ended = _ended(list(queued.values()), self.wait_seconds)
        runs = []
        for name, job in queued.items():
            judged, gate_run = _outcome(release, nodes[name], job, ended[job.job_id])
            checks += judged
            runs.append(gate_run)
        checks.append(verify.check_content(release))
        return verify.new_proof(release, "job", ", ".join(self.partitions), checks, runs)


def choose_gate(
    site: Site,
    release: Release,
    say: Say,
    *,
    local: bool = False,
    partitions: Sequence[str] = (),
    wait_minutes: float = WAIT_MINUTES,
) -> tuple[Gate, Callable[[Proof], bool]]:
    """The gate to use, and which stored evidence makes it unnecessary: of jobs on all partitions.

    Those are the named `partitions`, else all that the release would serve.

    Raises BadInput: an unknown partition, or both `local` and partitions.
    """
    if local and partitions:
        raise BadInput("--local runs on no partition", hint="leave --partition out")
    if local:
        return verify.verify_here, lambda _: True
    named = dict.fromkeys(site.partition(name).name for name in partitions)
    names = tuple(named) or serves(site, release)
    gate = JobGate(say, names, wait_minutes * 60)
    return gate, lambda proof: proof.gate == "job" and {*names} <= proof.partitions


def _groups(site: Site, release: Release, name: str) -> Iterator[tuple[str, Partition]]:
    """A partition; where it has several GPU models, the nodes of each that the release is for."""
    partition = site.partition(name)
    if len(partition.gpu_models) < 2:
        yield name, partition
        return
    for group in partition.gpu_groups:
        if group.gpu and has_code_for(release, group.gpu):
            yield f"{name}, {group.gpu.model}", group


def _require_slurm() -> None:
    try:
        client.partitions()
    except MissingPrerequisite as lack:
        raise MissingPrerequisite(
            f"the gate needs jobs on the partitions: {lack.message}",
            details=lack.details,
            hint=f"{lack.hint}; or test it on this machine only: --local",
        ) from lack


def _submit(site: Site, release: Release, partition: Partition) -> Submission:
    """Queue the job of a partition; BadInput where Slurm refuses it."""
    stamp = f"{utc_stamp()}-{release.id[-8:]}-{os.urandom(2).hex()}"
    folder = default_job_dir(site, f"gate-{partition.name}", stamp)
    module = Module((release.module,), release.modules, release.id)
    # A job has what sbatch has: the shell's own packages must not stand in for missing ones.
    shell = {name: os.environ.pop(name) for name in _PYTHONS if name in os.environ}
    try:
        write_atomic(folder / verify.PROBE.name, verify.PROBE.read_text(encoding="utf-8"))
        job = submission.submit(site, _spec(release, partition, folder), module)
        if job.resumed:  # it has a directory of its own
            shutil.rmtree(folder, ignore_errors=True)
        return job
    except BadInput:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    finally:
        os.environ.update(shell)


def _spec(release: Release, partition: Partition, folder: Path) -> JobSpec:
    """Two ranks on as little as the partition gives: a GPU each, else a few CPUs."""
    gpus = partition.gpus_per_node
    alone = gpus == 1 and partition.nodes > 1
    return JobSpec(
        partition=partition.name,
        nodes=RANKS if alone else 1,
        gpus_per_node=min(gpus, 1 if alone else RANKS) or None,
        tasks_per_node=None if gpus else RANKS,
        cpus_per_task=None if gpus else max(1, min(_CPUS_PER_RANK, partition.cpus // RANKS)),
        minutes=min(_RUN_MINUTES, partition.max_minutes),
        name=f"gate-{partition.name}",
        program=tuple(verify.program_argv(release, verify.PROBE.name, _OUT)),
        job_dir=folder,
        requeues=0,
        preflight=False,
        gpu_model=partition.gpu_asked_for,
    )


def _ended(jobs: Sequence[Submission], wait_seconds: float) -> dict[int, Snapshot]:
    """Every job when it has ended, or when it has waited too long for its nodes.

    They run all at once, so each is followed in turn. One that has its nodes may run to the end of
    its time limit, which Slurm enforces. Raises MissingPrerequisite: Slurm stays away.
    """
    deadline = time.monotonic() + wait_seconds
    last: dict[int, Snapshot] = {}
    for job in jobs:
        for snapshot in follow(job):
            last[job.job_id] = snapshot
            if snapshot.state == "PENDING" and time.monotonic() > deadline:
                break
    return last


def _cancel(jobs: Sequence[Submission], say: Say) -> bool:
    """Cancel the jobs that are left; a failure is only reported, for what broke before counts."""
    try:
        client.cancel([job.job_id for job in jobs if not look(job).ended])
    except HpcdlError as fault:
        numbers = " ".join(str(job.job_id) for job in jobs)
        say(f"note: the gate's jobs may still be queued ({fault.message}): scancel {numbers}")
        return False
    return True


def _outcome(
    release: Release, partition: Partition, job: Submission, last: Snapshot
) -> tuple[list[Check], GateRun]:
    """Return a job's checks, and where it ran."""
    # A file system that nodes share may show what the program wrote a little later.
    end = time.monotonic() + (_LATE_SECONDS if last.ok else 0)
    while (seen := read_seen(job.folder / _OUT)) is None and time.monotonic() < end:
        time.sleep(_POLL_SECONDS)
    samples = verify.samples_of(seen) if seen else {}
    gate_run = GateRun(partition.name, job.job_id, last.nodes, utc_now(), str(job.log), samples)
    if not last.ok or seen is None:
        return [Check("job", False, _why(job, last), 0.0, partition=partition.name)], gate_run
    # Two ranks; one where a partition has a single GPU.
    ranks = 1 if partition.gpus_per_node == partition.nodes == 1 else RANKS
    judged = judge(release, seen, partition, ranks)
    return [replace(check, partition=partition.name) for check in judged], gate_run


def _why(job: Submission, last: Snapshot) -> str:
    """Why a job is not evidence, with the end of its log."""
    if not last.ended:
        return f"job {job.job_id} got no node in time and was cancelled: {last.description}"
    lines = last_text(job.log).strip().splitlines()[-_LOG_LINES:]
    last_lines = " | ".join(line.strip() for line in lines if line.strip())
    end = f"job {job.job_id} on {last.nodes or 'no node'} ended {last.state}"
    code = f" with exit code {last.exit_code}" if last.exit_code else ""
    return f"{end}{code}; its log {job.log} ends: {last_lines or 'empty'}"
