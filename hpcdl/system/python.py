"""Starts modules of Python, and only those that are meant.

`python -m NAME` looks for NAME in the current directory first. That may be /tmp, where anybody
can leave a directory `hpcdl` or `pip`, and the next one to work there would run it.
"""

from __future__ import annotations

from pathlib import Path

_RUN = (
    "import sys; sys.path[:] = filter(None, sys.path); del sys.argv[0]; "
    "from runpy import run_module; run_module(sys.argv[0], run_name='__main__', alter_sys=True)"
)


def module_argv(python: str | Path, name: str) -> list[str | Path]:
    """`python -m name` that never looks into the current directory; arguments follow."""
    return [python, "-c", _RUN, name]
