"""The NVIDIA driver of this node, as the kernel module reports it."""

from __future__ import annotations

import re
from pathlib import Path

_FILE = Path("/proc/driver/nvidia/version")
_VERSION = re.compile(r"Module(?: for \S+)?\s+(\d+(?:\.\d+)+)")


def nvidia_driver(file: Path = _FILE) -> str | None:
    """Its version, such as `550.54.15`; None where there is no driver."""
    try:
        found = _VERSION.search(file.read_text(encoding="utf-8", errors="replace"))
    except OSError:
        return None
    return found[1] if found else None
