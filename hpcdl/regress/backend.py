"""What ReFrame loads beside its settings: our scheduler `hpcdl-slurm` and launcher `hpcdl-srun`.

ReFrame's own back ends either need accounting or never learn how a job ended: a job killed by
its time limit or by a lost node after printing the right words would pass. This one asks
slurmctld (and accounting, for jobs that slurmctld forgot), turns every other ending than the
program's own into a failure, notices jobs that hang, and tells the run folder how jobs stand.
"""

# mypy: disable-error-code="misc,untyped-decorator"

from __future__ import annotations

import json
import os
import signal
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from reframe.core.backends import register_launcher, register_scheduler
from reframe.core.exceptions import JobError, JobSchedulerError
from reframe.core.launchers.mpi import SrunLauncher
from reframe.core.schedulers.slurm import SlurmJobScheduler
from reframe.utility import nodelist_abbrev

from hpcdl.regress.backend_names import EVENTS_VARIABLE, LAUNCHER, PARENT_VARIABLE, SCHEDULER
from hpcdl.regress.job_state import (
    PATIENCE_SECONDS,
    Watchdog,
    fault_of,
    unavailable,
    waits_too_long,
)
from hpcdl.regress.priority import go_first
from hpcdl.results.faults import Fault, FaultKind
from hpcdl.slurm import client
from hpcdl.slurm.parse import ACTIVE, JobRecord
from hpcdl.system.errors import HpcdlError

_POLL_SECONDS = 0.4
_AWAY_SECONDS = 90.0
_UNKNOWN_SECONDS = 10.0
_UNAVAILABLE_SECONDS = 60.0
"""A node that has just ended a job may look so for a moment."""


@register_scheduler(SCHEDULER)
class HpcdlSlurm(SlurmJobScheduler):
    """Slurm, asked through `scontrol show job`.

    A job may carry `hpcdl_directives` (the options of its script), `hpcdl_restarts` (how often
    it may be queued again), `hpcdl_silence` (seconds without a sign of life) and `hpcdl_patience`
    (seconds to wait for nodes); it gets `hpcdl_record`, and `hpcdl_faults` where it has such.
    """

    def emit_preamble(self, job: Any) -> list[str]:
        """The #SBATCH lines: those of hpcdl where the check brought them, else ReFrame's."""
        directives = getattr(job, "hpcdl_directives", None)
        if directives is None:
            lines: list[str] = super().emit_preamble(job)
            return lines
        pinned = [f"--nodelist={nodelist_abbrev(job.pin_nodes)}"] if job.pin_nodes else []
        return [f"#SBATCH {option}" for option in (*directives, *pinned, *job.cli_options)]

    def submit(self, job: Any) -> None:
        """Queue the job, with an environment that cannot leak into it."""
        try:
            job._jobid = str(client.submit(Path(job.script_filename)))
        except HpcdlError as fault:
            raise JobSchedulerError(" ".join((fault.message, *fault.details))) from fault
        job._submit_time = time.time()
        _tell(job, "SUBMITTED")

    def poll(self, *jobs: Any) -> None:
        """Learn how jobs stand."""
        _leave_with_parent()
        for job in jobs:
            if job is not None and not self.finished(job) and _due(job):
                self._ask(job)
        self._cancel_if_pending_too_long([job for job in jobs if job is not None])

    def finished(self, job: Any) -> bool:
        """Whether the job has ended, or was given up.

        ReFrame raises the exception of a job once and then waits for its end: a job that was
        given up has ended, whatever Slurm still does with it.
        """
        return hasattr(job, "hpcdl_fault") or bool(job.state and job.state not in ACTIVE)

    def wait(self, job: Any) -> None:
        """Wait for the job's end."""
        while not self.finished(job):
            self.poll(job)
            time.sleep(_POLL_SECONDS)

    def _ask(self, job: Any) -> None:
        try:
            record = client.job(int(job.jobid))
        except HpcdlError as fault:
            if _lasts(job, "away", _AWAY_SECONDS):
                text = f"Slurm away: {fault.message} for {_AWAY_SECONDS:.0f} s"
                self._give_up(job, Fault(FaultKind.SLURM_AWAY, text))
            return
        if record is None:
            if _lasts(job, "unknown", _UNKNOWN_SECONDS):
                self._give_up(job, fault_of(None))
            return
        cannot_start = unavailable(record) if job.pin_nodes else None
        if cannot_start is None:
            job.hpcdl_since = {}
        elif _lasts(job, "unavailable", _UNAVAILABLE_SECONDS):
            self._give_up(job, cannot_start)
            return
        self._take(job, record)

    def _take(self, job: Any, record: JobRecord) -> None:
        changed = record.state != job.state
        job.hpcdl_record = record
        job._state, job._nodespec = record.state, record.nodes
        if changed:
            _tell(job, record.state)
        fault = fault_of(record, getattr(job, "hpcdl_restarts", 0)) or waits_too_long(
            record, time.time() - job._submit_time, getattr(job, "hpcdl_patience", PATIENCE_SECONDS)
        )
        if fault is None and record.state == "RUNNING":
            fault = _hang(job, record)
            if getattr(job, "hpcdl_cluster", None):
                go_first(record.id, job.hpcdl_cluster)
        if fault is not None:
            self._give_up(job, fault)
        elif not record.active:
            job._exitcode = record.exit_code

    def _give_up(self, job: Any, fault: Fault | None) -> None:
        """Make the check fail with a fault, which its evidence takes, and leave no job behind."""
        job.hpcdl_fault = job._exception = JobError(str(fault), job.jobid)
        if fault is not None and hasattr(job, "hpcdl_faults"):
            job.hpcdl_faults.append(fault.as_data())
        _tell(job, "GIVEN_UP", str(fault))
        with suppress(HpcdlError):
            client.cancel([int(job.jobid)])


