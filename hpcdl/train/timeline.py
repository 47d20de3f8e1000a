"""A timeline of all ranks' steps as a Chrome trace: opens in Perfetto and chrome://tracing.

Made from the samples that every run keeps, so it costs nothing while training. Each rank is a
process of the trace; a row each for waiting for input, compute, communication, update, checkpoint.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hpcdl.system.files import write_atomic

PARTS = ("input", "compute", "communication", "update", "checkpoint", "other")


def events(rank: int, host: str, columns: Mapping[str, Sequence[float]]) -> list[dict[str, Any]]:
    """The trace events of one rank: its parts one after the other in every step, in microseconds.

    Within a step the order is that of the program; what is left over stands at its end.
    """
    found: list[dict[str, Any]] = [
        {"ph": "M", "pid": rank, "name": "process_name", "args": {"name": f"rank {rank} on {host}"}}
    ]
    found += [
        {"ph": "M", "pid": rank, "tid": row, "name": "thread_name", "args": {"name": part}}
        for row, part in enumerate(PARTS)
    ]
    begun = 0.0
    for step, seconds in enumerate(columns["seconds"]):
        at = begun
        for row, part in enumerate(PARTS):
            took = columns[part][step]
            if took > 0:
                found.append(
                    {"ph": "X", "pid": rank, "tid": row, "name": part, "ts": round(at * 1e6, 1),
                     "dur": round(took * 1e6, 1), "args": {"step": step}}
                )  # fmt: skip
            at += took
        begun += seconds
    return found


def write_timeline(path: Path, ranks: Sequence[Mapping[str, Any]]) -> None:
    """Write the trace of all ranks; each is `{"host": ..., "columns": ...}`, by rank."""
    whole = [
        event
        for rank, kept in enumerate(ranks)
        for event in events(rank, kept["host"], kept["columns"])
    ]
    write_atomic(path, json.dumps({"traceEvents": whole, "displayTimeUnit": "ms"}))
