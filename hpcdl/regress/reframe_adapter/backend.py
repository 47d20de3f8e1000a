"""What ReFrame loads beside its settings: our scheduler `hpcdl-slurm` and launcher `hpcdl-srun`.

ReFrame's own back ends either need accounting or never learn how a job ended: a job killed by
its time limit or by a lost node after printing the right output would pass. This one asks
slurmctld (and accounting, for jobs that slurmctld forgot), turns every other ending than the
program's own into a failure, notices jobs that hang, and records the jobs' states for the run.
"""

# mypy: disable-error-code="misc,untyped-decorator"

from __future__ import annotations

import json
import math
import os
import signal
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import reframe
from reframe.core.backends import register_launcher, register_scheduler
from reframe.core.exceptions import ConfigError, JobError, JobSchedulerError
from reframe.core.launchers.mpi import SrunLauncher
from reframe.core.schedulers.slurm import SlurmJobScheduler, _SlurmJob
from reframe.utility import nodelist_abbrev

from hpcdl.regress.job_state import (
    DEAD_SECONDS,
    PATIENCE_SECONDS,
    Watchdog,
    dead_wait,
    fault_of,
    unavailable,
    waits_too_long,
)
from hpcdl.regress.reframe_adapter.process import (
    EVENTS_VARIABLE,
    PARENT_VARIABLE,
    PLACES_VARIABLE,
    require_reframe,
)
from hpcdl.regress.result import seconds_between
from hpcdl.regress.run_directory import SUBMITTED, SUBMITTING
from hpcdl.results.faults import FaultKind, JobFault
from hpcdl.slurm import client, once
from hpcdl.slurm.hostlist import expand_hostlist
from hpcdl.slurm.parse import JobRecord, is_out
from hpcdl.system.errors import HpcdlError

SCHEDULER, LAUNCHER = "hpcdl-slurm", "hpcdl-srun"
try:
    require_reframe(reframe.VERSION)
except HpcdlError as lack:  # as ReFrame says what is wrong with its settings
    raise ConfigError(lack.message) from None
_POLL_SECONDS = 0.4
_AWAY_SECONDS = 90.0
_UNKNOWN_SECONDS = 10.0
_UNAVAILABLE_SECONDS, _NODES_SECONDS = 20.0, 5.0
"""A node that has just ended a job may look so for a moment; how often nodes are asked about."""


@dataclass(frozen=True)
class JobPlan:
    """What hpcdl's checks know about their job and ReFrame does not.

    `script` is its text; `log` takes all output. It may be queued again `restarts` times, wait
    `patience` seconds for nodes, and run `silence` seconds without a sign of life.
    """

    script: str
    name: str
    log: str
    restarts: int
    silence: float
    patience: float


class HpcdlJob(_SlurmJob):
    """A job as Slurm knows it; ReFrame asks through the properties. `plan`: of our checks only."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.plan: JobPlan | None = None
        self.id: int | None = None
        self.token = ""
        self.record: JobRecord | None = None
        self.fault: JobFault | None = None
        self.reported = False
        self.faults: list[Any] = []
        self.submitted = self.asked = self.asked_nodes = 0.0
        self.was_on = ""
        self.cannot_start: JobFault | None = None
        self.since: dict[str, float] = {}
        self.watchdog: Watchdog | None = None

    # What ReFrame's own schedulers set as private attributes follows from what Slurm said last.
    jobid = property(lambda self: str(self.id) if self.id else None)
    submit_time = property(lambda self: self.submitted or None)
    state = property(lambda self: self.record.state if self.record else None)
    exitcode = property(
        lambda self: self.record.exit_code if self.record and not self.record.active else None
    )
    nodelist = property(lambda self: [*expand_hostlist(self.record.nodes)] if self.record else [])
    stdout = property(lambda self: self.plan.log if self.plan else super().stdout)
    stderr = property(lambda self: self.plan.log if self.plan else super().stderr)

    def prepare(self, *args: Any, **kwargs: Any) -> None:
        """Write the script: that of hpcdl where the check brought one, else ReFrame's."""
        if self.plan is None:
            super().prepare(*args, **kwargs)
            return
        pinned = [f"--nodelist={nodelist_abbrev(self.pin_nodes)}"] if self.pin_nodes else []
        more = [*pinned, *self.cli_options, *_places(self.plan.name)]
        head, mark, rest = self.plan.script.rpartition("#SBATCH ")
        last, _, body = rest.partition("\n")
        lines = "".join(f"#SBATCH {option}\n" for option in (last, *more))
        text = f"{head}{lines}{body}" if mark else self.plan.script
        Path(self.script_filename).write_text(text, encoding="utf-8")

    def finished(self) -> bool:
        """Return whether it has ended; raises once why it was given up."""
        done = bool(super().finished())
        if done and self.fault and not self.reported:
            self.reported = True
            raise JobError(str(self.fault), self.jobid)
        return done


