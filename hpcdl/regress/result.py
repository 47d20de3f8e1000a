"""What a job measured (result.json), as the checks read it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpcdl.results.faults import Fault, FaultKind
from hpcdl.results.records import RESULT, at
from hpcdl.system.errors import BadInput

IMAGES = "images_per_second"


@dataclass(frozen=True)
class Measured:
    """A run as its result.json tells it; `faults` says why there is none, text is a check's."""

    values: Mapping[str, Any]
    faults: tuple[Fault | str, ...] = ()

    def number(self, *path: str) -> float | None:
        """A finite number at a place, None where there is none."""
        value = at(self.values, *path)
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            return None
        return float(value) if math.isfinite(value) else None

    def text(self, *path: str) -> str:
        """A text at a place, '' where there is none."""
        value = at(self.values, *path)
        return value if isinstance(value, str) else ""

    @property
    def driver(self) -> str:
        """The NVIDIA driver as the node itself told it, '' where it told none."""
        return self.text("versions", "driver")


def read_result(path: Path) -> Measured:
    """The result of a run; a missing or broken file is a fault, not an exception."""
    try:
        values = RESULT.read(path).values
        wrong = tuple(_other_units(values))
        return Measured({} if wrong else values, wrong)
    except BadInput as fault:
        why = f"result.json cannot be read ({fault.message})"
    if not path.exists():
        why = "the program wrote no result.json"
    return Measured({}, (Fault(FaultKind.NO_RESULT, f"missing result: {why}"),))


def _other_units(values: Mapping[str, Any]) -> Iterator[Fault]:
    """Numbers that the file gives in another unit than its format has."""
    known = RESULT.data(values).get("units", {})
    for place, said in (values.get("units") or {}).items():
        if place in known and said != known[place]:
            text = f"the result gives {place} in {said!r}, not in {known[place]}"
            yield Fault(FaultKind.UNIT, text, place, wanted=known[place], got=str(said))


def losses_fall(losses: Sequence[float]) -> Fault | None:
    """Why a series of losses is not that of a training that works, or None.

    The mean of the last quarter must lie below that of the first; every loss must be finite.
    """
    if len(losses) < 2:
        text = "missing metric: fewer than two losses were recorded"
        return Fault(FaultKind.NO_METRIC, text, "loss", wanted=2, got=len(losses))
    if not all(math.isfinite(loss) for loss in losses):
        return Fault(FaultKind.LOSS, "the loss is not finite", "loss")
    quarter = max(1, len(losses) // 4)
    first, last = sum(losses[:quarter]) / quarter, sum(losses[-quarter:]) / quarter
    if last < first:
        return None
    text = f"the loss does not fall: {first:.4g} at first, {last:.4g}"
    return Fault(FaultKind.LOSS, text, "loss", wanted=first, got=last)
