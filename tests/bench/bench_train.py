"""The step beside a bare loop, ranks beside single runs, checkpoints, memory, start-up."""

from __future__ import annotations

import statistics
from typing import Any

from tests.bench import report
from tests.bench.training import runs, script
from tests.integration.train_runs import Done, Runs


def _step(made: Runs) -> None:
    for model, batch, steps in (("mlp", 64, 2000), ("resnet50", 8, 8)):
        times = script(made.python, "train_step", model, batch, steps)
        ratio = times["bare"] / times["ours"]
        report(f"step: {model}, batch {batch}, share of a bare loop", ratio, "", goal=">= 0.99",
               met=ratio >= 0.99, yardstick=f"bare: {times['bare'] * 1e3:.3f} ms",
               note=f"ours: {times['ours'] * 1e3:.3f} ms")  # fmt: skip


def _rate(done: Done) -> float:
    assert done.code == 0, done.err
    return float(done.result["summary"]["images_per_second"])


def _ranks(made: Runs) -> None:
    """Two ranks beside two runs of one rank each at the same time, one thread each."""
    words = ("--model=resnet50", "--image-size=64", "--steps=24", "--batch-per-rank=4",
             "--checkpoint-every=0", "--lr=0.0001")  # fmt: skip
    one_thread = {"SLURM_CPUS_PER_TASK": "1"}
    ratios = []
    for turn in range(2):
        pair = [made.start(*words, job=f"alone-{turn}-{n}", env=one_thread) for n in range(2)]
        apart = sum(_rate(made.end(p, f"alone-{turn}-{n}", 400)) for n, p in enumerate(pair))
        joined = made.start(*words, ranks=2, job=f"joined-{turn}", env=one_thread)
        ratios.append(_rate(made.end(joined, f"joined-{turn}", 400)) / apart)
    ratio = statistics.median(ratios)
    report("2 ranks: share of two single runs", ratio, "", goal=">= 0.95", met=ratio >= 0.95,
           yardstick="two runs of one rank at a time", note="resnet50, 64 px, batch 4")  # fmt: skip


def _startup(made: Runs) -> None:
    parts: dict[str, Any] = made.train("--steps=2", job="start").result["startup"]
    shown = ", ".join(f"{name} {seconds:.2f}" for name, seconds in parts.items())
    report("start-up to the first step: mlp", sum(parts.values()), "s", note=shown)


def main() -> None:
    with runs() as made:
        _startup(made)
        _step(made)
        _ranks(made)


if __name__ == "__main__":
    main()
