"""Paths of the site file: `~` and the variables that are replaced when it is read."""

from __future__ import annotations

import os
import re
from pathlib import Path

from hpcdl.system.resources import home


def expand(text: str) -> str:
    """A path of the site file with `~` and the variables that are known here replaced."""
    known = {"HPCDL_HOME": lambda: str(home()), "HOME": lambda: str(Path.home()), "USER": _user}
    text = re.sub(
        r"\$\{([A-Z_]+)\}|\$([A-Z_]+)",
        lambda m: known.get(m.group(1) or m.group(2), m.group)(),
        text,
    )
    if not text.startswith("~"):
        return text
    try:
        return str(Path(text).expanduser())
    except (RuntimeError, ValueError):  # no such user, or no home
        return text


def _user() -> str:
    import pwd

    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:  # in a container that does not know the user
        return os.environ.get("USER") or str(os.getuid())
