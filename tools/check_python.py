"""Prints one line if this Python cannot run hpcdl; with `version`, looks at nothing else."""

import sys

if sys.version_info < (3, 10):  # noqa: UP036 - this is what tells an older one
    sys.exit(
        f"error: Python {sys.version.split()[0]} is too old: hpcdl needs 3.10 or newer\n"
        "help: with a newer one: make PYTHON=/path/to/python3 demo"
    )
if sys.argv[1:] == ["version"]:
    sys.exit()
try:
    import ensurepip  # noqa: F401
    import venv  # noqa: F401
except ImportError:
    sys.exit(
        "error: this Python cannot create virtual environments\nhelp: apt-get install python3-venv"
    )
