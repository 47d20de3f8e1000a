"""The old pipeline's part of a step: no images are made ahead, so ranks wait for all of them.

One rank's own measurement says how long it waits. What storage gives to all ranks of a job is
shared by them; the rest, decoding, takes the cores' time as computing does.
"""

from __future__ import annotations

from hpcdl.predict.feed import PIPELINES
from hpcdl.workflows.study.collect import Measured
from hpcdl.workflows.study.model import SYNTHETIC
from hpcdl.workflows.study.study_plan import Cell

NEW, OLD = PIPELINES
_MEGA = 1e6
_LEAST = 0.01
"""The least part of a step that is work, so that no rate is without end."""


def pipeline(cell: Cell) -> str:
    """How the cell's images come in."""
    chosen = {**cell.run.options, **cell.values}.get("pipeline", NEW)
    return NEW if cell.data == SYNTHETIC else chosen


def working_rate(base: Measured) -> float:
    """Images per second of one rank while it does not wait for images that are not made ahead."""
    return base.rate / (1 - _waiting(base))


def wait(base: Measured, gpus: int, sharing: float) -> float:
    """Seconds of a step that each of `gpus` ranks waits, by one rank's measurement.

    Args:
        base: the series' one rank.
        gpus: ranks that read from one storage.
        sharing: how much longer a rank computes among them than alone.
    """
    batch = float(base.result["batch_per_rank"])
    whole = _waiting(base) * batch / base.rate
    reading = min(whole, batch * _reading(base))
    return reading * gpus + (whole - reading) * sharing


def _waiting(base: Measured) -> float:
    """The part of one rank's step that it waits; none where images are made ahead."""
    if pipeline(base.cell) == NEW:
        return 0.0
    return min(1 - _LEAST, base.shares.get("input", 0.0))


def _reading(base: Measured) -> float:
    """Seconds that storage takes for an image; 0 where it is not held back."""
    reads = base.cell.run.reads
    if reads is None or not reads.megabytes_per_second or not base.size or not base.images:
        return 0.0
    return base.size / base.images / (reads.megabytes_per_second * _MEGA)
