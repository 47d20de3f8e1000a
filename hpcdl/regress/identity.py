"""What a series is: the same everywhere, in tables, pages, exports and the gate. Pure.

A site, a partition, an environment, a check with its parameters (its case), a metric and its unit.
Which values are better belongs to the metric: its check says so, or its bounds, or its unit.
"""

from __future__ import annotations

HIGHER, LOWER = "higher", "lower"
_TIMES = frozenset({"s", "ms", "us", "µs", "ns", "min", "h", "sec", "secs", "second", "seconds",
                    "minutes", "hours"})  # fmt: skip


def better_of(unit: str, low: float | None, high: float | None, said: str = "") -> str:
    """Which values of a metric are better: `higher`, `lower`, or '' where nobody can tell.

    What its check says counts first, then the one side that is bounded, then the unit: so much
    per second, or a time that is judged.
    """
    if said:
        return said
    if (low is None) != (high is None):
        return HIGHER if high is None else LOWER
    if unit.endswith("/s"):
        return HIGHER
    return LOWER if unit in _TIMES and high is not None else ""
