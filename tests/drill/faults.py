"""Drills with a Slurm that dies, hangs, lies or is absent; with training; with the whole demo."""

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from functools import partial
from pathlib import Path

from hpcdl.cluster.state import read_state
from hpcdl.system.resources import cache
from tests.drill.clusters import place, running
from tests.drill.harness import HPCDL, ROOT, Done, Drill
from tests.drill.jobs import CHECK, EIO, ERROR, STANDINS, cleared, queue, submit_words

LIES = (
    "exit 0",
    "echo nonsense",
    "head -c 100000 /dev/urandom",
    "printf 'a|b\\n'; exit 0",
    "echo 'JobId=zz JobState=RUNNING'",
    "echo 'Killed' >&2; exit 137",
)


def slurm_words(bench, number):
    choices = [
        submit_words(bench, 3 * number),
        submit_words(bench, 3 * number + 2),
        [*HPCDL, "job", "list"],
        [*HPCDL, "job", "cancel", "1"],
        [*HPCDL, "site", "check"],
        [*HPCDL, "stack", "gc", "--dry-run"],
        [*HPCDL, "cluster", "status"],
        [sys.executable, "-c", CHECK, bench.extra["HPCDL_SITE"], str(STANDINS), "run"],
    ]
    return choices[number % len(choices)]


def _controller(bench):
    return read_state(place(bench)).processes["slurmctld"].pid


def each(breaks, *, gone):
    """The drill that breaks Slurm while, or before, a command runs; then mends it and counts."""
    return partial(_each, breaks, gone)


def _each(breaks, gone, bench):
    running(bench)
    (bench.home / "train.py").write_text("")
    for number in bench.times():
        words = slurm_words(bench, number)
        if gone:
            breaks(bench)
        started = bench.start(words)
        if not gone:
            time.sleep(bench.chance.uniform(0.1, 1.0))
            breaks(bench)
        try:
            out, err = started.communicate(timeout=240)
        except subprocess.TimeoutExpired:
            started.kill()
            out, err = started.communicate()
            bench.tally.wrong.append(f"hung for 240 s: {' '.join(words[-4:])}")
        done = Done(tuple(words), started.returncode, out, err)
        bench.clear(done)
        _mended(bench)
        wanted = {0: 1, 1: 4}.get(number % 8, 0)
        again = bench.run(words) if wanted and not done.ok else done
        jobs = _of_round(bench, number)
        bench.must(jobs <= wanted, f"{jobs} jobs for {wanted}: {done}; again: {again}")
        bench.kept(jobs >= wanted, f"{jobs} jobs of {wanted}: {done}; {again}")
        cleared(bench)


def _of_round(bench, number):
    """The jobs that wait or run, without those of earlier rounds.

    A slurmctld that is killed before it has saved its state has forgotten what was cancelled.
    """
    own = {f"j{3 * number}", f"j{3 * number + 2}"}
    names = [job[1] for job in queue(bench)]
    return sum(name in own or not re.fullmatch(r"j\d+", name) for name in names)


def _mended(bench):
    with suppress(ProcessLookupError):
        os.kill(_controller(bench), signal.SIGCONT)
    bench.must((done := bench.hpcdl("cluster", "up")).ok, f"the cluster is not mended: {done}")


def _kill(bench):
    os.kill(_controller(bench), signal.SIGKILL)


def _hang(bench):
    """The controller stops for a minute."""
    pid = _controller(bench)
    os.kill(pid, signal.SIGSTOP)
    nowhere = subprocess.DEVNULL
    subprocess.Popen(["sh", "-c", f"sleep 60; kill -CONT {pid}"], stdout=nowhere, stderr=nowhere)


def lies(bench):
    """squeue, sinfo, scontrol or sbatch answer what no release does."""
    running(bench)
    (bench.home / "train.py").write_text("")
    folder = bench.home / "lies"
    honest = bench.env["PATH"]
    for number in bench.times():
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        liar = ("squeue", "sinfo", "scontrol")[number % 3]
        (folder / liar).write_text(f"#!/bin/sh\n{bench.chance.choice(LIES)}\n")
        (folder / liar).chmod(0o755)
        words = slurm_words(bench, number)
        done = bench.run(words, env={"PATH": f"{folder}:{honest}"}, seconds=240)
        bench.clear(done)
        if "gc" in words and liar == "squeue":
            bench.must(not done.ok, f"gc believes a lie: {done}")
        wanted = {0: 1, 1: 4}.get(number % 8, 0)
        jobs = len(queue(bench))
        bench.must(jobs <= wanted, f"{jobs} jobs for {wanted}: {done}")
        cleared(bench)


