"""Usage of runs of jobs, from accounting."""

from __future__ import annotations

import os
import shutil
from typing import NamedTuple

from hpcdl.slurm import client
from hpcdl.slurm.parse import sacct_fields, tres
from hpcdl.system.errors import MissingPrerequisite


class Consumed(NamedTuple):
    """The usage of one run of a job; `month` is that of its start, `2026-03`.

    `energy_kwh` is None where Slurm measures none.
    """

    job_id: int
    user: str
    account: str
    partition: str
    month: str
    name: str
    cpu_hours: float
    gpu_hours: float
    energy_kwh: float | None


CONSUMED_FIELDS = (
    "JobIDRaw,User,Account,Partition,Start,ElapsedRaw,ConsumedEnergyRaw,AllocTRES,JobName"
)


def consumed_by(line: str) -> Consumed:
    """A line of `sacct -n -P -X -D -o CONSUMED_FIELDS`."""
    values = sacct_fields(line, CONSUMED_FIELDS)
    had = tres(values["AllocTRES"])
    hours = int(values["ElapsedRaw"] or 0) / 3600
    joules = float(values["ConsumedEnergyRaw"] or 0)
    return Consumed(
        job_id=int(values["JobIDRaw"]),
        user=values["User"],
        account=values["Account"],
        partition=values["Partition"],
        month=values["Start"][:7],
        name=values["JobName"],
        cpu_hours=int(had.get("cpu", 0)) * hours,
        gpu_hours=int(had.get("gres/gpu", 0)) * hours,
        # 2**64 - 2 stands for none.
        energy_kwh=joules / 3.6e6 if 0 < joules < 1e18 else None,
    )


def consumed(since: str, until: str, *, everybody: bool) -> tuple[Consumed, ...]:
    """Return the usage of jobs in a period, from accounting; a requeued job has one row per run.

    Times are as `sacct --starttime` takes them; `everybody` means all users' jobs, as far as Slurm
    shows them, instead of one's own.

    Raises:
        MissingPrerequisite: there is no accounting, or it does not answer.
    """
    hint = "the site needs slurmdbd; an emulated cluster has it with `cluster up --accounting`"
    if shutil.which("sacct") is None:
        raise MissingPrerequisite("there is no sacct here", hint=hint)
    answer, lines = client.sacct(
        CONSUMED_FIELDS,
        "--allocations",
        "--duplicates",
        "--truncate",
        f"--starttime={since}",
        f"--endtime={until}",
        "--allusers" if everybody else f"--uid={os.getuid()}",
    )
    if not answer.ok or "is disabled" in answer.stderr:
        raise MissingPrerequisite(
            "Slurm's accounting does not answer", details=answer.last_lines(2), hint=hint
        )
    return tuple(client.parsed(consumed_by, line, "sacct") for line in lines)
