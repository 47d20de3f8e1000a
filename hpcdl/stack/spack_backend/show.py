"""What `hpcdl stack concretize` says, in words and as data."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from typing import Any

from hpcdl.stack.spack_backend.concretize import Solved, Work
from hpcdl.stack.spack_backend.make import Show, Tally
from hpcdl.stack.spack_backend.mirror import Mirror
from hpcdl.system.progress import StatusLine
from hpcdl.system.text import duration, table

_SHOWN = ("tensorflow", "cuda", "cudnn", "nccl", "horovod", "openmpi", "python", "gcc")


def plan_text(work: Work, render_only: bool) -> str:
    """What would be written and solved, or what was written."""
    lines = [f"write {path}" for path in work.changed] or ["every spack.yaml is up to date"]
    if not render_only:
        lines += [f"solve {one.name} with Spack" for one in work.environments]
    return "\n".join(lines)


def solved_text(found: Sequence[Solved]) -> str:
    """A row per environment, then where its versions are not the resolution's."""
    rows = [
        [one.environment.name, *(one.versions.get(name, "-") for name in _SHOWN),
         str(one.packages), duration(one.seconds)]
        for one in found
    ]  # fmt: skip
    lines = [table(rows, ["environment", *_SHOWN, "packages", "took"])]
    for one in found:
        lines += [f"{one.environment.name}: {text}" for text in one.differences]
    return "\n".join(lines)


def solved_data(found: Sequence[Solved]) -> dict[str, Any]:
    """The same for machines."""
    return {
        "schema": 1,
        "environments": [
            {
                "name": one.environment.name,
                "lock": str(one.lock),
                "versions": dict(one.versions),
                "packages": one.packages,
                "seconds": round(one.seconds, 1),
                "differences": list(one.differences),
            }
            for one in found
        ],
    }


def progress(line: StatusLine) -> Show:
    """Shows a build's progress on a status line, a new line for each package that is done."""
    start = time.monotonic()

    def show(tally: Tally) -> None:
        took = f"{duration(time.monotonic() - start):>12}"
        line.show(f"{took}  {tally.text()}", key=None if sys.stderr.isatty() else tally.done)

    return show


def mirror_text(mirror: Mirror) -> str:
    """What a mirror lacks."""
    rows = [[f"{one.package}@{one.version}", one.licence or "unknown", one.url or one.commit or ""]
            for one in mirror.missing]  # fmt: skip
    lines = [table(rows, ["would fetch for", "licence", "from"])] if rows else []
    count = len(mirror.sources)
    lines.append(f"{count - len(rows)} of {count} files are in {mirror.folder} already")
    return "\n".join([*lines, *(f"note: {note}" for note in mirror.notes())])