@register_scheduler(SCHEDULER)
class HpcdlSlurm(SlurmJobScheduler):
    """Slurm, asked through `scontrol show job`."""

    def make_job(self, *args: Any, **kwargs: Any) -> HpcdlJob:
        """A job that this scheduler knows."""
        return HpcdlJob(*args, **kwargs)

    def emit_preamble(self, job: HpcdlJob) -> list[str]:
        """The #SBATCH lines of a script of ReFrame's."""
        lines: list[str] = super().emit_preamble(job)
        return [*lines, *(f"#SBATCH {option}" for option in _places(job.name))]

    def submit(self, job: HpcdlJob) -> None:
        """Queue the job, with an environment that cannot leak into it."""
        job.token = once.new_token()
        _tell(job, SUBMITTING)  # whoever clears up after us finds the job by its token
        try:
            job.id = once.submit(Path(job.script_filename), token=job.token)
        except HpcdlError as fault:
            raise JobSchedulerError(" ".join((fault.message, *fault.details))) from fault
        job.submitted = time.time()
        _tell(job, SUBMITTED)

    def poll(self, *jobs: HpcdlJob | None) -> None:
        """Update the state of the jobs."""
        _leave_with_parent()
        for job in jobs:  # not too often: slurmctld serves others too
            now = time.monotonic()
            if job is not None and not self.finished(job) and now - job.asked >= _POLL_SECONDS:
                job.asked = now
                self._ask(job)

    def finished(self, job: HpcdlJob) -> bool:
        """Return whether the job has ended, or was given up.

        ReFrame raises the exception of a job once and then waits for its end: a job that was
        given up has ended, whatever Slurm still does with it.
        """
        return bool(job.fault or (job.record and not job.record.active))

    def wait(self, job: HpcdlJob) -> None:
        """Wait for the job's end."""
        while not self.finished(job):
            self.poll(job)
            time.sleep(_POLL_SECONDS)

    def _ask(self, job: HpcdlJob) -> None:
        try:
            record = client.job(int(job.jobid or 0))
        except HpcdlError as fault:
            if _lasts(job, "away", _AWAY_SECONDS):
                text = f"Slurm away: {fault.message} for {_AWAY_SECONDS:.0f} s"
                self._give_up(job, JobFault(FaultKind.SLURM_AWAY, text))
            return
        if record is None:
            lost = fault_of(None)
            if lost is not None and _lasts(job, "unknown", _UNKNOWN_SECONDS):
                self._give_up(job, lost)
            return
        cannot_start = _cannot_start(job, record)
        if cannot_start is None:
            job.since.pop("unavailable", None)
        elif _lasts(job, "unavailable", _UNAVAILABLE_SECONDS):
            self._give_up(job, cannot_start)
            return
        if not dead_wait(record):
            job.since.pop("dead", None)
        elif _lasts(job, "dead", DEAD_SECONDS):
            text = f"node lost: its nodes are down for {DEAD_SECONDS:.0f} s ({record.reason})"
            self._give_up(job, JobFault(FaultKind.NODE_LOST, text))
            return
        job.since.pop("away", None)
        job.since.pop("unknown", None)
        self._take(job, record)

    def _take(self, job: HpcdlJob, record: JobRecord) -> None:
        changed, job.record = record.state != job.state, record
        job.was_on = record.nodes or job.was_on
        if changed:
            _tell(job, record.state)
        waited = time.time() - job.submitted
        patience = job.plan.patience if job.plan else PATIENCE_SECONDS
        limit = min(patience, job.max_pending_time or math.inf)
        fault = fault_of(record, job.plan.restarts if job.plan else 0, _which(job, record))
        fault = fault or waits_too_long(record, waited, limit)
        if fault is None and record.state == "RUNNING":
            fault = _hang(job, record)
        if fault is not None:
            self._give_up(job, fault)

    def _give_up(self, job: HpcdlJob, fault: JobFault) -> None:
        """Make the check fail with a fault, which its evidence takes, and leave no job behind."""
        job.fault = fault
        job.faults.append(fault.as_data())
        _tell(job, "GIVEN_UP", str(fault))
        with suppress(HpcdlError):
            client.cancel([int(job.jobid or 0)])


