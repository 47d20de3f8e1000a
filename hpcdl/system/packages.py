"""What this machine has: packages by rows of facts/packages.yaml, Pythons, a driver for GPUs.

A package counts as present when its program or file is, however it was installed; so this
works on systems without apt as well.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any

from hpcdl.system.errors import HpcdlError
from hpcdl.system.frozen import dataclass
from hpcdl.system.run import run

_SBIN = "/usr/local/sbin:/usr/sbin:/sbin"
# Every release has hpcdl in it, which needs 3.10.
_PYTHON = re.compile(r"python3\.(\d\d)")
_DRIVER = Path("/proc/driver/nvidia/version")
_DRIVER_VERSION = re.compile(r"Module(?: for \S+)?\s+(\d+(?:\.\d+)+)")


@dataclass(frozen=True)
class Package:
    """A package of a purpose, and where on this machine it shows itself (None: missing)."""

    name: str
    purpose: str
    found: Path | None
    version_option: str | None

    @property
    def missing(self) -> bool:
        """Whether it is missing on this machine."""
        return self.found is None


def find_program(name: str) -> Path | None:
    """A program on PATH or in a directory of the system's own (not on everyone's PATH)."""
    found = shutil.which(name, path=f"{os.environ.get('PATH', os.defpath)}:{_SBIN}")
    return Path(found) if found else None


def look(rows: Iterable[Mapping[str, Any]], purposes: Iterable[str]) -> tuple[Package, ...]:
    """The packages of some purposes, each looked for on this machine."""
    debian, wanted, packages = Path("/etc/debian_version").exists(), set(purposes), []
    for row in (row for row in rows if row["purpose"] in wanted):
        pattern = row.get("file", "")
        file = min(Path("/").glob(pattern.lstrip("/")), default=None) if pattern else None
        place = find_program(row["program"]) if "program" in row else file
        # What Debian put there may be of a package beside the one that counts.
        if pattern and file is None and debian and place and place.parent == Path("/usr/bin"):
            place = None
        packages.append(Package(row["package"], row["purpose"], place, row.get("version")))
    return tuple(packages)


def apt_line(packages: Iterable[Package]) -> str:
    """The command that installs what is missing; empty where nothing is."""
    names = missing_names(packages)
    sudo = "" if os.geteuid() == 0 else "sudo "
    return f"{sudo}apt-get install --no-install-recommends {' '.join(names)}" if names else ""


def missing_names(packages: Iterable[Package]) -> list[str]:
    """Names of the missing packages, each once, in order."""
    return list(dict.fromkeys(package.name for package in packages if package.missing))


def version_in(text: str) -> str:
    """The first thing in a program's answer that looks like a version, or nothing."""
    found = re.search(r"\d+\.\d+[\w.+~-]*", text)
    return found.group() if found else ""


def pythons() -> tuple[str, ...]:
    """Such as `3.11`: the running one, then the others on PATH, the newest first."""
    return _pythons(os.environ.get("PATH", ""))


@lru_cache(maxsize=8)
def _pythons(path: str) -> tuple[str, ...]:
    minors = set()
    for place in filter(None, path.split(os.pathsep)):
        with suppress(OSError):
            matches = map(_PYTHON.fullmatch, os.listdir(place))  # noqa: PTH208 - names are all
            minors |= {int(match.group(1)) for match in matches if match}
    own = sys.version_info.minor
    return tuple(f"3.{minor}" for minor in (own, *sorted(minors - {own}, reverse=True)))


def that_start(minors: Sequence[str]) -> tuple[str, ...]:
    """Return those of `pythons` that start: pyenv has a program for each version, active or not."""
    return (*minors[:1], *(one for one in minors[1:] if _starts(one, os.environ.get("PATH", ""))))


@lru_cache(maxsize=64)
def _starts(minor: str, _path: str) -> bool:
    try:
        run([f"python{minor}", "-c", ""], directory=Path("/"), timeout=60)
    except HpcdlError:
        return False
    return True


def nvidia_driver(file: Path = _DRIVER) -> str | None:
    """Return the version of the NVIDIA kernel module, `550.54.15`; None without one."""
    try:
        found = _DRIVER_VERSION.search(file.read_text(encoding="utf-8", errors="replace"))
    except OSError:
        return None
    return found[1] if found else None
