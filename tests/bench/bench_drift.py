"""Drift detection on simulated series of many kinds, beside what else a site could use.

The seed is none that anything was chosen with. A false alarm is a change for the worse that is
told of a healthy series, counted on its night, by series-nights. A drop begins on night 90 of 150
and counts as seen where it is told after it began; nights are measured ones. A night of a site is
wrongly closed where any of its healthy series is sure of a change on it.

Beside it: CUSUM and Shewhart with the level and deviation of the first 30 nights, +-10 % of their
mean, and Apache Otava where HPCDL_OTAVA_PYTHON=VENV/bin/python names a Python that has it. Otava
looks at all nights again every night, so that it gets fewer series.
"""

import json
import math
import os
import random
import subprocess
from pathlib import Path
from statistics import fmean, median, stdev

from hpcdl.regress.changes import Kind, closing_strength, detect, evidence_now
from hpcdl.regress.drift import BUDGET, analyse, runs_of
from hpcdl.regress.estimate import Nightly
from tests.bench import report
from tests.bench.drift_series import (
    CHANGE_AT,
    INDEPENDENT,
    KINDS,
    NIGHTS,
    START,
    WIDENING,
    drop,
    night_values,
    ramp,
    series,
)

SEED = 14142135
HEALTHY = int(os.environ.get("HPCDL_BENCH_SERIES", "300"))
CHANGED, OTAVA_SERIES, SITE = HEALTHY // 2, 12, 100
FIRST = 30


def cusum(values):
    """Page 1954, reference value half a deviation, decision interval 5; begins anew after it."""
    level, spread, total, found = fmean(values[:FIRST]), stdev(values[:FIRST]), 0.0, []
    for night, value in enumerate(values[FIRST:], FIRST):
        total = max(0.0, total + (level - value) / spread - 0.5)
        if total > 5:
            found.append(night)
            total = 0.0
    return found


def shewhart(values):
    """Nights more than three deviations below the level."""
    level, spread = fmean(values[:FIRST]), stdev(values[:FIRST])
    return [n for n, v in enumerate(values) if n >= FIRST and v < level - 3 * spread]


def fixed(values):
    """A reference from the first nights, with bounds of 10 %."""
    level = fmean(values[:FIRST])
    return [n for n, v in enumerate(values) if n >= FIRST and v < 0.9 * level]


OTHERS = {"CUSUM": cusum, "Shewhart": shewhart, "+-10 %": fixed}


def told(nights):
    """The nights, as measured ones, on which a change for the worse is told."""
    return [one.seen for one in detect(runs_of(nights).nights) if one.kind is not Kind.RISE]


def onset(nights):
    """The index of the first measured night of the change."""
    return sum((day - START).days < CHANGE_AT for day in {night.date for night in nights})


class Tally:
    """What one method tells of one kind of series."""

    def __init__(self):
        self.false = self.series_nights = self.drops = self.in_time = self.ever = 0

    def healthy(self, alarms, nights):
        self.false += len(alarms)
        self.series_nights += nights

    def changed(self, alarms, at):
        self.drops += 1
        self.in_time += any(at <= night < at + 3 for night in alarms)
        self.ever += any(night >= at for night in alarms)

    @property
    def rate(self):
        return 1000 * self.false / max(1, self.series_nights)

    def text(self):
        drops = max(1, self.drops)
        return (
            f"{100 * self.in_time / drops:.0f} % / {100 * self.ever / drops:.0f} % / "
            f"{self.rate:.2g}"
        )


def of_kind(kind, runs):
    """Every method on series of a kind; and the share of 10 % drops that ours sees in 2 nights."""
    tallies = {name: Tally() for name in ("hpcdl", *OTHERS)}
    rng = random.Random(f"{SEED} {kind} {runs}")
    for _ in range(HEALTHY):
        nights = series(kind, rng, runs)
        values = night_values(nights)
        tallies["hpcdl"].healthy(told(nights), len(values))
        for name, method in OTHERS.items():
            tallies[name].healthy(method(values), len(values) - FIRST)
    two = 0
    for _ in range(CHANGED if kind != WIDENING else 0):
        nights = series(kind, rng, runs, drop(0.05))
        tallies["hpcdl"].changed(told(nights), onset(nights))
        for name, method in OTHERS.items():
            tallies[name].changed(method(night_values(nights)), onset(nights))
        nights = series(kind, rng, runs, drop(0.10), CHANGE_AT + 5)
        at = onset(nights)
        two += any(at <= night < at + 2 for night in told(nights))
    return tallies, two / CHANGED