@register_launcher(LAUNCHER)
class HpcdlSrun(SrunLauncher):
    """ReFrame's own srun, which ends with its first failing rank, where Slurm's would hang."""

    def command(self, job: HpcdlJob) -> list[str]:
        """The launcher and its options."""
        return [*super().command(job), "--kill-on-bad-exit=1"]


def _places(name: str) -> list[str]:
    """Options that say where a job runs that is measured again; Slurm takes the last of each."""
    return list(json.loads(os.environ.get(PLACES_VARIABLE) or "{}").get(name, ()))


def declared_name(check: type) -> str:
    """The name of a check's class, not of those that ReFrame derives to repeat or distribute it."""
    return next(cls.__name__ for cls in check.__mro__ if cls.__module__ != "reframe.core.meta")


def _lasts(job: HpcdlJob, what: str, limit: float) -> bool:
    return time.monotonic() - job.since.setdefault(what, time.monotonic()) > limit


def _cannot_start(job: HpcdlJob, record: JobRecord) -> JobFault | None:
    """Why a job that must run on named nodes cannot start, as far as it was asked of late."""
    if not job.pin_nodes or record.state != "PENDING":
        return None
    now = time.monotonic()
    if now - job.asked_nodes >= _NODES_SECONDS:
        job.asked_nodes = now
        with suppress(HpcdlError):
            states = client.of_nodes("State", nodelist_abbrev(job.pin_nodes))
            job.cannot_start = unavailable(record, states)
    return job.cannot_start


def _which(job: HpcdlJob, record: JobRecord) -> str:
    """The nodes of a job that was put back, those that take no jobs named apart."""
    if not job.was_on or (record.active and not record.restarts):
        return job.was_on
    with suppress(HpcdlError):
        states = client.of_nodes("State", job.was_on)
        out = [one for one, state in states.items() if is_out(state)]
        if out:
            return f"{job.was_on}, of which {nodelist_abbrev(out)} takes no jobs"
    return job.was_on


def _hang(job: HpcdlJob, record: JobRecord) -> JobFault | None:
    if job.watchdog is None:
        job.watchdog = Watchdog(job.plan.silence) if job.plan else Watchdog()
    silence = job.watchdog.silence(_signs(Path(job.workdir)))
    return job.watchdog.fault(silence, lambda: _node_restarted(record))


def _signs(directory: Path) -> object:
    """Sizes and times of the files of a job that is alive change; a file system may not answer."""
    signs = []
    with suppress(OSError):
        for entry in os.scandir(directory):
            with suppress(OSError):
                status = entry.stat()
                signs.append((entry.name, status.st_size, status.st_mtime_ns))
    return sorted(signs)


def _node_restarted(record: JobRecord) -> bool:
    with suppress(HpcdlError):
        starts = client.of_nodes("SlurmdStartTime", record.nodes).values()
        return any(one and record.started and one > record.started for one in starts)
    return False


def _tell(job: HpcdlJob, state: str, why: str = "") -> None:
    path = os.environ.get(EVENTS_VARIABLE)
    if not path:
        return
    record = job.record
    event = {
        "time": time.time(),
        "job": job.id,
        "token": job.token,
        "name": job.plan.name if job.plan else job.name,
        "directory": str(job.workdir),
        "state": state,
        "why": why or (record.reason if record else ""),
        "nodes": (record.nodes if record else "") or job.was_on,
        "restarts": record.restarts if record else 0,
        "record": job_record(job),
    }
    with Path(path).open("a", encoding="utf-8") as file:
        file.write(json.dumps(event) + "\n")
        file.flush()
        os.fsync(file.fileno())


def job_record(job: HpcdlJob) -> dict[str, Any]:
    """Return Slurm's last record of a job, as verdicts have it; empty before there is one."""
    record = job.record
    if record is None:
        return {}
    return {
        "id": record.id,
        "state": record.state,
        "exit_code": record.exit_code,
        "nodes": record.nodes or job.was_on,
        "planned": nodelist_abbrev(job.pin_nodes) if job.pin_nodes else "",
        "restarts": record.restarts,
        "queue_wait_seconds": seconds_between(record.submitted, record.started),
        "run_seconds": seconds_between(record.started, record.ended),
    }


def _leave_with_parent() -> None:
    """End ReFrame, and with it its jobs, once the process that started it is gone."""
    parent = os.environ.get(PARENT_VARIABLE)
    if parent and os.getppid() != int(parent):
        os.environ.pop(PARENT_VARIABLE)
        os.kill(os.getpid(), signal.SIGTERM)
