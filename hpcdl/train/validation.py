"""Validation while training: every N steps, the best weights kept, an end when nothing improves.

What it has found travels with the checkpoints, so that a resumed run continues it. The ranks score
together; rank 0 decides for all.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from hpcdl.system.errors import BadInput

Score = Callable[[], dict[str, float]]


@dataclass
class Validation:
    """What validation has found so far.

    `every` is the number of steps from one validation to the next, 0 for never. The best value of
    `metric` counts, of losses the smallest. `patience` is how many in a row may bring nothing
    better, 0 for any number. Where the metric is `required`, scores without it are refused.
    """

    every: int
    metric: str
    patience: int
    score: Score
    required: bool = True
    found: list[dict[str, Any]] = field(default_factory=list)

    def due(self, step: int) -> bool:
        """Whether to validate after a step."""
        return bool(self.every) and step % self.every == 0

    def add(self, step: int, metrics: dict[str, float]) -> bool:
        """Keep the scores after a step; whether they are the best. BadInput: no such metric."""
        if self.metric not in metrics and self.required:
            raise BadInput(f"there is no metric '{self.metric}' to choose the best weights by",
                           hint=f"--best is one of {', '.join(metrics) or 'none'}")  # fmt: skip
        self.found.append({"step": step, **metrics})
        return self._best() == len(self.found) - 1

    @property
    def in_vain(self) -> bool:
        """Whether nothing has improved for too long."""
        return bool(self.patience) and len(self.found) - 1 - self._best() >= self.patience

    def best_step(self) -> int:
        """The step of the best scores; 0 where there are none."""
        return int(self.found[self._best()]["step"]) if self.found else 0

    def _best(self) -> int:
        """The place of the best scores among those found; -1 where there are none."""
        sign = -1.0 if "loss" in self.metric else 1.0
        scores = [one.get(self.metric, math.nan) for one in self.found]
        values = [sign * value if math.isfinite(value) else -math.inf for value in scores]
        return max(range(len(values)), key=lambda i: (values[i], -i), default=-1)


def scores_line(metrics: dict[str, float]) -> str:
    """`accuracy 0.9421, test_loss 0.2318`."""
    shown = {name: value for name, value in metrics.items() if name != "test_images"}
    return ", ".join(f"{name} {value:.4f}" for name, value in shown.items())