def otava(kind, runs, python):
    rng = random.Random(f"{SEED} {kind} {runs}")
    quiet = [night_values(series(kind, rng, runs)) for _ in range(OTAVA_SERIES // 3)]
    drops = [series(kind, rng, runs, drop(0.05)) for _ in range(OTAVA_SERIES)]
    work = [{"values": values, "first": FIRST} for values in quiet]
    work += [
        {"values": night_values(nights)[: onset(nights) + 10], "first": onset(nights)}
        for nights in drops
    ]
    done = subprocess.run(
        [python, str(Path(__file__).with_name("otava_alarms.py"))],
        input=json.dumps(work),
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    answers, tally = json.loads(done.stdout), Tally()
    for values, alarms in zip(quiet, answers[: len(quiet)], strict=True):
        tally.healthy(alarms, len(values) - FIRST)
    for nights, alarms in zip(drops, answers[len(quiet) :], strict=True):
        tally.changed(alarms, onset(nights))
    return tally


def interval(part, count):
    """Half the width of the 95 % interval of a share, in points."""
    return f"+-{196 * math.sqrt(max(part * (1 - part), 1 / count) / count):.1f}"


def report_kind(kind, runs, python):
    tallies, two = of_kind(kind, runs)
    if python:
        tallies["Otava"] = otava(kind, runs, python)
    ours = tallies["hpcdl"]
    what = f"{kind}, {runs} run{'s' if runs > 1 else ''} a night"
    beside = "; ".join(f"{name} {one.text()}" for name, one in tallies.items() if name != "hpcdl")
    limit = 0.5 if runs > 1 else 1.0
    off = 1.96 * 1000 * math.sqrt(max(1, ours.false)) / ours.series_nights
    report(
        f"drift: false alarms ({what})",
        ours.rate,
        "/1,000 series-nights",
        most=limit,
        yardstick=beside,
        note=f"+-{off:.2f}; beside: in 3 nights / ever / false",
    )
    if kind == WIDENING:
        return
    calm = kind in INDEPENDENT
    soon = {True: (0.75, 0.99), False: (0.5, 0.75)}[calm][runs > 1]
    goals = (soon, 0.99, 0.99) if runs > 1 else (soon, 0.97, 0.95)
    shares = (ours.in_time / ours.drops, ours.ever / ours.drops, two)
    names = ("5 % drop within 3 nights", "5 % drop ever seen", "10 % drop within 2 nights")
    for name, share, goal in zip(names, shares, goals, strict=True):
        report(
            f"drift: {name} ({what})",
            100 * share,
            "%",
            least=100 * goal,
            note=interval(share, ours.drops),
        )


def sure_nights(nights, enough):
    """The nights on which a series is sure of a change for the worse."""
    found = set()
    for one in detect(nights):
        for night in range(one.seen, one.ended or len(nights.values)):
            if one.kind is Kind.RISE:
                continue
            then = Nightly(nights.values[: night + 1], nights.within, nights.step)
            if evidence_now(one, then) >= enough:
                found.add(night)
    return found


def report_site(runs):
    """A healthy site of 100 series of all kinds: how many of its nights are closed."""
    rng = random.Random(f"{SEED} site {runs}")
    enough, sites, closed = closing_strength(BUDGET, SITE), max(1, HEALTHY // 15), 0
    for _ in range(sites):
        nights = set()
        for index in range(SITE):
            one = series(KINDS[index % len(KINDS)], rng, runs)
            nights |= sure_nights(runs_of(one).nights, enough)
        closed += len(nights)
    share = closed / (sites * NIGHTS)
    report(
        f"drift: nights of a healthy site of {SITE} series wrongly closed ({runs} a night)",
        100 * share,
        "%",
        most=1,
        note=f"{sites} sites of all kinds x {NIGHTS} nights",
    )


def report_ramp(runs):
    """A loss of 0.2 % a night: when it is seen, and how large it is said to be after 50 nights."""
    rng, waits, right = random.Random(f"{SEED} ramp {runs}"), [], 0
    for _ in range(CHANGED):
        nights = series("normal", rng, runs, ramp(0.002), CHANGE_AT + 50)
        waits.append(next((n - CHANGE_AT + 1 for n in told(nights) if n >= CHANGE_AT), 99))
        worse = analyse(nights).worse
        right += worse is not None and abs(worse.change + 0.1) <= 0.015
    limit = 10 if runs > 1 else 12
    report(
        f"drift: 0.2 % a night, nights until seen ({runs} a night)",
        median(waits),
        "",
        most=limit,
        note="median",
    )
    report(
        f"drift: its size after 50 nights told within 1.5 points ({runs} a night)",
        100 * right / CHANGED,
        "%",
        note=interval(right / CHANGED, CHANGED),
    )


def blamed(rng, size, later, runs):
    """What is told of a drop, with a release so many nights later."""
    at = CHANGE_AT + later
    plain = series("normal", rng, runs, drop(size), CHANGE_AT + 10)
    nights = [
        night._replace(release="r2" if (night.date - START).days >= at else "r1") for night in plain
    ]
    return analyse(nights).worse


def report_blame():
    for size, runs in ((0.10, 3), (0.05, 3), (0.05, 1)):
        rng = random.Random(f"{SEED} blame {size} {runs}")
        late = [blamed(rng, size, 1 + index % 2, runs) for index in range(CHANGED)]
        same = [blamed(rng, size, 0, runs) for _ in range(CHANGED)]
        wrong = sum(bool(one and one.suspects) for one in late)
        named = sum(bool(one and one.suspects) for one in same)
        what = f"{size:.0%} drop, {runs} a night"
        report(
            f"drift: blamed on a release 1 or 2 nights later ({what})",
            100 * wrong / CHANGED,
            "%",
            most=0,
            yardstick=f"of the same night: {named / CHANGED:.0%}",
            note=f"{CHANGED} series",
        )


def main():
    python = os.environ.get("HPCDL_OTAVA_PYTHON")
    if not python:
        report("drift: beside Apache Otava", None, "", note="HPCDL_OTAVA_PYTHON names none")
    for runs in (3, 1):
        for kind in (*KINDS, WIDENING):
            report_kind(kind, runs, python)
        report_ramp(runs)
        report_site(runs)
    report_blame()
