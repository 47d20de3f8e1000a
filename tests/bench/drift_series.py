"""Simulated nights of many kinds, for `bench_drift` and the unit tests: pure, seeded.

Noise has a deviation of 2 % a run. Where nights depend on each other, half of the variance is
common to the runs of a night; with one run a night, all of it is, but for `night effect`.
"""

import math
from datetime import date, timedelta

from hpcdl.regress.identity import Night

START = date(2026, 1, 5)
NIGHTS, CHANGE_AT, SD = 150, 90, 0.02
DEPENDENT = {"AR .3": 0.3, "AR .5": 0.5, "AR .7": 0.7, "night effect": 0.0}
INDEPENDENT = (
    "normal",
    "Student t3",
    "weekly",
    "spikes",
    "20 % missing",
    "two nodes",
    "quantized 2 %",
    "one-sided",
    "release up before",
)
KINDS = (*INDEPENDENT, *DEPENDENT)
WIDENING = "sd 2 -> 5 %"


def healthy(_):
    return 1.0


def drop(size, at=CHANGE_AT):
    return lambda night: 1 - size if night >= at else 1.0


def ramp(slope, at=CHANGE_AT):
    return lambda night: 1 - slope * max(0, night - at + 1)


def series(kind, rng, runs, level=healthy, nights=NIGHTS):
    common, found = rng.gauss(0, 1), []
    for night in range(nights):
        rho = DEPENDENT.get(kind, 0.0)
        common = rho * common + math.sqrt(1 - rho * rho) * rng.gauss(0, 1)
        share = 0.0 if kind not in DEPENDENT else 1.0 if runs == 1 and rho else 0.5
        shift = _of_night(kind, rng, night)
        missing = kind == "20 % missing" and rng.random() < 0.2
        for _ in range(0 if missing else runs):
            z = math.sqrt(share) * common + math.sqrt(1 - share) * _of_run(kind, rng)
            wide = 2.5 if kind == WIDENING and night >= CHANGE_AT else 1.0
            node = rng.choice("ab") if kind == "two nodes" else "a"
            value = (1 + wide * SD * z + shift - 0.06 * (node == "b")) * level(night)
            if kind == "quantized 2 %":
                value = round(value / 0.02) * 0.02
            release = "r2" if kind == "release up before" and night >= 60 else "r1"
            found.append(Night(START + timedelta(days=night), max(0.0, value), release, "", node))
    return found


def _of_night(kind, rng, night):
    """What all runs of a night have in common, as a fraction."""
    if kind == "weekly":
        return -0.03 * (night % 7 >= 5)
    if kind == "spikes":
        return rng.choice([-0.12, 0.12]) if rng.random() < 0.04 else 0.0
    return 0.04 if kind == "release up before" and night >= 60 else 0.0


def _of_run(kind, rng):
    """Noise of one run, of deviation 1."""
    if kind == "Student t3":
        chi = sum(rng.gauss(0, 1) ** 2 for _ in range(3)) / 3
        return rng.gauss(0, 1) / math.sqrt(3 * chi)
    return 1 - rng.expovariate(1) if kind == "one-sided" else rng.gauss(0, 1)


def night_values(nights):
    """The mean of each date's runs, as simpler methods take them."""
    each = {}
    for night in nights:
        each.setdefault(night.date, []).append(night.value)
    return [sum(values) / len(values) for values in each.values()]