def training_python():
    """A Python with TensorFlow: HPCDL_TEST_PYTHON, or the newest release of the tests."""
    named = os.environ.get("HPCDL_TEST_PYTHON")
    found = cache("tests").glob("prefix/releases/*/stack/bin/python")
    return Path(named) if named else max(found, key=lambda p: p.stat().st_ctime, default=None)


def struck_training(bench):
    """`data make` or a training; what is there is whole, and again it completes."""
    python = training_python()
    if python is None:
        bench.tally.note = "there is no Python with TensorFlow (HPCDL_TEST_PYTHON)"
        return
    data = bench.home / "digits"
    make = [str(python), "-m", "hpcdl", "data", "make", "digits", str(data)]
    job = bench.home / "job"
    options = f"--job-dir {job} --model mlp --data {data} --epochs 4 --checkpoint-every 20"
    train = [str(python), "-m", "hpcdl.train", *options.split()]
    bench.must((done := bench.run(make)).ok, str(done))
    sound = _inspected(bench, python, data)
    for name, turn in bench.turns("make", "train"):
        words, made = (make, data) if name == "make" else (train, job)
        clear = partial(shutil.rmtree, made, ignore_errors=True)
        what = bench.strike(name, turn, words, made, clear, 300)
        again = bench.run(words, seconds=300)
        bench.must(again.ok, f"{what}, then again: {again}")
        if made is job:
            bench.kept((job / "result.json").is_file(), f"no result, {what}")
        else:
            bench.must(_inspected(bench, python, data) == sound, f"other data, {what}")


def _inspected(bench, python, data):
    return bench.run([python, "-m", "hpcdl", "data", "inspect", str(data), "--json"]).out


def demo(bench):
    """A whole demo is ended by a signal; then it runs to its end, and `down` leaves nothing."""
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    bench.extra |= {"HPCDL_SITE": "embedded", "HPCDL_CACHE": str(cache()), "PATH": path}
    words = ["bash", str(ROOT / "tools/demo.sh")]
    seconds = 240.0
    for number in bench.times():
        sent = (signal.SIGHUP, signal.SIGTERM, signal.SIGINT)[number % 3]
        running_demo = bench.start(words, start_new_session=True, preexec_fn=_heeds_signals)
        begun = time.monotonic()
        try:
            _, err = running_demo.communicate(timeout=bench.chance.uniform(1, seconds))
            seconds = time.monotonic() - begun
        except subprocess.TimeoutExpired:
            os.killpg(running_demo.pid, sent)
            _, err = running_demo.communicate(timeout=120)
        # Ctrl-C while Python itself starts is Python's: no file of ours has begun to run.
        ours = "Traceback" in err and f"{ROOT}/hpcdl/" in err
        bench.must(not ours, f"{sent.name}: {err[-2500:]}")
        # A job that was submitted goes on, and is known; those of the gate and of checks end.
        bench.extra["SLURM_CONF"] = str(bench.home / "cluster/embedded/etc/slurm.conf")
        known = bench.run([*HPCDL, "job", "list", "--json"]).out
        left = [job for job in queue(bench) if job[1] != "digits" or str(job[0]) not in known]
        bench.must(not left, f"jobs are left by {sent.name}: {left}")
        del bench.extra["SLURM_CONF"]
        if number == bench.numbers[-1]:
            done = bench.run(words, seconds=900)
            bench.must(done.ok, f"the demo after {sent.name}: {done}")
        down = bench.hpcdl("cluster", "down")
        bench.must(down.ok, f"down after {sent.name}: {down}")


def _heeds_signals():
    """A shell's background job, and what `nohup` starts, ignore them."""
    for one in (signal.SIGINT, signal.SIGHUP):
        signal.signal(one, signal.SIG_DFL)


ONCE, AGAIN = "each job once; a clear message; it works afterwards", "the same"
ALL = "submit, sweep, list, cancel, site check, gc, status, check run"
LIE = "squeue, sinfo or scontrol lie"
SIGNALS, TRAIN, SAME = "SIGHUP, SIGTERM, Ctrl-C", "data make, train", "same data; a result"
DRILLS = (
    Drill(
        "slurm-killed", ALL, "slurmctld killed meanwhile", 40, ONCE, 3600, each(_kill, gone=False)
    ),
    Drill("slurm-absent", AGAIN, "no slurmctld", 16, ONCE, 1800, each(_kill, gone=True)),
    Drill("slurm-slow", AGAIN, "slurmctld hangs for 60 s", 16, ONCE, 3600, each(_hang, gone=True)),
    Drill("slurm-lies", AGAIN, LIE, 48, ONCE, 3600, lies),
    Drill("training-kill", TRAIN, "SIGKILL", 60, SAME, 5400, struck_training),
    Drill("training-error", TRAIN, ERROR, 60, SAME, 5400, struck_training, EIO),
    Drill("demo-signals", "make demo", SIGNALS, 20, "down leaves nothing", 7200, demo),
)
