"""`make bench`: every figure the project promises, each beside its yardstick in one run.

A module `bench_NAME.py` measures in `main()` and calls `report(...)` once per figure; `python -m
tests.bench [NAME...]` runs them one by one, prints one table and writes
docs/evidence/benchmarks.md. Ratios and medians only: machines are shared and noisy. What cannot be
measured here is a counted skip.
"""

import json
import os
import resource
import time
from statistics import median

MARK = "FIGURE "


def report(name, value, unit, *, most=None, least=None, yardstick="", note=""):
    """Print one figure, and whether it is at `most` or at `least` its goal.

    `value` None is a skip, and `note` its reason.
    """
    goal, met = "", None
    if most is not None:
        goal, met = f"<= {most:g} {unit}".strip(), value is not None and value <= most
    if least is not None:
        goal, met = f">= {least:g} {unit}".strip(), value is not None and value >= least
    figure = {
        "name": name,
        "value": value,
        "unit": unit,
        "goal": goal,
        "yardstick": yardstick,
        "met": None if value is None else met,
        "note": note,
    }
    print(MARK + json.dumps(figure), flush=True)


def timed(work, clock=time.perf_counter):
    start = clock()
    work()
    return clock() - start


def middle(runs, work, clock=time.perf_counter):
    """Median seconds of some calls, by a clock."""
    return median(timed(work, clock) for _ in range(runs))


def alternate(runs, *things):
    """Median seconds of each thing, run in turn A B A B, after one warm-up each."""
    turns = [[timed(thing) for thing in things] for _ in range(runs + 1)]
    return [median(column) for column in zip(*turns[1:], strict=True)]


def children():
    """CPU seconds of all commands so far: a clock that other programs change little."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def load():
    return f"load {os.getloadavg()[0]:.0f}"
