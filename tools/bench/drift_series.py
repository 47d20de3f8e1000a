"""Simulated nights of many kinds, for `bench_drift` and the unit tests: pure, seeded.

Noise has a deviation of 2 % a run. Where nights depend on each other, or have an effect of their
own, half of the variance is common to the runs of a night. A night is asked for as many runs as a
site makes: those of a night share its effect, and each has noise and a node of its own.
"""

import math
from datetime import date, timedelta

from hpcdl.regress.identity import Night

START = date(2026, 1, 5)
NIGHTS, CHANGE_AT, SD = 150, 90, 0.02
MEMORY = {"AR .3": 0.3, "AR .5": 0.5, "AR .7": 0.7, "night effect": 0.0}
INDEPENDENT = (
    "normal",
    "Student t3",
    "weekly",
    "spikes",
    "20 % missing",
    "two nodes",
    "quantized 1 %",
    "heteroscedastic",
    "lognormal",
    "bimodal",
    "one-sided",
    "after a rise",
)
KINDS = (*INDEPENDENT, *MEMORY)
RISE_AT = 60


def healthy(_):
    return 1.0


def drop(size, at=CHANGE_AT):
    return lambda night: 1 - size if night >= at else 1.0


def ramp(slope, at=CHANGE_AT):
    return lambda night: 1 - slope * max(0, night - at + 1)


class Process:
    """One series: `begin` a night, then take `run`s of it, each with a node of its own."""

    def __init__(self, kind, rng, level=healthy):
        self.kind, self.rng, self.level = kind, rng, level
        self.night, self.common, self.weight = -1, rng.gauss(0, 1), math.sqrt(0.5)

    def begin(self):
        """The next night; whether it is measured at all."""
        self.night += 1
        rho = MEMORY.get(self.kind, 0.0)
        self.common = rho * self.common + math.sqrt(1 - rho * rho) * self.rng.gauss(0, 1)
        return self.kind != "20 % missing" or self.rng.random() >= 0.2

    def run(self, node=""):
        """A run of this night: on a node, of which it takes one by chance where none is named."""
        kind, night, rng = self.kind, self.night, self.rng
        node = node or (rng.choice("ab") if kind == "two nodes" else "a")
        z = self._noise()
        if kind in MEMORY:
            z = self.weight * (self.common + z)
        shift = -0.06 * (node == "b") - 0.03 * (kind == "weekly" and night % 7 >= 5)
        shift -= 0.15 * (kind == "spikes" and rng.random() < 0.02)
        shift += 0.06 * (kind == "after a rise" and night >= RISE_AT)
        value = max(0.0, (1 + SD * z + shift) * self.level(night))
        if kind == "quantized 1 %":
            value = round(value, 2)
        release = "r2" if kind == "after a rise" and night >= RISE_AT else "r1"
        return Night(START + timedelta(days=night), value, release, "", node)

    def _noise(self):
        """Noise of one run, of mean 0 and deviation 1."""
        rng, kind = self.rng, self.kind
        if kind == "Student t3":
            chi = sum(rng.gauss(0, 1) ** 2 for _ in range(3)) / 3
            return rng.gauss(0, 1) / math.sqrt(3 * chi)
        if kind == "lognormal":  # as times are: a long tail of slow runs
            return (math.exp(0.125) - math.exp(0.5 * rng.gauss(0, 1))) / 0.6039
        if kind == "bimodal":
            return 0.8 * rng.choice((-1, 1)) + 0.6 * rng.gauss(0, 1)
        if kind == "heteroscedastic":
            return rng.gauss(0, 1) * rng.choice((0.5, 1.323))
        return 1 - rng.expovariate(1) if kind == "one-sided" else rng.gauss(0, 1)


def series(kind, rng, runs, level=healthy, nights=NIGHTS):
    """Nights with so many runs each."""
    process, found = Process(kind, rng, level), []
    for _ in range(nights):
        if process.begin():
            found += [process.run() for _ in range(runs)]
    return found


def measured_again(process, nights, doubtful, most=4):
    """Nights as a site measures them: one run, and up to `most` more while `doubtful(so far)`.

    The first of the others is on the same node, the next ones are where they come to lie. Gives the
    runs, oldest first, and how many of them were extra.
    """
    found, extra = [], 0
    for _ in range(nights):
        if not process.begin():
            continue
        first = process.run()
        found.append(first)
        for more in range(most):
            if not doubtful(found):
                break
            found.append(process.run(first.node if more == 0 else ""))
            extra += 1
    return found, extra


def night_values(nights):
    """The mean of each date's runs, as simpler methods take them."""
    each = {}
    for night in nights:
        each.setdefault(night.date, []).append(night.value)
    return [sum(values) / len(values) for values in each.values()]
