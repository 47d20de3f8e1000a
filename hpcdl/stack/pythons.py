"""The Pythons of this machine: a stack from wheels is built on one of them."""

from __future__ import annotations

import os
import re
import sys
from contextlib import suppress

_PROGRAM = re.compile(r"python3\.(\d+)")


def pythons() -> tuple[str, ...]:
    """Such as `3.11`: the running one, then the others on PATH, the newest first."""
    found = set()
    for place in filter(None, os.environ.get("PATH", "").split(os.pathsep)):
        with suppress(OSError):
            matches = map(_PROGRAM.fullmatch, os.listdir(place))  # noqa: PTH208 - names are all
            found |= {int(match.group(1)) for match in matches if match}
    own = sys.version_info.minor
    return tuple(f"3.{minor}" for minor in (own, *sorted(found - {own}, reverse=True)))
