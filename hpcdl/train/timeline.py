"""A timeline of all ranks' steps as a Chrome trace: opens in Perfetto and chrome://tracing.

The parts of the steps are made from the samples that every run keeps, so they cost nothing while
training. Each rank is a process of the trace; a row each for waiting for input, compute,
communication, update, checkpoint; below them what the threads did during a few steps, by
TensorFlow's own trace. That is in PROFILE/rank-N, where TensorBoard's profile plugin opens it;
the rows of its threads (tf.data's among them) and of its GPU's streams lie beside it for rank 0.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import tensorflow as tf

from hpcdl.system.files import write_atomic
from hpcdl.train.result import COLUMNS

PARTS = COLUMNS[1:]
Event = dict[str, Any]


def events(rank: int, host: str, columns: Mapping[str, Sequence[float]]) -> list[Event]:
    """The trace events of one rank: its parts one after the other in every step, in µs."""
    events = [_name("process_name", f"rank {rank} on {host}", pid=rank)]
    events += [_name("thread_name", part, pid=rank, tid=row) for row, part in enumerate(PARTS)]
    begun = 0.0
    for step, seconds in enumerate(columns["seconds"]):
        at = begun
        for row, part in enumerate(PARTS):
            took = columns[part][step]
            if took > 0:
                events.append(_block(part, at, took, pid=rank, tid=row, args={"step": step}))
            at += took
        begun += seconds
    return events


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
    return {
        "ph": "X",
        "name": name,
        "ts": round(begin * 1e6, 3),
        "dur": round(seconds * 1e6, 3),
        **more,
    }


FIRST_CALL, CALLS = 3, 8
"""The first call of the step that is traced, after those that compile; and how many are."""

_MOST_EVENTS = 20_000
_NOISE = ("Memory", "ThreadpoolListener", "TFE_")


class Tracer:
    """Traces some calls of one rank's step; `first` is the number of the first step traced."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._running = False
        self.first: int | None = None

    def before(self, call: int, step: int) -> None:
        """Start the trace before the call of `fit`'s step with this number, at its time."""
        if call == FIRST_CALL:
            self._start(step)

    def after(self, call: int) -> None:
        """End the trace after the last call that is traced."""
        if call == FIRST_CALL + CALLS - 1:
            self.stop()

    def _start(self, number: int) -> None:
        profiler = tf.profiler.experimental
        levels = profiler.ProfilerOptions(
            host_tracer_level=2, python_tracer_level=0, device_tracer_level=1
        )
        profiler.start(str(self._folder), options=levels)
        self._running, self.first = True, number

    def stop(self) -> None:
        """End the trace, where one runs, and keep its rows."""
        if not self._running:
            return
        self._running = False
        tf.profiler.experimental.stop()
        rows: list[dict[str, Any]] = []
        for path in sorted(self._folder.glob("plugins/profile/*/*.xplane.pb")):
            rows = _read(path)
        write_atomic(rows_file(self._folder), json.dumps(rows))


def rows_file(folder: Path) -> Path:
    """Where a rank keeps the rows of its trace."""
    return folder / "rows.json"


def _read(path: Path) -> list[dict[str, Any]]:
    """The rows of a trace: name, and events of (name, begin, seconds), begin from the start."""
    from tensorflow.tsl.profiler.protobuf import xplane_pb2

    space = xplane_pb2.XSpace.FromString(path.read_bytes())
    rows: list[dict[str, Any]] = [
        {"name": _row_name(plane.name, line.name or line.display_name), "events": found}
        for plane in space.planes
        for line in plane.lines
        if (found := list(_events(plane, line)))
    ]
    begin = min((event[1] for row in rows for event in row["events"]), default=0.0)
    longest = sorted((e[2] for row in rows for e in row["events"]), reverse=True)
    least = longest[_MOST_EVENTS] if len(longest) > _MOST_EVENTS else 0.0
    for row in rows:
        kept = (event for event in row["events"] if event[2] > least)
        row["events"] = [(name, round(at - begin, 9), took) for name, at, took in kept]
    return rows


def _row_name(plane: str, line: str) -> str:
    """`tf_data_private_threadpool` without its number; a GPU's stream with its device."""
    thread = line.partition("/")[0]
    return f"{plane.removeprefix('/device:')} {thread}" if "device:" in plane else thread


def _events(plane: Any, line: Any) -> Iterator[tuple[str, float, float]]:
    for event in line.events:
        name = plane.event_metadata[event.metadata_id].name
        if event.duration_ps > 0 and not name.startswith(_NOISE):
            begin = line.timestamp_ns / 1e9 + event.offset_ps / 1e12
            yield name[:120], begin, round(event.duration_ps / 1e12, 9)