@register_launcher(LAUNCHER)
class HpcdlSrun(SrunLauncher):
    """The launch line of hpcdl; for checks without one, ReFrame's own srun.

    That one ends with its first failing rank, where Slurm's default would hang.
    """

    def command(self, job: Any) -> list[str]:
        """The launcher's words."""
        launch = getattr(job, "hpcdl_launch", None)
        return [launch] if launch else [*super().command(job), "--kill-on-bad-exit=1"]


def _due(job: Any) -> bool:
    """Whether the last question was long enough ago; slurmctld serves others too."""
    now = time.monotonic()
    if now - getattr(job, "hpcdl_asked", 0.0) < _POLL_SECONDS:
        return False
    job.hpcdl_asked = now
    return True


def _lasts(job: Any, what: str, limit: float) -> bool:
    """Whether `what` has been so for `limit` seconds."""
    since = job.__dict__.setdefault("hpcdl_since", {}).setdefault(what, time.monotonic())
    return bool(time.monotonic() - since > limit)


def _hang(job: Any, record: JobRecord) -> Fault | None:
    """Why a job that is called RUNNING is taken for dead, or None."""
    dog: Watchdog | None = getattr(job, "hpcdl_watchdog", None)
    if dog is None:
        limit = getattr(job, "hpcdl_silence", None)
        dog = job.hpcdl_watchdog = Watchdog(limit) if limit else Watchdog()
    silence = dog.silence(_signs(Path(job.workdir)))
    if not dog.suspicious(silence):
        return None
    return dog.fault(silence, node_restarted=_node_restarted(record))


def _signs(folder: Path) -> object:
    """What changes while a job is alive: sizes and times of its files."""
    found = []
    with suppress(OSError):
        for entry in os.scandir(folder):
            with suppress(OSError):
                status = entry.stat()
                found.append((entry.name, status.st_size, status.st_mtime_ns))
    return sorted(found)


def _node_restarted(record: JobRecord) -> bool:
    """Whether slurmd of one of the job's nodes started after the job did."""
    with suppress(HpcdlError):
        return any(
            started and record.started and started > record.started
            for started in client.daemon_starts(record.nodes).values()
        )
    return False


def _tell(job: Any, state: str, why: str = "") -> None:
    """Append one line to the run's events, for whoever follows the run."""
    path = os.environ.get(EVENTS_VARIABLE)
    if not path:
        return
    record: JobRecord | None = getattr(job, "hpcdl_record", None)
    event = {
        "time": time.time(),
        "job": int(job.jobid),
        "name": getattr(job, "hpcdl_name", job.name),
        "folder": str(job.workdir),
        "state": state,
        "why": why or (record.reason if record else ""),
        "nodes": record.nodes if record else "",
        "restarts": record.restarts if record else 0,
    }
    with Path(path).open("a", encoding="utf-8") as file:
        file.write(json.dumps(event) + "\n")


def _leave_with_parent() -> None:
    """End ReFrame, and with it its jobs, once the process that started it is gone."""
    parent = os.environ.get(PARENT_VARIABLE)
    if parent and os.getppid() != int(parent):
        os.environ.pop(PARENT_VARIABLE)
        os.kill(os.getpid(), signal.SIGTERM)
