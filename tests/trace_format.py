"""The Trace Event Format, which Perfetto and chrome://tracing read, as far as we use it."""

from collections import defaultdict

_ROUNDING = 0.01
"""Microseconds by which neighbours may overlap: their times are rounded."""


def faults(document):
    """What is wrong with a trace: wrong fields, or blocks of one row that overlap in part.

    "Trace Event Format": complete events (X) need ts and dur in microseconds, pid and tid; metadata
    events (M) name a process or thread; blocks of a thread must nest.
    """
    found = [] if isinstance(document.get("traceEvents"), list) else ["no traceEvents"]
    rows = defaultdict(list)
    for event in document.get("traceEvents", []):
        wrong = _wrong(event)
        if wrong:
            found.append(f"{wrong}: {event}")
        elif event["ph"] == "X":
            rows[event["pid"], event["tid"]].append(event)
    for row in rows.values():
        found += _partial_overlaps(row)
    return found


def _wrong(event):
    if type(event.get("pid")) is not int or not isinstance(event.get("name"), str):
        return "pid or name"
    if event.get("ph") == "M":
        named = event["name"] in {"process_name", "thread_name"}
        fits = named and isinstance(event["args"].get("name"), str)
        return "" if fits and ("tid" in event) == (event["name"] == "thread_name") else "metadata"
    if event.get("ph") != "X":
        return "phase"
    numbers = all(isinstance(event.get(key), int | float) for key in ("ts", "dur"))
    if not numbers or event["ts"] < 0 or event["dur"] < 0 or type(event.get("tid")) is not int:
        return "times or tid"
    return ""


def _partial_overlaps(row):
    found, open_ends = [], list[float]()
    for event in sorted(row, key=lambda e: (e["ts"], -e["dur"])):
        end = event["ts"] + event["dur"]
        while open_ends and open_ends[-1] <= event["ts"] + _ROUNDING:
            open_ends.pop()
        if open_ends and end > open_ends[-1] + _ROUNDING:
            found.append(f"overlaps in part: {event}")
        open_ends.append(end)
    return found
