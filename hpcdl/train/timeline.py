"""A timeline of all ranks' steps as a Chrome trace: opens in Perfetto and chrome://tracing.

The parts of the steps are made from the samples that every run keeps, so they cost nothing while
training. Each rank is a process of the trace; a row each for waiting for input, compute,
communication, update, checkpoint; below them the threads of the traced steps (tracing.py).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from hpcdl.system.files import write_atomic

PARTS = ("input", "compute", "communication", "update", "checkpoint", "other")
Event = dict[str, Any]


def events(rank: int, host: str, columns: Mapping[str, Sequence[float]]) -> list[Event]:
    """The trace events of one rank: its parts one after the other in every step, in µs."""
    found = [_name("process_name", f"rank {rank} on {host}", pid=rank)]
    found += [
        _name("thread_name", part, pid=rank, tid=row) for row, part in enumerate(PARTS)
    ]  # fmt: skip
    begun = 0.0
    for step, seconds in enumerate(columns["seconds"]):
        at = begun
        for row, part in enumerate(PARTS):
            took = columns[part][step]
            if took > 0:
                found.append(_block(part, at, took, pid=rank, tid=row, args={"step": step}))
            at += took
        begun += seconds
    return found


def thread_events(rank: int, rows: Sequence[Mapping[str, Any]], begin: float) -> Iterator[Event]:
    """The trace events of one rank's traced threads, whose trace begins at `begin` seconds.

    Each row is `{"name": ..., "events": [(name, begin, seconds), ...]}`.
    """
    for tid, row in enumerate(rows, len(PARTS)):
        yield _name("thread_name", row["name"], pid=rank, tid=tid)
        for name, at, took in nested(row["events"]):
            yield _block(name, begin + at, took, pid=rank, tid=tid)


def nested(events: Sequence[tuple[str, float, float]]) -> Iterator[tuple[str, float, float]]:
    """Events (name, begin, seconds) by begin, each clipped to the one around it, for viewers."""
    ends: list[float] = []
    for name, begin, took in sorted(events, key=lambda event: (event[1], -event[2])):
        while ends and ends[-1] <= begin:
            ends.pop()
        end = min(begin + took, ends[-1] if ends else begin + took)
        ends.append(end)
        yield name, begin, end - begin


def write_timeline(path: Path, ranks: Sequence[Mapping[str, Any]]) -> None:
    """Write the trace of all ranks, given by rank.

    Each is `{"host": ..., "columns": ...}`, and where threads were traced `rows` and `traced`, the
    index of the first traced step.
    """
    whole: list[Event] = []
    for rank, kept in enumerate(ranks):
        columns = kept["columns"]
        whole += events(rank, kept["host"], columns)
        first = kept.get("traced")
        if first is not None and first < len(columns["seconds"]):
            begin = sum(columns["seconds"][:first]) + columns["input"][first]
            whole += thread_events(rank, kept["rows"], begin)
    write_atomic(path, json.dumps({"traceEvents": whole, "displayTimeUnit": "ms"}))


def _name(kind: str, name: str, **place: int) -> Event:
    return {"ph": "M", **place, "name": kind, "args": {"name": name}}


def _block(name: str, begin: float, seconds: float, **more: Any) -> Event:
    """A block of time; microseconds with three decimals, so nanoseconds."""
    return {"ph": "X", "name": name, "ts": round(begin * 1e6, 3), "dur": round(seconds * 1e6, 3),
            **more}  # fmt: skip
