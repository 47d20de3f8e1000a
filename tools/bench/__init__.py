"""`make bench`: how fast training is and how soon a drop is seen, each beside its yardstick.

A module `bench_NAME.py` measures in `main()` and calls `report(...)` once per figure. Ratios and
medians only: machines are shared and noisy. What cannot be measured here is a skip. Budgets that
every change must keep are tests (tests/unit/test_budgets.py).
"""

import resource
import time


def report(name, value, unit, *, most=None, least=None, yardstick="", note=""):
    """Print one figure, and whether it is at `most` or at `least` its goal.

    `value` None is a skip, and `note` its reason.
    """
    goal, verdict = "", ""
    if most is not None:
        goal, verdict = f"<= {most:g}", "MISSED" if value is None or value > most else "met"
    if least is not None:
        goal, verdict = f">= {least:g}", "MISSED" if value is None or value < least else "met"
    shown = "skipped" if value is None else f"{value:.4g} {unit}"
    verdict = "" if value is None else verdict
    print("  ".join(filter(None, [name, shown, goal, verdict, yardstick, note])), flush=True)


def timed(work, clock=time.perf_counter):
    start = clock()
    work()
    return clock() - start


def children():
    """CPU seconds of all commands so far: a clock that other programs change little."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
