"""The step beside a bare loop, ranks beside single runs, checkpoints, memory, start-up.

Ratios are medians over turns inside one run. Where other programs want the cores too, the clock
says nothing, and CPU time is compared instead; the note says which.
"""

from __future__ import annotations

import itertools
import os
import re
import statistics
import subprocess
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.bench import report
from tests.bench.training import ROOT, runs, script
from tests.integration.train_runs import Done, Runs, environment

_TF_CNN = "HPCDL_TF_CNN_BENCHMARKS"
_PIXELS = 64


def _clock() -> str:
    """`wall`, or `cpu` where more than this program wants the cores."""
    return "cpu" if os.getloadavg()[0] > 0.75 * (os.cpu_count() or 1) else "wall"


def _step(made: Runs) -> float:
    """The two models beside their bare loops; returns the seconds of a ResNet-50 step."""
    seconds = 0.0
    clock = _clock()
    for model, batch, steps, turns in (("mlp", 64, 200, 20), ("resnet50", 8, 1, 9)):
        found = script(made.python, "train_step", model, batch, steps, turns)[clock]
        ratio, seconds = found["ratio"], found["bare"] / found["ratio"]
        report(f"step: {model}, batch {batch}, share of a bare loop", ratio, "x", goal=">= 0.99",
               met=ratio >= 0.99, yardstick=f"bare: {found['bare'] * 1e3:.3f} ms",
               note=f"whole loop: {seconds * 1e3:.3f} ms; by {clock} time")  # fmt: skip
    return seconds


def _checkpoint(made: Runs, step: float) -> None:
    """What a checkpoint of ResNet-50 costs, beside 100 of the steps just measured."""
    clock = _clock()
    added = script(made.python, "train_keeping", "checkpoint", "resnet50", 4, _PIXELS, 5)[clock]
    share = 100 * added / (100 * step)
    report("checkpoint: resnet50, share of an epoch of 100 steps", share, "%", goal="<= 2 %",
           met=share <= 2, yardstick=f"100 steps: {100 * step:.0f} s",
           note=f"adds {added:.2f} s until it is on disk; by {clock} time")  # fmt: skip


def _memory(made: Runs) -> None:
    found = script(made.python, "train_keeping", "memory", "mlp", 64, 0, 1000)
    report("memory: growth over 1,000 steps", found["grown"], "MB", goal="<= 1 % of all",
           met=found["grown"] <= 0.01 * found["first"], yardstick=f"{found['first']:.0f} MB before",
           note="mlp, a checkpoint every 50 steps")  # fmt: skip


@dataclass
class _Steps:
    """A program that prints a line per step; `marks` are (wall, CPU) seconds at each."""

    process: subprocess.Popen[str]
    line: re.Pattern[str]
    marks: list[tuple[float, float]] = field(default_factory=list)
    last: str = ""

    def read(self) -> None:
        """Until the program ends."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.last = line.strip() or self.last
            if self.line.match(line):
                self.marks.append((time.perf_counter(), _cpu(self.process.pid)))

    def seconds(self, clock: str) -> float:
        """Median seconds of a step, the first one left out."""
        column = [mark[clock == "cpu"] for mark in self.marks[1:]]
        return statistics.median(b - a for a, b in itertools.pairwise(column))


def _cpu(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _tf_cnn(made: Runs) -> None:
    """Beside tf_cnn_benchmarks, both at the same time on the same cores."""
    name = "step: resnet50, batch 8, beside tf_cnn_benchmarks"
    path = os.environ.get(_TF_CNN)
    if not path:
        report(name, None, "x", goal=">= 1.0", yardstick="tf_cnn_benchmarks",
               note=f"skipped: {_TF_CNN} is not set")  # fmt: skip
        return
    threads = os.cpu_count() or 1
    theirs = _start(
        [str(made.python), str(Path(path) / "tf_cnn_benchmarks.py"), "--device=cpu",
         "--data_format=NHWC", "--model=resnet50", "--batch_size=8", "--num_batches=12",
         "--num_warmup_batches=1", "--optimizer=momentum", "--display_every=1",
         f"--num_intra_threads={threads}", f"--num_inter_threads={threads}"],
        r"\d+\timages/sec", {"TF_USE_LEGACY_KERAS": "1"},
    )  # fmt: skip
    ours = _start(
        [str(made.python), "-m", "tests.bench.train_lines", "resnet50", "8", "14"], r"done", {}
    )
    readers = [threading.Thread(target=one.read) for one in (theirs, ours)]
    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join()
    if len(theirs.marks) < 4:
        report(name, None, "x", goal=">= 1.0", note=f"skipped: it says: {theirs.last[:120]}")
        return
    clock = _clock()
    them, us = theirs.seconds(clock), ours.seconds(clock)
    report(name, them / us, "x", goal=">= 1.0", met=them / us >= 1.0,
           yardstick=f"tf_cnn_benchmarks: {them:.2f} s a step",
           note=f"ours: {us:.2f} s; at the same time, by {clock} time")  # fmt: skip


def _start(command: list[str], line: str, extra: dict[str, str]) -> _Steps:
    process = subprocess.Popen(
        command, cwd=ROOT, env=environment() | {"PYTHONUNBUFFERED": "1"} | extra, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    return _Steps(process, re.compile(line))


def _rate(done: Done) -> float:
    assert done.code == 0, done.err
    return float(done.result["summary"]["images_per_second"])


def _ranks(made: Runs) -> None:
    """Two ranks beside two runs of one rank each at the same time, one thread each."""
    words = ("--model=resnet50", f"--image-size={2 * _PIXELS}", "--steps=24", "--batch-per-rank=8",
             "--checkpoint-every=0", "--lr=0.0001")  # fmt: skip
    one_thread = {"SLURM_CPUS_PER_TASK": "1"}
    ratios = []
    for turn in range(2):
        pair = [made.start(*words, job=f"alone-{turn}-{n}", env=one_thread) for n in range(2)]
        apart = sum(_rate(made.end(p, f"alone-{turn}-{n}", 900)) for n, p in enumerate(pair))
        joined = made.start(*words, ranks=2, job=f"joined-{turn}", env=one_thread)
        ratios.append(_rate(made.end(joined, f"joined-{turn}", 900)) / apart)
    ratio = statistics.median(ratios)
    report("2 ranks: share of two single runs", ratio, "x", goal=">= 0.95", met=ratio >= 0.95,
           yardstick="two runs of one rank at a time",
           note=f"resnet50, {2 * _PIXELS} px, batch 8; by the clock")  # fmt: skip


def _startup(made: Runs) -> None:
    parts: dict[str, Any] = made.train("--steps=2", job="start").result["startup"]
    shown = ", ".join(f"{name} {seconds:.2f}" for name, seconds in parts.items())
    report("start-up to the first step: mlp", sum(parts.values()), "s", note=shown)


def main() -> None:
    with runs() as made:
        _startup(made)
        _memory(made)
        step = _step(made)
        _checkpoint(made, step)
        _tf_cnn(made)
        _ranks(made)


if __name__ == "__main__":
    main()
