"""The program `hpcdl`; `python -m hpcdl` is the same.

A command of a tenth of a second is felt in a prompt and in loops of scripts: a third of that
would be Python's search for garbage among imported modules and its tidying up at the end.
"""

import signal

# While modules are imported Ctrl-C ends us as it ends any program: without a traceback.
if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, signal.SIG_DFL)

import atexit
import gc
import os
import sys
from contextlib import suppress
from typing import NoReturn

gc.set_threshold(100_000)


def run() -> NoReturn:
    """Run the command line and leave with its exit code."""
    from hpcdl.cli import main

    if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:
        signal.signal(signal.SIGINT, signal.default_int_handler)  # main() says "stopped"
    _leave(main())


def _leave(code: int) -> NoReturn:
    """Leave at once where nobody waits to be called at exit, the usual way where somebody does."""
    threads = sys.modules.get("threading")
    alone = threads is None or threads.active_count() == 1
    if alone and atexit._ncallbacks() == 0:
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError):  # main() has told what can be told
                stream.flush()
        os._exit(code)
    sys.exit(code)


if __name__ == "__main__":
    run()
