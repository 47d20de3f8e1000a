"""What every job script does, as functions: sourced from its release, or written into it.

The functions are templates/sbatch/job-1.sh. A stack build puts that file into its release, where it
is sealed and never changes; a script of this release sources it by its absolute path. A release
that lacks it, or has another text, gives scripts with the functions they call in themselves, so
that either form does the same.
"""

from __future__ import annotations

import re
import stat
from functools import cache
from pathlib import Path

from hpcdl.system.resources import folder

FILE = "job-1.sh"
INSTALLED = Path("share", "hpcdl", FILE)
_FUNCTION = re.compile(r"(?:^#.*\n)*^(\w+)\(\) \{\n(?s:.*?)^\}\n", re.M)
_REASON = re.compile(r"\s*#  (.*?)(?:  \[([a-z0-9 -]+)\])?")


def installed(stack: Path) -> Path | None:
    """The functions of a release, where scripts written here mean the same by them."""
    path = stack / INSTALLED
    try:
        mode = path.lstat().st_mode
        closed = stat.S_ISREG(mode) and not mode & (stat.S_IWGRP | stat.S_IWOTH)
        return path if closed and path.read_bytes() == _file().read_bytes() else None
    except OSError:
        return None


def lines(script: str) -> list[tuple[str, str, str]]:
    """The lines written into a script for the functions that it calls.

    Each has the reason that stands before it, and the ids of its rules.
    """
    found = []
    reason = rules = ""
    for line in called(script).splitlines():
        if match := _REASON.fullmatch(line):
            reason, rules = match.group(1), match.group(2) or ""
        else:
            found.append((line, reason, rules))
            reason = rules = ""
    return found


def called(script: str) -> str:
    """What is done at once, behind the functions that a script calls and those that these call."""
    known, rest = _parts()
    wanted: set[str] = set()
    waiting = [script, rest]
    while waiting:
        text = waiting.pop()
        found = {name for name in known if re.search(rf"(?<![\w-]){name}\b", text)} - wanted
        wanted |= found
        waiting += [known[name] for name in found]
    return "\n".join([*(text for name, text in known.items() if name in wanted), rest])


@cache
def _parts() -> tuple[dict[str, str], str]:
    """The functions by name, with the comments above them, and what stands behind all of them."""
    text = _file().read_text(encoding="utf-8")
    found = list(_FUNCTION.finditer(text))
    return {one[1]: one[0] for one in found}, text[found[-1].end() :].lstrip("\n")


def _file() -> Path:
    return folder("templates") / "sbatch" / FILE
