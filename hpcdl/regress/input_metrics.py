"""Checks of input and storage without ReFrame: where to read, what a result says. Pure."""

from __future__ import annotations

from hpcdl.regress.result import Measured
from hpcdl.results.records import at, outcome
from hpcdl.site import Partition, Site
from hpcdl.system.errors import BadInput


def place_to_read(site: Site, partition: Partition, where: str) -> str:
    """The directory that is read from; may name variables of the job.

    Raises:
        BadInput: the partition has no scratch.
    """
    if where == "work":
        return "$HPCDL_JOB_DIR"
    if partition.scratch is None:
        raise BadInput(f"'{partition.name}' has no scratch")
    return partition.scratch.path


def read_rate(measured: Measured, *, best: bool = False) -> float | None:
    """MB/s of a file system: the median pass, or the best."""
    return measured.number("summary", "best_read_mbs" if best else "read_mbs")


def image_rate(measured: Measured, *, best: bool = False) -> float | None:
    """Images/s of the pipeline: over the whole time, or in the best second."""
    if not best:
        return measured.number("summary", "images_per_second")
    rates = at(measured.values, "samples", "images_per_second")
    return max(rates) if isinstance(rates, list) and rates else None


def of_bench(found: Measured) -> Measured:
    """What `hpcdl data bench --json` says, in the shape of a result.json of one rank."""
    if found.faults:
        return found
    return Measured({
        "layout": {"ranks": 1},
        "outcome": outcome("completed"),
        "release": found.values.get("release"),
        "samples": found.values.get("samples"),
        "versions": {"driver": found.values.get("driver")},
        "summary": dict(found.values),
    })  # fmt: skip
