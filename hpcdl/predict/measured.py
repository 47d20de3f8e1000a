"""Runs of several GPUs on this machine: what they lost is worth more than any theory.

A run says how much longer a step of its ranks is than one rank's own work. The model's loss at
other counts is stretched by the same factor; at the run's own count the run is the prediction.
Runs that were repeated narrow the range: it is that of one more run like them.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

_SPREAD, _AS_IF = 0.03, 2
"""What two runs of the same job usually differ by, as a part, and how many runs that is worth."""
_EIGHT_OF_TEN = NormalDist().inv_cdf(0.9)
ONE_RUN = math.exp(_EIGHT_OF_TEN * _SPREAD * math.sqrt(2))
"""The factor by which the next run may differ from a single one, eight times in ten."""
_LEAST_LOSS = 0.005
_MOST = 20.0


@dataclass(frozen=True)
class Measured:
    """Runs of `ranks` on `nodes` nodes: seconds of a step each."""

    ranks: int
    nodes: int
    seconds: tuple[float, ...]

    @property
    def middle(self) -> float:
        """The median step."""
        return statistics.median(self.seconds)

    def loss(self, alone: float) -> float:
        """What the step is longer than one rank's own work (`alone`), in logarithms."""
        return max(0.0, math.log(self.middle / alone))

    @property
    def spread(self) -> float:
        """By what factor, in logarithms, the next run like these may differ, eight times in ten."""
        runs = len(self.seconds)
        own = sum(math.log(one / self.middle) ** 2 for one in self.seconds)
        variance = (_AS_IF * _SPREAD**2 + own) / (_AS_IF + max(0, runs - 1))
        return _EIGHT_OF_TEN * math.sqrt(variance * (1 + 1 / runs))


def nearest(known: Sequence[Measured], ranks: int, nodes: int) -> Measured | None:
    """The runs nearest in ranks, those on one node for one node where there are such."""
    return min(
        known,
        key=lambda one: ((one.nodes > 1) != (nodes > 1), abs(math.log(one.ranks / ranks))),
        default=None,
    )


def stretched(loss: float, measured: float, theirs: float) -> float:
    """The model's loss of a count, by what runs of another lost and it said of them (`theirs`).

    Where it said nearly nothing, what was measured is added instead of stretched.
    """
    if theirs < _LEAST_LOSS:
        return max(0.0, loss + measured - theirs)
    return loss * min(measured / theirs, _MOST)
