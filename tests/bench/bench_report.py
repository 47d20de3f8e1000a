"""The report of a year of nights for 50 series, made and opened; queries of 1,000,000 results."""

import json
import os
import sys
import tempfile
import time
from dataclasses import replace
from datetime import timedelta
from functools import partial
from itertools import islice
from pathlib import Path
from statistics import median

import pytest

from hpcdl.regress.gate import LOOK_BACK_DAYS, ask
from hpcdl.regress.history import open_history
from hpcdl.system.run import run
from tests import nights
from tests.bench import alternate, children, load, middle, report, timed
from tests.browser import chromium

NIGHTS, RESULTS, RUNS, SEED = 365, 1_000_000, 5, 7
_SINCE = (nights.END - timedelta(days=NIGHTS)).isoformat()[:10]


def made(folder):
    """The page as the command makes it, timed as a whole process."""
    with open_history(folder / "history.sqlite", "embedded") as history:
        history.add(nights.simulated(NIGHTS, seed=SEED))
        series = len(history.series())
    (folder / "verdicts.json").write_text(json.dumps(nights.verdicts(folder)))
    page = folder / "night.html"
    hpcdl = [sys.executable, "-m", "hpcdl"]
    words = [
        *hpcdl,
        "check",
        "report",
        folder,
        "--site",
        "embedded",
        "--html",
        page,
        "--history",
        folder / "history.sqlite",
        "--nights",
        "36500",
    ]
    seconds = middle(RUNS, lambda: run(words), children)
    clock = timed(lambda: run(words))
    bare = timed(lambda: run([*hpcdl, "--version"]), children)
    load = os.getloadavg()[0]
    note = (
        f"{NIGHTS} nights, {series - 1} series, seed {SEED}; CPU seconds, median of {RUNS}; "
        f"{clock:.1f} s on the clock at load {load:.0f}"
    )
    report(
        "report: the page is made",
        seconds,
        "s",
        most=2,
        yardstick=f"hpcdl --version: {bare:.2f} s",
        note=note,
    )
    report("report: size of the page", page.stat().st_size / 1e6, "MB", note="scripts and logs in")
    return page


def opened(page, folder):
    """Seconds from the address to a page that is drawn and answers."""
    empty = folder / "empty.html"
    empty.write_text("<!doctype html><title>empty</title>")
    try:
        with chromium() as browser:
            browser.size(1280)
            seconds, bare = alternate(
                RUNS, *(partial(browser.open, file.as_uri()) for file in (page, empty))
            )
            browser.open(page.as_uri())
            first = median(_drawn(browser, index) for index in range(RUNS))
    except pytest.skip.Exception as reason:
        report("report: the page is open", None, "s", most=1, note=str(reason))
        return
    report(
        "report: the page is open",
        seconds,
        "s",
        most=1,
        yardstick=f"an empty page: {bare:.2f} s",
        note="headless Chromium, loaded and painted",
    )
    report("report: a figure further down is drawn", 1000 * first, "ms", note="when in view")


def _drawn(browser, index):
    start = time.perf_counter()
    name = f"#s{20 + 4 * index}"
    browser.do(f"document.querySelector('{name}').scrollIntoView({{behavior: 'instant'}})")
    while not browser.do(f"document.querySelector('{name} svg') !== null"):
        browser.settle()
    return time.perf_counter() - start


def many():
    """1,000,000 results: the simulated year again and again, with more cases and runs."""
    year = list(nights.simulated(NIGHTS, seed=SEED))
    for again in range(RESULTS // len(year) + 1):
        for one in year:
            case = f"{one.case_name}-{again % 5}" if again % 5 else one.case_name
            moment = one.time.replace("T03:", f"T{3 + again // 5:02d}:")
            yield replace(one, run=f"{one.run}-{again}", case_name=case, time=moment)


def queries(folder):
    """Every query of the report on 1,000,000 results; the slowest counts."""
    file = folder / "many.sqlite"
    with open_history(file, "here") as history:
        start = time.perf_counter()
        added = history.add(islice(many(), RESULTS))
        seconds = time.perf_counter() - start
    report(
        "history: 1,000,000 results added",
        seconds,
        "s",
        note=f"{added:,} in one transaction, {file.stat().st_size / 1e6:.0f} MB",
    )
    with open_history(file, "here") as history:
        times = {name: middle(RUNS, query) for name, query in _queries(history).items()}
        gate = middle(RUNS, lambda: ask(history, now=nights.END), time.process_time)
        series = len(history.series())
        everything = timed(lambda: list(history.results()))
    slowest = max(times, key=lambda name: times[name])
    words = ", ".join(f"{name} {1000 * seconds:.0f} ms" for name, seconds in times.items())
    report(
        "history: the report's slowest query",
        times[slowest],
        "s",
        most=1,
        yardstick=f"all results: {everything:.1f} s",
        note=f"{RESULTS:,} results; {words}",
    )
    report(
        "gate: its answer from 1,000,000 results",
        gate,
        "s",
        most=1,
        note=f"CPU time; {series} series, {LOOK_BACK_DAYS} days of each, {load()}",
    )


def _queries(history):
    series = history.series()
    largest = next(one for one in series if one[0] == "storage")
    return {
        "series": history.series,
        "last of all series": lambda: [history.last(one) for one in series],
        "a year of one series": lambda: history.points(series[-1], _SINCE),
        "a year of a series on single nodes": lambda: history.points(largest, _SINCE),
        "one night": lambda: list(history.results(nights.END.isoformat()[:10])),
    }


def main():
    with tempfile.TemporaryDirectory(prefix="hpcdl-bench-", dir=os.environ.get("TMPDIR")) as name:
        folder = Path(name)
        opened(made(folder), folder)
        queries(folder)
