"""The gate of a site of 5,000 series, and a night on each of 1,000 nodes: judged, and drawn."""

import json
import os
import random
import sys
import tempfile
import time
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

from hpcdl.regress.answer import SLOW_NODE, Rulings
from hpcdl.regress.exchange import of_outcome
from hpcdl.regress.formats import read_run
from hpcdl.regress.gate import LOOK_BACK_DAYS, ask
from hpcdl.regress.history import open_history
from hpcdl.regress.nodes import name_slow_nodes
from hpcdl.regress.report import night_page
from hpcdl.regress.run_directory import RunDirectory
from hpcdl.regress.runner import CheckOutcome, as_data
from hpcdl.regress.verdict import judge
from hpcdl.system.files import write_atomic
from tests import nights
from tests.bench import load, report

COPIES, ON_EACH_NODE, NODES, SLOW = 124, 4, 1000, "n0417"
"""Simulated years beside each other, those of them with series on single nodes; nodes, the slow."""


def site():
    """The nights that a gate looks at: 4,960 series of jobs, 40 on each node of a partition."""
    each = [nights.simulated(LOOK_BACK_DAYS, seed=copy) for copy in range(COPIES)]
    for step in zip(*each, strict=True):
        for copy, one in enumerate(step):
            if copy < ON_EACH_NODE or one.check_name != "storage":
                yield replace(one, case_name=f"{one.case_name}-{copy}")


def gate(folder):
    """Seconds of CPU time and memory of the gate, in a process of its own."""
    file = folder / "site.sqlite"
    with open_history(file, "wide") as history:
        results = history.add(site())
        series = sum(bool(one.metric) for one in history.series())
    child = os.fork()
    if not child:
        with open_history(file, "wide") as history:
            ask(history, now=nights.END)
        os._exit(0)
    _, _, used = os.wait4(child, 0)
    seconds, memory = used.ru_utime + used.ru_stime, used.ru_maxrss / 1024
    note = f"{results:,} results of {LOOK_BACK_DAYS} nights; CPU time, {load()}"
    report(f"gate: its answer for {series:,} series", seconds, "s", most=5, note=note)
    report(f"gate: memory for {series:,} series", memory, "MB", most=300)


def case(node, rng):
    """What ReFrame reports of a check on one node."""
    name = f"n{node:04d}"
    value = 6.0 * (0.85 if name == SLOW else 1 + 0.01 * rng.gauss(0, 1))
    row = {"value": 6.0, "unit": "GB/s", "lower": -0.2, "upper": None, "runs": 20, "proof": "run"}
    metrics = {"read_rate": {"value": value, "unit": "GB/s", "reference": row}}
    job = {"id": node, "state": "COMPLETED", "exit_code": 0, "nodes": name}
    evidence = {
        "check": "storage",
        "case": "read",
        "partition": "all",
        "release": "r1",
        "job": job,
        "metrics": metrics,
    }
    return {"name": "storage", "result": "success", "time_total": 30.0, "evidence": evidence}


def night(folder):
    """From ReFrame's report of 1,000 nodes to verdicts, the history and the gate's answer."""
    rng = random.Random(1)
    with open_history(folder / "nodes.sqlite", "wide") as history:
        for back in range(20, 0, -1):
            judged(folder, [case(node, rng) for node in range(NODES)], back, history)
        cases = [case(node, rng) for node in range(NODES)]
        start = time.process_time()
        run = judged(folder, cases, 0, history)
        answer = ask(history, now=nights.END)
        seconds = time.process_time() - start
        assert [one.node for one in answer.findings if one.kind == SLOW_NODE] == [SLOW]
        note = f"verdicts, history and gate; CPU time, {load()}"
        report(f"a night on {NODES:,} nodes, judged", seconds, "s", most=5, note=note)
        start = time.process_time()
        page = night_page(
            run,
            history,
            [{}] * NODES,
            site="wide",
            now=nights.END,
            answer=answer,
            rulings=Rulings(),
        )
        seconds = time.process_time() - start
    (folder / "night.html").write_text(page)
    report(
        f"a night on {NODES:,} nodes, its page made", seconds, "s", note=f"{len(page) / 1e6:.1f} MB"
    )


def judged(folder, cases, back, history):
    ended = nights.END - timedelta(days=back)
    found = name_slow_nodes([judge(one) for one in cases])
    directory = RunDirectory(folder / f"{ended:%Y%m%d-%H%M%S}Z-0000")
    outcome = CheckOutcome(directory, tuple(found), 60.0, site="wide", ended=ended.timestamp())
    history.add(of_outcome(outcome, ended))
    directory.path.mkdir()
    write_atomic(directory.verdicts, json.dumps(as_data(outcome)))
    return read_run(directory.path)


def main():
    """Report every figure; with a directory as argument, leave the page there."""
    with tempfile.TemporaryDirectory(prefix="hpcdl-bench-", dir=os.environ.get("TMPDIR")) as name:
        night(Path(sys.argv[1] if sys.argv[1:] else name))
        gate(Path(name))
