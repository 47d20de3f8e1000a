"""The Pythons of this machine: a stack from wheels is built on one of them."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Sequence
from contextlib import suppress
from functools import lru_cache
from pathlib import Path

from hpcdl.system.errors import HpcdlError
from hpcdl.system.run import run

# Every release has hpcdl in it, which needs 3.10.
_PROGRAM = re.compile(r"python3\.(\d\d)")


def pythons() -> tuple[str, ...]:
    """Such as `3.11`: the running one, then the others on PATH, the newest first."""
    found = set()
    for place in filter(None, os.environ.get("PATH", "").split(os.pathsep)):
        with suppress(OSError):
            matches = map(_PROGRAM.fullmatch, os.listdir(place))  # noqa: PTH208 - names are all
            found |= {int(match.group(1)) for match in matches if match}
    own = sys.version_info.minor
    return tuple(f"3.{minor}" for minor in (own, *sorted(found - {own}, reverse=True)))


def that_start(minors: Sequence[str]) -> tuple[str, ...]:
    """Those of `pythons` that start: pyenv has a program for each that it knows, chosen or not."""
    return (*minors[:1], *(one for one in minors[1:] if _starts(one, os.environ.get("PATH", ""))))


@lru_cache(maxsize=64)
def _starts(minor: str, _path: str) -> bool:
    try:
        run([f"python{minor}", "-c", ""], directory=Path("/"), timeout=60)
    except HpcdlError:
        return False
    return True
