"""Signals that end us: in order, and what we queued elsewhere is cancelled.

A command that has put jobs into a queue must not vanish at SIGTERM or SIGHUP and leave them
there. `terminable` makes these end it as Ctrl-C does, where somebody can still clean up;
`undivided` lets a signal wait until a step that must be known to have happened has ended.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

_ENDING = (signal.SIGTERM, signal.SIGHUP)
_HELD = (signal.SIGINT, *_ENDING)


@contextmanager
def terminable() -> Iterator[None]:
    """Let SIGTERM and SIGHUP raise KeyboardInterrupt, as Ctrl-C does.

    A signal that is ignored (nohup) or has a handler already stays as it is; other threads than
    the main one cannot have handlers.
    """

    def stop(_number: int, _frame: object) -> None:
        raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    ours = [number for number in _ENDING if signal.getsignal(number) is signal.SIG_DFL]
    try:
        for number in ours:
            signal.signal(number, stop)
        yield
    finally:
        _set(dict.fromkeys(ours, signal.SIG_DFL))


@contextmanager
def noted() -> Iterator[None]:
    """Let a signal that would end us take effect at the end of the block; for short steps.

    Programs that are started meanwhile are not concerned.
    """
    came: list[int] = []
    handlers: dict[int, Any] = {}
    try:
        if threading.current_thread() is threading.main_thread():
            for number in _HELD:
                if signal.getsignal(number) not in {signal.SIG_IGN, None}:
                    # Known before it changes: a signal may end us in between.
                    handlers[number] = signal.getsignal(number)
                    signal.signal(number, lambda number, _: came.append(number))
        yield
    finally:
        _set(handlers)
        if came:
            signal.raise_signal(came[0])


@contextmanager
def undivided() -> Iterator[None]:
    """As `noted`, and programs that are started meanwhile hold such signals back, too.

    The kernel gives a signal that this thread holds back to any other one; its handler would run
    here all the same, so it is noted: inside `noted`, nothing can end us while the mask changes.
    """
    with noted():
        before = signal.pthread_sigmask(signal.SIG_BLOCK, _HELD)
        try:
            yield
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _set(handlers: Mapping[int, Any]) -> None:
    """Set handlers, all of them: a signal for one that is set already may end us on the way."""
    try:
        for number, handler in handlers.items():
            signal.signal(number, handler)
    except BaseException:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        raise
