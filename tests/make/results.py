"""Results: a reference, a verdict, a run's file, rows of the history, what training leaves."""

import json
import random
from dataclasses import replace
from datetime import timedelta

from hpcdl.regress.history import Result
from hpcdl.regress.references import Reference

METRIC = {"name": "images_per_second", "value": 90.5, "unit": "images/s", "wanted": True}
METRIC |= {"reference": 100.0, "low": 80.0, "high": None}
LAYOUT = {"ranks": 1, "nodes": ["n1"], "ranks_per_node": [1], "gpu_per_rank": 0, "cpus_per_rank": 1}
PARTS = ("input", "communication", "update", "checkpoint", "other")


def reference(**changes):
    """A measured reference of a check."""
    plain = {"check": "throughput", "case": "resnet50", "partition": "p100", "metric": "rate"}
    plain |= {"value": 1000.0, "unit": "images/s", "lower": -0.2, "runs": 5, "spread": 0.01}
    plain |= {"source": "a test", "proof": "run", "date": "2026-01-01"}
    return Reference(**plain | changes)


def verdict(status="PASS", reason="", **changes):
    """A verdict as verdicts.json has it."""
    plain = {"check": "throughput", "case": "mlp", "partition": "p100", "metrics": [METRIC]}
    plain |= {"status": status, "reason": reason, "waived": False, "ok": status == "PASS"}
    return {**plain, "seconds": 1.5, **changes}


def run_file(folder, *verdicts, **more):
    """A run's verdicts.json in its folder, as the checks leave it; returns its content."""
    run = {"schema": 2, "run": str(folder), "seconds": 10.0, **more, "verdicts": list(verdicts)}
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "verdicts.json").write_text(json.dumps(run, indent=2))
    return run


def result(time="2026-06-01T00:00:00+00:00", value=1000.0, **changes):
    """A result of the history; `time` is one of ISO 8601, or a datetime."""
    at = time if isinstance(time, str) else time.isoformat(timespec="seconds")
    which = (f"r-{at}", at, "throughput", "resnet50", "p100", "rate")
    return replace(Result(*which, value, "images/s", "PASS"), **changes)


def series(levels, end, *, seed=3, spread=0.005, **columns):
    """A result per level and night, the last at `end`, each level times noise.

    A column may be a function of the night's number.
    """
    rng = random.Random(seed)
    for night, level in enumerate(levels):
        own = {name: each(night) if callable(each) else each for name, each in columns.items()}
        value = level * (1 + spread * rng.gauss(0, 1))
        yield result(end - timedelta(days=len(levels) - 1 - night), value, **own)


def trained(ranks=1, rate=8.0, metrics=None, **changes):
    """A result.json of `ranks` ranks with 20 equal steps, as `hpcdl train` writes it."""
    seconds, batch = 4 * ranks / rate, 4 * ranks
    samples = {name: [0.0] * 20 for name in PARTS}
    samples |= {"seconds": [seconds] * 20, "compute": [seconds] * 20}
    return {
        "schema": 2,
        "outcome": {"status": "completed", "message": "", "exit_code": 0},
        "job": {"id": "7", "partition": "p100"},
        "layout": {**LAYOUT, "ranks": ranks, "ranks_per_node": [ranks]},
        "release": "r1",
        "model": "resnet50",
        "precision": "fp32",
        "batch_per_rank": 4,
        "parameters": 25_000_000,
        "global_batch": batch,
        "options": {"warmup_steps": 5},
        "samples": {**samples, "images": [batch] * 20},
        "summary": {
            "metrics": metrics or {},
            "steps_measured": 15,
            "phases": {"compute": 1.0},
            **{f"images_per_second{end}": rate for end in ("", "_p05", "_p95", "_mean")},
        },
        **changes,
    }
