"""Signals end a command in order: what it queued elsewhere is known, and can be taken back."""

import os
import signal

import pytest

from hpcdl.system.signals import terminable, undivided


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_they_end_the_work_as_ctrl_c_does(number: signal.Signals) -> None:
    with pytest.raises(KeyboardInterrupt), terminable():
        os.kill(os.getpid(), number)
    assert signal.getsignal(number) is signal.SIG_DFL


def test_what_is_ignored_stays_ignored() -> None:
    """Under nohup the end of a terminal is no reason to stop."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with terminable():
            os.kill(os.getpid(), signal.SIGHUP)
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_step_that_must_be_known_ends_before_they_count() -> None:
    done = []

    def work() -> None:
        with terminable(), undivided():
            os.kill(os.getpid(), signal.SIGTERM)
            done.append("noted")

    with pytest.raises(KeyboardInterrupt):
        work()
    assert done == ["noted"]
