"""Apache Otava with its defaults, as a team would run it: every night, over all nights so far.

Run by a Python that has `apache-otava` (it pins many packages, so it gets a venv of its own; see
bench_drift.py). Reads a JSON list of {"values", "first"} and writes, for each, the nights from
`first` on that brought a change point for the worse which was not there before.
"""

import json
import sys

from otava.series import Metric, Series

NEAR = 3  # a change point that moves by so many nights is still the same


def alarms(values, first):
    """The nights on which a person would have been told of a new drop."""
    known = []
    told = []
    for night in range(first, len(values)):
        series = Series(
            "",
            None,
            list(range(night + 1)),
            {"value": Metric(1, 1.0, "")},
            {"value": values[: night + 1]},
            {},
        )
        found = [
            point.index
            for point in series.analyze().change_points["value"]
            if point.forward_change_percent() < 0
        ]
        new = [index for index in found if all(abs(index - old) > NEAR for old in known)]
        known += new
        if new:
            told.append(night)
    return told


if __name__ == "__main__":
    json.dump([alarms(item["values"], item["first"]) for item in json.load(sys.stdin)], sys.stdout)
