"""What runs of jobs took of the machine, as accounting tells it."""

from __future__ import annotations

from typing import NamedTuple

from hpcdl.slurm.parse import sacct_fields, tres


class Consumed(NamedTuple):
    """What one run of a job took of the machine; `month` is that of its start, `2026-03`.

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
