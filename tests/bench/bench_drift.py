"""What the gate does on simulated nights of many kinds, beside what else a site could use.

The seed is none that anything was chosen with. Each night has one run; what is doubtful is measured
again the same night, as `check run` does it, with up to three runs of the same process. Counted is
what the product does: nights on which the gate is closed, and people are told (a change that is not
sure yet counts as told). A drop begins on night 90. Histories have several levels: after a rise,
after an accepted level (the nights before it do not count), and after a drop that was repaired.

Beside it, on the first runs: CUSUM and Shewhart with the level and deviation of the first 30
nights, and Apache Otava where HPCDL_OTAVA_PYTHON=VENV/bin/python names a Python that has it.
"""

import json
import os
import random
import subprocess
from dataclasses import replace
from pathlib import Path
from statistics import fmean, stdev

from hpcdl.regress import changes as law
from hpcdl.regress.changes import Kind, closing_strength, detect, evidence_now
from hpcdl.regress.drift import BUDGET, analyse, is_doubtful, runs_of
from tests.bench import report
from tests.bench.drift_series import (
    CHANGE_AT,
    KINDS,
    START,
    Process,
    drop,
    healthy,
    measured_again,
    night_values,
    ramp,
)

SEED = 27182818
SERIES = int(os.environ.get("HPCDL_BENCH_SERIES", "200"))
SITE, FIRST, HEALTHY_NIGHTS = 100, 30, 120
ENOUGH = closing_strength(BUDGET, SITE)
HARD = {"AR .5", "AR .7", "night effect", "lognormal", "bimodal"}
"""Kinds with a lower goal: what all runs of a night share, no further run tells."""


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


OTHERS = {"CUSUM": cusum, "Shewhart": shewhart}


def doubtful(so_far):
    """As the gate asks, of one series of a site."""
    return is_doubtful(so_far, SITE)


def sure_nights(nights, enough):
    """The nights on which a series closes its site's gate, by what was known on each."""
    found, state = set(), law._State(nights)
    for night in range(len(nights.values)):
        law._step(state, night)
        last = state.active
        if last and last.kind is Kind.DROP:
            runs = nights.runs[: night + 1]
            then = replace(nights, values=nights.values[: night + 1], runs=runs)
            if evidence_now(last, then) >= enough:
                found.add(night)
    return found


def told(nights):
    """The nights, as measured ones, on which people are told of a change for the worse."""
    return [one.seen for one in detect(runs_of(nights).nights) if one.kind is not Kind.RISE]


def onset(nights):
    """The index of the first measured night of the change."""
    return sum((day - START).days < CHANGE_AT for day in {night.date for night in nights})


def nights_of(kind, rng, level, nights):
    """The runs of a series of a kind; an accepted level begins it anew."""
    process = Process("normal" if kind in LEVELS else kind, rng, LEVELS.get(kind, plain)(level))
    runs, extra = measured_again(process, nights, doubtful)
    if kind == "accepted level":
        runs = [one for one in runs if (one.date - START).days >= 60]
    return runs, extra


def plain(level):
    return level


def accepted(level):
    """8 % lower from night 60 on, which somebody accepted."""
    return lambda night: level(night) * (0.92 if night >= 60 else 1.0)


def repaired(level):
    """10 % lower on nights 40 to 60."""
    return lambda night: level(night) * (0.9 if 40 <= night < 60 else 1.0)


LEVELS = {"accepted level": accepted, "repaired drop": repaired}


def report_healthy(kind):
    """A site of 100 healthy series: nights wrongly closed, people told, extra jobs."""
    rng, extra, closed, false, nights = random.Random(f"{SEED} {kind}"), 0, 0, 0, 0
    beside = dict.fromkeys(OTHERS, 0)
    for _ in range(SERIES):
        runs, more = nights_of(kind, rng, healthy, HEALTHY_NIGHTS)
        series = runs_of(runs).nights
        extra, nights = extra + more, nights + len(series.values)
        closed += len(sure_nights(series, ENOUGH))
        false += len(told(runs))
        for name, method in OTHERS.items():
            beside[name] += len(method(list(series.firsts)))
    yardstick = ", ".join(f"{name} {1000 * count / nights:.2g}" for name, count in beside.items())
    of_site = f"of a healthy site of {SITE} ({kind})"
    report(f"drift: nights wrongly closed {of_site}", 100 * SITE * closed / nights, "%", most=1)
    report(f"drift: extra jobs {of_site}", 100 * extra / nights, "%", most=5)
    report(
        f"drift: told in 1,000 series-nights ({kind})",
        1000 * false / nights,
        "",
        yardstick=yardstick,
    )


