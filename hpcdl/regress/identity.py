"""The identity of a series in tables, pages, exports and the gate. Pure.

A site, a partition, an environment, a check with its parameters (its case), a metric and its unit.
Which values are better belongs to the metric: its check says so, or its bounds, or its unit.
"""

from __future__ import annotations

from datetime import date
from typing import NamedTuple

HIGHER, LOWER = "higher", "lower"
LARGEST = 1e100
"""No measurement is larger, nor smaller than one over it: squares of them stay numbers."""
_UNITS = "s ms us µs ns min h sec secs second seconds minutes hours"
TIMES = frozenset(_UNITS.split())


def better_of(unit: str, low: float | None, high: float | None, declared: str = "") -> str:
    """Which values of a metric are better: `higher`, `lower`, or '' if that is unknown.

    What its check says counts first, then the one side that is bounded, then the unit: so much
    per second, or a time that is judged.
    """
    if declared:
        return declared
    if (low is None) != (high is None):
        return HIGHER if high is None else LOWER
    if unit.endswith("/s"):
        return HIGHER
    return LOWER if unit in TIMES and high is not None else ""


class Series(NamedTuple):
    """The identity of a series; `metric` is '' for runs that measured nothing.

    `environment` is ReFrame's, '' for hpcdl's own checks; `unit` that of all its values.
    """

    check: str
    case: str
    partition: str
    metric: str
    environment: str = ""
    unit: str = ""
    site: str = ""

    @property
    def of_case(self) -> Series:
        """Return the series of its case, without a metric."""
        return self._replace(metric="", unit="")

    @property
    def name(self) -> str:
        """Check and case, for people."""
        return "/".join(part for part in (self.check, self.case) if part)

    @property
    def place(self) -> str:
        """Partition and environment, for people."""
        return place_of(self.partition, self.environment)


class Night(NamedTuple):
    """One measurement of a night; several of one date are runs of the same night."""

    date: date
    value: float
    release: str = ""
    driver: str = ""
    node: str = ""


def place_of(partition: str, environment: str = "") -> str:
    """Where something ran, for people: `p100`, or `p100 (foss)`."""
    return f"{partition} ({environment})" if environment else partition


def name_of(series: Series) -> str:
    """A series in a line: `throughput/resnet50 on p100 (foss), rate [images/s]`."""
    where = f" on {series.place}" if series.partition else ""
    unit = f" [{series.unit}]" if series.unit else ""
    return f"{series.name or 'all checks'}{where}" + (
        f", {series.metric}{unit}" if series.metric else ""
    )
