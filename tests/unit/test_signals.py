"""Signals end a command in order: what it queued elsewhere is known, and can be taken back."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from hpcdl.system.signals import terminable, undivided
from hpcdl.train import program
from hpcdl.train.stop_signals import StopSignals
from tests.waiting import wait_for


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_they_end_the_work_as_ctrl_c_does(number):
    with pytest.raises(KeyboardInterrupt), terminable():
        os.kill(os.getpid(), number)
    assert signal.getsignal(number) is signal.SIG_DFL


def test_ctrl_c_ends_a_training_quietly(monkeypatch, capsys):
    def stopped(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(program, "prepare", stopped)
    assert program.train(["--model=mlp"], StopSignals()) == 5
    assert capsys.readouterr().err == "stopped\n"


def test_what_is_ignored_stays_ignored():
    """Under nohup the end of a terminal is no reason to stop."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with terminable():
            os.kill(os.getpid(), signal.SIGHUP)
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


@pytest.mark.parametrize("others", [0, 1])
def test_a_step_that_must_be_known_ends_before_they_count(others):
    """Also where another thread takes the signal: its handler runs in this one at once."""
    done, end = [], threading.Event()
    threads = [threading.Thread(target=end.wait) for _ in range(others)]

    def work():
        with terminable(), undivided():
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(0.05)
            done.append("noted")

    for thread in threads:
        thread.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            work()
    finally:
        end.set()
        for thread in threads:
            thread.join()
    assert done == ["noted"]
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


# At most one signal in each turn ends the step, wherever in it that may be.
BOMBARDED = """
import os, signal, sys, threading, time
from hpcdl.system.signals import undivided
sys.setswitchinterval(0.00002)  # else each signal waits for its thread's turn
armed, count = False, 0

def heed(number, frame):
    global armed
    if armed:
        armed = False
        raise KeyboardInterrupt

def send():
    while count < 200:
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.0002)

signal.signal(signal.SIGINT, heed)
threading.Thread(target=send).start()
while count < 200:
    try:
        try:
            armed = True
            with undivided():
                pass
        finally:
            armed = False
    except KeyboardInterrupt:
        count += 1
    assert signal.getsignal(signal.SIGINT) is heed
    assert not signal.pthread_sigmask(signal.SIG_BLOCK, ())
"""


def test_a_signal_at_the_begin_or_the_end_of_a_step_leaves_nothing_held_back():
    subprocess.run([sys.executable, "-c", BOMBARDED], timeout=60, check=True)


PROGRAM = """
import sys
from hpcdl.system.run import run
from hpcdl.system.signals import terminable
with terminable():
    try:
        run(["bash", "-c", "sleep 600 & echo $! > $0.part; mv $0.part $0; wait", sys.argv[1]])
    except KeyboardInterrupt:
        sys.exit(5)
"""


# The signal comes when the program runs already, and Popen has not returned yet.
EARLY = """
import os, subprocess, signal, sys, time
class Early(subprocess.Popen):
    def __init__(self, *args, **options):
        super().__init__(*args, **options)
        while not os.path.exists(sys.argv[1]):
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(0.05)
subprocess.Popen = Early
"""


@pytest.mark.parametrize("program", [EARLY + PROGRAM, PROGRAM], ids=["just started", "running"])
def test_what_a_stopped_command_runs_ends_with_it(tmp_path, program):
    """All of it: a build must not go on compiling for hours."""
    started = tmp_path / "pid"
    process = subprocess.Popen([sys.executable, "-c", program, str(started)])
    if program == PROGRAM:
        wait_for(lambda: started.exists() or process.poll() is not None)
        process.terminate()
    assert process.wait(timeout=60) == 5
    wait_until_ended(int(started.read_text()))


def wait_until_ended(pid):
    wait_for(lambda: not runs(pid), 60)


def runs(pid):
    try:
        return "(sleep) Z" not in Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False


def test_ctrl_c_while_modules_are_imported_prints_nothing():
    program = "import signal, hpcdl.__main__; signal.raise_signal(signal.SIGINT)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (-signal.SIGINT, b"")
