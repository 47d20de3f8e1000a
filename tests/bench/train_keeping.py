"""Run by bench_train where TensorFlow is: what checkpoints cost, and whether memory grows."""

import dataclasses
import gc
import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

from tests.started import tensorflow_for

tensorflow_for(sys.argv[1])

from hpcdl.train import loop  # noqa: E402
from tests.bench.train_step import prepare  # noqa: E402


def run(training, steps, every):
    """Some more steps, with a checkpoint after each `every` (0 for none), until it is whole."""
    goal = training.step_number + steps
    training.saved_at = -1 if every else goal
    training.plan = dataclasses.replace(training.plan, steps=goal, checkpoint_every=every)
    loop.train(training)


def checkpoint(training, turns):
    """Seconds that one checkpoint adds to two steps, by the clock and by CPU time."""
    clocks = {"wall": time.perf_counter, "cpu": time.process_time}
    added = {clock: [] for clock in clocks}
    for turn in range(turns + 1):
        took = {}
        for every in (0, 2) if turn % 2 else (2, 0):
            begun = {clock: read() for clock, read in clocks.items()}
            run(training, 2, every)
            took[every] = {clock: read() - begun[clock] for clock, read in clocks.items()}
        if turn:
            for clock, kept in added.items():
                kept.append(took[2][clock] - took[0][clock])
    return {clock: statistics.median(kept) for clock, kept in added.items()}


def memory(training, steps):
    """MB resident after the first steps, and what `steps` more add to it; checkpoints included."""
    run(training, 200, 50)
    first = resident()
    run(training, steps, 50)
    return {"first": first, "grown": resident() - first}


def resident():
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


def main(model, what, batch, size, count):
    with tempfile.TemporaryDirectory() as folder:
        training = prepare(model, batch, Path(folder), size)
        print(json.dumps({"checkpoint": checkpoint, "memory": memory}[what](training, count)))


main(sys.argv[1], sys.argv[2], *map(int, sys.argv[3:]))
