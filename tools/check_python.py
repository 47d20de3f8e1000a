"""Prints one line if this Python cannot run hpcdl."""

import sys

if sys.version_info < (3, 10):  # noqa: UP036 - this is what tells an older one
    sys.exit(
        f"error: Python {sys.version.split()[0]} is too old: hpcdl needs 3.10 or newer\n"
        "help: make PYTHON=python3.11 demo"
    )
try:
    import ensurepip  # noqa: F401
    import venv  # noqa: F401
except ImportError:
    sys.exit(
        "error: this Python cannot create virtual environments\nhelp: apt-get install python3-venv"
    )
