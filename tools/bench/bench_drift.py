"""What the gate does on simulated nights of many kinds, beside what else a site could use.

The seed is none that anything was chosen with. Each night has one run; what is doubtful is measured
again the same night, as `check run` does it, with up to four runs of the same process. What the
runs of a night share is learnt from 60 other series of the kind, as the gate learns it from those
of its site. Counted is what the product does on each night with what it knows by then: the gate is
closed, people are told. A drop begins on night 90. Histories have several levels: after a rise,
after an accepted level (the nights before it are moved to it), after a drop that was repaired.

Beside it, on the first runs: CUSUM and Shewhart with the level and deviation of the first 30
nights, and Apache Otava where it is installed. HPCDL_BENCH_KINDS names some kinds, separated by
commas; HPCDL_BENCH_SERIES is how many series.
"""

import os
import random
from dataclasses import replace
from datetime import timedelta
from functools import cache
from importlib.util import find_spec
from statistics import fmean, stdev

from hpcdl.regress import changes as law
from hpcdl.regress.answer import pooled, tonight
from hpcdl.regress.changes import closing_strength, detect, evidence_now
from hpcdl.regress.drift import BUDGET, at_level, is_doubtful, learn_shared, runs_of, worse
from hpcdl.regress.estimate import UNKNOWN
from hpcdl.regress.identity import Series
from tools.bench import report
from tools.bench.drift_series import (
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

SEED = 9401
SERIES = int(os.environ.get("HPCDL_BENCH_SERIES", "60"))
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


def otava(values):
    """Nights on which its change points first have one for the worse (its defaults)."""
    known, found = set(), []
    for night in range(FIRST, len(values)):
        points, _ = compute_change_points(values[: night + 1], window_len=50, max_pvalue=0.001)
        lower = {one.index for one in points if one.stats.mean_2 < one.stats.mean_1}
        found += [night] if lower - known else []
        known |= lower
    return found


OTHERS = {"CUSUM": cusum, "Shewhart": shewhart}
if find_spec("otava"):
    from otava.analysis import compute_change_points

    OTHERS["Otava"] = otava


def sure_nights(nights, enough):
    """The nights on which a series closes its site's gate, by what was known on each."""
    found, state = set(), law._State(nights)
    for night in range(len(nights.values)):
        law._step(state, night)
        last = state.active
        if last and not last.rise:
            runs = nights.runs[: night + 1]
            then = replace(nights, values=nights.values[: night + 1], runs=runs)
            if evidence_now(last, then) >= enough:
                found.add(night)
    return found


def told(nights):
    """The nights on which people are told of a change for the worse."""
    return [one.seen for one in detect(nights) if not one.rise]


def onset(nights):
    """The index of the first measured night of the change."""
    return sum((day - START).days < CHANGE_AT for day in {night.date for night in nights})


def nights_of(kind, rng, level, nights, shared=UNKNOWN):
    """The runs of a series of a kind, as its site measures it, and how many were extra."""
    process = Process("normal" if kind in LEVELS else kind, rng, LEVELS.get(kind, plain)(level))
    return measured_again(process, nights, lambda runs: doubtful(kind, runs, shared))


def as_accepted(kind, runs):
    """The nights as the gate looks at them: those before an accepted level are moved to it."""
    return at_level(runs, str(START + timedelta(days=60))) if kind == "accepted level" else runs


def doubtful(kind, runs, shared):
    """As `check run` asks, of one series of a site."""
    seen = as_accepted(kind, runs) if (runs[-1].date - START).days > 63 else runs
    return is_doubtful(seen, shared)


def looked_at(kind, runs, shared):
    """The nights of a series as the gate looks at them."""
    return runs_of(as_accepted(kind, runs), shared).nights


@cache
def learnt(kind):
    """What other series of a kind tell of what the runs of a night share."""
    rng = random.Random(f"{SEED} others {kind}")
    return learn_shared([nights_of(kind, rng, healthy, 90)[0] for _ in range(60)])


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
    beside, compared = dict.fromkeys(OTHERS, 0), 0
    # A level that changes is no healthy series: the nights after its last change are.
    first = 66 if kind in LEVELS else 0
    for number in range(2 * SERIES):
        runs, more = nights_of(kind, rng, healthy, HEALTHY_NIGHTS, learnt(kind))
        series = looked_at(kind, runs, learnt(kind))
        extra, nights = extra + more, nights + len(series.values) - first
        closed += sum(night >= first for night in sure_nights(series, ENOUGH))
        false += sum(night >= first for night in told(series))
        if number < SERIES // 3:
            compared += len(series.values) - FIRST
            for name, method in OTHERS.items():
                beside[name] += len(method(list(series.firsts)))
    yardstick = ", ".join(f"{name} {1000 * each / compared:.2g}" for name, each in beside.items())
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
        rng, by_night = random.Random(f"{SEED} {kind} {size}"), [0, 0, 0]
        beside = dict.fromkeys(OTHERS if size == 0.05 else (), 0)
        for _ in range(SERIES):
            runs, _ = nights_of(kind, rng, drop(size), CHANGE_AT + 3, learnt(kind))
            at, series = onset(runs), looked_at(kind, runs, learnt(kind))
            closed = sure_nights(series, ENOUGH)
            for within in range(3):
                by_night[within] += bool(closed & {*range(at, at + within + 1)})
            for name in beside:
                beside[name] += bool({at, at + 1} & {*OTHERS[name](list(series.firsts))})
        shares = [100 * count / SERIES for count in by_night]
        report(
            f"drift: gate closed by a drop of {size:.0%}, same or next night ({kind})",
            shares[0] if size == 0.10 else shares[1],
            "%",
            least=goal,
            yardstick=", ".join(f"{it} {100 * n / SERIES:.0f}" for it, n in beside.items()),
            note=f"same / next / third night: {' / '.join(f'{one:.0f}' for one in shares)}",
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
                change = worse(named)
                wrong += bool(change and change.suspects)
            report(
                f"drift: release {later:+d} nights from a drop of {size:.0%} blamed",
                100 * wrong / (SERIES // 2),
                "%",
                most=2,
            )


def report_together():
    """Ten of 100 series lose 3 % with one release: how often people are told the same night."""
    shared, seen = learnt("normal"), 0
    for site in range(20):
        rng, each = random.Random(f"{SEED} together {site}"), []
        for number in range(SITE):
            level = drop(0.03, 60) if number < 10 else healthy
            runs, _ = measured_again(
                Process("normal", rng, level),
                61,
                lambda runs: is_doubtful(with_release(runs), shared),
            )
            values, more = night_values(runs), sum(run.date == runs[-1].date for run in runs)
            series = Series("c", str(number), "p", "m")
            each.append(tonight(series, values, more, "release", lower=False))
        seen += bool(pooled(each, shared.part, runs[-1].date))
    report("drift: ten of 100 series lose 3 %, told the same night", 100 * seen / 20, "%")


def with_release(runs):
    """The runs of 61 nights, of which the last has a new release."""
    last = START + timedelta(days=60)
    return [run._replace(release="r2") if run.date == last else run for run in runs]


def main():
    every = ",".join((*KINDS, *LEVELS))
    for kind in os.environ.get("HPCDL_BENCH_KINDS", every).split(","):
        report_healthy(kind)
        report_drops(kind)
    report_ramp()
    report_blame()
    report_together()
