"""Reads what the training program measured (result.json), and names what is missing in it."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

IMAGES = "images_per_second"


@dataclass(frozen=True)
class Measured:
    """A training run as its result.json tells it; `faults` says what is missing or odd."""

    values: Mapping[str, Any]
    faults: tuple[str, ...] = ()

    def number(self, *path: str) -> float | None:
        """A finite number at a place, None where there is none."""
        value: Any = self.values
        for key in path:
            value = value.get(key) if isinstance(value, Mapping) else None
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            return None
        return float(value) if math.isfinite(value) else None

    def text(self, *path: str) -> str:
        """A text at a place, '' where there is none."""
        value: Any = self.values
        for key in path:
            value = value.get(key) if isinstance(value, Mapping) else None
        return value if isinstance(value, str) else ""

    @property
    def driver(self) -> str:
        """The NVIDIA driver as the node itself told it, '' where it told none."""
        return self.text("versions", "driver")


def read_result(path: Path) -> Measured:
    """The result of a run; a missing or broken file is a fault, not an exception."""
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return Measured({}, ("missing result: the program wrote no result.json",))
    except (OSError, ValueError) as fault:
        return Measured({}, (f"missing result: result.json cannot be read ({fault})",))
    if not isinstance(values, dict):
        return Measured({}, ("missing result: result.json is no mapping",))
    return Measured(values)


def losses_fall(losses: Sequence[float]) -> str | None:
    """Why a series of losses is not that of a training that works, or None.

    The mean of the last quarter must lie below that of the first; every loss must be finite.
    """
    if len(losses) < 2:
        return "missing metric: fewer than two losses were recorded"
    if not all(math.isfinite(loss) for loss in losses):
        return "the loss is not finite"
    quarter = max(1, len(losses) // 4)
    first, last = sum(losses[:quarter]) / quarter, sum(losses[-quarter:]) / quarter
    return None if last < first else f"the loss does not fall: {first:.4g} at first, {last:.4g}"
