"""The step beside a bare loop, ranks beside single runs, checkpoints, memory, start-up.

Ratios are medians over turns inside one run. Where other programs want the cores too, the clock
says nothing, and CPU time is compared instead; the note says which.
"""

import os
import queue
import re
import signal
import statistics
import subprocess
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from tests.bench import children, report, timed
from tests.bench.training import ROOT, runs, script
from tests.integration.train_runs import environment

_TF_CNN = "HPCDL_TF_CNN_BENCHMARKS"
_TURNS = 7
_PIXELS = 64


def _clock():
    """`wall`, or `cpu` where others take the cores while we rest for a second."""
    before = _busy()
    time.sleep(1.0)
    return "cpu" if _busy() - before > 0.1 * (os.cpu_count() or 1) else "wall"


def _busy():
    """CPU seconds of all programs since the start of the machine (proc(5), first line of stat)."""
    user, nice, system = Path("/proc/stat").read_text().split()[1:4]
    return (int(user) + int(nice) + int(system)) / os.sysconf("SC_CLK_TCK")


def _step(made):
    """The two models beside their bare loops; returns the seconds of a ResNet-50 step."""
    seconds = 0.0
    clock = _clock()
    for model, batch, steps, turns in (("mlp", 64, 200, 20), ("resnet50", 8, 1, 9)):
        found = script(made.python, "train_step", model, batch, steps, turns)[clock]
        ratio, seconds = found["ratio"], found["bare"] / found["ratio"]
        report(
            f"step: {model}, batch {batch}, share of a bare loop",
            ratio,
            "x",
            least=0.99,
            yardstick=f"bare: {found['bare'] * 1e3:.3f} ms",
            note=f"whole loop: {seconds * 1e3:.3f} ms; by {clock} time",
        )
    return seconds


def _fit(made):
    """Three networks beside `model.fit` and a bare Keras step, by CPU time."""
    for name, goal in (("resnet50", 1.2), ("vit_s16", 1.0), ("gpt", 1.0)):
        found = script(made.python, "train_fit", name, 8, 1, 5)
        for other, shown in (("fit", "model.fit"), ("bare", "a bare Keras step")):
            report(
                f"step: {name}, batch 8, beside {shown}",
                found[other],
                "x",
                least=goal,
                note=f"ours: {found['ours']:.2f} CPU-s; alternating, without XLA",
            )


def _checkpoint(made, step):
    """What a checkpoint of ResNet-50 costs, beside 100 of the steps just measured."""
    clock = _clock()
    added = script(made.python, "train_keeping", "resnet50", "checkpoint", 4, _PIXELS, 5)[clock]
    share = 100 * added / (100 * step)
    report(
        "checkpoint: resnet50, share of an epoch of 100 steps",
        share,
        "%",
        most=0.5,
        yardstick=f"100 steps: {100 * step:.0f} s",
        note=f"adds {added:.2f} s until it is on disk; by {clock} time",
    )


def _memory(made):
    found = script(made.python, "train_keeping", "mlp", "memory", 64, 0, 1000)
    report(
        "memory: growth over 1,000 steps",
        found["grown"],
        "MB",
        most=0.01 * found["first"],
        yardstick=f"{found['first']:.0f} MB before",
        note="mlp, a checkpoint every 50 steps",
    )


@dataclass
class _Steps:
    """A program that prints a line per step; its steps are counted as they come."""

    process: subprocess.Popen[str]
    line: re.Pattern[str]
    done: queue.SimpleQueue[bool] = field(default_factory=queue.SimpleQueue)
    last: str = ""

    def read(self):
        for line in self.process.stdout:
            self.last = line.strip() or self.last
            if self.line.match(line):
                self.done.put(True)
        self.done.put(False)

    def turn(self, steps):
        """Seconds of each of some steps, the other programs standing still; None at the end."""
        clocks = {"wall": time.perf_counter, "cpu": lambda: _cpu(self.process.pid)}
        begun = {clock: read() for clock, read in clocks.items()}
        self.process.send_signal(signal.SIGCONT)
        if not all(self.done.get() for _ in range(steps)):
            self.done.put(False)
            return None
        self.process.send_signal(signal.SIGSTOP)
        return {clock: (read() - begun[clock]) / steps for clock, read in clocks.items()}