def report_drops(kind):
    """How often the gate closes the same night, the next night, within three."""
    for size, goal in ((0.05, 75 if kind in HARD else 95), (0.10, 95)):
        rng = random.Random(f"{SEED} {kind} {size}")
        by_night, early = [0, 0, 0], 0
        for _ in range(SERIES):
            runs, _ = nights_of(kind, rng, drop(size), CHANGE_AT + 3)
            at, series = onset(runs), runs_of(runs).nights
            closed = sure_nights(series, ENOUGH)
            for within in range(3):
                by_night[within] += bool(closed & {*range(at, at + within + 1)})
            early += any(at <= night < at + 2 for night in told(runs))
        shares = [100 * count / SERIES for count in by_night]
        report(
            f"drift: gate closed by a drop of {size:.0%}, same or next night ({kind})",
            shares[0] if size == 0.10 else shares[1],
            "%",
            least=goal,
            note=f"same / next / third night: {' / '.join(f'{one:.0f}' for one in shares)}; "
            f"told {100 * early / SERIES:.0f}",
        )


def report_ramp():
    """A loss of 0.2 % a night: after how many nights the gate is closed."""
    rng, waits = random.Random(f"{SEED} ramp"), []
    for _ in range(SERIES // 2):
        runs, _ = nights_of("normal", rng, ramp(0.002), CHANGE_AT + 40)
        closed = sorted(n for n in sure_nights(runs_of(runs).nights, ENOUGH) if n >= CHANGE_AT)
        waits.append(closed[0] - CHANGE_AT + 1 if closed else 99)
    waits.sort()
    report(
        "drift: 0.2 % a night, nights until the gate closes", waits[len(waits) // 2], "", most=15
    )


def report_blame():
    """A release that came later, or a night before: how often it is named."""
    for size in (0.10, 0.05):
        for later in (-1, 1, 2):
            rng, wrong = random.Random(f"{SEED} blame {size} {later}"), 0
            for _ in range(SERIES // 2):
                runs, _ = nights_of("normal", rng, drop(size), CHANGE_AT + 10)
                at = CHANGE_AT + later
                named = [
                    run._replace(release="r2" if (run.date - START).days >= at else "r1")
                    for run in runs
                ]
                worse = analyse(named).worse
                wrong += bool(worse and worse.suspects)
            report(
                f"drift: release {later:+d} nights from a drop of {size:.0%} blamed",
                100 * wrong / (SERIES // 2),
                "%",
                most=2,
            )


def report_otava(python):
    """Apache Otava looks at all nights again every night, so that it gets fewer series."""
    rng, work, at = random.Random(f"{SEED} otava"), [], []
    for _ in range(12):
        runs, _ = nights_of("normal", rng, drop(0.05), CHANGE_AT + 10)
        work.append({"values": night_values(runs), "first": onset(runs)})
        at.append(onset(runs))
    done = subprocess.run(
        [python, str(Path(__file__).with_name("otava_alarms.py"))],
        input=json.dumps(work),
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    answers = json.loads(done.stdout)
    seen = sum(any(night >= first for night in one) for one, first in zip(answers, at, strict=True))
    report("drift: Otava tells a drop of 5 % within 10 nights", 100 * seen / 12, "%")


def main():
    for kind in (*KINDS, *LEVELS):
        report_healthy(kind)
        report_drops(kind)
    report_ramp()
    report_blame()
    if python := os.environ.get("HPCDL_OTAVA_PYTHON"):
        report_otava(python)