def _cpu(pid):
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _tf_cnn(made):
    """Beside tf_cnn_benchmarks: they take turns of two steps on the same cores."""
    name = "step: resnet50, batch 8, beside tf_cnn_benchmarks"
    path = os.environ.get(_TF_CNN)
    if not path:
        report(
            name,
            None,
            "x",
            least=1.05,
            yardstick="tf_cnn_benchmarks",
            note=f"skipped: {_TF_CNN} is not set",
        )
        return
    threads = os.cpu_count() or 1
    theirs = _start(
        [
            str(made.python),
            str(Path(path) / "tf_cnn_benchmarks.py"),
            "--device=cpu",
            "--data_format=NHWC",
            "--model=resnet50",
            "--batch_size=8",
            "--num_batches=99",
            "--num_warmup_batches=1",
            "--optimizer=momentum",
            "--display_every=1",
            f"--num_intra_threads={threads}",
            f"--num_inter_threads={threads}",
        ],
        r"\d+\timages/sec",
        {"TF_USE_LEGACY_KERAS": "1"},
    )
    words = ["-m", "tests.bench.train_lines", "resnet50", "8", "99"]
    ours = _start([str(made.python), *words], r"done", {})
    clock = _clock()
    try:
        turns = [(theirs.turn(2), ours.turn(2)) for _ in range(_TURNS + 1)][1:]
    finally:
        for program in (theirs, ours):
            program.process.kill()
            program.process.wait()
    pairs = [(them[clock], us[clock]) for them, us in turns if them and us]
    if len(pairs) < _TURNS:
        report(
            name,
            None,
            "x",
            least=1.05,
            note=f"skipped: it ended with: {(theirs.last or ours.last)[:120]}",
        )
        return
    ratio = statistics.median(them / us for them, us in pairs)
    them, us = (statistics.median(column) for column in zip(*pairs, strict=True))
    report(
        name,
        ratio,
        "x",
        least=1.05,
        yardstick=f"tf_cnn_benchmarks: {8 / them:.2f} images/s",
        note=f"ours: {8 / us:.2f} images/s; in turns of two steps, by {clock} time",
    )


def _start(command, line, extra):
    process = subprocess.Popen(
        command,
        cwd=ROOT,
        env=environment() | {"PYTHONUNBUFFERED": "1"} | extra,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    steps = _Steps(process, re.compile(line))
    threading.Thread(target=steps.read, daemon=True).start()
    process.send_signal(signal.SIGSTOP)
    return steps


def _rate(done):
    assert done.code == 0, done.err
    return float(done.result["summary"]["images_per_second"])


def _ranks(made):
    """Two ranks beside two runs of one rank each at the same time; each has a core of its own."""
    ratios, apart = [], 0.0
    for turn in range(2):
        alone = {f"alone-{turn}-{core}": ("taskset", "-c", str(core)) for core in range(2)}
        begun = {job: _pinned(made, job, launcher) for job, launcher in alone.items()}
        apart = sum(_rate(made.end(process, job, 900)) for job, process in begun.items())
        job = f"joined-{turn}"
        launcher = ("mpirun", "-np", "2", "--map-by", "core", "--bind-to", "core")
        process = _pinned(made, job, launcher)
        ratios.append(_rate(made.end(process, job, 900)) / apart)
    ratio = statistics.median(ratios)
    report(
        "2 ranks: share of two single runs",
        ratio,
        "x",
        least=0.95,
        yardstick=f"two runs of one rank at a time: {apart:.2f} images/s",
        note="resnet50, 224 px, batch 8, a core and a thread each; by the clock",
    )


def _pinned(made, job, launcher):
    """A run of ResNet-50 with one thread per process, started by `launcher`."""
    words = (
        "--model=resnet50",
        "--steps=10",
        "--warmup-steps=3",
        "--batch-per-rank=8",
        "--checkpoint-every=0",
        "--lr=0.0001",
    )
    command = [str(made.python), "-m", "hpcdl.train", "--job-dir", str(made.folder / job), *words]
    # What a run sets for itself is measured, not what the tests set for containers.
    env = {key: value for key, value in environment().items() if "OMPI_MCA" not in key}
    return subprocess.Popen(
        [*launcher, *command],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=made.folder,
        env=env | {"SLURM_CPUS_PER_TASK": "1"},
        start_new_session=True,
    )


_STILL, _MOVES = 0.3, 0.1
_SECOND = {
    "horovod": b"OMPI_COMM_WORLD_RANK=1\0",
    "parameter-server": b'"type": "worker", "index": 1',
}


def _slowed(made):
    """Asynchronous beside synchronous SGD where the second worker stands still 3 s of 4."""
    asked = (
        "--model=googlenet",
        "--image-size=112",
        "--batch-per-rank=8",
        "--steps=160",
        "--warmup-steps=60",
        "--checkpoint-every=0",
        "--lr=0.0001",
    )
    rates = {strategy: [] for strategy in _SECOND}
    for turn in range(3):
        for strategy, mark in _SECOND.items():
            job = f"{strategy}-{turn}"
            process = made.start(f"--strategy={strategy}", *asked, ranks=2, job=job)
            threading.Thread(target=_hold_back, args=(process, job, mark), daemon=True).start()
            rates[strategy].append(_rate(made.end(process, job, 900)))
    medians = {strategy: statistics.median(each) for strategy, each in rates.items()}
    ratio = medians["parameter-server"] / medians["horovod"]
    report(
        "asynchronous over synchronous, one of two workers slowed",
        ratio,
        "x",
        least=1.5,
        yardstick=f"horovod: {medians['horovod']:.1f} images/s",
        note=f"parameter-server: {medians['parameter-server']:.1f} images/s; googlenet, 112 px, "
        "batch 8; the second worker stands still 3 s of 4; by the clock",
    )


def _hold_back(process, job, mark):
    """Let a member of a run, known by its environment, work a quarter of the time."""
    while process.poll() is None:
        for one in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                words = (one / "cmdline").read_bytes()
                said = words + b"\0" + (one / "environ").read_bytes()
                if job.encode() in words and mark in said and b"mpirun" not in words:
                    os.kill(int(one.name), signal.SIGSTOP)
                    time.sleep(_STILL)
                    os.kill(int(one.name), signal.SIGCONT)
        time.sleep(_MOVES)


_PLAIN = """
import keras, numpy
layers = keras.layers
model = keras.Sequential([keras.Input((28, 28, 1)), layers.Flatten(), layers.Dense(128, "relu"),
                          layers.Dense(32, "relu"), layers.Dense(10)])
loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
model.compile(keras.optimizers.SGD(0.1, momentum=0.9), loss, jit_compile=False)
images, labels = numpy.random.rand(64, 28, 28, 1), numpy.zeros(64, int)
model.fit(images, labels, batch_size=64, verbose=0)
"""


def _startup(made):
    """One step of a small network from nothing, the whole process, beside plain Keras."""
    ours = ["-m", "hpcdl.train", "--steps=1", "--fresh", "--job-dir", str(made.folder / "start")]
    spent = {"ours": [], "keras": []}
    for _ in range(_TURNS + 1):
        for name, words in (("ours", ours), ("keras", ["-c", _PLAIN])):
            run = partial(
                subprocess.run,
                [made.python, *words],
                check=True,
                capture_output=True,
                env=environment() | {"PYTHONPATH": str(ROOT)},
            )
            spent[name].append(timed(run, children))
    medians = {name: statistics.median(seconds[1:]) for name, seconds in spent.items()}
    ratio = medians["ours"] / medians["keras"]
    report(
        "start to the first step and end: mlp, beside plain Keras",
        ratio,
        "x",
        most=1,
        yardstick=f"plain Keras: {medians['keras']:.2f} CPU-s",
        note=f"ours: {medians['ours']:.2f} CPU-s, with its checkpoint and result",
    )


def main():
    with runs() as made:
        _startup(made)
        _memory(made)
        _checkpoint(made, _step(made))
        _fit(made)
        _tf_cnn(made)
        _ranks(made)
        _slowed(made)
